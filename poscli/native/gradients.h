// What the gradients of all kinds of attention share: sums over the queries of one head, which one thread makes in one
// order, so that they are the same on any number of threads.
#pragma once
#include "attention.h"

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

// One head: its keys and values by token and by channel, and the sums over its queries.
struct Head {
    const Attention &x;
    int64_t tokens, ld, dp, ep, rp, batch = 0, head = 0, bh = 0, start = 0, rows = 0;
    Vectors a, b, c;
    Buffer k, kT, vT, rk, rkT, grad_k, grad_v, grad_rk;                        // [tokens] or by channel
    Buffer q, g, grad_q, rq, grad_rq, wide;              // of a block of queries
    float delta[QUERIES];

    explicit Head(const Attention &x)
        : x(x), tokens(round_up(x.keys, KEYS)), ld(tokens + LANES), dp(round_up(x.width, LANES)),
          ep(round_up(x.value_width, LANES)), rp(round_up(x.a.width, LANES)), a(x, x.a, x.a.width),
          b(x, x.b, x.b.width), c(x, x.c, x.value_width), k(tokens * dp), kT(x.width * ld), vT(x.value_width * ld),
          rk((tokens + WIDE) * b.padded), rkT(x.b.width * ld), grad_k(tokens * dp), grad_v(tokens * ep),
          grad_rk(tokens * b.padded), q(QUERIES * dp), g(QUERIES * ep), grad_q(QUERIES * dp), rq(QUERIES * rp),
          grad_rq(QUERIES * rp), wide(QUERIES * WIDE) {}

    void begin(int64_t of) {
        bh = of, batch = of / x.heads, head = of % x.heads;
        const float *keys = x.k + at(x.k_at), *values = x.v + at(x.v_at);
        pack_rows(k.p, keys, x.keys, x.width, x.k_at.token, tokens, dp);
        pack_columns(kT.p, keys, x.keys, x.width, x.k_at.token, ld);
        pack_columns(vT.p, values, x.keys, x.value_width, x.v_at.token, ld);
        grad_k.clear(tokens * dp);
        grad_v.clear(tokens * ep);
        for (Vectors *each : {&a, &b, &c}) each->begin(head, x.queries + x.keys - 1);
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
        grad_q.clear(QUERIES * dp);
        if (a.used()) {
            pack_rows(rq.p, x.a.met + at(x.a.met_at, start), rows, a.width, x.a.met_at.token, QUERIES, rp);
            grad_rq.clear(QUERIES * rp);
        }
        for (int64_t r = 0; r < rows; r++) {
            const float *o = x.o + at(x.o_at, start + r);
            delta[r] = 0;
            for (int64_t e = 0; e < x.value_width; e++) delta[r] += o[e] * g.p[r * ep + e];
            if (x.grad_null) x.grad_null[at(x.grad_null_at, start + r)] = has_null(x) ? -null_weight(r) * delta[r] : 0;
        }
    }

    // The scores of a tile [QUERIES, ldt], also of hidden keys.
    void score(float *tile, int64_t ldt, int64_t key, int64_t columns) {
        const int64_t entry = first_entry(x, start, key);
        dot_tile(tile, ldt, q.p, dp, kT.p + key, ld, x.width, columns);
        if (a.used()) add_met(tile, ldt, rq.p, rp, a.channels.p + entry, a.ldn, a.width, columns, wide.p);
        if (b.used()) add_met_by_keys(tile, ldt, rkT.p + key, ld, b.channels.p + entry, b.ldn, b.width, columns);
        add_terms(x, tile, ldt, batch, head, start, rows, key, columns);
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
        add_tile(grad_v.p + key * ep, ep, columns, p, 1, ldp, g.p, ep, QUERIES, ep);
        add_tile(grad_k.p + key * dp, dp, columns, ds, 1, KEYS, q.p, dp, QUERIES, dp);
        add_tile(grad_q.p, dp, QUERIES, ds, KEYS, 1, k.p + key * dp, dp, columns, dp);
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

    void add_to_term(const Term &term, const float *ds, int64_t key, int64_t columns) {
        for (int64_t r = 0; r < rows; r++) {
            const int64_t seen = seen_by(x, start + r, key, columns);
            float *to = term.grad + batch * term.grad_batch + head * term.grad_head + (start + r) * term.grad_query + key;
            const float *from = ds + r * KEYS;
            int64_t n = 0;
            for (; n + LANES <= seen; n += LANES) store(to + n, load(to + n) + load(from + n));
            for (; n < seen; n++) to[n] += from[n];
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
