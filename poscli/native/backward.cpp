// Gradients of one call of attention. The weights are recomputed tile by tile from the log-sum-exp (Dao et al., 2022,
// arXiv:2205.14135).
//
// With p the weights after the softmax, f the factors on them (1 if there are none) and g = dL/do:
//     dL/ds[i, j] = p[i, j] (f[i - j] g_i . (v_j + c[i - j]) - g_i . o_i)
// which is - p g_i . o_i for a null key.
#include "gradients.h"

namespace {

struct TiledHead : Head {
    Buffer p, ds;  // of a tile: weights, and gradients of the scores
    const bool biased;  // whether something beside q . k decides over the weights, and may leave whole tiles none

    explicit TiledHead(const Attention &x)
        : Head(x), p(QUERIES * KEYS), ds(QUERIES * KEYS), biased(x.terms || a.used() || b.used() || x.pieces.lines) {}

    void differentiate() {
        Keys ranges[2];
        const int count = visible_keys(x, head, start, KEYS, ranges);
        for (int n = 0; n < count; n++)
            for (int64_t key = ranges[n].from; key < ranges[n].to; key += KEYS)
                take(key, std::min<int64_t>(KEYS, round_up(ranges[n].to - key, COLUMNS)));
    }

    void take(int64_t key, int64_t columns) {
        score(p.p, KEYS, key, columns);
        hide(x, p.p, KEYS, start, rows, key, columns);
        if (biased && !any_weight(columns)) return;
        for (int64_t r = 0; r < rows; r++) softmax(p.p + r * KEYS, r, columns);
        for (int64_t r = rows; r < QUERIES; r++) std::memset(p.p + r * KEYS, 0, columns * 4);  // there is no query
        differentiate_weights(ds.p, key, columns);
        if (x.factors) take_factors(key, columns);
        for (int64_t r = 0; r < QUERIES; r++) differentiate_scores(r, columns);
        if (x.factors) multiply(x, p.p, KEYS, head, start, rows, key, columns);
        add_up(p.p, KEYS, ds.p, key, columns);
    }

    // Whether any key has a weight, by the scores of the tile.
    bool any_weight(int64_t columns) const {
        Vec most = all(-INFINITY);
        bool nan = false;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t n = 0; n < columns; n += LANES) most = larger(most, load(p.p + r * KEYS + n) - top(r));
        if (!(largest_lane(most) < -NO_WEIGHT)) return true;
        for (int64_t r = 0; r < rows; r++) nan |= has_nan(p.p + r * KEYS, columns);
        return nan;
    }

    // The gradients of the factors; then those of the weights before them take the place of those after them.
    void take_factors(int64_t key, int64_t columns) {
        const int64_t distances = x.queries + x.keys - 1;
        for (int64_t r = 0; x.grad_factors && r < rows; r++) {
            float *to = x.grad_factors + bh * distances + x.queries - 1 - (start + r) + key;
            const float *weights = p.p + r * KEYS, *from = ds.p + r * KEYS;
            for (int64_t n = 0, seen = seen_by(x, start + r, key, columns); n < seen; n++) to[n] += weights[n] * from[n];
        }
        multiply(x, ds.p, KEYS, head, start, rows, key, columns);
    }

    // A row of gradients of the weights -> those of the scores.
    void differentiate_scores(int64_t r, int64_t columns) {
        const float mean = r < rows ? delta[r] : 0;
        const float *weights = p.p + r * KEYS;
        float *row = ds.p + r * KEYS;
        for (int64_t n = 0; n < columns; n += LANES) store(row + n, load(weights + n) * (load(row + n) - mean));
    }
};

}  // namespace

// Returns false if there is not enough memory.
extern "C" bool attention_backward(const Attention *call) {
    if (call->mixing.hidden) return differentiate_mixed(*call);
    return call->passed.kind ? differentiate_rows(*call) : differentiate_heads<TiledHead>(*call);
}
