/* Vectors of 16 floats: GCC's and clang's own, whatever the machine has. */

#ifndef TRANSLUME_VECTORS
#define TRANSLUME_VECTORS

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define HALVES 1
#else
#define HALVES 0
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

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

/* The sums of four vectors; each is made in the same order. */
INLINE void four_sums(const vector *values, float *to) {
#if HALVES
    __m512 one = _mm512_add_ps(_mm512_unpacklo_ps((__m512)values[0], (__m512)values[1]),
                               _mm512_unpackhi_ps((__m512)values[0], (__m512)values[1]));
    __m512 other = _mm512_add_ps(_mm512_unpacklo_ps((__m512)values[2], (__m512)values[3]),
                                 _mm512_unpackhi_ps((__m512)values[2], (__m512)values[3]));
    __m512d left = _mm512_castps_pd(one), right = _mm512_castps_pd(other);
    __m512 quarters = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(left, right)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(left, right)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quarters),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(quarters), 1)));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
    for (int place = 0; place < 4; place++) to[place] = sum(values[place]);
#endif
}

/* The vector at `at` of floats, or of halves: of 16 bits. */
INLINE vector number(int halves, const void *from, int64_t at) {
#if HALVES
    if (halves) return (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)from + at)));
#endif
    return load((const float *)from + at);
}

/* The same the other way; what is beyond the largest half becomes that, a NaN stays one. */
INLINE void keep(int halves, void *to, int64_t at, vector value) {
#if HALVES
    if (halves) {
        value = pick(value > 65504.0f, all(65504.0f), value);
        value = pick(value < -65504.0f, all(-65504.0f), value);
        __m256i packed = _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256((void *)((uint16_t *)to + at), packed);
        return;
    }
#endif
    store((float *)to + at, value);
}

INLINE int any(integers where) {
#if HALVES
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
#else
    int found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= where[lane];
    return found;
#endif
}

/* The larger and the smaller of each two; `other` where one is a NaN. */
INLINE vector higher(vector one, vector other) {
#if HALVES
    return (vector)_mm512_max_ps((__m512)one, (__m512)other);
#else
    return pick(one > other, one, other);
#endif
}

INLINE vector lower(vector one, vector other) {
#if HALVES
    return (vector)_mm512_min_ps((__m512)one, (__m512)other);
#else
    return pick(one < other, one, other);
#endif
}

/* Of numbers that are no NaN. */
INLINE float largest(vector value) {
#if HALVES
    return _mm512_reduce_max_ps((__m512)value);
#else
    float found = value[0];
    for (int lane = 1; lane < LANES; lane++) found = value[lane] > found ? value[lane] : found;
    return found;
#endif
}

/* e^x for x < 88, within 2 units in the last place; 0 below -87. Cody and Waite's reduction, Cephes' polynomial. */
INLINE vector exponential(vector x) {
    vector magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to whole numbers */
    vector whole = (x * 1.44269504088896341f + magic) - magic;
    vector rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vector power = all(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
#if HALVES
    __mmask16 there = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (vector)_mm512_maskz_scalef_ps(there, (__m512)power, (__m512)whole);
#else
    integers scale = (__builtin_convertvector(whole, integers) + 127) << 23;
    return pick(x < -87.0f, (vector){0}, power * (vector)scale);
#endif
}

INLINE vector sigmoid(vector x) {
    vector small = exponential((vector)((integers)x | INT32_MIN)); /* e^-|x| */
    vector positive = 1.0f / (1.0f + small);
    return pick(x < 0.0f, small * positive, positive);
}

INLINE vector swish(vector x) { return x * sigmoid(x); }

/* A NaN stays one. */
INLINE vector above_zero(vector x) { return (vector)((integers)x & ~(x <= 0.0f)); }

#endif
