// Attention output and log-sum-exp of the scores, tile by tile with a running maximum (Milakov and Gimelshein, 2018,
// arXiv:1805.02867): no more than a tile of scores is held per thread. Every block of queries is computed alike on
// whatever thread, so the result does not depend on the number of threads.
#include <deque>

#include "formulas.h"

constexpr int KEYS = 128;  // keys of a tile: 16 KiB of scores
constexpr int WIDE = KEYS + QUERIES;

namespace {

// Keys, values and vectors by distance of all heads, in the order in which tiles read them.
struct Packed {
    int64_t tokens, ld, ev, entries, ldn;  // ld, ldn: of rows by channel; no power of two, so that rows differ in cache sets
    Buffer k;  // tile by tile, [B * H, tokens / KEYS, width, KEYS]
    Buffer v, a, b, rk, c, passed, through;
    Buffer far;      // [B * H, tokens], the number that vectors b add for each key at far distances
    Buffer longest;  // [B * H], the largest length of a key
    explicit Packed(const Attention &x)
        : tokens(round_up(x.keys, KEYS)), ld(tokens + LANES), ev(round_up(x.value_width, LANES)),
          entries(packed_entries(x, KEYS)), ldn(round_up(entries, LANES) + LANES),
          k(x.batch * x.heads * x.width * tokens), v(x.batch * x.heads * tokens * ev),
          a(x.a.vectors ? x.heads * x.a.width * ldn : 0), b(x.b.vectors ? x.heads * x.b.width * ldn : 0),
          rk(x.b.vectors ? x.batch * x.heads * x.b.width * ld : 0), c(x.c.vectors ? x.heads * entries * ev : 0),
          passed(x.passed.kind == COSTS ? x.batch * x.heads * x.passed.width * ld : 0),
          through(x.passage.through ? x.batch * x.heads * rows_through(x) * round_up(x.width, LANES) : 0),
          far(x.b.vectors ? x.batch * x.heads * tokens : 0), longest(x.batch * x.heads) {}

    // The keys [width, KEYS] of the tile that key `j` is in.
    float *tile(const Attention &x, int64_t bh, int64_t j) const { return k.p + (bh * tokens + j / KEYS * KEYS) * x.width; }
    // The rows of all matrices of a head.
    static int64_t rows_through(const Attention &x) { return round_up(x.keys, QUERIES) / QUERIES * x.width; }

    void pack_head(const Attention &x, int64_t bh) {
        const int64_t batch = bh / x.heads, head = bh % x.heads, count = x.queries + x.keys - 1;
        const float *from = x.k + batch * x.k_at.batch + head * x.k_at.head;
        for (int64_t j = 0; j < tokens; j += KEYS)
            pack_columns(tile(x, bh, j), from + j * x.k_at.token, x.keys - j, x.width, x.k_at.token, KEYS);
        pack_rows(v.p + bh * tokens * ev, x.v + batch * x.v_at.batch + head * x.v_at.head, x.keys, x.value_width,
                  x.v_at.token, tokens, ev);
        if (x.b.vectors) {
            const float *met = x.b.met + batch * x.b.met_at.batch + head * x.b.met_at.head;
            for (int64_t j = 0; j < tokens; j++)
                far.p[bh * tokens + j] =
                    j < x.keys ? dot(met + j * x.b.met_at.token, x.b.vectors + head * x.b.head, x.b.width) : 0;
            pack_columns(rk.p + bh * x.b.width * ld, x.b.met + batch * x.b.met_at.batch + head * x.b.met_at.head,
                         x.keys, x.b.width, x.b.met_at.token, ld);
        }
        if (x.passed.kind == COSTS) {
            const Strides &from = x.passed.of_keys_at;
            pack_columns(passed.p + bh * x.passed.width * ld, x.passed.of_keys + batch * from.batch + head * from.head,
                         x.keys, x.passed.width, from.token, ld);
            longest.p[bh] = 0;
            for (int64_t j = 0; j < x.keys; j++)
                longest.p[bh] = std::max(longest.p[bh], length(tile(x, bh, j) + j % KEYS, x.width, KEYS));
        }
        if (x.passage.through) {
            const int64_t count = rows_through(x), dp = round_up(x.width, LANES);
            const float *from = x.passage.through + bh * count * x.width;
            pack_rows(through.p + bh * count * dp, from, count, x.width, x.width, count, dp);
        }
        if (batch) return;
        if (x.a.vectors)
            pack_vectors_by_channel(a.p + head * x.a.width * ldn, x.a.vectors + head * x.a.head, count, x.a.width, ldn);
        if (x.b.vectors)
            pack_vectors_by_channel(b.p + head * x.b.width * ldn, x.b.vectors + head * x.b.head, count, x.b.width, ldn);
        if (x.c.vectors)
            pack_vectors(c.p + head * entries * ev, x.c.vectors + head * x.c.head, count, x.value_width, entries, ev);
    }
};

// A block of queries of one head, and the results so far. `scores` is a tile among those of all heads.
struct Block {
    const Attention &x;
    const Packed &keys;
    float *scores;
    Buffer q, rq, wide, o, passing, moved;
    int64_t batch, head, bh, start, rows;
    float top[QUERIES], highest[QUERIES], lengths[QUERIES];  // the largest score so far, and that of the tile
    float shift[QUERIES];             // of far keys: what is added to each score
    Vec sum[QUERIES], far_sum[QUERIES];  // of the weights, and of those of far keys: lane by lane
    double later[QUERIES];  // sums over the keys of earlier tiles
    bool far = false;       // whether all pairs of the tile are at distances that are all equal

    Block(const Attention &x, const Packed &keys, float *scores)
        : x(x), keys(keys), scores(scores), q(QUERIES * x.width), rq(QUERIES * x.a.width), wide(QUERIES * WIDE),
          o(QUERIES * keys.ev), passing(QUERIES * packed_passing(x)), moved(QUERIES * round_up(x.width, LANES)) {}

    void begin(int64_t of, int64_t block) {
        bh = of, batch = of / x.heads, head = of % x.heads, start = block * QUERIES;
        rows = std::min<int64_t>(QUERIES, x.queries - start);
        pack_queries(q.p, x.q, x.q_at, x.width, x.scale);
        if (x.a.vectors) pack_queries(rq.p, x.a.met, x.a.met_at, x.a.width);
        pack_passing(x, passing.p, packed_passing(x), batch, head, start, rows);
        for (int64_t r = 0; x.passed.kind == COSTS && r < rows; r++) lengths[r] = length(q.p + r * x.width, x.width, 1);
        o.clear(QUERIES * keys.ev);
        std::fill(top, top + QUERIES, x.passed.kind == STICK ? 0 : -INFINITY);
        std::fill(sum, sum + QUERIES, Vec{});
        for (int64_t r = 0; has_null(x) && r < rows; r++) {  // it is the first key of all
            top[r] = x.null[batch * x.null_at.batch + head * x.null_at.head + (start + r) * x.null_at.token];
            sum[r][0] = 1;
        }
        std::fill(later, later + QUERIES, 0.0);
        std::fill(far_sum, far_sum + QUERIES, Vec{});
        float number = 0;
        for (int64_t t = 0; t < x.terms; t++) number += x.far_number(x.term[t], batch, head);
        for (int64_t r = 0; r < QUERIES; r++)
            shift[r] = number + (x.a.vectors ? dot(rq.p + r * x.a.width, x.a.vectors + head * x.a.head, x.a.width) : 0);
    }
    void pack_queries(float *to, const float *from, const Strides &at, int64_t width, float scale = 1) const {
        pack_rows(to, from + batch * at.batch + head * at.head + start * at.token, rows, width, at.token, QUERIES, width,
                  scale);
    }

    // The scores of a tile, before the heads are mixed.
    void score(int64_t key, int64_t columns) {
        const int64_t entry = first_entry(x, start, key);
        far = entry + columns - 2 < x.constant;  // the last entry that a pair of the tile meets
        if (x.passage.through) score_chunks(key, columns);
        else
            score_tile(x, scores, KEYS, q.p, x.width, keys.tile(x, bh, key), KEYS, batch, head, start, rows, key, columns,
                       far);
        if (x.a.vectors && !far)
            add_met(scores, KEYS, rq.p, x.a.width, keys.a.p + head * x.a.width * keys.ldn + entry, keys.ldn, x.a.width,
                    columns, wide.p);
        if (x.b.vectors && far) add_row(scores, KEYS, keys.far.p + bh * keys.tokens + key, columns);
        if (x.b.vectors && !far)
            add_met_by_keys(scores, KEYS, keys.rk.p + bh * x.b.width * keys.ld + key, keys.ld,
                            keys.b.p + head * x.b.width * keys.ldn + entry, keys.ldn, x.b.width, columns);
        if (x.pieces.lines) add_pieces(x, scores, KEYS, head, start, rows, key, columns);
    }

    // The products of a tile, from its last chunk to its first, which the queries pass on their way to the next tile.
    void score_chunks(int64_t key, int64_t columns) {
        const int64_t dp = round_up(x.width, LANES);
        for (int64_t c = (columns - 1) / QUERIES * QUERIES; c >= 0; c -= QUERIES) {
            const int64_t chunk = (key + c) / QUERIES, count = std::min<int64_t>(columns - c, QUERIES);
            if (chunk == x.chunk(start)) {
                put_within(x, scores + c, KEYS, bh, start, rows, count);
                continue;
            }
            const float *through = keys.through.p + (bh * keys.rows_through(x) + chunk * x.width) * dp;
            dot_tile(scores + c, KEYS, q.p, x.width, keys.tile(x, bh, key) + c, KEYS, x.width, count);
            dot_tile(moved.p, dp, q.p, x.width, through, dp, x.width, dp);
            pack_rows(q.p, moved.p, QUERIES, x.width, dp, QUERIES, x.width);
        }
    }

    void take(int64_t key, int64_t columns) {
        float *s = scores;
        hide(x, s, KEYS, start, rows, key, columns);
        if (x.passed.kind) pass(key, columns);
        if (!weigh(columns)) return;
        const int64_t entry = first_entry(x, start, key);
        if (x.factors) multiply(x, s, KEYS, head, start, rows, key, columns);
        add_tile(o.p, keys.ev, QUERIES, s, KEYS, 1, keys.v.p + (bh * keys.tokens + key) * keys.ev, keys.ev, columns,
                 keys.ev);
        if (x.c.vectors && !far) {
            by_distance(wide.p, columns + QUERIES, s, KEYS, rows, columns);
            add_tile(o.p, keys.ev, QUERIES, wide.p, columns + QUERIES, 1,
                     keys.c.p + (head * keys.entries + entry) * keys.ev, keys.ev, columns + QUERIES, keys.ev);
        }
    }

    void pass(int64_t key, int64_t columns) {
        const Passed &by = x.passed;
        if (by.kind == COSTS)
            dot_tile(wide.p, KEYS, passing.p, by.width, keys.passed.p + bh * by.width * keys.ld + key, keys.ld, by.width,
                     columns);
        hide_own(x, scores, KEYS, start, rows, key, columns);
        if (by.kind == GATES)
            return add_at_gates(scores, KEYS, rows, columns, passing.p, packed_passing(x), by.width, later);
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * KEYS;
            if (by.kind == COSTS) {
                const int64_t seen = seen_by(x, start + r, key, columns);
                subtract_costs(row, wide.p + r * KEYS, seen, columns, by.factor[head], later[r]);
            }
            if (by.kind == STICK) break_stick(row, columns, later[r]);
        }
    }

    // Whether no key before those of the tiles so far can have a weight.
    bool finished() const {
        if (!ends(x)) return false;
        for (int64_t r = 0; r < rows; r++)
            if (!(largest_beyond(x, head, later[r], lengths[r], keys.longest.p[bh]) < top[r] - NO_WEIGHT - 1)) return false;
        return true;
    }

    // Scores -> e^(score - maximum so far); earlier results are rescaled where the maximum has risen. Returns whether
    // any key has a weight.
    bool weigh(int64_t columns) {
        float fade[QUERIES];
        bool weight = false;
        for (int64_t first = 0; first < QUERIES; first += LANES) {
            Vec most[LANES];
            for (int64_t n = 0; n < LANES; n++) {
                const float *row = scores + (first + n) * KEYS;
                most[n] = load(row);
                for (int64_t c = LANES; c < columns; c += LANES) most[n] = larger(most[n], load(row + c));
            }
            const Vec high = largest_lanes(most) + (far ? load(shift + first) : Vec{}), before = load(top + first);
            const Vec after = larger(high, before);
            store(top + first, after);
            store(fade + first, after > before ? exponential(before - after) : all(1));
            store(highest + first, high);
        }
        for (int64_t r = 0; r < rows; r++) weight |= weigh(r, columns, fade[r]);
        return weight;
    }

    // A row of scores -> weights; returns whether any key has one.
    bool weigh(int64_t r, int64_t columns, float fade) {
        float *row = scores + r * KEYS;
        if (highest[r] < top[r] - NO_WEIGHT && !has_nan(row, columns)) {
            std::memset(row, 0, columns * 4);
            return false;
        }
        const float base = (top[r] == -INFINITY ? 0 : top[r]) - (far ? shift[r] : 0);
        Vec total = Vec{};
        for (int64_t c = 0; c < columns; c += LANES) {
            const Vec p = exponential(load(row + c) - base);
            total += p;
            store(row + c, p);
        }
        sum[r] = sum[r] * fade + total;
        if (far) far_sum[r] = far_sum[r] * fade + total;  // after a far tile, all are far
        for (int64_t e = 0; e < keys.ev; e += LANES) store(o.p + r * keys.ev + e, load(o.p + r * keys.ev + e) * fade);
        return true;
    }

    void finish() {
        for (int64_t r = 0; r < rows; r++) {
            float *to = x.o + batch * x.o_at.batch + head * x.o_at.head + (start + r) * x.o_at.token;
            const float total = sum_of_lanes(sum[r]), share = x.passed.kind == STICK ? 1 : 1 / total;
            for (int64_t e = 0; e < x.value_width; e++) to[e] = o.p[r * keys.ev + e] * share;
            if (x.c.vectors) {
                const float far_share = sum_of_lanes(far_sum[r]) * share;
                for (int64_t e = 0; e < x.value_width; e++) to[e] += far_share * x.c.vectors[head * x.c.head + e];
            }
            x.top[bh * x.queries + start + r] = top[r];
            x.sum[bh * x.queries + start + r] = total;
        }
    }
};

// What a thread works with: the blocks of the heads that are computed together, which are all of them if they are mixed.
struct Worker {
    // The tiles of heads lie apart by no power of two, for the cache's sets.
    static constexpr int64_t apart = QUERIES * KEYS + LANES;
    const Attention &x;
    int64_t together;
    Buffer scores, hidden;
    std::deque<Block> heads;

    Worker(const Attention &x, const Packed &keys)
        : x(x), together(x.mixing.hidden ? x.heads : 1), scores(round_up(together, MIXED) * apart),
          hidden(x.mixing.hidden * KEYS) {
        scores.clear(round_up(together, MIXED) * apart);
        for (int64_t n = 0; n < together; n++) heads.emplace_back(x, keys, scores.p + n * apart);
    }

    void attend(int64_t group, int64_t block) {
        for (int64_t n = 0; n < together; n++) heads[n].begin(group * together + n, block);
        const Block &first = heads[0];
        Keys ranges[2];
        int count = visible_keys(x, first.head, first.start, KEYS, ranges);
        while (count--) {  // the nearest keys first: beside their scores, far keys may have no weight
            const Keys seen = ranges[count];
            for (int64_t key = seen.from + (seen.to - 1 - seen.from) / KEYS * KEYS; key >= seen.from; key -= KEYS) {
                take(key, std::min<int64_t>(KEYS, round_up(seen.to - key, LANES)));
                if (first.finished()) break;
            }
        }
        for (Block &each : heads) each.finish();
    }

    void take(int64_t key, int64_t columns) {
        const Block &first = heads[0];
        for (Block &each : heads) each.score(key, columns);
        if (x.mixing.hidden)
            mix_heads(x, scores.p, apart, KEYS, hidden.p, first.start, first.rows, key, columns);
        for (Block &each : heads) each.take(key, columns);
    }
};

}  // namespace

// Returns false if there is not enough memory.
extern "C" bool attention_forward(const Attention *call) {
    const Attention &x = *call;
    std::atomic<bool> enough = true;
    const std::unique_ptr<Packed> packed = made_or_null<Packed>(enough, x);
    if (!enough) return false;
#pragma omp parallel num_threads((int)x.threads)
    {
        WithoutSubnormals quick;
#pragma omp for schedule(dynamic, 1)
        for (int64_t bh = 0; bh < x.batch * x.heads; bh++) packed->pack_head(x, bh);
        const std::unique_ptr<Worker> worker = made_or_null<Worker>(enough, x, *packed);
        const int64_t groups = x.mixing.hidden ? x.batch : x.batch * x.heads;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < groups * x.blocks(); task++)  // head by head, the longest blocks first
            if (enough) worker->attend(task / x.blocks(), x.blocks() - 1 - task % x.blocks());
    }
    return enough;
}
