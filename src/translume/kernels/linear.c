/* Products of linear layers, tile by tile. */

#include "linear.h"

#define PANEL_CACHE_BYTES (256 << 10) /* panels applied to all rows before the next ones are read; fits the L2 cache */

/* AMX multiplies blocks of 16 rows. Its sums are exact too, so that the number of rows may choose it. */
#if defined(__AMX_INT8__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif
#define AMX_ROWS 16
#define AMX_INPUTS 64     /* inputs of a tile; other layers use vectors */
#define AMX_LEAST_ROWS 8  /* with fewer rows, vectors are as fast */

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
        activation *values = to.values + row * inputs;
        if (peak != peak) { /* the scale makes all outputs NaN */
            memset(values, 0, inputs * sizeof *values);
            to.scales[row] = peak, to.shifts[row] = 0;
            continue;
        }
        for (int64_t k = 0; k < inputs; k += LANES) {
            integers rounded = __builtin_convertvector((load(x + k) * inverse + magic) - magic, integers);
            total += rounded;
            typedef activation narrow
                __attribute__((vector_size(LANES * sizeof(activation)), aligned(1), may_alias));
            *(narrow *)(values + k) = __builtin_convertvector(rounded, narrow);
        }
        int32_t sum = 0;
        for (int lane = 0; lane < LANES; lane++) sum += total[lane];
        to.shifts[row] = WEIGHT_OFFSET * sum;
        to.scales[row] = peak / 127.0f;
    }
}

/* Store the first `remaining` lanes of the last vector of a row. A separate function, which keeps tiles small. */
static __attribute__((noinline)) void store_part(float *y, vector value, int64_t remaining, int accumulate) {
    float parts[LANES];
    store(parts, value);
    for (int64_t lane = 0; lane < remaining; lane++) y[lane] = accumulate ? y[lane] + parts[lane] : parts[lane];
}

/* Store `remaining` lanes, at most a vector of them; add them to y if `accumulate`. */
INLINE void store_output(float *y, vector value, int64_t remaining, int accumulate) {
    if (remaining < LANES) {
        store_part(y, value, remaining, accumulate);
        return;
    }
    if (accumulate) value += load(y);
    store(y, value);
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

#if GROUP
/* The weights of a vector of outputs for one group of inputs. */
INLINE integers load_weights(const uint8_t *weight) {
#if GROUP == 4
    integers found;
    memcpy(&found, weight, sizeof found);
    return found;
#elif LANES == 16
    return (integers)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)weight));
#else
    return (integers)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)weight));
#endif
}

/* A group of activations in every lane. */
INLINE integers load_activations(const activation *from) {
    int32_t group;
    memcpy(&group, from, sizeof group);
    return group - (integers){0};
}

/* Add the products of a group to the sums. Assembly where GCC 12 copies the accumulator of the intrinsic. */
INLINE integers add_products(integers sums, integers weights, integers values) {
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(values));
    return sums;
#elif defined(__AVXVNNI__)
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(values));
    return sums;
#elif LANES == 16
    return sums + (integers)_mm512_madd_epi16((__m512i)weights, (__m512i)values);
#elif LANES == 8
    return sums + (integers)_mm256_madd_epi16((__m256i)weights, (__m256i)values);
#else
    return (integers)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)values);
#endif
}

/* Store the outputs of a row from their exact sums. */
INLINE void store_scaled(integers sums, int32_t shift, const float *scale, float row_scale, const float *bias, float *y,
                         int64_t remaining, int accumulate) {
    vector value = __builtin_convertvector(sums - shift, vector) * (load(scale) * row_scale);
    store_output(y, value + load(bias), remaining, accumulate);
}

INLINE void gemm_tile_int8(int rows, const activation *x, int64_t inputs, const uint8_t *weight, const float *scale,
                           const float *bias, const float *scales, const int32_t *shifts, float *y, int64_t outputs,
                           int64_t remaining, int accumulate) {
    integers sums[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = (integers){0};
    for (int64_t k = 0; k < inputs; k += GROUP, weight += GROUP * PANEL) {
        integers weights[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) weights[v] = load_weights(weight + v * LANES * GROUP);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            integers value = load_activations(x + row * inputs + k);
#pragma GCC unroll 8
            for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = add_products(sums[row][v], weights[v], value);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++)
            if (v * LANES < remaining)
                store_scaled(sums[row][v], shifts[row], scale + v * LANES, scales[row], bias + v * LANES,
                             y + row * outputs + v * LANES, remaining - v * LANES, accumulate);
}
#endif

#if HAS_TILES
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

/* Registers 0 to 3: sums of two blocks of rows by two of outputs; 4 and 5: activations; 6 and 7: weights. */
static void configure_tiles(int first_rows, int second_rows) {
    tile_configuration configuration = {.palette = 1};
    int second = second_rows ? second_rows : 1;
    int rows[8] = {first_rows, first_rows, second, second, first_rows, second, AMX_ROWS, AMX_ROWS};
    for (int tile = 0; tile < 8; tile++)
        configuration.row_bytes[tile] = 64, configuration.rows[tile] = (uint8_t)rows[tile];
    _tile_loadconfig(&configuration);
}

/* Apply panels `panel` to `end` to `row_count` rows, at most 2 AMX_ROWS, from `row`. The weights are those of vpdpbusd:
   a tile of them is 16 groups of 16 outputs. */
static void gemm_rows_amx(const linear *layer, int64_t row, int64_t row_count, int64_t panel, int64_t end, float *y,
                          int accumulate, quantized scratch) {
    int64_t inputs = layer->inputs, outputs = layer->outputs;
    int first = row_count < AMX_ROWS ? (int)row_count : AMX_ROWS, second = (int)row_count - first;
    const activation *upper = scratch.values + row * inputs, *lower = upper + first * inputs;
    int32_t sums[4][AMX_ROWS * LANES] __attribute__((aligned(64)));
    configure_tiles(first, second);
    for (int64_t column = panel * PANEL; column < end * PANEL && column < outputs; column += 2 * LANES) {
        const uint8_t *weight =
            (const uint8_t *)layer->weight + column / PANEL * PANEL * inputs + column % PANEL * GROUP;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < inputs; k += AMX_INPUTS) {
            const uint8_t *from = weight + k * PANEL;
            _tile_loadd(6, from, GROUP * PANEL);
            _tile_loadd(4, upper + k, inputs);
            _tile_dpbsud(0, 4, 6);
            _tile_loadd(7, from + LANES * GROUP, GROUP * PANEL);
            _tile_dpbsud(1, 4, 7);
            if (!second) continue;
            _tile_loadd(5, lower + k, inputs);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        if (second) {
            _tile_stored(2, sums[2], 64);
            _tile_stored(3, sums[3], 64);
        }
        for (int tile = 0; tile < (second ? 4 : 2); tile++) {
            int64_t from = column + tile % 2 * LANES, top = row + tile / 2 * first;
            if (from >= outputs) continue;
            for (int64_t k = 0; k < (tile < 2 ? first : second); k++)
                store_scaled(*(const integers *)(sums[tile] + k * LANES), scratch.shifts[top + k], layer->scale + from,
                             scratch.scales[top + k], layer->bias + from, y + (top + k) * outputs + from,
                             outputs - from, accumulate);
        }
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
static void gemm_rows(const linear *layer, const float *x, int64_t row, int64_t row_count, int64_t panel, int64_t end,
                      float *y, int accumulate, quantized scratch) {
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
#if GROUP
        else {
            const uint8_t *weight = (const uint8_t *)layer->weight + first * inputs;
            const activation *from = scratch.values + row * inputs;
            const float *scale = layer->scale + first, *scales = scratch.scales + row;
            const int32_t *shifts = scratch.shifts + row;
#define TILE(n) gemm_tile_int8(n, from, inputs, weight, scale, bias, scales, shifts, to, outputs, remaining, accumulate)
            FOR_TILE_ROWS(TILE, row_count)
#undef TILE
        }
#else
        (void)scratch;
#endif
    }
}

void linear_forward(const linear *layer, const float *x, int64_t rows, float *y, int accumulate, quantized scratch) {
    int64_t inputs = layer->inputs, panels = (layer->outputs + PANEL - 1) / PANEL;
    int64_t panels_per_pass = PANEL_CACHE_BYTES / (inputs * PANEL * (layer->format == FP32 ? 4 : 1));
    if (panels_per_pass < 1) panels_per_pass = 1;
    if (layer->format == QUANTIZED) quantize(x, rows, inputs, scratch);
    for (int64_t panel = 0; panel < panels; panel += panels_per_pass) {
        int64_t end = panel + panels_per_pass < panels ? panel + panels_per_pass : panels, row = 0;
#if HAS_TILES
        if (layer->format == QUANTIZED && inputs % AMX_INPUTS == 0)
            for (; rows - row >= AMX_LEAST_ROWS; row += rows - row < 2 * AMX_ROWS ? rows - row : 2 * AMX_ROWS)
                gemm_rows_amx(layer, row, rows - row < 2 * AMX_ROWS ? rows - row : 2 * AMX_ROWS, panel, end, y,
                              accumulate, scratch);
#endif
        for (; row < rows; row += TILE_ROWS)
            gemm_rows(layer, x, row, rows - row < TILE_ROWS ? rows - row : TILE_ROWS, panel, end, y, accumulate,
                      scratch);
    }
#if HAS_TILES
    _tile_release();
#endif
}
