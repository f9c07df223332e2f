// Products of small tiles that stay in the first-level cache, and copies of tensors in the order that they need.
#pragma once
#include <algorithm>

#include "simd.h"

constexpr int QUERIES = 32;  // queries of a tile
// Sums that fit the registers, of which there are 32 with AVX-512 and 16 otherwise, with some to spare.
constexpr int DOT_VECTORS = LANES == 16 ? 4 : 2;   // vectors of four rows
constexpr int NARROW_ROWS = LANES == 16 ? 16 : 8;  // rows of one vector
constexpr int WIDE_ROWS = LANES == 16 ? 8 : 4;     // rows of two vectors
// The columns of a tile come in this multiple: they are lanes of vectors, and in the backward pass rows of sums.
constexpr int COLUMNS = LANES > 8 ? LANES : 8;

// Before a loop over registers: without it, GCC keeps them in memory as well.
#define UNROLLED _Pragma("GCC unroll 16")

// Rows of `width` numbers -> `count` rows of `ld` numbers, the rest filled with zeros; all numbers times `scale`.
static inline void pack_rows(float *to, const float *x, int64_t rows, int64_t width, int64_t stride, int64_t count,
                             int64_t ld, float scale = 1) {
    for (int64_t i = 0; i < count; i++) {
        float *row = to + i * ld;
        const int64_t filled = i < rows ? width : 0;
        for (int64_t d = 0; d < filled; d++) row[d] = x[i * stride + d] * scale;
        for (int64_t d = filled; d < ld; d++) row[d] = 0;
    }
}

// Rows of `width` numbers -> `width` rows of `ld` numbers, the transpose, the rest filled with zeros.
static inline void pack_columns(float *to, const float *x, int64_t rows, int64_t width, int64_t stride, int64_t ld) {
    for (int64_t first = 0; first < ld; first += LANES) {
        int64_t d = 0;
        for (; first + LANES <= rows && d + LANES <= width; d += LANES) {
            Vec block[LANES];
            for (int n = 0; n < LANES; n++) block[n] = load(x + (first + n) * stride + d);
            transpose(block);
            for (int n = 0; n < LANES; n++) store(to + (d + n) * ld + first, block[n]);
        }
        for (; d < width; d++)
            for (int64_t j = first; j < std::min(first + LANES, ld); j++)
                to[d * ld + j] = j < rows ? x[j * stride + d] : 0;
    }
}

// Asks for rows that are needed soon. The rows of a head lie so far apart in memory that the CPU does not foresee them.
static inline void prefetch_rows(const float *x, int64_t rows, int64_t width, int64_t stride) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < width; d += 16) __builtin_prefetch(x + i * stride + d);
}

static inline float dot(const float *x, const float *y, int64_t n) {
    Vec sums = Vec{};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sums += load(x + i) * load(y + i);
    float sum = sum_of_lanes(sums);
    for (; i < n; i++) sum += x[i] * y[i];
    return sum;
}

// tile[r, :] += row for QUERIES rows of `columns` numbers, a multiple of LANES.
static inline void add_row(float *tile, int64_t ld, const float *row, int64_t columns) {
    for (int r = 0; r < QUERIES; r++)
        for (int64_t c = 0; c < columns; c += LANES)
            store(tile + r * ld + c, load(tile + r * ld + c) + load(row + c));
}

template <int ROWS, int VECTORS>
static inline void dot_registers(float *out, int64_t ld, const float *a, int64_t lda, const float *b, int64_t ldb,
                                 int64_t width, const float *more, int64_t next) {
    Vec sum[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) sum[r][c] = Vec{};
    for (int64_t d = 0; d < width; d++) {
        Vec y[VECTORS];
        UNROLLED for (int c = 0; c < VECTORS; c++) y[c] = load(b + d * ldb + c * LANES);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vec x = all(a[r * lda + d]);
            UNROLLED for (int c = 0; c < VECTORS; c++) sum[r][c] += x * y[c];
        }
    }
    if (more)  // last, as a large number costs the sum digits
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int c = 0; c < VECTORS; c++) sum[r][c] += load(more + r * next + c * LANES);
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) store(out + r * ld + c * LANES, sum[r][c]);
}

// out[r, c] = sum over d of a[r, d] b[d, c], for QUERIES rows and `columns` columns, a multiple of LANES; plus
// more[r * next + c], unless `more` is null.
static inline void dot_tile(float *out, int64_t ld, const float *a, int64_t lda, const float *b, int64_t ldb,
                            int64_t width, int64_t columns, const float *more = nullptr, int64_t next = 0) {
    int64_t c = 0;
    for (; c + DOT_VECTORS * LANES <= columns; c += DOT_VECTORS * LANES)
        for (int r = 0; r < QUERIES; r += 4)
            dot_registers<4, DOT_VECTORS>(out + r * ld + c, ld, a + r * lda, lda, b + c, ldb, width,
                                          more ? more + r * next + c : nullptr, next);
    for (; c < columns; c += LANES)
        for (int r = 0; r < QUERIES; r += NARROW_ROWS)
            dot_registers<NARROW_ROWS, 1>(out + r * ld + c, ld, a + r * lda, lda, b + c, ldb, width,
                                          more ? more + r * next + c : nullptr, next);
}

template <int ROWS, int VECTORS>
static inline void add_registers(float *to, int64_t ld, const float *w, int64_t row, int64_t next, const float *x,
                                 int64_t ldx, int64_t count) {
    Vec sum[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) sum[r][c] = load(to + r * ld + c * LANES);
    for (int64_t n = 0; n < count; n++) {
        Vec y[VECTORS];
        UNROLLED for (int c = 0; c < VECTORS; c++) y[c] = load(x + n * ldx + c * LANES);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vec weight = all(w[r * row + n * next]);
            UNROLLED for (int c = 0; c < VECTORS; c++) sum[r][c] += weight * y[c];
        }
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) store(to + r * ld + c * LANES, sum[r][c]);
}

// to[r, :] += sum over n < count of w[r, n] x[n, :], where w[r, n] is at r * row + n * next. `rows` is a multiple of 8,
// `width` one of LANES.
static inline void add_tile(float *to, int64_t ld, int64_t rows, const float *w, int64_t row, int64_t next,
                            const float *x, int64_t ldx, int64_t count, int64_t width) {
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES)
        for (int64_t r = 0; r < rows; r += WIDE_ROWS)
            add_registers<WIDE_ROWS, 2>(to + r * ld + c, ld, w + r * row, row, next, x + c, ldx, count);
    for (; c < width; c += LANES) {
        int64_t r = 0;
        for (; r + NARROW_ROWS <= rows; r += NARROW_ROWS)
            add_registers<NARROW_ROWS, 1>(to + r * ld + c, ld, w + r * row, row, next, x + c, ldx, count);
        for (; r < rows; r += 8) add_registers<8, 1>(to + r * ld + c, ld, w + r * row, row, next, x + c, ldx, count);
    }
}
