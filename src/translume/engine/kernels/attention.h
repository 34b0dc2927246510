/* What tokens read of one another: attention over what was written before and over the source, and an SSRU's cells. */

#ifndef TRANSLUME_ATTENTION
#define TRANSLUME_ATTENTION

#include "stack.h"

/* Weights [count] of scores, which may be -inf; what is behind them up to a whole vector is made 0. */
static void softmax(float *scores, int64_t count) {
    vector peaks = all(-INFINITY);
    for (int64_t place = count; place % LANES; place++) scores[place] = -INFINITY;
    for (int64_t place = 0; place < count; place += LANES) peaks = higher(load(scores + place), peaks);
    float peak = largest(peaks);
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

/* What queries read of one head: keys and values whose places stand at offsets that come with them. */
typedef struct {
    const void *keys, *values;
    int64_t size;   /* of a head; whole vectors */
    int64_t ahead;  /* from here to what is read next, to be fetched meanwhile; 0: nothing */
    int halves;
} head_read;

INLINE const char *byte_of(int halves, const void *from, int64_t at) {
    return (const char *)from + at * (halves ? 2 : (int64_t)sizeof(float));
}

INLINE void fetch(int halves, int vectors, const void *from, int64_t at) {
#pragma GCC unroll 4
    for (int line = 0; line < vectors; line += halves ? 2 : 1)
        __builtin_prefetch(byte_of(halves, from, at + line * LANES), 0, 2);
}

/* Softmax of a query's products with the keys of `count` places, times their values. `at` goes on for FOUR places. */
INLINE void attend_over(int vectors, int halves, const float *query, head_read from, const int64_t *at, int64_t count,
                        float *scores, float *to) {
    for (int64_t place = 0; place < count; place += FOUR) {
        vector totals[FOUR];
#pragma GCC unroll 4
        for (int one = 0; one < FOUR; one++) {
            totals[one] = (vector){0};
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                totals[one] += load(query + v * LANES) * number(halves, from.keys, at[place + one] + v * LANES);
            if (from.ahead) fetch(halves, vectors, from.keys, at[place + one] + from.ahead);
        }
        four_sums(totals, scores + place);
    }
    softmax(scores, count);
    for (int first = 0; first < vectors; first += FOUR) {
        int some = vectors - first < FOUR ? vectors - first : FOUR;
        vector totals[FOUR] = {{0}};
        for (int64_t place = 0; place < count; place++) {
            vector share = all(scores[place]);
#pragma GCC unroll 4
            for (int v = 0; v < some; v++)
                totals[v] += share * number(halves, from.values, at[place] + (first + v) * LANES);
            if (from.ahead) fetch(halves, some, from.values, at[place] + first * LANES + from.ahead);
        }
#pragma GCC unroll 4
        for (int v = 0; v < some; v++) store(to + (first + v) * LANES, totals[v]);
    }
}

static void attend(const float *query, head_read from, const int64_t *at, int64_t count, float *scores, float *to) {
#define ATTEND(vectors) \
    if (from.halves) attend_over(vectors, 1, query, from, at, count, scores, to); \
    else attend_over(vectors, 0, query, from, at, count, scores, to)
    switch (from.size / LANES) {
        case 1: ATTEND(1); break;
        case 2: ATTEND(2); break;
        case 4: ATTEND(4); break;
        default: ATTEND((int)(from.size / LANES));
    }
#undef ATTEND
}

/* Offsets [count] of places are followed by the last one's FOUR times. */
INLINE void close_places(int64_t *at, int64_t count) {
    for (int more = 0; more < FOUR; more++) at[count + more] = count ? at[count - 1] : 0;
}

INLINE int64_t slot(const reading *step, int64_t sentence) { return step->slots ? step->slots[sentence] : sentence; }

/* Attention of tokens over what their hypotheses wrote; queries, keys and values are parts of `parts` [N, 3D]. */
static void mix(const stack *of, const reading *step, int64_t number, const float *parts, room use) {
    int64_t width = of->width, heads = of->heads, size = width / heads, each = step->width * step->count;
    int halves = (int)step->halves;
    int64_t longest = step->place + step->count + FOUR;
    const char *keys = byte_of(halves, step->past, 2 * number * step->past_layer);
    head_read from = {NULL, NULL, size, 0, halves};
    for (int64_t row = 0; row < step->sentences * each; row++) {
        int64_t place = step->place + row % each / step->width, hypothesis = row % step->width;
        int64_t at = slot(step, row / each) * step->past_sentence + place * step->past_place + hypothesis * size;
        const float *written = parts + 3 * row * width + width;
        for (int64_t head = 0; head < heads; head++, at += step->past_head, written += size)
            for (int64_t k = 0; k < size; k += LANES) {
                keep(halves, (char *)keys, at + k, load(written + k));
                keep(halves, (char *)keys, step->past_layer + at + k, load(written + width + k));
            }
    }
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        for (int64_t row = 0; row < each; row++) {
            int64_t count = step->place + row / step->width + 1, *at = use.at + row * longest;
            const int64_t *who = step->reach ? step->reach + (sentence * each + row) * (step->place + 1) : NULL;
            for (int64_t place = 0; place < count; place++)
                at[place] = place * step->past_place + (who ? who[place] : row % step->width) * size;
            close_places(at, count);
        }
        int64_t begin = slot(step, sentence) * step->past_sentence;
        for (int64_t head = 0; head < heads; head++, begin += step->past_head) {
            from.keys = byte_of(halves, keys, begin), from.values = byte_of(halves, from.keys, step->past_layer);
            for (int64_t row = 0; row < each; row++) {
                const float *query = parts + 3 * (sentence * each + row) * width + head * size;
                float *to = use.mixed + (sentence * each + row) * width + head * size;
                from.ahead = 0;
                if (row == each - 1 && head < heads - 1) from.ahead = step->past_head;
                else if (row == each - 1 && sentence < step->sentences - 1)
                    from.ahead = slot(step, sentence + 1) * step->past_sentence - begin;
                attend(query, from, use.at + row * longest, step->place + row / step->width + 1, use.scores, to);
            }
        }
    }
}

/* The cells of an SSRU (Kim et al. 2019), kept where attention has its keys: c = f c' + (1 - f) u, added to x as ReLU(c);
   gates before their sigmoid, and updates, are parts of `parts` [N, 2D]. */
static void remember(const stack *of, const reading *step, int64_t number, const float *parts, float *x) {
    int64_t width = of->width, size = width / of->heads, each = step->width * step->count;
    float *cells = (float *)step->past + 2 * number * step->past_layer;
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
    int halves = (int)step->halves;
    const char *keys = byte_of(halves, step->cross, 2 * number * step->cross_layer);
    head_read from = {NULL, NULL, size, 0, halves};
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        int64_t stands = slot(step, sentence), begin = stands * step->cross_sentence, count = 0;
        const float *hidden = step->hidden ? step->hidden + stands * step->source : NULL;
        for (int64_t place = 0; place < step->source; place++)
            if (!hidden || hidden[place] == 0.0f) use.at[count++] = place * size;
        close_places(use.at, count);
        for (int64_t head = 0; head < heads; head++, begin += step->cross_head) {
            from.keys = byte_of(halves, keys, begin), from.values = byte_of(halves, from.keys, step->cross_layer);
            for (int64_t row = sentence * each; row < (sentence + 1) * each; row++)
                attend(queries + row * width + head * size, from, use.at, count, use.scores,
                       use.mixed + row * width + head * size);
        }
    }
}

/* Attention of a packed source's tokens, `parts` [T, 3D], within their sentences, which begin at `begins` [B + 1]. */
static void mix_source(const stack *of, const int64_t *begins, int64_t sentences, const float *parts, room use) {
    int64_t width = of->width, heads = of->heads, size = width / heads;
    head_read from = {NULL, NULL, size, 0, 0};
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
        int64_t first = begins[sentence], count = begins[sentence + 1] - first;
        for (int64_t place = 0; place < count; place++) use.at[place] = 3 * place * width;
        close_places(use.at, count);
        for (int64_t head = 0; head < heads; head++) {
            const float *keys = parts + (3 * first + 1) * width + head * size;
            from.keys = keys, from.values = keys + width;
            for (int64_t row = first; row < first + count; row++)
                attend(parts + 3 * row * width + head * size, from, use.at, count, use.scores,
                       use.mixed + row * width + head * size);
        }
    }
}

#endif
