/* Linear layers (GEMM) for few or many rows, in fp32 and int8.

   The order of summation of an output does not depend on the number of rows, so a row's product is the same, bit for
   bit, in every batch. int8 needs AVX512-VNNI. */

#ifndef TRANSLUME_LINEAR
#define TRANSLUME_LINEAR

#include "vectors.h"

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define HAS_INT8 1
#else
#define HAS_INT8 0
#endif

#define PANEL_VECTORS 4 /* vectors of outputs in a panel */
#define PANEL (LANES * PANEL_VECTORS) /* outputs whose weights for one input are contiguous */
#define TILE_ROWS 6 /* rows of a tile: TILE_ROWS x PANEL_VECTORS accumulators stay in registers */
#define PANEL_CACHE_BYTES (256 << 10) /* panels applied to all rows before the next ones are read; fits the L2 cache */

enum format { FP32, QUANTIZED };

typedef struct {
    int64_t inputs, outputs, format;
    const void *weight;  /* FP32: [panels][inputs][PANEL] floats;
                            QUANTIZED: [panels][inputs / 4][PANEL][4] uint8, the int8 values plus 128 */
    const float *scale;  /* [panels * PANEL]; QUANTIZED only */
    const float *bias;   /* [panels * PANEL] */
} linear;

typedef struct {
    int8_t *bytes;   /* [rows, inputs] */
    float *scales;   /* [rows] */
    int32_t *shifts; /* [rows]: 128 times the sum of a row's bytes, the excess from storing weights unsigned */
} quantized;

/* Quantise rows to int8 with one scale per row, absmax / 127. */
static void quantize(const float *x, int64_t rows, int64_t inputs, quantized to) {
    for (int64_t row = 0; row < rows; row++, x += inputs) {
        vector peaks = broadcast(1e-30f), nan = {0}; /* NaN if x contains a NaN or an infinity, otherwise 0 */
        for (int64_t k = 0; k < inputs; k += LANES) {
            vector value = load(x + k);
            vector magnitude = (vector)((integers)value & 0x7fffffff);
            peaks = maximum(magnitude, peaks);
            nan += value * 0.0f;
        }
        float peak = max_lane(peaks) + sum_lanes(nan), inverse = 127.0f / peak;
        vector magic = broadcast(12582912.0f);
        integers total = {0};
        int8_t *bytes = to.bytes + row * inputs;
        for (int64_t k = 0; k < inputs; k += LANES) {
            integers rounded = __builtin_convertvector((load(x + k) * inverse + magic) - magic, integers);
            total += rounded;
            typedef int8_t narrow __attribute__((vector_size(LANES), aligned(1), may_alias));
            *(narrow *)(bytes + k) = __builtin_convertvector(rounded, narrow);
        }
        int32_t shift = 0;
        for (int lane = 0; lane < LANES; lane++) shift += total[lane];
        to.shifts[row] = 128 * shift;
        to.scales[row] = peak / 127.0f;
    }
}

/* Store `remaining` lanes, at most a vector of them; add them to y if `accumulate`. */
INLINE void store_output(float *y, vector value, int64_t remaining, int accumulate) {
    if (remaining >= LANES) {
        if (accumulate) value += load(y);
        store(y, value);
        return;
    }
    float parts[LANES];
    store(parts, value);
    for (int64_t lane = 0; lane < remaining; lane++) y[lane] = accumulate ? y[lane] + parts[lane] : parts[lane];
}

/* Compute one tile: `rows` rows times one panel. `rows` is a constant after inlining. */
INLINE void gemm_tile(int rows, const float *x, int64_t inputs, const float *weight, const float *bias, float *y,
                 int64_t outputs, int64_t remaining, int accumulate) {
    vector sums[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = (vector){0};
    for (int64_t k = 0; k < inputs; k++, weight += PANEL) {
        vector weights[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) weights[v] = load(weight + v * LANES);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            vector value = broadcast(x[row * inputs + k]);
#pragma GCC unroll 8
            for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] += value * weights[v];
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++)
            if (v * LANES < remaining)
                store_output(y + row * outputs + v * LANES, sums[row][v] + load(bias + v * LANES),
                             remaining - v * LANES, accumulate);
}

#if HAS_INT8
/* Add products of unsigned and signed bytes to sums, four per lane. Assembly, because GCC 12 copies the accumulator. */
INLINE __m512i dot_bytes(__m512i sums, __m512i weights, __m512i values) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(values));
    return sums;
}

INLINE void gemm_tile_int8(int rows, const int8_t *x, int64_t inputs, const uint8_t *weight, const float *scale,
                       const float *bias, const float *scales, const int32_t *shifts, float *y, int64_t outputs,
                       int64_t remaining, int accumulate) {
    __m512i sums[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = _mm512_setzero_si512();
    for (int64_t k = 0; k < inputs; k += 4, weight += 4 * PANEL) {
        __m512i weights[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) weights[v] = _mm512_loadu_si512(weight + 64 * v);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            int32_t four;
            memcpy(&four, x + row * inputs + k, 4);
            __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = dot_bytes(sums[row][v], weights[v], value);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++)
            if (v * LANES < remaining) {
                __m512i exact = _mm512_sub_epi32(sums[row][v], _mm512_set1_epi32(shifts[row]));
                vector value = (vector)_mm512_cvtepi32_ps(exact) * (load(scale + v * LANES) * scales[row]);
                store_output(y + row * outputs + v * LANES, value + load(bias + v * LANES), remaining - v * LANES,
                             accumulate);
            }
}
#endif

#define FOR_TILE_ROWS(call, n) \
    switch (n) {        \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 4: call(4); break; \
        case 5: call(5); break; \
        default: call(6); \
    }

/* Apply panels `panel` to `end` to `row_count` rows, at most TILE_ROWS, from `row`. */
INLINE void gemm_rows(const linear *layer, const float *x, int64_t row, int64_t row_count, int64_t panel,
                      int64_t end, float *y,
                    int accumulate, quantized scratch) {
    int64_t inputs = layer->inputs, outputs = layer->outputs;
    for (int64_t first = panel * PANEL; first < end * PANEL; first += PANEL) {
        const float *bias = layer->bias + first;
        int64_t remaining = outputs - first;
        float *to = y + row * outputs + first;
        if (layer->format == FP32) {
            const float *weight = (const float *)layer->weight + first * inputs, *from = x + row * inputs;
#define TILE(n) gemm_tile(n, from, inputs, weight, bias, to, outputs, remaining, accumulate)
            FOR_TILE_ROWS(TILE, row_count)
#undef TILE
        }
#if HAS_INT8
        else {
            const uint8_t *weight = (const uint8_t *)layer->weight + first * inputs;
            const int8_t *from = scratch.bytes + row * inputs;
            const float *scale = layer->scale + first, *scales = scratch.scales + row;
            const int32_t *shifts = scratch.shifts + row;
#define TILE(n) gemm_tile_int8(n, from, inputs, weight, scale, bias, scales, shifts, to, outputs, remaining, accumulate)
            FOR_TILE_ROWS(TILE, row_count)
#undef TILE
        }
#endif
    }
}

/* Compute y [rows, outputs] = x [rows, inputs] W^T + b; add it to y if `accumulate`. scratch: for quantised inputs. */
static void linear_forward(const linear *layer, const float *x, int64_t rows, float *y, int accumulate,
                           quantized scratch) {
    int64_t inputs = layer->inputs, panels = (layer->outputs + PANEL - 1) / PANEL;
    int64_t panels_per_pass = PANEL_CACHE_BYTES / (inputs * PANEL * (layer->format == FP32 ? 4 : 1));
    if (panels_per_pass < 1) panels_per_pass = 1;
    if (layer->format == QUANTIZED) quantize(x, rows, inputs, scratch);
    for (int64_t panel = 0; panel < panels; panel += panels_per_pass) {
        int64_t end = panel + panels_per_pass < panels ? panel + panels_per_pass : panels;
        for (int64_t row = 0; row < rows; row += TILE_ROWS)
            gemm_rows(layer, x, row, rows - row < TILE_ROWS ? rows - row : TILE_ROWS, panel, end, y, accumulate,
                      scratch);
    }
}

#endif
