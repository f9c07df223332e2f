// What else some encodings do to the scores of a tile [QUERIES, ld]. Tiles come from the nearest keys to the farthest, so
// that sums over all keys between a key and its query can be carried from tile to tile.
#pragma once
#if defined(__clang__) && defined(__AVX2__)
#include <immintrin.h>
#endif

#include "attention.h"

// The lines of a function of u that some pairs of a row lie on: `first` for the least u, `last` for the largest.
struct Lines {
    int64_t first, last;
};
static inline int64_t line_at(const Pieces &f, float u) {
    Vec bends = Vec{};  // below u
    for (int64_t m = 0; m < f.lines - 1; m += LANES) bends += load(f.bends + m) < u ? all(1) : Vec{};
    return (int64_t)sum_of_lanes(bends);
}
static inline Lines lines_of(const Pieces &f, const float *of_distance, float y, int64_t seen) {
    const float one = of_distance[0] * y, other = of_distance[seen - 1] * y;
    return {line_at(f, std::min(one, other)), line_at(f, std::max(one, other))};
}
static inline const float *distances_of_row(const Attention &x, int64_t head, int64_t query, int64_t key) {
    return x.pieces.of_distance + head * x.pieces.next + x.queries - 1 - query + key;
}

// s[r, c] += constant + slope u on the line of u = of_distance[i - j] of_query_i. Most rows of a tile lie on one line.
static inline void add_pieces(const Attention &x, float *tile, int64_t ld, int64_t head, int64_t start, int64_t rows,
                              int64_t key, int64_t columns) {
    const Pieces &f = x.pieces;
    const float *constant = f.constant + head * f.lines, *slope = f.slope + head * f.lines;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t seen = seen_by(x, start + r, key, columns);
        if (!seen) continue;
        const float *from = distances_of_row(x, head, start + r, key), y = f.of_query[head * x.queries + start + r];
        const auto [first, last] = lines_of(f, from, y, seen);
        for (int64_t c = 0; c < columns; c += LANES) {
            const Vec u = load(from + c) * y;
            Vec more = constant[first] + slope[first] * u;
            for (int64_t m = first; m < last; m++) more = u > f.bends[m] ? constant[m + 1] + slope[m + 1] * u : more;
            store(tile + r * ld + c, load(tile + r * ld + c) + more);
        }
    }
}

// Entry l becomes the entry l + by, or l - by; 0 where there is none.
constexpr auto ALL_LANES = std::make_integer_sequence<int, LANES>{};
template <int by, int... lane> static inline Vec later_lanes(Vec x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, Vec{}, (lane + by)...);
#else
    return __builtin_shuffle(x, Vec{}, IntVec{(lane + by)...});
#endif
}
template <int by, int... lane> static inline Vec earlier_lanes(Vec x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(Vec{}, x, (LANES + lane - by)...);
#else
    return __builtin_shuffle(Vec{}, x, IntVec{(LANES + lane - by)...});
#endif
}

// Entry l becomes the sum of the entries from l on.
static inline Vec sums_from_each(Vec x) {
    x += later_lanes<1>(x, ALL_LANES);
    x += later_lanes<2>(x, ALL_LANES);
    if constexpr (LANES >= 8) x += later_lanes<4>(x, ALL_LANES);
    if constexpr (LANES >= 16) x += later_lanes<8>(x, ALL_LANES);
    return x;
}

// Entry l becomes the sum of the entries up to l.
static inline Vec sums_up_to_each(Vec x) {
    x += earlier_lanes<1>(x, ALL_LANES);
    x += earlier_lanes<2>(x, ALL_LANES);
    if constexpr (LANES >= 8) x += earlier_lanes<4>(x, ALL_LANES);
    if constexpr (LANES >= 16) x += earlier_lanes<8>(x, ALL_LANES);
    return x;
}

// log(1 + e^x) to within a few units in the last place, and its derivative, the sigmoid: log(1 + z) = 2 artanh(z / (2 + z)),
// by its series in t^2 <= 1/9.
struct Softplus {
    Vec value, slope;
};
static inline Softplus softplus(Vec x) {
    const Vec far = x < Vec{} ? x : -x, z = exponential(far), t = z / (z + 2.0f), w = t * t;
    Vec p = all(2.0f / 15);
    p = p * w + 2.0f / 13;
    p = p * w + 2.0f / 11;
    p = p * w + 2.0f / 9;
    p = p * w + 2.0f / 7;
    p = p * w + 2.0f / 5;
    p = p * w + 2.0f / 3;
    p = p * w + 2.0f;
    return {t * p + larger(x, Vec{}), (x < Vec{} ? z : all(1)) / (z + 1.0f)};
}

// The backward pass asks the following functions to keep numbers of each key: the slope of what is summed over keys, and
// the sum itself. Null: they are not kept.

// COSTS: s[c] -= factor sum over the keys l after c of softplus(y[l]), for the `seen` keys that the query sees.
static inline void subtract_costs(float *row, float *y, int64_t seen, int64_t columns, float factor, double &later,
                                  float *slopes = nullptr, float *sums = nullptr) {
    for (int64_t c = seen; c < columns; c++) y[c] = -INFINITY;
    for (int64_t c = columns - LANES; c >= 0; c -= LANES) {
        const Softplus cost = softplus(load(y + c));
        const Vec own = sums_from_each(cost.value), sum = own + (float)later - cost.value;
        store(row + c, load(row + c) - factor * sum);
        if (slopes) store(slopes + c, cost.slope);
        if (sums) store(sums + c, sum);
        later += own[0];
    }
}

// Entry l of the result is x[at[l]], for `at` modulo LANES.
static inline Vec picked(Vec x, IntVec at) {
#if !defined(__clang__)
    return __builtin_shuffle(x, at);
#elif defined(__AVX512F__)
    return (Vec)_mm512_permutexvar_ps((__m512i)at, (__m512)x);
#elif defined(__AVX2__)
    return (Vec)_mm256_permutevar8x32_ps((__m256)x, (__m256i)at);
#else
    Vec found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = x[at[lane] & (LANES - 1)];
    return found;
#endif
}

// A table at the positions of consecutive keys, each of which is at most 1 above the next: between the entries `low` at
// first + at and `high` at the next one.
struct Between {
    Vec share, low, high;  // share: how far from the entry below
    int32_t first;
    IntVec at;  // falls from lane to lane, from at most LANES - 1 to 0
};
// The last entry of a table is followed by LANES entries of the same number.
static inline Between table_at(const float *table, Vec p) {
    const IntVec whole = __builtin_convertvector(p == p ? p : Vec{}, IntVec), most = IntVec{} + (LANES - 1);
    Between found;
    found.first = whole[LANES - 1];
    found.at = whole - found.first;
    found.at = found.at > most ? most : found.at;  // of rounding, and then the share is 1
    found.share = p - __builtin_convertvector(found.at + found.first, Vec);
    found.low = picked(load(table + found.first), found.at);
    found.high = picked(load(table + found.first + 1), found.at);
    return found;
}

// GATES: s[c] += table at the position p = sum over the keys l from c on of sigmoid(s[l]), interpolated between whole
// positions; the last entry of the table serves all positions from it on, of which no slopes are kept. The rows of a tile
// take turns, so that none waits for its own sums.
static inline void add_at_gates(float *tile, int64_t ld, int64_t rows, int64_t columns, const float *tables, int64_t next,
                                int64_t count, double *later, float *slopes = nullptr, float *positions = nullptr) {
    const Vec last = all(count - 1);
    for (int64_t c = columns - LANES; c >= 0; c -= LANES)
        for (int64_t r = 0; r < rows; r++) {
            const float *table = tables + r * next;
            const int64_t at = r * ld + c;
            const Vec s = load(tile + at);
            if (later[r] >= count - 1) {
                store(tile + at, s + table[count - 1]);
                if (positions) store(positions + at, last);
                continue;
            }
            const Vec gate = sigmoid(s), own = sums_from_each(gate), sum = own + (float)later[r];
            const Vec p = sum > last ? last : sum;
            const Between found = table_at(table, p);
            store(tile + at, s + found.low + found.share * (found.high - found.low));
            if (slopes) store(slopes + at, gate * (1.0f - gate));
            if (positions) store(positions + at, p);
            later[r] += own[0];
        }
}

// STICK: s[c] -> the logarithm of sigmoid(s[c]) times the product of 1 - sigmoid(s[l]) over the keys l after c.
static inline void break_stick(float *row, int64_t columns, double &later, float *slopes = nullptr) {
    for (int64_t c = columns - LANES; c >= 0; c -= LANES) {
        const Vec s = load(row + c);
        const Softplus rest = softplus(s);
        const Vec own = sums_from_each(rest.value), sum = own + (float)later;
        store(row + c, s - sum);
        if (slopes) store(slopes + c, rest.slope);
        later += own[0];
    }
}

// The numbers of a block of queries that meet `passed`, [QUERIES, ld] with ld >= packed_passing; the rest of a row is 0. In
// GATES they are tables, whose last entry LANES more follow.
static inline int64_t packed_passing(const Attention &x) { return x.passed.width + (x.passed.kind == GATES ? LANES : 0); }
static inline void pack_passing(const Attention &x, float *to, int64_t ld, int64_t batch, int64_t head, int64_t start,
                                int64_t rows) {
    const Passed &by = x.passed;
    const Strides &at = by.of_queries_at;
    if (!by.of_queries) return;
    pack_rows(to, by.of_queries + batch * at.batch + head * at.head + start * at.token, rows, by.width, at.token, QUERIES, ld);
    if (by.kind == GATES)
        for (float *row = to; row < to + QUERIES * ld; row += ld) std::fill_n(row + by.width, LANES, row[by.width - 1]);
}

// Hides the keys of the queries' own tokens, where the call asks for it.
static inline void hide_own(const Attention &x, float *tile, int64_t ld, int64_t start, int64_t rows, int64_t key,
                            int64_t columns) {
    for (int64_t r = 0; x.passed.without_own && r < rows; r++) {
        const int64_t own = start + r + x.past - key;
        if (own >= 0 && own < columns) tile[r * ld + own] = -INFINITY;
    }
}

// COSTS and STICK: the largest score that a key farther than those of the sums `later` can have, for queries and keys of
// these lengths; 0.999 is for the rounding of the lengths. Beside other terms, and in GATES, it is not known.
static inline bool ends(const Attention &x) {
    return x.passed.kind == STICK || (x.passed.kind == COSTS && !(x.terms || x.a.vectors || x.b.vectors));
}
static inline float largest_beyond(const Attention &x, int64_t head, double later, float of_query, float of_key) {
    return x.passed.kind == STICK ? -later : of_query * of_key - 0.999f * x.passed.factor[head] * later;
}

// leaky(of_scores s + of_distance), [hidden, ld], for the scores of all heads, `next` apart, of a query and `columns` keys.
static inline void hidden_of_row(const Attention &x, float *hidden, int64_t ld, const float *scores, int64_t next,
                                 int64_t query, int64_t key, int64_t columns) {
    const Mixing &by = x.mixing;
    for (int64_t n = 0; n < by.hidden; n += QUERIES)
        dot_tile(hidden + n * ld, ld, by.of_scores + n * x.heads, x.heads, scores, next, x.heads, columns);
    for (int64_t n = 0; n < by.hidden; n++) {
        const float *more = by.of_distance + n * by.next + x.queries - 1 - query + key;
        float *to = hidden + n * ld;
        for (int64_t c = 0; c < columns; c += LANES) {
            const Vec y = load(to + c) + load(more + c);
            store(to + c, larger(y, y * by.leak));
        }
    }
}

// s + out hidden, across the heads of each pair: `tiles` holds the scores of one head after the other, at multiples of
// `next`; `hidden` is scratch of mixing.hidden * ld.
static inline void mix_heads(const Attention &x, float *tiles, int64_t next, int64_t ld, float *hidden, int64_t start,
                             int64_t rows, int64_t key, int64_t columns) {
    const Mixing &by = x.mixing;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t width = round_up(seen_by(x, start + r, key, columns), LANES);
        hidden_of_row(x, hidden, ld, tiles + r * ld, next, start + r, key, width);
        add_tile(tiles + r * ld, next, round_up(x.heads, MIXED), by.out, by.hidden, 1, hidden, ld, by.hidden, width);
    }
}
