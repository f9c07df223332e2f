// Gradients of attention whose scores are mixed across the heads of a pair: s' = s + out leaky(of_scores s + of_distance).
// All heads of a text are computed together, tile by tile, by one thread, which sums the gradients of the network, too.
#include <deque>

#include "formulas.h"
#include "gradients.h"

namespace {

// Sums over columns: to[m, n] += sum over c of x[m, c] y[n, c], lane by lane, for ROWS rows of each.
constexpr int ROWS = 4;
static inline void add_products(Vec *to, int64_t next, const float *x, int64_t ldx, const float *y, int64_t ldy,
                                int64_t columns) {
    Vec sum[ROWS][ROWS];
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < ROWS; n++) sum[m][n] = to[m * next + n];
    for (int64_t c = 0; c < columns; c += LANES) {
        Vec b[ROWS];
        for (int n = 0; n < ROWS; n++) b[n] = load(y + n * ldy + c);
        for (int m = 0; m < ROWS; m++) {
            const Vec a = load(x + m * ldx + c);
            for (int n = 0; n < ROWS; n++) sum[m][n] += a * b[n];
        }
    }
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < ROWS; n++) to[m * next + n] = sum[m][n];
}

struct MixedHeads {
    static constexpr int64_t apart = QUERIES * KEYS + LANES;  // from the tile of a head to that of the next
    const Attention &x;
    const Mixing &by;
    int64_t heads, hidden, distances, text = 0;  // heads: a multiple of MIXED
    std::deque<Head> each;
    Buffer scores, weights, ds;            // tiles of all heads: scores before they are mixed, weights, gradients
    Buffer of_row, grad_hidden;            // of a row: hidden numbers [hidden, KEYS]
    Buffer out_by_hidden, scores_by_head;  // the matrices transposed: [hidden, heads] and [heads, hidden]
    Buffer grad_out, grad_scores;          // [heads, hidden] and [hidden, heads], a vector of partial sums for each
    Buffer grad_distance;                  // [hidden, next]

    explicit MixedHeads(const Attention &x)
        : x(x), by(x.mixing), heads(round_up(x.heads, MIXED)), hidden(by.hidden), distances(x.queries + x.keys - 1),
          scores(heads * apart), weights(heads * apart), ds(heads * apart), of_row(hidden * KEYS),
          grad_hidden(hidden * KEYS), out_by_hidden(hidden * heads), scores_by_head(heads * hidden),
          grad_out(heads * hidden * LANES), grad_scores(hidden * heads * LANES), grad_distance(hidden * by.next) {
        for (int64_t n = 0; n < x.heads; n++) each.emplace_back(x);
        for (Buffer *tiles : {&scores, &weights, &ds}) tiles->clear(heads * apart);
        for (int64_t g = 0; g < hidden; g++)
            for (int64_t h = 0; h < heads; h++) {
                out_by_hidden.p[g * heads + h] = by.out[h * hidden + g];
                scores_by_head.p[h * hidden + g] = h < x.heads ? by.of_scores[g * x.heads + h] : 0;
            }
    }

    void differentiate(int64_t of) {
        text = of;
        grad_out.clear(heads * hidden * LANES);
        grad_scores.clear(heads * hidden * LANES);
        grad_distance.clear(hidden * by.next);
        for (int64_t n = 0; n < x.heads; n++) each[n].begin(text * x.heads + n);
        for (int64_t start = 0; start < x.queries; start += QUERIES) {
            for (Head &head : each) head.begin_block(start);
            Keys ranges[2];
            const int count = visible_keys(x, 0, start, KEYS, ranges);
            for (int n = 0; n < count; n++)
                for (int64_t key = ranges[n].from; key < ranges[n].to; key += KEYS)
                    take(key, std::min<int64_t>(KEYS, round_up(ranges[n].to - key, COLUMNS)));
            for (Head &head : each) head.finish_block();
        }
        for (Head &head : each) head.finish();
        finish();
    }

    void take(int64_t key, int64_t columns) {
        const int64_t start = each[0].start, rows = each[0].rows;
        for (int64_t n = 0; n < x.heads; n++) {
            each[n].score(scores.p + n * apart, KEYS, key, columns);
            each[n].differentiate_weights(ds.p + n * apart, key, columns);
        }
        for (int64_t r = 0; r < rows; r++) differentiate_row(start + r, r * KEYS, key, columns);
        for (int64_t n = 0; n < x.heads; n++) {
            for (Buffer *tiles : {&weights, &ds})
                std::memset(tiles->p + n * apart + rows * KEYS, 0, (QUERIES - rows) * KEYS * 4);
            each[n].add_up(weights.p + n * apart, KEYS, ds.p + n * apart, key, columns);
        }
    }

    // A row of all heads, at `row` of each tile: the gradients of the network, and of the scores before they were mixed.
    void differentiate_row(int64_t query, int64_t row, int64_t key, int64_t columns) {
        const int64_t width = round_up(seen_by(x, query, key, columns), LANES), ld = KEYS;
        hidden_of_row(x, of_row.p, ld, scores.p + row, apart, query, key, width);
        for (int64_t h = 0; h < x.heads; h++) std::memcpy(weights.p + h * apart + row, scores.p + h * apart + row, columns * 4);
        add_tile(weights.p + row, apart, heads, by.out, hidden, 1, of_row.p, ld, hidden, width);
        for (int64_t h = 0; h < x.heads; h++) differentiate_softmax(h, row, key, columns);
        for (int64_t g = 0; g < hidden; g += QUERIES)
            dot_tile(grad_hidden.p + g * ld, ld, out_by_hidden.p + g * heads, heads, ds.p + row, apart, x.heads, width);
        for (int64_t g = 0; g < hidden; g++) {
            float *grad = grad_hidden.p + g * ld, *sums = grad_distance.p + g * by.next + x.queries - 1 - query + key;
            for (int64_t c = 0; c < width; c += LANES) {
                const Vec slope = load(of_row.p + g * ld + c) > Vec{} ? all(1) : all(by.leak), e = load(grad + c) * slope;
                store(grad + c, e);
                store(sums + c, load(sums + c) + e);
            }
        }
        for (int64_t h = 0; h < heads; h += ROWS)
            for (int64_t g = 0; g < hidden; g += ROWS) {
                const int64_t at = h * hidden + g;
                add_products((Vec *)grad_out.p + at, hidden, ds.p + h * apart + row, apart, of_row.p + g * ld, ld, width);
                add_products((Vec *)grad_scores.p + at, hidden, scores.p + h * apart + row, apart, grad_hidden.p + g * ld, ld,
                             width);
            }
        add_tile(ds.p + row, apart, heads, scores_by_head.p, hidden, 1, grad_hidden.p, ld, hidden, width);
    }

    // A row of mixed scores of a head -> weights, and of gradients of weights -> those of the mixed scores.
    void differentiate_softmax(int64_t h, int64_t row, int64_t key, int64_t columns) {
        const int64_t r = row / KEYS;
        float *p = weights.p + h * apart + row, *to = ds.p + h * apart + row;
        hide(x, p, KEYS, each[h].start + r, 1, key, columns);
        each[h].softmax(p, r, columns);
        for (int64_t n = 0; n < columns; n += LANES) store(to + n, load(p + n) * (load(to + n) - each[h].delta[r]));
    }

    void finish() const {
        const int64_t given = by.given;
        for (int64_t h = 0; h < x.heads; h++)
            for (int64_t g = 0; g < given; g++) {
                const int64_t at = (h * hidden + g) * LANES;
                if (by.grad_out) by.grad_out[(text * x.heads + h) * given + g] = sum_of_lanes(load(grad_out.p + at));
                if (by.grad_of_scores)
                    by.grad_of_scores[(text * given + g) * x.heads + h] = sum_of_lanes(load(grad_scores.p + at));
            }
        for (int64_t g = 0; by.grad_of_distance && g < given; g++)
            std::memcpy(by.grad_of_distance + (text * given + g) * distances, grad_distance.p + g * by.next, distances * 4);
    }
};

}  // namespace

bool differentiate_mixed(const Attention &x) {
    std::atomic<bool> enough = true;
#pragma omp parallel num_threads((int)x.threads)
    {
        WithoutSubnormals quick;
        const std::unique_ptr<MixedHeads> made = made_or_null<MixedHeads>(enough, x);
#pragma omp for schedule(dynamic, 1)
        for (int64_t text = 0; text < x.batch; text++)
            if (enough) made->differentiate(text);
    }
    return enough;
}
