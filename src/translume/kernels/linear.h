/* Linear layers (GEMM) for few or many rows, in fp32, bf16 and int8.

   The order of summation of an output does not depend on the number of rows, so a row's product is the same, bit for
   bit, in every batch. Sums of int8 products are exact, and therefore equal with every instruction set. */

#ifndef TRANSLUME_LINEAR
#define TRANSLUME_LINEAR

#include "vectors.h"

/* How int8 is computed. GROUP: inputs of one output whose weights are contiguous, multiplied and added within a lane.
   WEIGHT_OFFSET: added to stored weights, for instructions that multiply unsigned weights by signed activations. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define GROUP 4 /* vpdpbusd: unsigned and signed bytes, four a lane */
#define WEIGHT_OFFSET 128
typedef int8_t activation;
#elif LANES >= 8 || defined(__wasm_simd128__)
#define GROUP 2 /* vpmaddwd: 16-bit integers, two a lane; the sums of pairs of vpmaddubsw would saturate. i32x4.dot_i16x8_s */
#define WEIGHT_OFFSET 0
typedef int16_t activation;
#elif defined(__ARM_FEATURE_DOTPROD)
#define GROUP 4 /* sdot: signed bytes, four a lane */
#define WEIGHT_OFFSET 0
typedef int8_t activation;
#else
#define GROUP 0 /* no int8 */
#define WEIGHT_OFFSET 0
typedef int8_t activation;
#endif

/* Whether instructions multiply bf16 by bf16. Otherwise weights become fp32 in registers, and inputs are not rounded. */
#if defined(__AVX512BF16__)
#define HAS_BF16 1
#else
#define HAS_BF16 0
#endif

/* A tile of TILE_ROWS x PANEL_VECTORS accumulators stays in registers: 32 of AVX-512 and NEON, 16 of AVX2 and of browsers
   on x86. */
#if LANES == 8 || defined(__wasm_simd128__)
#define PANEL_VECTORS 2 /* vectors of outputs in a panel */
#else
#define PANEL_VECTORS 4
#endif
#define TILE_ROWS 6
#define PANEL (LANES * PANEL_VECTORS) /* outputs whose weights for one input, or one group of inputs, are contiguous */

enum format { FP32, QUANTIZED, BF16 };

typedef struct {
    int64_t inputs, outputs, format;
    const void *weight;  /* FP32: [panels][inputs][PANEL] floats;
                            QUANTIZED: [panels][inputs / GROUP][PANEL][GROUP] bytes, int8 plus WEIGHT_OFFSET;
                            BF16: [panels][inputs / 2][PANEL][2] */
    const float *scale;  /* [panels * PANEL]; QUANTIZED only */
    const float *bias;   /* [panels * PANEL] */
} linear;

/* Rows of activations as int8, or as bf16 without the rest. */
typedef struct {
    void *values;       /* [rows, inputs], of type activation or uint16_t */
    float *scales;      /* [rows] */
    int32_t *shifts;    /* [rows]: WEIGHT_OFFSET times the sum of a row, the excess that the offset adds to its sums */
} quantized;

#define ACTIVATION_BYTES (HAS_BF16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(activation))

INLINE int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Return the bytes that rows of such activations need. */
INLINE int64_t quantized_bytes(int64_t rows, int64_t inputs) {
    return aligned(rows * inputs * ACTIVATION_BYTES) + 2 * aligned(4 * rows);
}

INLINE quantized carve_quantized(int64_t rows, int64_t inputs, char *memory) {
    char *scales = memory + aligned(rows * inputs * ACTIVATION_BYTES);
    return (quantized){memory, (float *)scales, (int32_t *)(scales + aligned(4 * rows))};
}

/* Compute y [rows, outputs] = x [rows, inputs] W^T + b; add it to y if `accumulate`. scratch: for quantised inputs. */
void linear_forward(const linear *layer, const float *x, int64_t rows, float *y, int accumulate, quantized scratch);

#endif
