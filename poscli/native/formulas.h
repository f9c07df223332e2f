// What else some encodings do to the scores of a tile [QUERIES, ld]. Tiles come from the nearest keys to the farthest, so
// that sums over all keys between a key and its query can be carried from tile to tile.
#pragma once
#include "attention.h"

// s[r, c] += start + sum over m of slopes[m] max(u[i - j] y_i, bends[m]): a function of u y made of straight pieces. Most
// bends lie outside the range of u y in a tile, where their term is a number or a line.
static inline void add_pieces(const Attention &x, float *tile, int64_t ld, int64_t head, int64_t start, int64_t rows,
                              int64_t key, int64_t columns) {
    const Pieces &f = x.pieces;
    const float *slopes = f.slopes + head * f.count;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t seen = seen_by(x, start + r, key, columns);
        if (!seen) continue;
        const float *u = f.of_distance + x.queries - 1 - (start + r) + key, y = f.of_query[start + r];
        const float one = u[0] * y, other = u[seen - 1] * y, least = std::min(one, other), most = std::max(one, other);
        float constant = f.start[head], slope = 0;
        int64_t inside[MOST_BENDS], bends = 0;
        for (int64_t m = 0; m < f.count; m++) {
            if (f.bends[m] >= most) constant += slopes[m] * f.bends[m];
            else if (f.bends[m] <= least) slope += slopes[m];
            else inside[bends++] = m;
        }
        float *row = tile + r * ld;
        for (int64_t c = 0; c < seen; c++) row[c] += constant + slope * (u[c] * y);
        for (int64_t n = 0; n < bends; n++) {
            const float bend = f.bends[inside[n]], rise = slopes[inside[n]];
            for (int64_t c = 0; c < seen; c++) row[c] += rise * std::max(u[c] * y, bend);
        }
    }
}

// Entry l becomes the sum of the entries from l on.
template <int by, int... lane> static inline Vec plus_later(Vec x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return x + __builtin_shufflevector(x, Vec{}, (lane + by)...);
#else
    return x + __builtin_shuffle(x, Vec{}, IntVec{(lane + by)...});
#endif
}
static inline Vec sums_from_each(Vec x) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>{};
    x = plus_later<1>(x, lanes);
    x = plus_later<2>(x, lanes);
    if constexpr (LANES >= 8) x = plus_later<4>(x, lanes);
    if constexpr (LANES >= 16) x = plus_later<8>(x, lanes);
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

// A table of a query, between whole positions p: entries `low` at the whole position below, `high` at the next one.
struct Between {
    Vec share, low, high;  // share: p less the whole position
};
// The last entry of a table stands there twice.
static inline Between table_at(const float *table, Vec p, int32_t *below) {
    const IntVec whole = __builtin_convertvector(p == p ? p : Vec{}, IntVec);  // of NaN, some entry
    std::memcpy(below, &whole, sizeof whole);
    Between found;
    for (int lane = 0; lane < LANES; lane++) found.low[lane] = table[below[lane]], found.high[lane] = table[below[lane] + 1];
    found.share = p - __builtin_convertvector(whole, Vec);
    return found;
}

// GATES: s[c] += table at the position p = sum over the keys l from c on of sigmoid(s[l]), interpolated between whole
// positions; the last row of the table serves all positions from it on, of which no slopes are kept.
static inline void add_at_gates(float *row, int64_t columns, const float *table, int64_t count, double &later,
                                float *slopes = nullptr, float *positions = nullptr) {
    const Vec last = all(count - 1);
    if (later >= count - 1) {
        for (int64_t c = 0; c < columns; c += LANES) {
            store(row + c, load(row + c) + table[count - 1]);
            if (positions) store(positions + c, last);
        }
        return;
    }
    int32_t below[LANES];
    for (int64_t c = columns - LANES; c >= 0; c -= LANES) {
        const Vec gate = sigmoid(load(row + c)), own = sums_from_each(gate), sum = own + (float)later;
        const Vec p = sum > last ? last : sum;
        const Between found = table_at(table, p, below);
        store(row + c, load(row + c) + found.low + found.share * (found.high - found.low));
        if (slopes) store(slopes + c, gate * (1.0f - gate));
        if (positions) store(positions + c, p);
        later += own[0];
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
// GATES they are tables, with the last entry twice.
static inline int64_t packed_passing(const Attention &x) { return x.passed.width + (x.passed.kind == GATES); }
static inline void pack_passing(const Attention &x, float *to, int64_t ld, int64_t batch, int64_t head, int64_t start,
                                int64_t rows) {
    const Passed &by = x.passed;
    const Strides &at = by.of_queries_at;
    if (!by.of_queries) return;
    pack_rows(to, by.of_queries + batch * at.batch + head * at.head + start * at.token, rows, by.width, at.token, QUERIES, ld);
    if (by.kind == GATES)
        for (int64_t r = 0; r < QUERIES; r++) to[r * ld + by.width] = to[r * ld + by.width - 1];
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

// Entry l becomes the sum of the entries up to l.
template <int by, int... lane> static inline Vec plus_earlier(Vec x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return x + __builtin_shufflevector(Vec{}, x, (LANES + lane - by)...);
#else
    return x + __builtin_shuffle(Vec{}, x, IntVec{(LANES + lane - by)...});
#endif
}
static inline Vec sums_up_to_each(Vec x) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>{};
    x = plus_earlier<1>(x, lanes);
    x = plus_earlier<2>(x, lanes);
    if constexpr (LANES >= 8) x = plus_earlier<4>(x, lanes);
    if constexpr (LANES >= 16) x = plus_earlier<8>(x, lanes);
    return x;
}

// s + out leaky(of_scores s + of_distance), across the heads of each pair: `tiles` holds the scores of one head after
// the other, at multiples of `next`; `hidden` is scratch of mixing.hidden * ld.
static inline void mix_heads(const Attention &x, const Mixing &by, float *tiles, int64_t next, int64_t ld, float *hidden,
                             int64_t start, int64_t rows, int64_t key, int64_t columns) {
    const int64_t distances = x.queries + x.keys - 1, heads = round_up(x.heads, MIXED);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t seen = seen_by(x, start + r, key, columns);
        if (!seen) continue;
        float *row = tiles + r * ld;
        for (int64_t n = 0; n < by.hidden; n += QUERIES)
            dot_tile(hidden + n * ld, ld, by.of_scores + n * x.heads, x.heads, row, next, x.heads, columns);
        for (int64_t n = 0; n < by.hidden; n++) {
            const float *more = by.of_distance + n * distances + x.queries - 1 - (start + r) + key;
            float *to = hidden + n * ld;
            int64_t c = 0;
            for (; c + LANES <= seen; c += LANES) {
                const Vec y = load(to + c) + load(more + c);
                store(to + c, larger(y, y * by.leak));
            }
            for (; c < seen; c++) to[c] = std::max(to[c] + more[c], (to[c] + more[c]) * by.leak);
        }
        add_tile(row, next, heads, by.out, by.hidden, 1, hidden, ld, by.hidden, columns);
    }
}
