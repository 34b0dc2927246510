/* The tile instructions of AMX in scalar C, for tests of their use on processors without them. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define __AMX_INT8__ 1

static struct {
    uint8_t bytes[8][16][64];
    uint16_t row_bytes[8];
    uint8_t rows[8];
} tiles;

static inline void emulate_loadconfig(const void *from) {
    memcpy(tiles.row_bytes, (const uint8_t *)from + 16, sizeof tiles.row_bytes);
    memcpy(tiles.rows, (const uint8_t *)from + 48, sizeof tiles.rows);
}

static inline void emulate_load(int tile, const void *from, int64_t stride) {
    for (int row = 0; row < tiles.rows[tile]; row++)
        memcpy(tiles.bytes[tile][row], (const uint8_t *)from + row * stride, tiles.row_bytes[tile]);
}

static inline void emulate_store(int tile, void *to, int64_t stride) {
    for (int row = 0; row < tiles.rows[tile]; row++)
        memcpy((uint8_t *)to + row * stride, tiles.bytes[tile][row], tiles.row_bytes[tile]);
}

/* Add signed bytes of `left` times unsigned bytes of `right`, four a sum. */
static inline void emulate_dpbsud(int to, int left, int right) {
    for (int row = 0; row < tiles.rows[to]; row++)
        for (int column = 0; column < tiles.row_bytes[to] / 4; column++) {
            int32_t sum;
            memcpy(&sum, tiles.bytes[to][row] + 4 * column, 4);
            for (int k = 0; k < tiles.row_bytes[left]; k++)
                sum += (int8_t)tiles.bytes[left][row][k] * tiles.bytes[right][k / 4][4 * column + k % 4];
            memcpy(tiles.bytes[to][row] + 4 * column, &sum, 4);
        }
}

/* Add products of bf16, first those of even inputs, then those of odd ones. */
static inline void emulate_dpbf16ps(int to, int left, int right) {
    for (int row = 0; row < tiles.rows[to]; row++)
        for (int column = 0; column < tiles.row_bytes[to] / 4; column++) {
            float sums[2] = {0}, sum;
            for (int k = 0; k < tiles.row_bytes[left] / 2; k++) {
                uint32_t one = 0, other = 0;
                memcpy((char *)&one + 2, tiles.bytes[left][row] + 2 * k, 2);
                memcpy((char *)&other + 2, tiles.bytes[right][k / 2] + 4 * column + k % 2 * 2, 2);
                float x, y;
                memcpy(&x, &one, 4), memcpy(&y, &other, 4);
                sums[k % 2] += x * y;
            }
            memcpy(&sum, tiles.bytes[to][row] + 4 * column, 4);
            sum += sums[0] + sums[1];
            memcpy(tiles.bytes[to][row] + 4 * column, &sum, 4);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig emulate_loadconfig
#define _tile_release()
#define _tile_loadd emulate_load
#define _tile_stored emulate_store
#define _tile_zero(tile) memset(tiles.bytes[tile], 0, sizeof tiles.bytes[tile])
#define _tile_dpbsud emulate_dpbsud
#define _tile_dpbf16ps emulate_dpbf16ps
