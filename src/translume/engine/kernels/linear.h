/* Linear maps of few rows and of many, in fp32 and in bytes.

   Every number of a row is summed in an order that the row alone decides: what stands beside it in a batch changes
   nothing, bit for bit. int8 wants VNNI. */

#ifndef TRANSLUME_LINEAR
#define TRANSLUME_LINEAR

#include "vectors.h"

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define INT8 1
#else
#define INT8 0
#endif

#define VECTORS 4               /* of a panel: 64 outputs, whose weights for one input stand together */
#define PANEL (LANES * VECTORS)
#define ROWS 6                  /* of a tile: ROWS x VECTORS sums stay in registers */
#define KEPT (256 << 10)        /* bytes of panels that are read again for all rows before the next ones */

enum format { FP32, QUANTIZED };

typedef struct {
    int64_t inputs, outputs, format;
    const void *weight;  /* FP32: [panels][inputs][PANEL] floats; QUANTIZED: [panels][inputs / 4][PANEL][4] bytes, + 128 */
    const float *scale;  /* [panels * PANEL], of quantised weights */
    const float *bias;   /* [panels * PANEL] */
} linear;

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
            peaks = higher(size, peaks);
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

#endif
