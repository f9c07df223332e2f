// One call of causal attention, as Python describes it (call.py has the same fields in the same order).
//
//     s[i, j] = scale q_i . k_j + sum of terms[i, j] + p_i . a[i - j] + r_j . b[i - j]
//     o_i = sum over visible j of softmax_j(s[i, j]) (v_j + c[i - j])
//
// With `passage`, chunks of QUERIES keys change the queries that pass them. With n the chunk of query i, m that of key j,
// and M the matrices `through`, s[i, j] has in place of q_i . k_j
//     within[i, j] if m = n,  (q_i M_{n-1} ... M_{m+1}) . k_j if m < n
//
// A null key of score null_i and value 0 may take part in the softmax of each query.
//
// The queries are the last T of S tokens. Query i, counted among all tokens, sees the keys i - reach + 1 .. i (all
// earlier ones if reach is 0) and the first `sinks`. Vectors by distance stand in descending order of the distance, so
// that query t and key j meet entry T - 1 - t + j of the N = T + S - 1 entries.
#pragma once
#include "tiles.h"

struct Strides {  // in numbers, of batch, head and token; the channels of a token are contiguous
    int64_t batch, head, token;
};

struct Term {  // x[b, h, t, j] is at b * batch + h * head + t * query + j
    const float *x;
    float *grad;  // null if none is asked for
    int64_t batch, head, query;
    int64_t grad_batch, grad_head, grad_query;
    int64_t columns;  // of a grid, on which x[b, h, t, j] is at b * batch + h * head + place(key) - place(query); or 0

    // Where a cell of the grid, or of a row above it, stands on a line on which rows begin 2 columns - 1 places apart: the
    // distance of two places tells how many rows and columns lie between them.
    int64_t place(int64_t cell) const { return cell + ((cell + columns) / columns - 1) * (columns - 1); }
    // The end of the cells from `cell` on that are in its row.
    int64_t end_of_row(int64_t cell) const { return (cell + columns) / columns * columns; }
};

struct Relative {  // vectors by distance, and what meets them
    const float *met, *vectors;  // met: [B, H, tokens, width], null for c; vectors: [H or 1, N, width], null if absent
    float *grad_met, *grad_vectors;  // like met, and [B, H, N, width]
    Strides met_at, grad_met_at;
    int64_t width, head;  // head: from the vectors of one head to those of the next
};

constexpr int MOST_TERMS = 4;

// The forms of formulas.h. Numbers by distance stand as vectors by distance do.
// of_distance: [H, next], of_query: [H, T]; constant and slope: [H, lines]; the bends between the lines ascend, and as many
// infinite ones follow as fill a vector.
struct Pieces {
    const float *of_distance, *of_query, *constant, *slope, *bends;
    int64_t lines, next;  // lines: 0 if absent; next >= N + LANES - 1
    // [B, H, N], [B, H, T], [B, H, lines] and [B, H, lines]; null: not asked for
    float *grad_of_distance, *grad_of_query, *grad_constant, *grad_slope;
};
enum Passing { NO_PASSING, COSTS, GATES, STICK };
struct Passed {  // what each key does to the keys before it
    int64_t kind, width;
    const float *of_queries, *of_keys, *factor;  // [B, H, T, width], [B, H, S, width] and [H]
    Strides of_queries_at, of_keys_at;
    int64_t without_own;  // the key of the query's own token is hidden
    float *grad_of_queries, *grad_of_keys, *grad_factor;  // like the above, but [B, H] for `factor`; null: not asked for
    Strides grad_of_queries_at, grad_of_keys_at;
};
constexpr int MIXED = 8;
// of_scores: [hidden, H]; of_distance: [hidden, next], next >= N + LANES - 1; out: [H, hidden], H filled up to a multiple
// of MIXED.
struct Mixing {
    const float *of_scores, *of_distance, *out;
    int64_t hidden;  // a multiple of QUERIES; 0 if absent
    int64_t given;   // so many hidden numbers are not filled up
    int64_t next;
    float *grad_of_scores, *grad_of_distance, *grad_out;  // [B, given, H], [B, given, N], [B, H, given]; null: not asked for
    float leak;  // 0 <= leak < 1
};

struct Passage {  // within: [B, H, T, QUERIES]; through: [B, H, chunks of keys, width, width], null if absent
    const float *within, *through;
    float *grad_within, *grad_through;  // like the above; null: not asked for
};

struct Attention {
    int64_t batch, heads, queries, keys, width, value_width, reach, sinks, terms, threads;
    int64_t constant;  // the first entries by distance, so many of them, are all equal, in every term and vector
    const float *q, *k, *v;
    float *o;
    float *top, *sum;  // [B, H, T], the largest score of a query, and the sum of e^(score - largest)
    const float *grad_o;
    float *grad_q, *grad_k, *grad_v;  // the gradients of keys and values are added to what is there
    const float *null;                // [B, H, T, 1]; null: there is no such key
    float *grad_null;
    Strides q_at, k_at, v_at, o_at, grad_o_at, grad_q_at, grad_k_at, grad_v_at, null_at, grad_null_at;
    Term term[MOST_TERMS];
    Relative a, b, c;
    const int32_t *first_key;  // [H, blocks of queries], keys before which have no weight; null: none
    const float *factors;      // [H, N], on the weights after the softmax; null: none
    float *grad_factors;       // [B, H, N], added to what is there; null: not asked for
    Pieces pieces;
    Passed passed;
    Mixing mixing;
    Passage passage;
    int64_t past;  // keys before the own one of the first query: keys - queries, or more if keys are left out at the end
    float scale;
    // The number that a term by distance, whose queries are one number apart, adds at its first entries.
    float far_number(const Term &t, int64_t b, int64_t h) const {
        return by_distance(t) ? t.x[b * t.batch + h * t.head - (queries - 1)] : 0;
    }
    // The chunk of a block of queries.
    int64_t chunk(int64_t start) const { return (start + past) / QUERIES; }
    static bool by_distance(const Term &t) { return t.query == -1; }
    int64_t blocks() const { return (queries + QUERIES - 1) / QUERIES; }
};

struct Keys {
    int64_t from, to;
};

// The ranges of keys, beginning at multiples of `tile`, that some query of the block from `start` sees; returns how many.
static inline int visible_keys(const Attention &x, int64_t head, int64_t start, int64_t tile, Keys *out) {
    const int64_t end = std::min(std::min(start + QUERIES, x.queries) + x.past, x.keys);
    int64_t from = x.first_key ? x.first_key[head * x.blocks() + start / QUERIES] : 0;
    int count = 0;
    if (x.reach) {
        const int64_t near = std::max<int64_t>(start + x.past - x.reach + 1, 0) / tile * tile;
        const int64_t sinks = std::min(round_up(x.sinks, tile), near);
        if (sinks > 0) out[count++] = {0, sinks};
        from = std::max(from, near);
    }
    out[count++] = {from / tile * tile, end};
    return count;
}

// Whether a null key takes part. STICK has no softmax, and such a key would come after all others there.
static inline bool has_null(const Attention &x) { return x.null && x.passed.kind != STICK; }

// The length of a vector whose numbers are `step` apart.
static inline float length(const float *x, int64_t width, int64_t step) {
    float sum = 0;
    for (int64_t d = 0; d < width; d++) sum += x[d * step] * x[d * step];
    return std::sqrt(sum);
}

// The packed entry of vectors by distance that the last query of a tile meets with its first key. Packed vectors have
// QUERIES entries more in front, which the missing queries of a block that is not full would meet.
static inline int64_t first_entry(const Attention &x, int64_t start, int64_t key) { return x.queries - start + key; }
static inline int64_t packed_entries(const Attention &x, int64_t tile) {
    return round_up(x.queries, QUERIES) + round_up(x.keys, tile) + 2 * QUERIES + LANES;
}
static inline void pack_vectors(float *to, const float *x, int64_t count, int64_t width, int64_t entries, int64_t ld) {
    std::memset(to, 0, QUERIES * ld * 4);
    pack_rows(to + QUERIES * ld, x, count, width, width, entries - QUERIES, ld);
}
static inline void pack_vectors_by_channel(float *to, const float *x, int64_t count, int64_t width, int64_t ld) {
    for (int64_t d = 0; d < width; d++) {
        float *row = to + d * ld;
        std::memset(row, 0, ld * 4);
        for (int64_t n = 0; n < count; n++) row[QUERIES + n] = x[n * width + d];
    }
}

// The number of `columns` keys from `key` that a query sees, if nothing but later keys are hidden.
static inline int64_t seen_by(const Attention &x, int64_t query, int64_t key, int64_t columns) {
    return std::clamp<int64_t>(std::min(query + x.past + 1, x.keys) - key, 0, columns);
}

// tile[r, c] = the product of query and key within their chunk, of the first `columns` keys of the chunk.
static inline void put_within(const Attention &x, float *tile, int64_t ld, int64_t bh, int64_t start, int64_t rows,
                              int64_t columns) {
    for (int64_t r = 0; r < QUERIES; r++) {
        float *row = tile + r * ld;
        const float *from = x.passage.within + (bh * x.queries + start + r) * QUERIES;
        for (int64_t c = 0; c < columns; c++) row[c] = r < rows ? from[c] * x.scale : 0;
    }
}

// Adds a term on a grid to a tile. A query predicts the cell of its own number, and a key shows the cell before.
static inline void add_by_cells(const Attention &x, const Term &term, float *tile, int64_t ld, int64_t batch,
                                int64_t head, int64_t start, int64_t rows, int64_t key, int64_t columns) {
    const int64_t query = start + x.past;
    const float *of_query[QUERIES], *line = term.x + batch * term.batch + head * term.head - term.place(query);
    for (int64_t r = 0, end = term.end_of_row(query) - query; r < rows; r++, line--) {
        if (r == end) line -= term.columns - 1, end += term.columns;
        of_query[r] = line;
    }
    for (int64_t from = 0, to; from < columns; from = to) {  // keys of one row of the grid
        to = std::min(columns, term.end_of_row(key + from - 1) - (key - 1));
        const int64_t place = term.place(key + from - 1) - from;
        for (int64_t c = from / LANES * LANES; c < to; c += LANES) {
            const IntVec among = lanes_between(from - c, to - c);
            for (int64_t r = std::max<int64_t>(0, key + c - query); r < rows; r++)
                store(tile + r * ld + c, load(tile + r * ld + c) + only(among, load(of_query[r] + place + c)));
        }
    }
}

// Scores of a tile: of the queries `a` [QUERIES, width] from `start` on, of which there are `rows`, and `columns` keys `b` by
// channel from `key` on, with the terms. Terms by distance are left out if all pairs of the tile are `far`.
static inline void score_tile(const Attention &x, float *scores, int64_t ld, const float *a, int64_t lda, const float *b,
                              int64_t ldb, int64_t batch, int64_t head, int64_t start, int64_t rows, int64_t key,
                              int64_t columns, bool far = false) {
    const float *of_tile[MOST_TERMS];
    int64_t next[MOST_TERMS], count = 0;
    for (int64_t t = 0; t < x.terms; t++) {
        const Term &term = x.term[t];
        if (term.columns || (far && x.by_distance(term))) continue;
        next[count] = term.query;
        of_tile[count++] = term.x + batch * term.batch + head * term.head + start * term.query + key;
    }
    // A term that has a number for every pair of the tile is added before the sums leave the registers.
    const bool whole = count && rows == QUERIES && key + columns <= x.keys;
    dot_tile(scores, ld, a, lda, b, ldb, x.width, columns, whole ? of_tile[0] : nullptr, whole ? next[0] : 0);
    for (int64_t t = whole; t < count; t++)
        for (int64_t r = 0; r < rows; r++) {
            const float *more = of_tile[t] + r * next[t];
            const int64_t seen = seen_by(x, start + r, key, columns);
            float *row = scores + r * ld;
            int64_t c = 0;
            for (; c + LANES <= seen; c += LANES) store(row + c, load(row + c) + load(more + c));
            for (; c < seen; c++) row[c] += more[c];
        }
    for (int64_t t = 0; t < x.terms; t++)
        if (x.term[t].columns) add_by_cells(x, x.term[t], scores, ld, batch, head, start, rows, key, columns);
}

// Gives hidden keys the score -infinity.
static inline void hide(const Attention &x, float *scores, int64_t ld, int64_t start, int64_t rows, int64_t key,
                        int64_t columns) {
    const bool all_in_reach = !x.reach || start + rows - 1 + x.past - x.reach < key;
    if (seen_by(x, start, key, columns) == columns && all_in_reach) return;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t query = start + r;
        float *row = scores + r * ld;
        std::fill(row + seen_by(x, query, key, columns), row + columns, -INFINITY);
        if (x.reach) {
            const int64_t hidden = std::min(columns, query + x.past - x.reach + 1 - key);
            for (int64_t c = std::max<int64_t>(0, x.sinks - key); c < hidden; c++) row[c] = -INFINITY;
        }
    }
}

// Multiplies a tile by the factors on the weights.
static inline void multiply(const Attention &x, float *tile, int64_t ld, int64_t head, int64_t start, int64_t rows,
                            int64_t key, int64_t columns) {
    for (int64_t r = 0; r < rows; r++) {
        const float *by = x.factors + head * (x.queries + x.keys - 1) + x.queries - 1 - (start + r) + key;
        for (int64_t c = 0, seen = seen_by(x, start + r, key, columns); c < seen; c++) tile[r * ld + c] *= by[c];
    }
}

// A tile by pair [QUERIES, ld] as a tile by distance [QUERIES, wide], wide = columns + QUERIES: pair (r, c) goes to
// column c + QUERIES - 1 - r, other entries are 0.
static inline void by_distance(float *to, int64_t wide, const float *tile, int64_t ld, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < QUERIES; r++) {
        float *row = to + r * wide;
        std::memset(row, 0, wide * 4);
        if (r < rows) std::memcpy(row + QUERIES - 1 - r, tile + r * ld, columns * 4);
    }
}

// tile[r, c] += met_r . vectors[distance of (r, c)], for the vectors by channel from their entry for the tile on;
// `wide` is scratch of QUERIES * (columns + QUERIES).
static inline void add_met(float *tile, int64_t ld, const float *met, int64_t ld_met, const float *vectors,
                           int64_t ld_vectors, int64_t width, int64_t columns, float *wide) {
    const int64_t across = columns + QUERIES;
    dot_tile(wide, across, met, ld_met, vectors, ld_vectors, width, across);
    for (int64_t r = 0; r < QUERIES; r++)
        for (int64_t c = 0; c < columns; c += LANES)
            store(tile + r * ld + c, load(tile + r * ld + c) + load(wide + r * across + QUERIES - 1 - r + c));
}

template <int ROWS, int VECTORS>
static inline void add_met_registers(float *tile, int64_t ld, const float *met, int64_t ld_met, const float *vectors,
                                     int64_t ld_vectors, int64_t width) {
    Vec sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < VECTORS; c++) sum[r][c] = load(tile + r * ld + c * LANES);
    for (int64_t d = 0; d < width; d++) {
        Vec y[VECTORS];
        for (int c = 0; c < VECTORS; c++) y[c] = load(met + d * ld_met + c * LANES);
        for (int r = 0; r < ROWS; r++)  // a row further down meets entries one further to the front
            for (int c = 0; c < VECTORS; c++) sum[r][c] += y[c] * load(vectors + d * ld_vectors - r + c * LANES);
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < VECTORS; c++) store(tile + r * ld + c * LANES, sum[r][c]);
}

// tile[r, c] += met_c . vectors[distance of (r, c)]; both by channel.
static inline void add_met_by_keys(float *tile, int64_t ld, const float *met, int64_t ld_met, const float *vectors,
                                   int64_t ld_vectors, int64_t width, int64_t columns) {
    for (int64_t r = 0; r < QUERIES; r += 4) {
        const float *from = vectors + QUERIES - 1 - r;
        int64_t c = 0;
        for (; c + 2 * LANES <= columns; c += 2 * LANES)
            add_met_registers<4, 2>(tile + r * ld + c, ld, met + c, ld_met, from + c, ld_vectors, width);
        for (; c < columns; c += LANES)
            add_met_registers<4, 1>(tile + r * ld + c, ld, met + c, ld_met, from + c, ld_vectors, width);
    }
}

// to[n, :] += sum over r of w[r, n] x[n + r * step, :] for `count` rows n, a multiple of 8: every row n has vectors x of
// its own, `step` rows apart for consecutive r.
static inline void add_by_row(float *to, int64_t ld, int64_t count, const float *w, int64_t ldw, const float *x,
                              int64_t step, int64_t rows, int64_t width) {
    for (int64_t n = 0; n < count; n += 8)
        for (int64_t d = 0; d < width; d += LANES) {
            Vec sum[8];
            for (int m = 0; m < 8; m++) sum[m] = load(to + (n + m) * ld + d);
            for (int64_t r = 0; r < rows; r++)
                for (int m = 0; m < 8; m++) sum[m] += w[r * ldw + n + m] * load(x + (n + m + r * step) * ld + d);
            for (int m = 0; m < 8; m++) store(to + (n + m) * ld + d, sum[m]);
        }
}
