/* A step of an encoder-decoder Transformer on one core, for few rows and for many.

   Every number of a row is summed in an order that the row alone decides: what stands beside it in a batch changes
   nothing, bit for bit. Vectors of 16 floats are GCC's and clang's own, whatever the machine has; int8 wants VNNI. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#include <immintrin.h>
#define INT8 1
#else
#define INT8 0
#endif

#define LANES 16
#define VECTORS 4               /* of a panel: 64 outputs, whose weights for one input stand together */
#define PANEL (LANES * VECTORS)
#define ROWS 6                  /* of a tile: ROWS x VECTORS sums stay in registers */
#define KEPT (256 << 10)        /* bytes of panels that are read again for all rows before the next ones */
#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum activation { RELU, GELU, SWISH, SWIGLU };
enum format { FP32, QUANTIZED };

typedef struct {
    int64_t inputs, outputs, format;
    const void *weight;  /* FP32: [panels][inputs][PANEL] floats; QUANTIZED: [panels][inputs / 4][PANEL][4] bytes, + 128 */
    const float *scale;  /* [panels * PANEL], of quantised weights */
    const float *bias;   /* [panels * PANEL] */
} linear;

typedef struct {
    const float *weight, *bias;  /* [D]; no bias: NULL */
} norm;

typedef struct {
    linear query_key_value, mixed, query, looked, inner, outer; /* of cells: gate and update first, nothing after */
    norm around_self, around_cross, around_feed_forward;
} layer;

typedef struct {
    int64_t width, heads, layers, before, cells, activation, root_mean_square, inner;
    float epsilon;
    const layer *layer;
    norm last;  /* weight NULL: none */
} stack;

typedef struct {
    float *past;            /* keys and values of each layer by turns: [2L, B, H, capacity, K, d], by these strides */
    int64_t past_layer, past_sentence, past_head, past_place;
    const float *cross;     /* [2L, B, H, S, d] */
    int64_t cross_layer, cross_sentence, cross_head;
    const float *hidden;    /* [B, S], added to scores: -inf where no token stands; NULL: all stand */
    const int64_t *reach;   /* [B, K, place + 1], who wrote what a hypothesis reads; NULL: itself, one a sentence */
    const int64_t *slots;   /* [B], where a sentence stands in past, cross and hidden; NULL: in order */
    int64_t sentences, width, count, place, source;  /* B, K, t, place of the first token, S */
} reading;

int64_t translume_has_int8(void) { return INT8; }
int64_t translume_panel(void) { return PANEL; }

/* ---- vectors */

INLINE vector load(const float *from) { return *(const vector *)from; }
INLINE void store(float *to, vector value) { *(vector *)to = value; }
INLINE vector all(float value) { return value - (vector){0}; }

INLINE vector pick(integers where, vector one, vector other) {
    return (vector)((where & (integers)one) | (~where & (integers)other));
}

INLINE float sum(vector value) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight halves[2];
    four quarters[2];
    memcpy(halves, &value, sizeof value);
    halves[0] += halves[1];
    memcpy(quarters, halves, sizeof quarters);
    quarters[0] += quarters[1];
    return (quarters[0][0] + quarters[0][2]) + (quarters[0][1] + quarters[0][3]);
}

INLINE float largest(vector value) {
    float found = value[0];
    for (int lane = 1; lane < LANES; lane++) found = value[lane] > found ? value[lane] : found;
    return found;
}

/* e^x for x < 88, within 2 units in the last place; 0 below -87. Cody and Waite's reduction, Cephes' polynomial. */
INLINE vector exponential(vector x) {
    integers gone = x < -87.0f;
    vector nothing = {0}, kept = pick(gone, nothing, x);
    vector magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to whole numbers */
    vector whole = (kept * 1.44269504088896341f + magic) - magic;
    vector rest = (kept - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vector power = all(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
    integers scale = (__builtin_convertvector(whole, integers) + 127) << 23;
    vector found = power * (vector)scale;
    return pick(gone, nothing, found);
}

/* ---- linear maps */

typedef struct {
    int8_t *bytes;   /* [rows, inputs] */
    float *scales;   /* [rows] */
    int32_t *shifts; /* [rows]: 128 times the sum of a row's bytes, which weights without a sign count too much */
} quantized;

static void quantize(const float *x, int64_t rows, int64_t inputs, quantized to) {
    for (int64_t row = 0; row < rows; row++, x += inputs) {
        vector peaks = all(1e-30f), broken = {0}; /* a NaN once x holds one or an infinity, else 0 */
        for (int64_t k = 0; k < inputs; k += LANES) {
            vector value = load(x + k);
            vector size = (vector)((integers)value & 0x7fffffff);
            peaks = pick(size > peaks, size, peaks);
            broken += value * 0.0f;
        }
        float peak = largest(peaks) + sum(broken), inverse = 127.0f / peak;
        vector magic = all(12582912.0f);
        integers total = {0};
        int8_t *bytes = to.bytes + row * inputs;
        for (int64_t k = 0; k < inputs; k += LANES) {
            integers whole = __builtin_convertvector((load(x + k) * inverse + magic) - magic, integers);
            total += whole;
            typedef int8_t narrow __attribute__((vector_size(LANES), aligned(1), may_alias));
            *(narrow *)(bytes + k) = __builtin_convertvector(whole, narrow);
        }
        int32_t shift = 0;
        for (int lane = 0; lane < LANES; lane++) shift += total[lane];
        to.shifts[row] = 128 * shift;
        to.scales[row] = peak / 127.0f;
    }
}

INLINE void put(float *y, vector value, int64_t left, int add) {
    if (left >= LANES) {
        if (add) value += load(y);
        store(y, value);
        return;
    }
    float parts[LANES];
    store(parts, value);
    for (int64_t lane = 0; lane < left; lane++) y[lane] = add ? y[lane] + parts[lane] : parts[lane];
}

INLINE void tile(int rows, const float *x, int64_t inputs, const float *weight, const float *bias, float *y,
                 int64_t outputs, int64_t left, int add) {
    vector sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[row][v] = (vector){0};
    for (int64_t k = 0; k < inputs; k++, weight += PANEL) {
        vector weights[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) weights[v] = load(weight + v * LANES);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            vector value = all(x[row * inputs + k]);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[row][v] += value * weights[v];
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            if (v * LANES < left)
                put(y + row * outputs + v * LANES, sums[row][v] + load(bias + v * LANES), left - v * LANES, add);
}

#if INT8
/* sums + the products of bytes without and with a sign, four to a lane: written so, since GCC 12 copies what it adds to. */
INLINE __m512i add_products(__m512i sums, __m512i weights, __m512i values) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(values));
    return sums;
}

INLINE void tile_bytes(int rows, const int8_t *x, int64_t inputs, const uint8_t *weight, const float *scale,
                       const float *bias, const float *scales, const int32_t *shifts, float *y, int64_t outputs,
                       int64_t left, int add) {
    __m512i sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[row][v] = _mm512_setzero_si512();
    for (int64_t k = 0; k < inputs; k += 4, weight += 4 * PANEL) {
        __m512i weights[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) weights[v] = _mm512_loadu_si512(weight + 64 * v);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            int32_t four;
            memcpy(&four, x + row * inputs + k, 4);
            __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[row][v] = add_products(sums[row][v], weights[v], value);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            if (v * LANES < left) {
                __m512i exact = _mm512_sub_epi32(sums[row][v], _mm512_set1_epi32(shifts[row]));
                vector value = (vector)_mm512_cvtepi32_ps(exact) * (load(scale + v * LANES) * scales[row]);
                put(y + row * outputs + v * LANES, value + load(bias + v * LANES), left - v * LANES, add);
            }
}
#endif

#define TILES(call, n) \
    switch (n) {        \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 4: call(4); break; \
        case 5: call(5); break; \
        default: call(6); \
    }

/* Panels from `panel` to `end` for up to ROWS rows from `row`. */
INLINE void rows_of(const linear *map, const float *x, int64_t row, int64_t some, int64_t panel, int64_t end, float *y,
                    int add, quantized scratch) {
    int64_t inputs = map->inputs, outputs = map->outputs;
    for (int64_t first = panel * PANEL; first < end * PANEL; first += PANEL) {
        const float *bias = map->bias + first;
        int64_t left = outputs - first;
        float *to = y + row * outputs + first;
        if (map->format == FP32) {
            const float *weight = (const float *)map->weight + first * inputs, *from = x + row * inputs;
#define TILE(n) tile(n, from, inputs, weight, bias, to, outputs, left, add)
            TILES(TILE, some)
#undef TILE
        }
#if INT8
        else {
            const uint8_t *weight = (const uint8_t *)map->weight + first * inputs;
            const int8_t *from = scratch.bytes + row * inputs;
            const float *scale = map->scale + first, *scales = scratch.scales + row;
            const int32_t *shifts = scratch.shifts + row;
#define TILE(n) tile_bytes(n, from, inputs, weight, scale, bias, scales, shifts, to, outputs, left, add)
            TILES(TILE, some)
#undef TILE
        }
#endif
    }
}

/* y [rows, outputs] = x [rows, inputs] times the map's weight, plus its bias; added to what y holds if `add`. */
static void apply(const linear *map, const float *x, int64_t rows, float *y, int add, quantized scratch) {
    int64_t inputs = map->inputs, panels = (map->outputs + PANEL - 1) / PANEL;
    int64_t each = KEPT / (inputs * PANEL * (map->format == FP32 ? 4 : 1));
    if (each < 1) each = 1;
    if (map->format == QUANTIZED) quantize(x, rows, inputs, scratch);
    for (int64_t panel = 0; panel < panels; panel += each) {
        int64_t end = panel + each < panels ? panel + each : panels;
        for (int64_t row = 0; row < rows; row += ROWS)
            rows_of(map, x, row, rows - row < ROWS ? rows - row : ROWS, panel, end, y, add, scratch);
    }
}

/* ---- norms, activations */

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

INLINE vector sigmoid(vector x) {
    vector small = exponential((vector)((integers)x | INT32_MIN)); /* e^-|x| */
    vector positive = 1.0f / (1.0f + small);
    return pick(x < 0.0f, small * positive, positive);
}

INLINE vector swish(vector x) { return x * sigmoid(x); }

/* A NaN stays one. */
INLINE vector above_zero(vector x) { return (vector)((integers)x & ~(x <= 0.0f)); }

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

/* ---- what a call works in */

/* All of it taken from one block. */
typedef struct {
    float *normal, *parts, *mixed, *inner, *scores;
    int64_t *at;
    quantized bytes;
} room;

static int64_t whole(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static room take(const stack *of, int64_t rows, int64_t longest, char *block) {
    int64_t width = of->width, inner = of->inner * (of->activation == SWIGLU ? 2 : 1);
    int64_t widest = of->inner > width ? of->inner : width;
    room found;
#define TAKE(name, type, count) found.name = (type *)block, block += whole((count) * sizeof(type))
    TAKE(normal, float, rows * width);
    TAKE(parts, float, 3 * rows * width);
    TAKE(mixed, float, rows * width);
    TAKE(inner, float, rows * inner + LANES);
    TAKE(scores, float, longest + LANES);
    TAKE(at, int64_t, longest);
    TAKE(bytes.bytes, int8_t, rows * widest);
    TAKE(bytes.scales, float, rows);
    TAKE(bytes.shifts, int32_t, rows);
#undef TAKE
    return found;
}

/* ---- attention */

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

/* ---- layers */

/* Bytes that a call over so many rows and places needs. */
int64_t translume_room(const stack *of, int64_t rows, int64_t longest) {
    int64_t width = of->width, inner = 2 * of->inner, widest = of->inner > width ? of->inner : width;
    return 4 * (rows * (5 * width + inner + 2) + longest + 2 * LANES) + 8 * longest + rows * widest + 9 * 64;
}

static void feed_forward(const stack *of, const layer *by, const float *normal, int64_t rows, float *x, room use) {
    apply(&by->inner, normal, rows, use.inner, 0, use.bytes);
    activate(of, use.inner, rows);
    apply(&by->outer, use.inner, rows, x, 1, use.bytes);
}

/* x [N, D], embedded target tokens, to what stands behind all layers; their keys and values are written into the past. */
void translume_step(const stack *of, const reading *step, float *x, char *block) {
    int64_t rows = step->sentences * step->width * step->count, last = step->place + step->count;
    room use = take(of, rows, last > step->source ? last : step->source, block);
    for (int64_t number = 0; number < of->layers; number++) {
        const layer *by = of->layer + number;
        const float *from = x;
        if (of->before) normalise(of, by->around_self, x, rows, use.normal), from = use.normal;
        apply(&by->query_key_value, from, rows, use.parts, 0, use.bytes);
        if (of->cells) remember(of, step, number, use.parts, x);
        else {
            mix(of, step, number, use.parts, use);
            apply(&by->mixed, use.mixed, rows, x, 1, use.bytes);
        }
        if (of->before) normalise(of, by->around_cross, x, rows, use.normal);
        else normalise(of, by->around_self, x, rows, x);
        apply(&by->query, from, rows, use.parts, 0, use.bytes);
        look(of, step, number, use.parts, use);
        apply(&by->looked, use.mixed, rows, x, 1, use.bytes);
        if (of->before) normalise(of, by->around_feed_forward, x, rows, use.normal);
        else normalise(of, by->around_cross, x, rows, x);
        feed_forward(of, by, from, rows, x, use);
        if (!of->before) normalise(of, by->around_feed_forward, x, rows, x);
    }
    if (of->last.weight) normalise(of, of->last, x, rows, x);
}

/* x [T, D], embedded source tokens of sentences that begin at `begins` [B + 1], to what the encoder makes of them. */
void translume_encode(const stack *of, const int64_t *begins, int64_t sentences, int64_t longest, float *x,
                      char *block) {
    int64_t rows = begins[sentences];
    room use = take(of, rows, longest, block);
    for (int64_t number = 0; number < of->layers; number++) {
        const layer *by = of->layer + number;
        const float *from = x;
        if (of->before) normalise(of, by->around_self, x, rows, use.normal), from = use.normal;
        apply(&by->query_key_value, from, rows, use.parts, 0, use.bytes);
        mix_source(of, begins, sentences, use.parts, use);
        apply(&by->mixed, use.mixed, rows, x, 1, use.bytes);
        if (of->before) normalise(of, by->around_feed_forward, x, rows, use.normal);
        else normalise(of, by->around_self, x, rows, x);
        feed_forward(of, by, from, rows, x, use);
        if (!of->before) normalise(of, by->around_feed_forward, x, rows, x);
    }
    if (of->last.weight) normalise(of, of->last, x, rows, x);
}

/* Of each row of logits [rows, size] the largest in each block of columns, maxima [rows, blocks], the first column of the
   largest of all, and the sum of e^logit, which is of no use where a logit is beyond 88. A row that holds a NaN has one
   among its maxima, and any column. */
void translume_maxima_and_sums(const float *logits, int64_t rows, int64_t size, int64_t block, float *maxima,
                               int64_t *first, float *sums) {
    int64_t blocks = (size + block - 1) / block;
    for (int64_t row = 0; row < rows; row++, logits += size, maxima += blocks) {
        int64_t best = 0;
        vector total = {0};
        float tail = 0;
        for (int64_t number = 0; number < blocks; number++) {
            int64_t end = (number + 1) * block < size ? (number + 1) * block : size, column = number * block;
            vector peaks = all(-INFINITY);
            for (; column + LANES <= end; column += LANES) {
                vector value = load(logits + column);
                peaks = pick(value > peaks, value, peaks);
                total += exponential(pick(value > 88.0f, all(88.0f), value)); /* beyond, its sign would turn */
            }
            float peak = largest(peaks);
            for (; column < end; column++) {
                peak = logits[column] > peak ? logits[column] : peak;
                tail += expf(logits[column] > 88.0f ? 88.0f : logits[column]);
            }
            maxima[number] = peak;
            if (peak > maxima[best]) best = number;
        }
        first[row] = best * block;
        while (logits[first[row]] < maxima[best]) first[row]++;
        sums[row] = sum(total) + tail;
        if (sums[row] != sums[row]) maxima[0] = NAN;
    }
}

/* One linear map by itself; block: room for rows * (inputs + 8) + 192 bytes. */
void translume_linear(const linear *map, const float *x, int64_t rows, float *y, char *block) {
    quantized bytes = {(int8_t *)block, (float *)(block + whole(rows * map->inputs)),
                       (int32_t *)(block + whole(rows * map->inputs) + whole(4 * rows))};
    apply(map, x, rows, y, 0, bytes);
}
