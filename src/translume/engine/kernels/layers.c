/* A step of an encoder-decoder Transformer on one core, all its layers in one call, and its encoder. */

#include "attention.h"

int64_t translume_has_int8(void) { return INT8; }
int64_t translume_has_halves(void) { return HALVES; }
int64_t translume_panel(void) { return PANEL; }

/* Bytes that a call over so many rows and places needs, where `each` rows read the same keys and values. */
int64_t translume_room(const stack *of, int64_t rows, int64_t longest, int64_t each) {
    int64_t width = of->width, inner = 2 * of->inner, widest = of->inner > width ? of->inner : width;
    return 4 * (rows * (5 * width + inner + 2) + longest + 2 * LANES) + 8 * each * (longest + FOUR) + rows * widest +
           9 * 64;
}

static void normalise(const stack *of, norm by, const float *x, int64_t rows, float *y) {
    int64_t width = of->width;
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        vector total = {0}, squares = {0};
        float mean = 0;
        if (!of->root_mean_square) {
            for (int64_t k = 0; k < width; k += LANES) total += load(x + k);
            mean = sum(total) / (float)width;
        }
        for (int64_t k = 0; k < width; k += LANES) {
            vector apart = load(x + k) - mean;
            squares += apart * apart;
        }
        float scale = 1.0f / sqrtf(sum(squares) / (float)width + of->epsilon);
        for (int64_t k = 0; k < width; k += LANES) {
            vector value = (load(x + k) - mean) * scale * load(by.weight + k);
            if (by.bias) value += load(by.bias + k);
            store(y + k, value);
        }
    }
}

/* What the feed-forward block's second map reads, [rows, inner], in the place of what its first one gave. */
static void activate(const stack *of, float *x, int64_t rows) {
    int64_t inner = of->inner, count = rows * inner;
    if (of->activation == RELU)
        for (int64_t k = 0; k < count; k += LANES) store(x + k, above_zero(load(x + k)));
    else if (of->activation == GELU)
        for (int64_t k = 0; k < count; k++) x[k] = 0.5f * x[k] * (1.0f + erff(x[k] * 0.70710678118654752f));
    else if (of->activation == SWISH)
        for (int64_t k = 0; k < count; k += LANES) store(x + k, swish(load(x + k)));
    else
        for (int64_t row = 0; row < rows; row++) {
            const float *gate = x + 2 * row * inner, *value = gate + inner;
            for (int64_t k = 0; k < inner; k += LANES)
                store(x + row * inner + k, swish(load(gate + k)) * load(value + k));
        }
}

/* What a block reads: x where norms stand behind blocks, else a copy of it behind its norm. */
static const float *before(const stack *of, norm by, const float *x, int64_t rows, room use) {
    if (!of->before) return x;
    normalise(of, by, x, rows, use.normal);
    return use.normal;
}

/* x, to which a block was added, behind the block's norm where that is the place of norms. */
static void after(const stack *of, norm by, float *x, int64_t rows) {
    if (!of->before) normalise(of, by, x, rows, x);
}

static void feed_forward(const stack *of, const layer *by, float *x, int64_t rows, room use) {
    apply(&by->inner, before(of, by->around_feed_forward, x, rows, use), rows, use.inner, 0, use.bytes);
    activate(of, use.inner, rows);
    apply(&by->outer, use.inner, rows, x, 1, use.bytes);
    after(of, by->around_feed_forward, x, rows);
}

static int64_t rows_read(const reading *step) { return step->sentences * step->width * step->count; }

/* Each reading's tokens over what was read of its target before, to `mixed`; of cells what they give, added to x. */
static void mix_each(const stack *of, const reading *steps, int64_t count, int64_t number, float *x, room use) {
    for (const reading *step = steps; step < steps + count; step++) {
        int64_t numbers = rows_read(step) * of->width;
        if (of->cells) remember(of, step, number, use.parts, x);
        else mix(of, step, number, use.parts, use);
        use.parts += (of->cells ? 2 : 3) * numbers, use.mixed += numbers, x += numbers;
    }
}

/* Each reading's queries, in `parts`, over its source. */
static void look_each(const stack *of, const reading *steps, int64_t count, int64_t number, room use) {
    for (const reading *step = steps; step < steps + count; step++) {
        int64_t numbers = rows_read(step) * of->width;
        look(of, step, number, use.parts, use);
        use.parts += numbers, use.mixed += numbers;
    }
}

/* x [N, D], embedded target tokens of `count` readings one after another, to what stands behind all layers; their keys
   and values are written into each reading's past. Linear maps take the rows of all at once. */
void translume_step(const stack *of, const reading *steps, int64_t count, float *x, char *block) {
    int64_t rows = 0, longest = 0, each = 0;
    for (const reading *step = steps; step < steps + count; step++) {
        int64_t last = step->place + step->count, own = step->width * step->count;
        rows += rows_read(step);
        if (last > longest) longest = last;
        if (step->source > longest) longest = step->source;
        if (own > each) each = own;
    }
    room use = take(of, rows, longest, each, block);
    for (int64_t number = 0; number < of->layers; number++) {
        const layer *by = of->layer + number;
        apply(&by->query_key_value, before(of, by->around_self, x, rows, use), rows, use.parts, 0, use.bytes);
        mix_each(of, steps, count, number, x, use);
        if (!of->cells) apply(&by->mixed, use.mixed, rows, x, 1, use.bytes);
        after(of, by->around_self, x, rows);
        apply(&by->query, before(of, by->around_cross, x, rows, use), rows, use.parts, 0, use.bytes);
        look_each(of, steps, count, number, use);
        apply(&by->looked, use.mixed, rows, x, 1, use.bytes);
        after(of, by->around_cross, x, rows);
        feed_forward(of, by, x, rows, use);
    }
    if (of->last.weight) normalise(of, of->last, x, rows, x);
}

/* x [T, D], embedded source tokens of sentences that begin at `begins` [B + 1], to what the encoder makes of them. */
void translume_encode(const stack *of, const int64_t *begins, int64_t sentences, int64_t longest, float *x,
                      char *block) {
    int64_t rows = begins[sentences];
    room use = take(of, rows, longest, 1, block);
    for (int64_t number = 0; number < of->layers; number++) {
        const layer *by = of->layer + number;
        apply(&by->query_key_value, before(of, by->around_self, x, rows, use), rows, use.parts, 0, use.bytes);
        mix_source(of, begins, sentences, use.parts, use);
        apply(&by->mixed, use.mixed, rows, x, 1, use.bytes);
        after(of, by->around_self, x, rows);
        feed_forward(of, by, x, rows, use);
    }
    if (of->last.weight) normalise(of, of->last, x, rows, x);
}

/* One linear map by itself; block: room for rows * (inputs + 8) + 192 bytes. */
void translume_linear(const linear *map, const float *x, int64_t rows, float *y, char *block) {
    quantized bytes = {(int8_t *)block, (float *)(block + whole(rows * map->inputs)),
                       (int32_t *)(block + whole(rows * map->inputs) + whole(4 * rows))};
    apply(map, x, rows, y, 0, bytes);
}
