// The parts of a layer that work on each token alone, forward and backward, each in one pass over memory.
#include <algorithm>

#include "simd.h"

// Tokens are dealt out in blocks of this size. Sums over tokens are made block by block, so that they are the same on
// any number of threads.
constexpr int64_t TOKENS = 64;

namespace {

int64_t blocks_of(int64_t tokens) { return (tokens + TOKENS - 1) / TOKENS; }

float sum_of_squares(const float *x, int64_t width) {
    Vec sum = Vec{};
    int64_t d = 0;
    for (; d + LANES <= width; d += LANES) sum += load(x + d) * load(x + d);
    float total = sum_of_lanes(sum);
    for (; d < width; d++) total += x[d] * x[d];
    return total;
}

}  // namespace

// y = x / sqrt(mean(x^2) + epsilon) * weight for each of n tokens; the reciprocal of the root is kept for the backward.
extern "C" void norm_forward(const float *x, const float *weight, float *y, float *reciprocal, int64_t n, int64_t width,
                             float epsilon, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < n; i++) {
        const float *from = x + i * width;
        float *to = y + i * width;
        const float r = 1 / std::sqrt(sum_of_squares(from, width) / width + epsilon);
        reciprocal[i] = r;
        int64_t d = 0;
        for (; d + LANES <= width; d += LANES) store(to + d, load(from + d) * r * load(weight + d));
        for (; d < width; d++) to[d] = from[d] * r * weight[d];
    }
}

// With h = grad * weight: dL/dx = r h - x r^3 mean(h x). `grad_weight` has a row for each block of tokens.
extern "C" void norm_backward(const float *grad, const float *x, const float *weight, const float *reciprocal,
                              float *grad_x, float *grad_weight, int64_t n, int64_t width, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t block = 0; block < blocks_of(n); block++) {
        float *sums = grad_weight + block * width;
        std::memset(sums, 0, width * 4);
        for (int64_t i = block * TOKENS; i < std::min(n, (block + 1) * TOKENS); i++) {
            const float *g = grad + i * width, *from = x + i * width;
            float *to = grad_x + i * width;
            const float r = reciprocal[i];
            Vec sum = Vec{};
            int64_t d = 0;
            for (; d + LANES <= width; d += LANES) {
                const Vec of_weight = load(g + d) * load(from + d);
                sum += of_weight * load(weight + d);
                store(sums + d, load(sums + d) + of_weight * r);
            }
            float total = sum_of_lanes(sum);
            for (; d < width; d++) {
                total += g[d] * from[d] * weight[d];
                sums[d] += g[d] * from[d] * r;
            }
            const float back = total / width * r * r * r;
            for (d = 0; d + LANES <= width; d += LANES)
                store(to + d, load(g + d) * load(weight + d) * r - load(from + d) * back);
            for (; d < width; d++) to[d] = g[d] * weight[d] * r - from[d] * back;
        }
    }
}

// y = silu(gate) up with silu(x) = x sigmoid(x), for n numbers.
extern "C" void swiglu_forward(const float *gate, const float *up, float *y, int64_t n, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < n / LANES; i++) {
        const Vec x = load(gate + i * LANES);
        store(y + i * LANES, x * sigmoid(x) * load(up + i * LANES));
    }
    for (int64_t i = n / LANES * LANES; i < n; i++) y[i] = gate[i] * sigmoid(all(gate[i]))[0] * up[i];
}

extern "C" void swiglu_backward(const float *grad, const float *gate, const float *up, float *grad_gate, float *grad_up,
                                int64_t n, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < n / LANES; i++) {
        const Vec x = load(gate + i * LANES), s = sigmoid(x), g = load(grad + i * LANES);
        store(grad_up + i * LANES, g * x * s);
        store(grad_gate + i * LANES, g * load(up + i * LANES) * (s + x * s * (1.0f - s)));
    }
    for (int64_t i = n / LANES * LANES; i < n; i++) {
        const float x = gate[i], s = sigmoid(all(x))[0];
        grad_up[i] = grad[i] * x * s;
        grad_gate[i] = grad[i] * up[i] * (s + x * s * (1 - s));
    }
}
