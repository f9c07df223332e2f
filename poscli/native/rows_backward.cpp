// Gradients of attention in which keys act on the keys before them (`passed`). A key acts on whole rows of scores, so the
// rows of a block of queries are held: three numbers per query and key, of which each is computed once.
//
// A first pass, from the nearest keys to the farthest, computes the weights and what the sums over keys need. A second
// one, from the farthest to the nearest, carries sums the other way round. With p the weights and g = dL/do:
//     e_j = dL/d(what the softmax is given)_j = p_j (g . (v_j + c) - g . o);  STICK has no softmax: e_j = p_j g . (v_j + c)
//     STICK   dL/ds_l = e_l - sigmoid(s_l) sum over j <= l of e_j
//     COSTS   dL/ds_l = e_l,  dL/dy_l = -factor sigmoid(y_l) sum over j < l of e_j
//     GATES   dL/ds_l = e_l + sigmoid'(s_l) sum over j <= l of e_j (slope of the table at the position of j)
#include <vector>

#include "formulas.h"
#include "gradients.h"

namespace {

// What meets `passed`, by token and by channel, and its gradient. In COSTS there are numbers of queries and of keys.
struct Probes {
    const Attention &x;
    const Passed &by;
    int64_t width, of_keys;
    Buffer queries, grad_queries, keys, keysT, grad_keys, costs;

    Probes(const Attention &x, int64_t tokens, int64_t ld)
        : x(x), by(x.passed), width(round_up(packed_passing(x), LANES)), of_keys(by.kind == COSTS ? tokens * width : 0),
          queries(QUERIES * width), grad_queries(QUERIES * width), keys(of_keys), keysT(of_keys ? by.width * ld : 0),
          grad_keys(of_keys), costs(of_keys ? QUERIES * KEYS : 0) {}

    void begin(int64_t batch, int64_t head, int64_t tokens, int64_t ld) {
        if (!of_keys) return;
        const float *from = by.of_keys + batch * by.of_keys_at.batch + head * by.of_keys_at.head;
        pack_rows(keys.p, from, x.keys, by.width, by.of_keys_at.token, tokens, width);
        pack_columns(keysT.p, from, x.keys, by.width, by.of_keys_at.token, ld);
        grad_keys.clear(of_keys);
    }
    void begin_block(int64_t batch, int64_t head, int64_t start, int64_t rows) {
        pack_passing(x, queries.p, width, batch, head, start, rows);
        grad_queries.clear(QUERIES * width);
    }
    void finish_block(int64_t batch, int64_t head, int64_t start, int64_t rows) const {
        if (by.grad_of_queries) add(by.grad_of_queries, by.grad_of_queries_at, grad_queries.p, batch, head, start, rows);
    }
    void finish(int64_t batch, int64_t head) const {
        if (by.grad_of_keys) add(by.grad_of_keys, by.grad_of_keys_at, grad_keys.p, batch, head, 0, x.keys);
    }
    void add(float *to, const Strides &at, const float *from, int64_t batch, int64_t head, int64_t first,
             int64_t count) const {
        to += batch * at.batch + head * at.head + first * at.token;
        for (int64_t i = 0; i < count; i++)
            for (int64_t p = 0; p < by.width; p++) to[i * at.token + p] += from[i * width + p];
    }
};

// How many of the first lanes hold at least n, for every n < LANES, in numbers that fall from lane to lane: by bisection.
static inline IntVec count_at_least(IntVec falling) {
    IntVec n, count = IntVec{};
    for (int lane = 0; lane < LANES; lane++) n[lane] = lane;
    for (int step = LANES / 2; step; step /= 2)
        count += (IntVec)picked((Vec)falling, count + (step - 1)) >= n ? IntVec{} + step : IntVec{};
    return count - ((IntVec)picked((Vec)falling, count) >= n);
}

// The sums of the lanes at every entry n < LANES, from how many of the first lanes are at least at n.
static inline Vec sums_by_entry(Vec x, IntVec count) {
    const Vec at_least = count > 0 ? picked(sums_up_to_each(x), count - 1) : Vec{};
    return at_least - later_lanes<1>(at_least, ALL_LANES);
}

struct RowsHead : Head {
    const Passed &by;
    Probes probes;
    Buffer weights, slopes, sums;  // rows of numbers per key: the slope of what is summed, and the sum where it is needed
    Buffer ds;                     // of a tile
    std::vector<Keys> tiles;       // of the block, the nearest keys first
    double later[QUERIES], earlier[QUERIES];  // sums over the keys of nearer tiles, and of farther ones
    float lengths[QUERIES], longest = 0;
    double grad_factor = 0;

    explicit RowsHead(const Attention &x)
        : Head(x), by(x.passed), probes(x, tokens, ld), weights(QUERIES * ld), slopes(QUERIES * ld),
          sums(by.kind == GATES || by.grad_factor ? QUERIES * ld : 0), ds(QUERIES * KEYS) {
        tiles.reserve(tokens / KEYS + 2);
    }

    void begin(int64_t of) {
        Head::begin(of);
        probes.begin(batch, head, tokens, ld);
        longest = 0, grad_factor = 0;
        for (int64_t j = 0; j < x.keys; j++) longest = std::max(longest, length(k.p + j * dp, x.width, 1));
    }

    void begin_block(int64_t first) {
        Head::begin_block(first);
        probes.begin_block(batch, head, start, rows);
        for (int64_t r = 0; r < rows; r++) lengths[r] = length(q.p + r * dp, x.width, 1);
        std::fill(later, later + QUERIES, 0.0);
        std::fill(earlier, earlier + QUERIES, 0.0);
    }

    void differentiate() {
        find_tiles();
        size_t count = 0;
        while (count < tiles.size() && !finished()) weigh(tiles[count++]);
        while (count--) differentiate(tiles[count]);
    }

    void find_tiles() {
        tiles.clear();
        Keys ranges[2];
        int count = visible_keys(x, head, start, KEYS, ranges);
        while (count--)
            for (int64_t from = ranges[count].from, key = from + (ranges[count].to - 1 - from) / KEYS * KEYS; key >= from;
                 key -= KEYS)
                tiles.push_back({key, key + std::min<int64_t>(KEYS, round_up(ranges[count].to - key, COLUMNS))});
    }

    // Whether no farther key has a weight.
    bool finished() const {
        if (!ends(x)) return false;
        for (int64_t r = 0; r < rows; r++) {
            const float most = by.kind == STICK ? 0 : top(r);
            if (!(largest_beyond(x, head, later[r], lengths[r], longest) < most - NO_WEIGHT - 1)) return false;
        }
        return true;
    }

    void weigh(const Keys &tile) {
        const int64_t key = tile.from, columns = tile.to - key;
        score(weights.p + key, ld, key, columns);
        hide(x, weights.p + key, ld, start, rows, key, columns);
        hide_own(x, weights.p + key, ld, start, rows, key, columns);
        if (by.kind == COSTS)
            dot_tile(probes.costs.p, KEYS, probes.queries.p, probes.width, probes.keysT.p + key, ld, by.width, columns);
        if (by.kind == GATES)
            add_at_gates(weights.p + key, ld, rows, columns, probes.queries.p, probes.width, by.width, later,
                         slopes.p + key, sums.p + key);
        for (int64_t r = 0; r < QUERIES; r++) {
            float *row = weights.p + r * ld + key;
            if (r < rows) weigh(r, row, key, columns);
            else std::memset(row, 0, columns * 4);
        }
    }

    // A row of scores -> weights.
    void weigh(int64_t r, float *row, int64_t key, int64_t columns) {
        float *slope = slopes.p + r * ld + key, *sum = sums.p + r * ld + key;
        if (by.kind == COSTS)
            subtract_costs(row, probes.costs.p + r * KEYS, seen_by(x, start + r, key, columns), columns, by.factor[head],
                           later[r], slope, by.grad_factor ? sum : nullptr);
        if (by.kind != STICK) return softmax(row, r, columns);
        break_stick(row, columns, later[r], slope);
        for (int64_t n = 0; n < columns; n += LANES) store(row + n, exponential(load(row + n)));
    }

    void differentiate(const Keys &tile) {
        const int64_t key = tile.from, columns = tile.to - key;
        differentiate_weights(ds.p, key, columns);
        for (int64_t r = 0; r < QUERIES; r++) {
            float *row = ds.p + r * KEYS;
            const float *p = weights.p + r * ld + key, mean = by.kind == STICK || r >= rows ? 0 : delta[r];
            for (int64_t n = 0; n < columns; n += LANES) store(row + n, load(p + n) * (load(row + n) - mean));
            if (r >= rows) continue;
            if (by.kind == COSTS) differentiate_costs(r, row, key, columns);
            if (by.kind == STICK) differentiate_stick(r, row, key, columns);
        }
        if (by.kind == GATES) differentiate_gates(key, columns);
        add_up(weights.p + key, ld, ds.p, key, columns);
        if (by.kind == COSTS) add_up_costs(key, columns);
    }

    void differentiate_stick(int64_t r, float *row, int64_t key, int64_t columns) {
        const float *slope = slopes.p + r * ld + key;
        for (int64_t n = 0; n < columns; n += LANES) {
            const Vec e = load(row + n), own = sums_up_to_each(e);
            store(row + n, e - load(slope + n) * (own + (float)earlier[r]));
            earlier[r] += own[LANES - 1];
        }
    }

    void differentiate_costs(int64_t r, const float *row, int64_t key, int64_t columns) {
        const float *slope = slopes.p + r * ld + key, *sum = sums.p + r * ld + key;
        float *to = probes.costs.p + r * KEYS;
        const float factor = by.factor[head];
        Vec of_factor = Vec{};
        for (int64_t n = 0; n < columns; n += LANES) {
            const Vec e = load(row + n), own = sums_up_to_each(e);
            store(to + n, -factor * load(slope + n) * (own - e + (float)earlier[r]));
            earlier[r] += own[LANES - 1];
            if (by.grad_factor) of_factor += e * load(sum + n);
        }
        grad_factor -= sum_of_lanes(of_factor);
    }

    void differentiate_gates(int64_t key, int64_t columns) {
        for (int64_t n = 0; n < columns; n += LANES)
            for (int64_t r = 0; r < rows; r++) differentiate_gates_of_row(r, ds.p + r * KEYS + n, key + n);
    }

    void differentiate_gates_of_row(int64_t r, float *to, int64_t key) {
        const int64_t row = r * probes.width, last = by.width - 1;
        const float *position = sums.p + r * ld + key;
        const Vec e = load(to);
        if (position[LANES - 1] >= last) return add(probes.grad_queries.p + row + last, e);  // each of these is the last
        const Between found = table_at(probes.queries.p + row, load(position));
        const Vec own = sums_up_to_each(e * (found.high - found.low)), above = e * found.share;
        store(to, e + load(slopes.p + r * ld + key) * (own + (float)earlier[r]));
        earlier[r] += own[LANES - 1];
        const IntVec count = count_at_least(found.at);
        const Vec of_high = sums_by_entry(above, count);
        float *grad = probes.grad_queries.p + row + found.first;
        add(grad, sums_by_entry(e - above, count) + earlier_lanes<1>(of_high, ALL_LANES));
        grad[LANES] += of_high[LANES - 1];
    }
    static void add(float *to, Vec x) { store(to, load(to) + x); }

    // The gradients of the numbers whose products are the costs of a tile.
    void add_up_costs(int64_t key, int64_t columns) {
        const int64_t width = probes.width;
        for (int64_t r = rows; r < QUERIES; r++) std::memset(probes.costs.p + r * KEYS, 0, columns * 4);
        add_tile(probes.grad_queries.p, width, QUERIES, probes.costs.p, KEYS, 1, probes.keys.p + key * width, width, columns,
                 width);
        add_tile(probes.grad_keys.p + key * width, width, columns, probes.costs.p, 1, KEYS, probes.queries.p, width, QUERIES,
                 width);
    }

    void finish_block() {
        Head::finish_block();
        if (by.kind == GATES)
            for (int64_t r = 0; r < rows; r++) {
                float *of_last = probes.grad_queries.p + r * probes.width + by.width - 1;
                for (int lane = 1; lane <= LANES; lane++) of_last[0] += of_last[lane];
            }
        probes.finish_block(batch, head, start, rows);
    }

    void finish() {
        Head::finish();
        probes.finish(batch, head);
        if (by.grad_factor) by.grad_factor[bh] = (float)grad_factor;
    }
};

}  // namespace

bool differentiate_rows(const Attention &x) { return differentiate_heads<RowsHead>(x); }
