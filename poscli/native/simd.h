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
#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

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

// The lanes from `from` to `to` - 1, and a vector with 0 in all others.
template <int... lane> static inline IntVec numbered(std::integer_sequence<int, lane...>) { return IntVec{lane...}; }
static inline IntVec lanes_between(int64_t from, int64_t to) {
    const IntVec lane = numbered(std::make_integer_sequence<int, LANES>{});
    return (lane >= (int32_t)from) & (lane < (int32_t)to);
}
static inline Vec only(IntVec among, Vec x) { return (Vec)((IntVec)x & among); }

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

// Where bit `by` of a lane is 0, its number of `a`, and otherwise that of `b` from the lane `by` before.
template <int by, int... lane> static inline Vec first_of_pairs(Vec a, Vec b, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (lane & by ? LANES + (lane ^ by) : lane)...);
#else
    return __builtin_shuffle(a, b, IntVec{(lane & by ? LANES + (lane ^ by) : lane)...});
#endif
}
// Where bit `by` of a lane is 1, its number of `b`, and otherwise that of `a` from the lane `by` behind.
template <int by, int... lane> static inline Vec second_of_pairs(Vec a, Vec b, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (lane & by ? LANES + lane : lane ^ by)...);
#else
    return __builtin_shuffle(a, b, IntVec{(lane & by ? LANES + lane : lane ^ by)...});
#endif
}

// Lane l: the largest lane of x[l], for LANES vectors x, which are lost.
template <int by = 1> static inline Vec largest_lanes(Vec *x) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>{};
    for (int n = 0; n < LANES / by; n += 2)
        x[n / 2] = larger(first_of_pairs<by>(x[n], x[n + 1], lanes), second_of_pairs<by>(x[n], x[n + 1], lanes));
    if constexpr (2 * by == LANES) return x[0];
    else return largest_lanes<2 * by>(x);
}

// Lane l of x[m] becomes lane m of x[l], for LANES vectors x.
template <int by = 1> static inline void transpose(Vec *x) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>{};
    for (int n = 0; n < LANES; n++) {
        if (n & by) continue;
        const Vec a = x[n], b = x[n + by];
        x[n] = first_of_pairs<by>(a, b, lanes);
        x[n + by] = second_of_pairs<by>(a, b, lanes);
    }
    if constexpr (2 * by < LANES) transpose<2 * by>(x);
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

// e^x for x <= 88, and 0 below -NO_WEIGHT or little less; NaN stays NaN. Its relative error is less than
// 2^-23 (1 + |x| / 4). With x / ln 2 = n + f, n whole, e^x = 2^n 2^f, and 2^f by the polynomial of the sixth degree with
// the least relative error among those that are 1 at 0.
static inline Vec exponential(Vec x) {
    constexpr float to_base_2 = 1.44269504088896341f;
#if defined(__AVX512DQ__)
    const Vec y = x * to_base_2, f = (Vec)_mm512_reduce_ps((__m512)y, 0x09);  // 0 <= f < 1
    Vec p = all(2.161291486e-4f);
    p = p * f + 1.246784697e-3f;
    p = p * f + 9.675451554e-3f;
    p = p * f + 5.548528209e-2f;
    p = p * f + 2.402293086e-1f;
    p = p * f + 6.931470633e-1f;
    return (Vec)_mm512_scalef_ps((__m512)(p * f + 1.0f), (__m512)y);
#else
    // 1.5 * 2^23 + 127: no fraction is left in a float this large, and its last bits hold n + 127, the exponent of 2^n.
    const Vec round_to_whole = all(12583039.0f);
    const Vec y = x * to_base_2 + round_to_whole, f = x * to_base_2 - (y - round_to_whole);  // |f| <= 1 / 2
    Vec p = all(1.535336196e-4f);
    p = p * f + 1.339887385e-3f;
    p = p * f + 9.618436918e-3f;
    p = p * f + 5.550332367e-2f;
    p = p * f + 2.402264774e-1f;
    p = p * f + 6.931471825e-1f;
    p = p * f + 1.0f;
    return x < all(-NO_WEIGHT) ? Vec{} : p * (Vec)((IntVec)y << 23);
#endif
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
