/* Products of linear layers, tile by tile. */

#include "linear.h"
#include "threads.h"

#define PANEL_CACHE_BYTES (256 << 10) /* panels applied to all rows before the next ones are read; fits the L2 cache */
#define PREFETCH_BYTES 4096 /* how far ahead of the first rows weights are fetched: a page, where the processor's own
                               prefetching stops */

#define PART_BYTES (64 << 10) /* of weights: fewer are not worth another thread */

INLINE int64_t panel_bytes(const linear *layer) {
    return layer->inputs * PANEL * (layer->format == FP32 ? 4 : layer->format == BF16 ? 2 : 1);
}
INLINE int64_t panel_count(const linear *layer) { return (layer->outputs + PANEL - 1) / PANEL; }

/* AMX multiplies blocks of 16 rows. int8: its sums are exact too, so that the number of rows may choose it. bf16: it
   adds in another order than vectors, so that it computes all rows. */
#if defined(__AMX_INT8__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif
#define AMX_ROWS 16
#define AMX_BYTES 64      /* of a row of activations in a tile; other layers use vectors */
#define AMX_LEAST_ROWS 8  /* int8: with fewer rows, vectors are as fast */

/* Quantise rows to int8 with one scale per row, absmax / 127. */
static void quantize(const float *x, int64_t rows, int64_t inputs, quantized to) {
    for (int64_t row = 0; row < rows; row++, x += inputs) {
        vector peaks[4] = {broadcast(1e-30f), broadcast(1e-30f), broadcast(1e-30f), broadcast(1e-30f)};
        vector nan[4] = {{0}, {0}, {0}, {0}}; /* NaN if x contains a NaN or an infinity, otherwise 0 */
        for (int64_t k = 0; k < inputs; k += 4 * LANES) { /* four sums, which do not wait for each other */
#pragma GCC unroll 4
            for (int part = 0; part < 4; part++) {
                if (k + part * LANES >= inputs) break;
                vector value = load(x + k + part * LANES);
                peaks[part] = maximum((vector)((integers)value & 0x7fffffff), peaks[part]);
                nan[part] += value * 0.0f;
            }
        }
        vector both = maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3]));
        float peak = max_lane(both) + sum_lanes((nan[0] + nan[1]) + (nan[2] + nan[3])), inverse = 127.0f / peak;
        vector magic = broadcast(12582912.0f);
        integers total = {0};
        activation *values = (activation *)to.values + row * inputs;
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

#if HAS_BF16
/* Round rows to bf16, to nearest even; a NaN stays a NaN. */
static void round_to_bf16(const float *x, int64_t rows, int64_t inputs, quantized to) {
    uint16_t *values = to.values;
    for (int64_t k = 0; k < rows * inputs; k += LANES) {
        vector value = load(x + k);
        integers bits = (integers)value, rounded = bits + 0x7fff + (bits >> 16 & 1);
        typedef uint16_t narrow __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
        rounded = (integers)select_lanes(value != value, (vector)(bits | 0x400000), (vector)rounded);
        *(narrow *)(values + k) = __builtin_convertvector(rounded >> 16, narrow);
    }
}
#endif

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

/* Fetch `count` bytes of weights that the first rows will read soon into the L2 cache, where later rows find them. Each
   prefetch brings two lines. */
INLINE void prefetch_weights(int64_t above, const void *weight, int count) {
    if (above) return;
#pragma GCC unroll 8
    for (int byte = 0; byte < count; byte += 128) __builtin_prefetch((const char *)weight + PREFETCH_BYTES + byte, 0, 2);
}

/* Compute one tile: `rows` rows below `above` others, times one panel. `rows` is a constant after inlining. */
INLINE void gemm_tile(int rows, int64_t above, const float *x, int64_t inputs, const float *weight, const float *bias,
                      float *y, int64_t outputs, int64_t remaining, int accumulate) {
    vector sums[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = (vector){0};
    for (int64_t k = 0; k < inputs; k++, weight += PANEL) {
        prefetch_weights(above, weight, 4 * PANEL);
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

/* As gemm_tile, with weights in bf16. x: rows of bf16 with HAS_BF16, else of fp32. */
INLINE void gemm_tile_bf16(int rows, int64_t above, const void *x, int64_t inputs, const uint16_t *weight,
                           const float *bias, float *y, int64_t outputs, int64_t remaining, int accumulate) {
    vector sums[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = (vector){0};
    for (int64_t k = 0; k < inputs; k += 2, weight += 2 * PANEL) {
        prefetch_weights(above, weight, 4 * PANEL);
        integers weights[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) weights[v] = (integers)load((const float *)weight + v * LANES);
#if HAS_BF16
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
            vector pair = broadcast(0);
            __asm__("vpbroadcastd %1, %0" : "=v"(pair) : "m"(*((const uint16_t (*)[2])x + (row * inputs + k) / 2)));
#pragma GCC unroll 8
            for (int v = 0; v < PANEL_VECTORS; v++)
                __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums[row][v]) : "v"(weights[v]), "v"(pair));
        }
#else
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            vector half[PANEL_VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < PANEL_VECTORS; v++)
                half[v] = (vector)(weights[v] << (odd ? 0 : 16) & (int32_t)0xffff0000);
#pragma GCC unroll 8
            for (int row = 0; row < rows; row++) {
                vector value = broadcast(((const float *)x)[row * inputs + k + odd]);
#pragma GCC unroll 8
                for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] += value * half[v];
            }
        }
#endif
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
#elif defined(__wasm_simd128__)
    return (integers)wasm_i16x8_load8x8(weight);
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
#elif defined(__wasm_simd128__)
    return sums + (integers)wasm_i32x4_dot_i16x8((v128_t)weights, (v128_t)values);
#else
    return (integers)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)values);
#endif
}

/* Return the outputs of a row from their exact sums. */
INLINE vector rescale(integers sums, int32_t shift, vector scale, float row_scale, vector bias) {
    return __builtin_convertvector(sums - shift, vector) * (scale * row_scale) + bias;
}

INLINE void gemm_tile_int8(int rows, int64_t above, const activation *x, int64_t inputs, const uint8_t *weight,
                           const float *scale, const float *bias, const float *scales, const int32_t *shifts,
                           float *y, int64_t outputs, int64_t remaining, int accumulate) {
    integers sums[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) sums[row][v] = (integers){0};
    for (int64_t k = 0; k < inputs; k += GROUP, weight += GROUP * PANEL) {
        prefetch_weights(above, weight, GROUP * PANEL);
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
                store_output(y + row * outputs + v * LANES,
                             rescale(sums[row][v], shifts[row], load(scale + v * LANES), scales[row],
                                     load(bias + v * LANES)),
                             remaining - v * LANES, accumulate);
}
#endif

#if HAS_TILES
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

/* Up to 16 rows: a block of rows by four of outputs. More: two blocks of rows by two of outputs. Registers 0 to 3: sums;
   4 and 5: activations of the first and second block; 6 and 7: weights. */
static void configure_tiles(int first_rows, int second_rows) {
    tile_configuration configuration = {.palette = 1};
    int below = second_rows ? second_rows : first_rows;
    int rows[8] = {first_rows, first_rows, below, below, first_rows, below, AMX_ROWS, AMX_ROWS};
    for (int tile = 0; tile < 8; tile++)
        configuration.row_bytes[tile] = 64, configuration.rows[tile] = (uint8_t)rows[tile];
    _tile_loadconfig(&configuration);
}

/* Store the outputs of one tile from its sums [rows, LANES]: those of rows from `row` and columns from `column` on. */
INLINE void store_tile(int bf16, int accumulate, const linear *layer, const int32_t *sums, int64_t rows, int64_t row,
                       int64_t column, float *y, quantized scratch) {
    int64_t outputs = layer->outputs, remaining = outputs - column;
    if (remaining <= 0) return;
    vector bias = load(layer->bias + column), scale = bf16 ? bias : load(layer->scale + column);
    const float *scales = scratch.scales + row;
    const int32_t *shifts = scratch.shifts + row;
    y += row * outputs + column;
    for (int64_t k = 0; k < rows; k++, y += outputs, sums += LANES) {
        vector value;
        if (bf16) value = load((const float *)sums) + bias;
        else value = rescale(*(const integers *)sums, shifts[k], scale, scales[k], bias);
        store_output(y, value, remaining, accumulate);
    }
}

/* Apply panels `panel` to `end` to `row_count` rows, at most 2 AMX_ROWS, from `row`. A tile of weights is 16 groups of 16
   outputs. The sums of a block of outputs are stored while the next ones are computed. */
INLINE void gemm_rows_amx(int bf16, int accumulate, const linear *layer, int64_t row, int64_t row_count, int64_t panel,
                          int64_t end, float *y, quantized scratch) {
    int64_t outputs = layer->outputs, stride = layer->inputs * (bf16 ? 2 : 1), last = end * PANEL;
    int64_t first = row_count < AMX_ROWS ? row_count : AMX_ROWS, second = row_count - first;
    int64_t step = second ? 2 * LANES : 4 * LANES, before = -1;
    const char *upper = (const char *)scratch.values + row * stride, *lower = upper + first * stride;
    int32_t sums[2][4][AMX_ROWS * LANES] __attribute__((aligned(64)));
    if (last > outputs) last = outputs;
#define MULTIPLY(to, left, right) do { \
        if (bf16) _tile_dpbf16ps(to, left, right); \
        else _tile_dpbsud(to, left, right); \
    } while (0)
    for (int64_t column = panel * PANEL, turn = 0;; before = column, column += step, turn ^= 1) {
        if (column < last) {
            const char *weight = (const char *)layer->weight + column / PANEL * PANEL * stride + column % PANEL * 4;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t k = 0; second && k < stride; k += AMX_BYTES) {
                const char *from = weight + k * PANEL;
                if (!(column % PANEL)) prefetch_weights(row, from, AMX_ROWS * 4 * PANEL);
                _tile_loadd(6, from, 4 * PANEL);
                _tile_loadd(4, upper + k, stride);
                MULTIPLY(0, 4, 6);
                _tile_loadd(7, from + 64, 4 * PANEL);
                MULTIPLY(1, 4, 7);
                _tile_loadd(5, lower + k, stride);
                MULTIPLY(2, 5, 6);
                MULTIPLY(3, 5, 7);
            }
            for (int64_t k = 0; !second && k < stride; k += AMX_BYTES) {
                const char *from = weight + k * PANEL;
                prefetch_weights(row, from, AMX_ROWS * 4 * PANEL);
                _tile_loadd(4, upper + k, stride);
                _tile_loadd(6, from, 4 * PANEL);
                MULTIPLY(0, 4, 6);
                _tile_loadd(7, from + 64, 4 * PANEL);
                MULTIPLY(1, 4, 7);
                _tile_loadd(6, from + 128, 4 * PANEL);
                MULTIPLY(2, 4, 6);
                _tile_loadd(7, from + 192, 4 * PANEL);
                MULTIPLY(3, 4, 7);
            }
            _tile_stored(0, sums[turn][0], 64);
            _tile_stored(1, sums[turn][1], 64);
            _tile_stored(2, sums[turn][2], 64);
            _tile_stored(3, sums[turn][3], 64);
        }
        if (before >= 0)
            for (int tile = 0; tile < 4; tile++) {
                int64_t right = second ? tile % 2 : tile, below = second ? tile / 2 : 0;
                store_tile(bf16, accumulate, layer, sums[turn ^ 1][tile], below ? second : first, row + below * first,
                           before + right * LANES, y, scratch);
            }
        if (column >= last) break;
    }
#undef MULTIPLY
}

static void gemm_rows_amx_int8(const linear *layer, int64_t row, int64_t row_count, int64_t panel, int64_t end, float *y,
                               int accumulate, quantized scratch) {
    if (accumulate) gemm_rows_amx(0, 1, layer, row, row_count, panel, end, y, scratch);
    else gemm_rows_amx(0, 0, layer, row, row_count, panel, end, y, scratch);
}

static void gemm_rows_amx_bf16(const linear *layer, int64_t row, int64_t row_count, int64_t panel, int64_t end, float *y,
                               int accumulate, quantized scratch) {
    if (accumulate) gemm_rows_amx(1, 1, layer, row, row_count, panel, end, y, scratch);
    else gemm_rows_amx(1, 0, layer, row, row_count, panel, end, y, scratch);
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
#define TILE(n) gemm_tile(n, row, from, inputs, weight, bias, to, outputs, remaining, accumulate)
            FOR_TILE_ROWS(TILE, row_count)
#undef TILE
        }
        else if (layer->format == BF16) {
            const uint16_t *weight = (const uint16_t *)layer->weight + first * inputs;
            const void *from = HAS_BF16 ? (const void *)((const uint16_t *)scratch.values + row * inputs) : x + row * inputs;
#define TILE(n) gemm_tile_bf16(n, row, from, inputs, weight, bias, to, outputs, remaining, accumulate)
            FOR_TILE_ROWS(TILE, row_count)
#undef TILE
        }
#if GROUP
        else {
            const uint8_t *weight = (const uint8_t *)layer->weight + first * inputs;
            const activation *from = (const activation *)scratch.values + row * inputs;
            const float *scale = layer->scale + first, *scales = scratch.scales + row;
            const int32_t *shifts = scratch.shifts + row;
#define TILE(n) gemm_tile_int8(n, row, from, inputs, weight, scale, bias, scales, shifts, to, outputs, remaining, accumulate)
            FOR_TILE_ROWS(TILE, row_count)
#undef TILE
        }
#else
        (void)scratch;
#endif
    }
}

/* A product whose panels threads share. */
typedef struct {
    const linear *layer;
    const float *x;
    int64_t rows, share; /* share: panels in a part */
    float *y;
    int accumulate;
    quantized scratch;
} shared_product;

/* Compute the panels of a part, some at a time for all rows. */
static void compute_part(void *task, int64_t part) {
    const shared_product *own = task;
    const linear *layer = own->layer;
    int64_t rows = own->rows, pass = PANEL_CACHE_BYTES / panel_bytes(layer), last = panel_count(layer);
    int64_t begin = part * own->share;
    if (begin + own->share < last) last = begin + own->share;
#if HAS_TILES
    int64_t least = AMX_LEAST_ROWS, configured = 0;
    if (layer->format == FP32 || panel_bytes(layer) / PANEL % AMX_BYTES) least = rows + 1;
    else if (layer->format == BF16) least = 1;
#endif
    for (int64_t panel = begin, end; panel < last; panel = end) {
        int64_t row = 0;
        end = panel + (pass < 1 ? 1 : pass) < last ? panel + (pass < 1 ? 1 : pass) : last;
#if HAS_TILES
        for (int64_t some; rows - row >= least; row += some) {
            some = rows - row < 2 * AMX_ROWS ? rows - row : 2 * AMX_ROWS;
            if (some != configured)
                configure_tiles(some < AMX_ROWS ? (int)some : AMX_ROWS, some < AMX_ROWS ? 0 : (int)some - AMX_ROWS);
            configured = some;
            (layer->format == BF16 ? gemm_rows_amx_bf16 : gemm_rows_amx_int8)(layer, row, some, panel, end, own->y,
                                                                             own->accumulate, own->scratch);
        }
#endif
        for (; row < rows; row += TILE_ROWS)
            gemm_rows(layer, own->x, row, rows - row < TILE_ROWS ? rows - row : TILE_ROWS, panel, end, own->y,
                      own->accumulate, own->scratch);
    }
#if HAS_TILES
    if (configured) _tile_release();
#endif
}

void linear_forward(const linear *layer, const float *x, int64_t rows, float *y, int accumulate, quantized scratch) {
    int64_t panels = panel_count(layer), threads = thread_count(), share = (panels + 4 * threads - 1) / (4 * threads),
            least = PART_BYTES / panel_bytes(layer);
    if (layer->format == QUANTIZED) quantize(x, rows, layer->inputs, scratch);
#if HAS_BF16
    if (layer->format == BF16) round_to_bf16(x, rows, layer->inputs, scratch);
#endif
    if (share < least) share = least;
    if (threads == 1 || !share) share = panels;
    shared_product task = {layer, x, rows, share, y, accumulate, scratch};
    share_work(compute_part, &task, (panels + share - 1) / share);
}
