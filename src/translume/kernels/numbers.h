/* Vectors of fp32 from and to arrays of fp32 or bf16, for training. */

#ifndef TRANSLUME_NUMBERS
#define TRANSLUME_NUMBERS

#include "vectors.h"

typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vector widen(halves value) { return (vector)(__builtin_convertvector(value, words) << 16); }

/* Round to the nearest bf16, ties to even; a NaN stays a NaN. Numbers below 2^-126 may become zero. */
INLINE halves narrow(vector value) {
#if LANES == 16 && defined(__AVX512BF16__)
    return (halves)_mm512_cvtneps_pbh((__m512)value);
#else
    words bits = (words)value, rounded = bits + 0x7fff + ((bits >> 16) & 1);
    rounded = (words)select_lanes(value == value, (vector)rounded, (vector)(bits | 0x400000));
    return __builtin_convertvector(rounded >> 16, halves);
#endif
}

/* The vector at `index` of an array of bf16 or of fp32. */
INLINE vector read_numbers(int bf16, const void *source, int64_t index) {
    if (bf16) return widen(*(const halves *)((const uint16_t *)source + index));
    return load((const float *)source + index);
}

INLINE void write_numbers(int bf16, void *target, int64_t index, vector value) {
    if (bf16)
        *(halves *)((uint16_t *)target + index) = narrow(value);
    else
        store((float *)target + index, value);
}

/* As the two above, for the first `count` lanes; the others are zero. */
INLINE vector read_part(int bf16, const void *source, int64_t index, int64_t count) {
    if (count >= LANES) return read_numbers(bf16, source, index);
    int64_t size = bf16 ? 2 : 4;
    float parts[LANES] = {0};
    memcpy(parts, (const char *)source + index * size, count * size);
    return read_numbers(bf16, parts, 0);
}

INLINE void write_part(int bf16, void *target, int64_t index, vector value, int64_t count) {
    if (count >= LANES) {
        write_numbers(bf16, target, index, value);
        return;
    }
    int64_t size = bf16 ? 2 : 4;
    float parts[LANES];
    write_numbers(bf16, parts, 0, value);
    memcpy((char *)target + index * size, parts, count * size);
}

/* `factor` where a byte is not zero, else zero. */
INLINE vector read_mask(const uint8_t *keep, int64_t count, float factor) {
    typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
    uint8_t parts[LANES] = {0};
    if (count < LANES) memcpy(parts, keep, count), keep = parts;
    return __builtin_convertvector(__builtin_convertvector(*(const bytes *)keep, integers), vector) * factor;
}

INLINE vector square_roots(vector value) {
#if LANES == 16
    return (vector)_mm512_sqrt_ps((__m512)value);
#elif LANES == 8
    return (vector)_mm256_sqrt_ps((__m256)value);
#else
    for (int lane = 0; lane < LANES; lane++) value[lane] = sqrtf(value[lane]);
    return value;
#endif
}

/* All bits set in the first `count` lanes. */
INLINE integers first_lanes(int32_t count) {
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const integers *)numbers < count;
}

/* Transpose a square of LANES vectors in place. */
INLINE void transpose(vector *rows) {
#if LANES == 16
    __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) { /* exchange blocks of step x step beside the diagonal */
        __mmask16 odd = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(step));
        __m512i lower = _mm512_mask_add_epi32(lane, odd, lane, _mm512_set1_epi32(LANES - step));
        __m512i upper = _mm512_mask_add_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(step)), odd, lane,
                                              _mm512_set1_epi32(LANES));
#pragma GCC unroll 16
        for (int row = 0; row < LANES; row++) {
            if (row & step) continue;
            __m512 one = (__m512)rows[row], other = (__m512)rows[row + step];
            rows[row] = (vector)_mm512_permutex2var_ps(one, lower, other);
            rows[row + step] = (vector)_mm512_permutex2var_ps(one, upper, other);
        }
    }
#else
    float from[LANES][LANES];
    memcpy(from, rows, sizeof from);
    for (int row = 0; row < LANES; row++)
        for (int lane = 0; lane < LANES; lane++) rows[row][lane] = from[lane][row];
#endif
}

#endif
