// What the gradients of all kinds of attention share: sums over the queries of one head, which one thread makes in one
// order, so that they are the same on any number of threads.
#pragma once
#include "formulas.h"

constexpr int KEYS = 64;  // keys of a tile: two tiles of scores take 16 KiB
constexpr int WIDE = KEYS + QUERIES;

// Vectors by distance of one head: as they are for sums, by channel for products, and their gradient.
struct Vectors {
    const Relative &given;
    int64_t width, padded, entries, ldn;
    Buffer rows, channels, grad;
    Vectors(const Attention &x, const Relative &given, int64_t width)
        : given(given), width(width), padded(round_up(width, LANES)), entries(packed_entries(x, KEYS)),
          ldn(round_up(entries, LANES) + LANES), rows(used() ? entries * padded : 0),
          channels(used() ? width * ldn : 0), grad(used() ? entries * padded : 0) {}
    bool used() const { return given.vectors != nullptr; }

    void begin(int64_t head, int64_t count) {
        if (!used()) return;
        pack_vectors(rows.p, given.vectors + head * given.head, count, width, entries, padded);
        pack_vectors_by_channel(channels.p, given.vectors + head * given.head, count, width, ldn);
        grad.clear(entries * padded);
    }
    void finish(int64_t bh, int64_t count) {
        if (!used() || !given.grad_vectors) return;
        float *to = given.grad_vectors + bh * count * width;
        for (int64_t n = 0; n < count; n++)
            std::memcpy(to + n * width, grad.p + (QUERIES + n) * padded, width * 4);
    }
};

// to[c] += sum over r of tile[r, c], for `rows` rows of `columns` numbers.
static inline void add_rows(float *to, const float *tile, int64_t ld, int64_t columns, int64_t rows) {
    int64_t c = 0;
    for (; c + LANES <= columns; c += LANES) {
        Vec sum = load(to + c);
        for (int64_t r = 0; r < rows; r++) sum += load(tile + r * ld + c);
        store(to + c, sum);
    }
    for (; c < columns; c++)
        for (int64_t r = 0; r < rows; r++) to[c] += tile[r * ld + c];
}

// The gradients of the pieces of one head.
struct PiecesGradient {
    const Attention &x;
    const Pieces &f;
    int64_t head = 0;
    Buffer of_distance, of_query, constant, slope;  // of a line, a vector of partial sums

    explicit PiecesGradient(const Attention &x)
        : x(x), f(x.pieces), of_distance(f.next), of_query(f.lines ? x.queries : 0), constant(f.lines * LANES),
          slope(f.lines * LANES) {}

    void begin(int64_t of) {
        head = of;
        of_distance.clear(f.next);
        of_query.clear(f.lines ? x.queries : 0);
        constant.clear(f.lines * LANES);
        slope.clear(f.lines * LANES);
    }

    // From the gradients `ds` [QUERIES, ld] of the scores of a tile, which are 0 for hidden keys.
    void add(const float *ds, int64_t ld, int64_t start, int64_t rows, int64_t key, int64_t columns) {
        for (int64_t r = 0; r < rows; r++)
            if (const int64_t seen = seen_by(x, start + r, key, columns)) add_row(ds + r * ld, start + r, key, columns, seen);
    }

    void add_row(const float *ds, int64_t query, int64_t key, int64_t columns, int64_t seen) {
        const float *from = distances_of_row(x, head, query, key), y = f.of_query[head * x.queries + query];
        float *to = of_distance.p + x.queries - 1 - query + key;
        const float *slopes = f.slope + head * f.lines;
        const auto [first, last] = lines_of(f, from, y, seen);
        Vec sum = Vec{}, moment = Vec{}, of_y = Vec{};
        for (int64_t c = 0; c < columns; c += LANES) {
            const Vec e = load(ds + c), d = load(from + c);
            Vec rise = all(slopes[first]);
            for (int64_t m = first; m < last; m++) rise = d * y > f.bends[m] ? all(slopes[m + 1]) : rise;
            sum += e;
            moment += e * d;
            of_y += e * d * rise;
            store(to + c, load(to + c) + e * rise * y);
        }
        of_query.p[query] += sum_of_lanes(of_y);
        add_to(first, sum, moment * y);
        for (int64_t m = first; m < last; m++) {  // what lies beyond a bend is on a later line
            Vec beyond = Vec{}, moment_beyond = Vec{};
            for (int64_t c = 0; c < columns; c += LANES) {
                const Vec d = load(from + c), e = d * y > f.bends[m] ? load(ds + c) : Vec{};
                beyond += e;
                moment_beyond += e * d;
            }
            add_to(m, -beyond, -moment_beyond * y);
            add_to(m + 1, beyond, moment_beyond * y);
        }
    }
    void add_to(int64_t line, Vec sum, Vec moment) {
        float *of_constant = constant.p + line * LANES, *of_slope = slope.p + line * LANES;
        store(of_constant, load(of_constant) + sum);
        store(of_slope, load(of_slope) + moment);
    }

    void finish(int64_t bh) const {
        const int64_t distances = x.queries + x.keys - 1;
        if (f.grad_of_distance) std::memcpy(f.grad_of_distance + bh * distances, of_distance.p, distances * 4);
        if (f.grad_of_query) std::memcpy(f.grad_of_query + bh * x.queries, of_query.p, x.queries * 4);
        for (int64_t m = 0; m < f.lines; m++) {
            if (f.grad_constant) f.grad_constant[bh * f.lines + m] = sum_of_lanes(load(constant.p + m * LANES));
            if (f.grad_slope) f.grad_slope[bh * f.lines + m] = sum_of_lanes(load(slope.p + m * LANES));
        }
    }
};

// One head: its keys and values by token and by channel, and the sums over its queries.
struct Head {
    const Attention &x;
    int64_t tokens, ld, dp, ep, rp, batch = 0, head = 0, bh = 0, start = 0, rows = 0;
    Vectors a, b, c;
    PiecesGradient pieces;
    Buffer k, kT, vT, rk, rkT, grad_k, grad_v, grad_rk;                        // [tokens] or by channel
    Buffer q, g, grad_q, rq, grad_rq, wide;  // of a block of queries; `q` for each chunk that meets them
    Buffer through, throughT, grad_through, moved;  // the matrices of chunks, and queries after one
    int64_t arrived = 0;                            // `grad_q` is that of the queries which meet this chunk
    float delta[QUERIES];

    explicit Head(const Attention &x)
        : x(x), tokens(round_up(x.keys, KEYS)), ld(tokens + LANES), dp(round_up(x.width, COLUMNS)),
          ep(round_up(x.value_width, LANES)), rp(round_up(x.a.width, LANES)), a(x, x.a, x.a.width),
          b(x, x.b, x.b.width), c(x, x.c, x.value_width), pieces(x), k(tokens * dp), kT(x.width * ld), vT(x.value_width * ld),
          rk((tokens + WIDE) * b.padded), rkT(x.b.width * ld), grad_k(tokens * dp), grad_v(tokens * ep),
          grad_rk(tokens * b.padded), q(QUERIES * dp * (passes() ? chunks() : 1)), g(QUERIES * ep),
          grad_q(QUERIES * dp), rq(QUERIES * rp), grad_rq(QUERIES * rp), wide(QUERIES * WIDE), through(size_through()),
          throughT(size_through()), grad_through(size_through()), moved(passes() ? QUERIES * dp : 0) {}

    bool passes() const { return x.passage.through != nullptr; }
    int64_t chunks() const { return round_up(x.keys, QUERIES) / QUERIES; }
    int64_t size_through() const { return passes() ? chunks() * dp * dp : 0; }
    // The queries of the block as the keys of an earlier chunk meet them.
    float *q_at(int64_t chunk) { return q.p + (x.chunk(start) - 1 - chunk) * QUERIES * dp; }

    void begin(int64_t of) {
        bh = of, batch = of / x.heads, head = of % x.heads;
        const float *keys = x.k + at(x.k_at), *values = x.v + at(x.v_at);
        pack_rows(k.p, keys, x.keys, x.width, x.k_at.token, tokens, dp);
        pack_columns(kT.p, keys, x.keys, x.width, x.k_at.token, ld);
        pack_columns(vT.p, values, x.keys, x.value_width, x.v_at.token, ld);
        grad_k.clear(tokens * dp);
        grad_v.clear(tokens * ep);
        for (Vectors *each : {&a, &b, &c}) each->begin(head, x.queries + x.keys - 1);
        for (int64_t n = 0; passes() && n < chunks(); n++) {
            const float *from = x.passage.through + (bh * chunks() + n) * x.width * x.width;
            pack_rows(through.p + n * dp * dp, from, x.width, x.width, x.width, dp, dp);
            pack_columns(throughT.p + n * dp * dp, from, x.width, x.width, x.width, dp);
        }
        grad_through.clear(size_through());

        pieces.begin(head);
        if (!b.used()) return;
        rk.clear((tokens + WIDE) * b.padded);  // QUERIES rows of zeros in front, for pairs outside a tile
        pack_rows(rk.p + QUERIES * b.padded, x.b.met + at(x.b.met_at), x.keys, b.width, x.b.met_at.token, x.keys,
                  b.padded);
        pack_columns(rkT.p, x.b.met + at(x.b.met_at), x.keys, b.width, x.b.met_at.token, ld);
        grad_rk.clear(tokens * b.padded);
    }

    void begin_block(int64_t first) {
        start = first, rows = std::min<int64_t>(QUERIES, x.queries - first);
        pack_rows(q.p, x.q + at(x.q_at, start), rows, x.width, x.q_at.token, QUERIES, dp, x.scale);
        pack_rows(g.p, x.grad_o + at(x.grad_o_at, start), rows, x.value_width, x.grad_o_at.token, QUERIES, ep);
        for (int64_t n = x.chunk(start) - 1; passes() && n > 0; n--)
            dot_tile(q_at(n - 1), dp, q_at(n), dp, through.p + n * dp * dp, dp, x.width, dp);
        grad_q.clear(QUERIES * dp);
        arrived = 0;
        prefetch_rows(x.grad_q + at(x.grad_q_at, start), rows, x.width, x.grad_q_at.token);
        prefetch_rows(x.grad_k + at(x.grad_k_at, start), rows, x.width, x.grad_k_at.token);
        prefetch_rows(x.grad_v + at(x.grad_v_at, start), rows, x.value_width, x.grad_v_at.token);
        const int64_t next = start + rows, more = std::min<int64_t>(QUERIES, x.queries - next);
        prefetch_rows(x.q + at(x.q_at, next), more, x.width, x.q_at.token);
        prefetch_rows(x.grad_o + at(x.grad_o_at, next), more, x.value_width, x.grad_o_at.token);
        prefetch_rows(x.o + at(x.o_at, next), more, x.value_width, x.o_at.token);
        if (a.used()) {
            pack_rows(rq.p, x.a.met + at(x.a.met_at, start), rows, a.width, x.a.met_at.token, QUERIES, rp);
            grad_rq.clear(QUERIES * rp);
        }
        // In the order of the products with the values: where one key has all the weight, its gradient is 0 to the bit.
        std::fill(delta, delta + QUERIES, 0.f);
        const float *o = x.o + at(x.o_at, start);
        for (int64_t e = 0; e < x.value_width; e++)
            for (int64_t r = 0; r < rows; r++) delta[r] += o[r * x.o_at.token + e] * g.p[r * ep + e];
        for (int64_t r = 0; x.grad_null && r < rows; r++)
            x.grad_null[at(x.grad_null_at, start + r)] = has_null(x) ? -null_weight(r) * delta[r] : 0;
    }

    // The scores of a tile [QUERIES, ldt], also of hidden keys.
    void score(float *tile, int64_t ldt, int64_t key, int64_t columns) {
        const int64_t entry = first_entry(x, start, key);
        if (passes()) score_chunks(tile, ldt, key, columns);
        else score_tile(x, tile, ldt, q.p, dp, kT.p + key, ld, batch, head, start, rows, key, columns);
        if (a.used()) add_met(tile, ldt, rq.p, rp, a.channels.p + entry, a.ldn, a.width, columns, wide.p);
        if (b.used()) add_met_by_keys(tile, ldt, rkT.p + key, ld, b.channels.p + entry, b.ldn, b.width, columns);
        if (x.pieces.lines) add_pieces(x, tile, ldt, head, start, rows, key, columns);
    }

    // g . (v + c), the gradients of the weights of a tile [QUERIES, KEYS].
    void differentiate_weights(float *tile, int64_t key, int64_t columns) {
        dot_tile(tile, KEYS, g.p, ep, vT.p + key, ld, x.value_width, columns);
        if (c.used())
            add_met(tile, KEYS, g.p, ep, c.channels.p + first_entry(x, start, key), c.ldn, c.width, columns, wide.p);
    }

    // Adds up the gradients of all inputs of the scores and of the values, from the weights `p` [QUERIES, ldp] of a tile
    // and the gradients `ds` [QUERIES, KEYS] of its scores.
    void add_up(const float *p, int64_t ldp, const float *ds, int64_t key, int64_t columns) {
        const int64_t entry = first_entry(x, start, key), across = columns + QUERIES;
        for (int64_t t = 0; t < x.terms; t++)
            if (x.term[t].grad) add_to_term(x.term[t], ds, key, columns);
        if (x.pieces.lines) pieces.add(ds, KEYS, start, rows, key, columns);
        add_tile(grad_v.p + key * ep, ep, columns, p, 1, ldp, g.p, ep, QUERIES, ep);
        if (passes()) add_up_chunks(ds, key, columns);
        else add_up_product(ds, key, columns, q.p);
        if (c.used()) {
            by_distance(wide.p, across, p, ldp, rows, columns);
            add_tile(c.grad.p + entry * c.padded, c.padded, across, wide.p, 1, across, g.p, ep, QUERIES, c.padded);
        }
        if (a.used() || b.used()) by_distance(wide.p, across, ds, KEYS, rows, columns);
        if (a.used()) {
            add_tile(a.grad.p + entry * rp, rp, across, wide.p, 1, across, rq.p, rp, QUERIES, rp);
            add_tile(grad_rq.p, rp, QUERIES, wide.p, across, 1, a.rows.p + entry * rp, rp, across, rp);
        }
        if (b.used()) add_to_met_keys(ds, key, columns, entry);
    }

    void add_up_product(const float *ds, int64_t key, int64_t columns, const float *queries) {
        add_tile(grad_k.p + key * dp, dp, columns, ds, 1, KEYS, queries, dp, QUERIES, dp);
        add_tile(grad_q.p, dp, QUERIES, ds, KEYS, 1, k.p + key * dp, dp, columns, dp);
    }

    void score_chunks(float *tile, int64_t ldt, int64_t key, int64_t columns) {
        for (int64_t n = 0; n < columns; n += QUERIES) {
            const int64_t chunk = (key + n) / QUERIES, count = std::min<int64_t>(columns - n, QUERIES);
            if (chunk == x.chunk(start)) put_within(x, tile + n, ldt, bh, start, rows, count);
            else dot_tile(tile + n, ldt, q_at(chunk), dp, kT.p + key + n, ld, x.width, count);
        }
    }

    void add_up_chunks(const float *ds, int64_t key, int64_t columns) {
        for (int64_t n = 0; n < columns; n += QUERIES) {
            const int64_t chunk = (key + n) / QUERIES, count = std::min<int64_t>(columns - n, QUERIES);
            if (chunk < x.chunk(start)) {
                return_to(chunk);
                add_up_product(ds + n, key + n, count, q_at(chunk));
                continue;
            }
            float *to = x.passage.grad_within;
            for (int64_t r = 0; to && r < rows; r++)
                for (int64_t c = 0; c < count; c++)
                    to[(bh * x.queries + start + r) * QUERIES + c] = ds[r * KEYS + n + c] * x.scale;
        }
    }

    // From the gradient of the queries that meet a chunk to that of those that meet a nearer one.
    void return_to(int64_t chunk) {
        while (arrived < chunk) {
            arrived++;
            add_tile(grad_through.p + arrived * dp * dp, dp, dp, q_at(arrived), 1, dp, grad_q.p, dp, QUERIES, dp);
            dot_tile(moved.p, dp, grad_q.p, dp, throughT.p + arrived * dp * dp, dp, x.width, dp);
            std::memcpy(grad_q.p, moved.p, QUERIES * dp * 4);
        }
    }

    void add_to_term(const Term &term, const float *ds, int64_t key, int64_t columns) {
        float *to = term.grad + batch * term.grad_batch + head * term.grad_head + start * term.grad_query + key;
        if (term.columns) return add_to_cells(term, to - key, ds, key, columns);
        if (term.grad_query == -1) return add_to_distances(to, ds, key, columns);
        if (!term.grad_query) return add_rows(to, ds, KEYS, std::min(columns, x.keys - key), rows);
        for (int64_t r = 0; r < rows; r++)
            add_rows(to + r * term.grad_query, ds + r * KEYS, KEYS, seen_by(x, start + r, key, columns), 1);
    }

    // Adds up a tile by distance: pair (r, c) is added to to[c - r]. Rows that are LANES apart are added to one row of
    // `wide` first, as many vectors apart as that takes, so that fewer rows have to be shifted.
    void add_to_distances(float *to, const float *ds, int64_t key, int64_t columns) {
        const int64_t across = LANES + columns + QUERIES;
        std::memset(wide.p, 0, LANES * across * 4);
        for (int64_t r = 0; r < rows; r++) {
            float *row = wide.p + r % LANES * across + QUERIES - r / LANES * LANES;
            for (int64_t n = 0; n < columns; n += LANES) store(row + n, load(row + n) + load(ds + r * KEYS + n));
        }
        // Entry m of a row r < LANES of `wide` is for the distance of to[m - QUERIES - r].
        const int64_t first = 1 - rows, stop = std::min(columns, x.keys - key);
        add_rows(to + first, wide.p + QUERIES + first, across + 1, stop - first, LANES);
    }

    // Adds up a tile by distance on a grid: each queries and keys of one row of the grid along the diagonals.
    void add_to_cells(const Term &term, float *line, const float *ds, int64_t key, int64_t columns) {
        const int64_t query = start + x.past;
        float *tile = wide.p + LANES;  // vectors are read beyond its first and last column
        for (int64_t r = 0; r < rows; r++)
            for (int64_t n = 0; n < columns; n += LANES) store(tile + r * WIDE + n, load(ds + r * KEYS + n));
        for (int64_t first = 0, last; first < rows; first = last) {
            last = std::min(rows, term.end_of_row(query + first) - query);
            const int64_t seen = seen_by(x, start + last - 1, key, columns);
            for (int64_t from = 0, to; from < seen; from = to) {
                to = std::min(seen, term.end_of_row(key + from - 1) - (key - 1));
                float *sums = line + (term.place(key + from - 1) - from) - (term.place(query + first) - first);
                for (int64_t d = from - last + 1; d < to - first; d += LANES) {  // pairs of which the key is r + d
                    Vec sum = load(sums + d);
                    for (int64_t r = std::max(first, from - d - LANES + 1); r < std::min(last, to - d); r++)
                        sum += only(lanes_between(from - d - r, to - d - r), load(tile + r * WIDE + r + d));
                    store(sums + d, sum);
                }
            }
        }
    }

    // The gradients of s[r, n] = met_n . b[distance of (r, n)]; `wide` holds the gradient of the scores by distance. Key n
    // meets the entry n + QUERIES - 1 - r, and entry m the key m + 1 + r - QUERIES, which is row m + 1 + r of `rk`.
    void add_to_met_keys(const float *ds, int64_t key, int64_t columns, int64_t entry) {
        const int64_t width = b.padded, across = columns + QUERIES;
        add_by_row(grad_rk.p + key * width, width, columns, ds, KEYS, b.rows.p + (entry + QUERIES - 1) * width, -1,
                   rows, width);
        add_by_row(b.grad.p + entry * width, width, across, wide.p, across, rk.p + (key + 1) * width, 1, rows, width);
    }

    void finish_block() {
        if (passes()) return_to(x.chunk(start) - 1);
        for (int64_t r = 0; r < rows; r++) {
            float *to = x.grad_q + at(x.grad_q_at, start + r);
            for (int64_t d = 0; d < x.width; d++) to[d] = grad_q.p[r * dp + d] * x.scale;
            if (!a.used()) continue;
            float *met = x.a.grad_met + at(x.a.grad_met_at, start + r);
            for (int64_t d = 0; d < a.width; d++) met[d] = grad_rq.p[r * rp + d];
        }
    }

    void finish() {
        for (int64_t j = 0; j < x.keys; j++) {
            float *of_key = x.grad_k + at(x.grad_k_at, j), *of_value = x.grad_v + at(x.grad_v_at, j);
            for (int64_t d = 0; d < x.width; d++) of_key[d] += grad_k.p[j * dp + d];
            for (int64_t e = 0; e < x.value_width; e++) of_value[e] += grad_v.p[j * ep + e];
            if (!b.used()) continue;
            float *met = x.b.grad_met + at(x.b.grad_met_at, j);
            for (int64_t d = 0; d < b.width; d++) met[d] += grad_rk.p[j * b.padded + d];
        }
        for (Vectors *each : {&a, &b, &c}) each->finish(bh, x.queries + x.keys - 1);
        for (int64_t n = 0; x.passage.grad_through && n < chunks(); n++)
            for (int64_t d = 0; d < x.width; d++)
                std::memcpy(x.passage.grad_through + ((bh * chunks() + n) * x.width + d) * x.width,
                            grad_through.p + (n * dp + d) * dp, x.width * 4);

        pieces.finish(bh);
    }

    float null_weight(int64_t r) const {
        return std::exp(x.null[at(x.null_at, start + r)] - top(r)) / x.sum[bh * x.queries + start + r];
    }

    float top(int64_t r) const { return x.top[bh * x.queries + start + r]; }

    // Scores of a query -> weights. Their sum is 1 to a few units of rounding however large the scores are, as it would not
    // be if the logarithm of the sum were added to the largest score and rounded with it.
    void softmax(float *to, int64_t r, int64_t columns) const {
        const float most = top(r), share = 1 / x.sum[bh * x.queries + start + r];
        for (int64_t n = 0; n < columns; n += LANES) store(to + n, exponential(load(to + n) - most) * share);
    }

    int64_t at(const Strides &s, int64_t token = 0) const { return batch * s.batch + head * s.head + token * s.token; }
};

// The gradients of a call by a kind of head, whose `differentiate` adds up those of a block of queries. Returns false if
// there is not enough memory.
template <class Kind> static inline bool differentiate_heads(const Attention &x) {
    std::atomic<bool> enough = true;
#pragma omp parallel num_threads((int)x.threads)
    {
        WithoutSubnormals quick;
        const std::unique_ptr<Kind> made = made_or_null<Kind>(enough, x);
#pragma omp for schedule(dynamic, 1)
        for (int64_t bh = 0; bh < x.batch * x.heads; bh++) {
            if (!enough) continue;
            made->begin(bh);
            for (int64_t start = 0; start < x.queries; start += QUERIES) {
                made->begin_block(start);
                made->differentiate();
                made->finish_block();
            }
            made->finish();
        }
    }
    return enough;
}

bool differentiate_rows(const Attention &x);   // rows_backward.cpp: of calls with `passed`
bool differentiate_mixed(const Attention &x);  // mixing_backward.cpp: of calls with `mixing`
