// Vectors of float32 in the width of the CPU that this is compiled for, by the vector extension of GCC and Clang.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef float UnalignedVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline Vec load(const float *p) { return *(const UnalignedVec *)p; }
static inline void store(float *p, Vec x) { *(UnalignedVec *)p = x; }
static inline Vec all(float x) { return x - Vec{}; }
static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// The vector with lane l replaced by lane l ^ by, for sums and maxima over the lanes in log2(LANES) steps.
template <int by, int... lane> static inline Vec swapped_lanes(Vec x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, x, (lane ^ by)...);
#else
    return __builtin_shuffle(x, IntVec{(lane ^ by)...});
#endif
}
template <int by> static inline Vec swapped(Vec x) {
    return swapped_lanes<by>(x, std::make_integer_sequence<int, LANES>{});
}

static inline float largest_lane(Vec x) {
    if constexpr (LANES >= 16) x = larger(x, swapped<8>(x));
    if constexpr (LANES >= 8) x = larger(x, swapped<4>(x));
    x = larger(x, swapped<2>(x));
    return larger(x, swapped<1>(x))[0];
}

static inline float sum_of_lanes(Vec x) {
    if constexpr (LANES >= 16) x += swapped<8>(x);
    if constexpr (LANES >= 8) x += swapped<4>(x);
    x += swapped<2>(x);
    return (x + swapped<1>(x))[0];
}

// Scores so far below the largest of their row have the weight 0: float32 has no normal numbers below e^-87.
constexpr float NO_WEIGHT = 87;

// e^x to within 2 units in the last place for x <= 88, and 0 below -NO_WEIGHT.
// NaN stays NaN. With n = round(x / ln 2), e^x = 2^n e^r, |r| <= ln(2) / 2, and e^r by the polynomial of Cephes' expf.
static inline Vec exponential(Vec x) {
    const Vec round_to_whole = all(12582912.0f);  // 1.5 * 2^23: no fraction is left in a float this large
    const Vec n = (x * 1.44269504088896341f + round_to_whole) - round_to_whole;
    const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first of few bits
    Vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
    return x < all(-NO_WEIGHT) ? Vec{} : p * (Vec)power;
}

static inline Vec sigmoid(Vec x) {
    const Vec lowest = all(-NO_WEIGHT);  // where e^-x would leave float32
    return 1.0f / (1.0f + exponential(-(x < lowest ? lowest : x)));
}

// Numbers too small to be normal count as 0 while this lives, in the thread that made it: x86 needs a hundred times as
// long for a product with them, and the weights of far tokens are full of them.
struct WithoutSubnormals {
#if defined(__SSE__)
    unsigned int before;
    WithoutSubnormals() : before(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before | 0x8040); }
    ~WithoutSubnormals() { __builtin_ia32_ldmxcsr(before); }
#else
    WithoutSubnormals() {}
#endif
};

// A new T, or null if there is not enough memory. No exception may leave a thread that others wait for.
template <class T, class... Arguments>
static inline std::unique_ptr<T> made_or_null(std::atomic<bool> &enough, Arguments &&...arguments) {
    try {
        return std::make_unique<T>(std::forward<Arguments>(arguments)...);
    } catch (const std::bad_alloc &) {
        enough = false;
        return nullptr;
    }
}

static inline bool has_nan(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != x[i]) return true;
    return false;
}

static inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// Uninitialised floats, aligned to a cache line. Throws std::bad_alloc.
struct Buffer {
    float *p;
    explicit Buffer(int64_t n) : p((float *)std::aligned_alloc(64, round_up(n * 4 + 64, 64))) {
        if (!p) throw std::bad_alloc();
    }
    ~Buffer() { std::free(p); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    void clear(int64_t n) { std::memset(p, 0, n * 4); }
};
