/* Gradients of weights, the products of transposed gradients and inputs, by tiles of AMX. */

#include "numbers.h"

#if defined(__AMX_BF16__)

#define DEPTH 1024 /* rows multiplied at a time: packed panels of a narrow layer fit the L2 cache */
#define STEP 32   /* rows of a tile */
#define BLOCK 32  /* outputs, and inputs, of a panel, whose products are two by two tiles */
#define GROUPED 8 /* panels packed together, so that whole cache lines are read in their order */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

/* Return 32 numbers of a row, zero beyond `columns`. */
INLINE __m512i read_row(const uint16_t *row, int64_t columns) {
    __mmask32 mask = columns >= 32 ? ~0u : columns > 0 ? (1u << columns) - 1 : 0;
    return _mm512_maskz_loadu_epi16(mask, row);
}

/* Pack `panels` panels of BLOCK columns from column `from` on. A panel has two tiles for each STEP of rows; a row of a
   tile has the pairs of 16 columns (inputs) or, transposed, all pairs of one column (outputs). */
INLINE void pack(int transposed, const uint16_t *x, int64_t rows, int64_t columns, int64_t from, int64_t panels,
                 uint16_t *to) {
    int64_t panel_size = (rows + STEP - 1) / STEP * STEP * BLOCK;
    uint16_t places[64];
    for (int k = 0; k < 64; k++) places[k] = k / 2 + k % 2 * 32; /* of the pairs of two rows of 32 */
    __m512i lower = _mm512_loadu_si512(places), upper = _mm512_loadu_si512(places + 32);
    for (int64_t row = 0; row < rows; row += STEP, to += STEP * BLOCK)
        for (int64_t panel = 0; panel < panels; panel++) {
            int64_t column = from + BLOCK * panel;
            float *packed = (float *)(to + panel * panel_size);
            vector blocks[2][16];
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++) {
                const uint16_t *at = x + (row + 2 * k) * columns + column;
                int64_t left = rows - row - 2 * k;
                __m512i one = left > 0 ? read_row(at, columns - column) : _mm512_setzero_si512();
                __m512i other = left > 1 ? read_row(at + columns, columns - column) : _mm512_setzero_si512();
                blocks[0][k] = (vector)_mm512_permutex2var_epi16(one, lower, other);
                blocks[1][k] = (vector)_mm512_permutex2var_epi16(one, upper, other);
            }
            for (int half = 0; half < 2; half++, packed += 256) {
                if (transposed) transpose(blocks[half]);
#pragma GCC unroll 16
                for (int k = 0; k < 16; k++) store(packed + 16 * k, blocks[half][k]);
            }
        }
}

int64_t translume_has_weight_gradient(void) { return 1; }

INLINE int64_t panels_of(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }

/* The bytes of a workspace. */
int64_t translume_weight_gradient_workspace(int64_t rows, int64_t outputs, int64_t inputs) {
    int64_t depth = rows < DEPTH ? (rows + STEP - 1) / STEP * STEP : DEPTH;
    int64_t resident = panels_of(outputs < inputs ? outputs : inputs), sums = rows > DEPTH ? outputs * inputs * 4 : 0;
    return depth * 2 * BLOCK * (GROUPED + resident) + sums + 64;
}

/* Multiply a panel of outputs by a panel of inputs. */
INLINE void multiply_panels(const uint16_t *outputs, const uint16_t *inputs, int64_t steps, float tiles[4][256]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < steps; k++, outputs += STEP * BLOCK, inputs += STEP * BLOCK) {
        _tile_loadd(4, outputs, 64);
        _tile_loadd(6, inputs, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, inputs + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, outputs + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, tiles[0], 64);
    _tile_stored(1, tiles[1], 64);
    _tile_stored(2, tiles[2], 64);
    _tile_stored(3, tiles[3], 64);
}

/* Compute the products of gradients [rows, outputs] and x [rows, inputs], transposed, [outputs, inputs], both bf16. They
   are added to `sums` if it is not NULL, otherwise written to `result`, or added to it (`adds`), rounded to bf16 once.

   The packed panels of the shorter side stay in the L2 cache; those of the other side are packed in groups. */
void translume_weight_gradient(int64_t rows, int64_t outputs, int64_t inputs, const uint16_t *gradients,
                               const uint16_t *x, float *sums, uint16_t *result, int64_t adds, char *workspace) {
    static const tile_configuration configuration = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    int64_t depth = rows < DEPTH ? (rows + STEP - 1) / STEP * STEP : DEPTH;
    int swapped = outputs < inputs;
    int64_t resident = panels_of(swapped ? outputs : inputs), others = panels_of(swapped ? inputs : outputs);
    uint16_t *kept = (uint16_t *)(((uintptr_t)workspace + 63) / 64 * 64), *grouped = kept + resident * depth * BLOCK;
    float *total = sums ? sums : (float *)(grouped + GROUPED * depth * BLOCK);
    _tile_loadconfig(&configuration);
    for (int64_t row = 0; row < rows; row += DEPTH) {
        int64_t count = rows - row < DEPTH ? rows - row : DEPTH, steps = (count + STEP - 1) / STEP;
        int64_t panel_size = steps * STEP * BLOCK;
        int first = row == 0 && !sums, last = row + DEPTH >= rows && !sums;
        if (swapped)
            pack(1, gradients + row * outputs, count, outputs, 0, resident, kept);
        else
            pack(0, x + row * inputs, count, inputs, 0, resident, kept);
        for (int64_t begin = 0; begin < others; begin += GROUPED) {
            int64_t group = others - begin < GROUPED ? others - begin : GROUPED;
            if (swapped)
                pack(0, x + row * inputs, count, inputs, begin * BLOCK, group, grouped);
            else
                pack(1, gradients + row * outputs, count, outputs, begin * BLOCK, group, grouped);
            for (int64_t pair = 0; pair < group * resident; pair++) {
                const uint16_t *one = grouped + pair / resident * panel_size, *other = kept + pair % resident * panel_size;
                int64_t output = BLOCK * (swapped ? pair % resident : begin + pair / resident);
                int64_t input = BLOCK * (swapped ? begin + pair / resident : pair % resident);
                float tiles[4][256] __attribute__((aligned(64)));
                multiply_panels(swapped ? other : one, swapped ? one : other, steps, tiles);
                for (int tile = 0; tile < 4; tile++)
                    for (int64_t k = 0; k < 16; k++) {
                        int64_t place = output + tile / 2 * 16 + k, at = input + tile % 2 * 16;
                        if (place >= outputs || at >= inputs) break;
                        int64_t index = place * inputs + at, part = inputs - at;
                        vector value = load(tiles[tile] + 16 * k);
                        if (!first) value += read_part(0, total, index, part);
                        if (last && adds) value += read_part(1, result, index, part);
                        if (last)
                            write_part(1, result, index, value, part);
                        else
                            write_part(0, total, index, value, part);
                    }
            }
        }
    }
    _tile_release();
}

#else

int64_t translume_has_weight_gradient(void) { return 0; }
int64_t translume_weight_gradient_workspace(int64_t rows, int64_t outputs, int64_t inputs) {
    (void)rows, (void)outputs, (void)inputs;
    return 0;
}
void translume_weight_gradient(int64_t rows, int64_t outputs, int64_t inputs, const uint16_t *gradients,
                               const uint16_t *x, float *sums, uint16_t *result, int64_t adds, char *workspace) {
    (void)rows, (void)outputs, (void)inputs, (void)gradients, (void)x, (void)sums, (void)result, (void)adds;
    (void)workspace;
}

#endif
