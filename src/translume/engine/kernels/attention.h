/* What tokens read of one another: attention over what was written before and over the source, and an SSRU's cells. */

#ifndef TRANSLUME_ATTENTION
#define TRANSLUME_ATTENTION

#include "stack.h"

/* Weights [count] of scores, which may be -inf; what is behind them up to a whole vector is made 0. */
static void softmax(float *scores, int64_t count) {
    float peak = -INFINITY;
    for (int64_t place = 0; place < count; place++) peak = scores[place] > peak ? scores[place] : peak;
    for (int64_t place = count; place % LANES; place++) scores[place] = -INFINITY;
    if (peak == -INFINITY) peak = 0; /* nothing stands there: nothing is read */
    vector total = {0};
    for (int64_t place = 0; place < count; place += LANES) {
        vector value = exponential(load(scores + place) - peak);
        store(scores + place, value);
        total += value;
    }
    float mass = sum(total), inverse = mass > 0 ? 1.0f / mass : 0;
    for (int64_t place = 0; place < count; place += LANES) store(scores + place, load(scores + place) * inverse);
}

/* What a query reads: softmax of its products with `count` keys, times their values; the places' keys and values stand
   at the offsets `at`. Heads have `vectors` whole vectors. */
INLINE void attend_over(int vectors, const float *query, const float *keys, const float *values, const int64_t *at,
                        int64_t count, float *scores, float *to) {
    for (int64_t place = 0; place < count; place++) {
        vector total = {0};
        for (int v = 0; v < vectors; v++) total += load(query + v * LANES) * load(keys + at[place] + v * LANES);
        scores[place] = sum(total);
    }
    softmax(scores, count);
    for (int v = 0; v < vectors; v++) {
        vector total = {0};
        for (int64_t place = 0; place < count; place++) total += scores[place] * load(values + at[place] + v * LANES);
        store(to + v * LANES, total);
    }
}

static void attend(int64_t size, const float *query, const float *keys, const float *values, const int64_t *at,
                   int64_t count, float *scores, float *to) {
    switch (size / LANES) {
        case 1: attend_over(1, query, keys, values, at, count, scores, to); break;
        case 2: attend_over(2, query, keys, values, at, count, scores, to); break;
        case 4: attend_over(4, query, keys, values, at, count, scores, to); break;
        default: attend_over((int)(size / LANES), query, keys, values, at, count, scores, to);
    }
}

INLINE int64_t slot(const reading *step, int64_t sentence) { return step->slots ? step->slots[sentence] : sentence; }

/* Attention of tokens over what their hypotheses wrote; queries, keys and values are parts of `parts` [N, 3D]. */
static void mix(const stack *of, const reading *step, int64_t number, const float *parts, room use) {
    int64_t width = of->width, heads = of->heads, size = width / heads, each = step->width * step->count;
    float *keys = step->past + 2 * number * step->past_layer, *values = keys + step->past_layer;
    for (int64_t row = 0; row < step->sentences * each; row++) {
        int64_t place = step->place + row % each / step->width, hypothesis = row % step->width;
        int64_t at = slot(step, row / each) * step->past_sentence + place * step->past_place + hypothesis * size;
        const float *from = parts + 3 * row * width;
        for (int64_t head = 0; head < heads; head++, at += step->past_head) {
            memcpy(keys + at, from + width + head * size, size * sizeof(float));
            memcpy(values + at, from + 2 * width + head * size, size * sizeof(float));
        }
    }
    for (int64_t row = 0; row < step->sentences * each; row++) {
        int64_t count = step->place + row % each / step->width + 1, hypothesis = row % step->width;
        const int64_t *who = step->reach ? step->reach + row * (step->place + 1) : NULL;
        for (int64_t place = 0; place < count; place++)
            use.at[place] = place * step->past_place + (who ? who[place] : hypothesis) * size;
        for (int64_t head = 0; head < heads; head++) {
            int64_t begin = slot(step, row / each) * step->past_sentence + head * step->past_head;
            attend(size, parts + 3 * row * width + head * size, keys + begin, values + begin, use.at, count,
                   use.scores, use.mixed + row * width + head * size);
        }
    }
}

/* The cells of an SSRU (Kim et al. 2019), kept where attention has its keys: c = f c' + (1 - f) u, added to x as ReLU(c);
   gates before their sigmoid, and updates, are parts of `parts` [N, 2D]. */
static void remember(const stack *of, const reading *step, int64_t number, const float *parts, float *x) {
    int64_t width = of->width, size = width / of->heads, each = step->width * step->count;
    float *cells = step->past + 2 * number * step->past_layer;
    for (int64_t row = 0; row < step->sentences * each; row++, parts += 2 * width, x += width) {
        int64_t place = step->place + row % each / step->width, own = row % step->width * size, from = own;
        int64_t at = slot(step, row / each) * step->past_sentence + place * step->past_place;
        if (step->reach && place) from = step->reach[row * (step->place + 1) + place - 1] * size;
        for (int64_t head = 0; head < of->heads; head++, at += step->past_head)
            for (int64_t k = 0; k < size; k += LANES) {
                vector gate = sigmoid(load(parts + head * size + k)), update = load(parts + width + head * size + k);
                vector cell = (1.0f - gate) * update;
                if (place) cell += gate * load(cells + at - step->past_place + from + k);
                store(cells + at + own + k, cell);
                store(x + head * size + k, load(x + head * size + k) + above_zero(cell));
            }
    }
}

/* Attention of queries [N, D] over the source. */
static void look(const stack *of, const reading *step, int64_t number, const float *queries, room use) {
    int64_t width = of->width, heads = of->heads, size = width / heads, each = step->width * step->count;
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        int64_t begin = slot(step, sentence), count = 0;
        const float *hidden = step->hidden ? step->hidden + begin * step->source : NULL;
        for (int64_t place = 0; place < step->source; place++)
            if (!hidden || hidden[place] == 0.0f) use.at[count++] = place * size;
        for (int64_t head = 0; head < heads; head++) {
            const float *keys =
                step->cross + 2 * number * step->cross_layer + begin * step->cross_sentence + head * step->cross_head;
            for (int64_t row = sentence * each; row < (sentence + 1) * each; row++)
                attend(size, queries + row * width + head * size, keys, keys + step->cross_layer, use.at, count,
                       use.scores, use.mixed + row * width + head * size);
        }
    }
}

/* Attention of a packed source's tokens, `parts` [T, 3D], within their sentences, which begin at `begins` [B + 1]. */
static void mix_source(const stack *of, const int64_t *begins, int64_t sentences, const float *parts, room use) {
    int64_t width = of->width, heads = of->heads, size = width / heads;
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
        int64_t first = begins[sentence], count = begins[sentence + 1] - first;
        for (int64_t place = 0; place < count; place++) use.at[place] = 3 * place * width;
        for (int64_t head = 0; head < heads; head++) {
            const float *keys = parts + (3 * first + 1) * width + head * size;
            for (int64_t row = first; row < first + count; row++)
                attend(size, parts + 3 * row * width + head * size, keys, keys + width, use.at, count, use.scores,
                       use.mixed + row * width + head * size);
        }
    }
}

#endif
