/* Vectors of floats as a GCC and clang extension, as wide as the target's registers, with intrinsics where the
   extension has no operation. */

#ifndef TRANSLUME_VECTORS
#define TRANSLUME_VECTORS

#include <math.h>
#include <stdint.h>
#include <string.h>

/* LANES: floats in a vector. HAS_FP16: whether the target converts vectors from and to fp16. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define HAS_FP16 1
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define LANES 8
#define HAS_FP16 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LANES 4
#define HAS_FP16 1
#else
#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif
#define LANES 4
#define HAS_FP16 0
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vector load(const float *source) { return *(const vector *)source; }
INLINE void store(float *target, vector value) { *(vector *)target = value; }
INLINE vector broadcast(float value) { return value - (vector){0}; }

INLINE vector select_lanes(integers where, vector one, vector other) {
    return (vector)((where & (integers)one) | (~where & (integers)other));
}

INLINE float sum_lanes(vector value) {
    typedef float four __attribute__((vector_size(16)));
    four parts[LANES / 4];
    memcpy(parts, &value, sizeof value);
    for (int half = LANES / 8; half > 0; half /= 2)
        for (int part = 0; part < half; part++) parts[part] += parts[part + half];
    return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

/* The sums of the lanes of four vectors. Each is added up in the same order. */
INLINE void sum_lanes_of_4(const vector *values, float *target) {
#if LANES == 16
    __m512 one = _mm512_add_ps(_mm512_unpacklo_ps((__m512)values[0], (__m512)values[1]),
                               _mm512_unpackhi_ps((__m512)values[0], (__m512)values[1]));
    __m512 other = _mm512_add_ps(_mm512_unpacklo_ps((__m512)values[2], (__m512)values[3]),
                                 _mm512_unpackhi_ps((__m512)values[2], (__m512)values[3]));
    __m512d left = _mm512_castps_pd(one), right = _mm512_castps_pd(other);
    __m512 quarters = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(left, right)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(left, right)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quarters),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(quarters), 1)));
    _mm_storeu_ps(target, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif LANES == 8
    __m256 one = _mm256_hadd_ps((__m256)values[0], (__m256)values[1]);
    __m256 sums = _mm256_hadd_ps(one, _mm256_hadd_ps((__m256)values[2], (__m256)values[3]));
    _mm_storeu_ps(target, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#elif defined(__aarch64__)
    float32x4_t one = vpaddq_f32((float32x4_t)values[0], (float32x4_t)values[1]);
    vst1q_f32(target, vpaddq_f32(one, vpaddq_f32((float32x4_t)values[2], (float32x4_t)values[3])));
#else
    for (int lane = 0; lane < 4; lane++) target[lane] = sum_lanes(values[lane]);
#endif
}

/* Lane by lane the larger, or the smaller, value; `other` where `one` or `other` is a NaN. */
INLINE vector maximum(vector one, vector other) {
#if LANES == 16
    return (vector)_mm512_max_ps((__m512)one, (__m512)other);
#elif LANES == 8
    return (vector)_mm256_max_ps((__m256)one, (__m256)other);
#elif defined(__wasm_simd128__)
    return (vector)wasm_f32x4_pmax((v128_t)other, (v128_t)one);
#else
    return select_lanes(one > other, one, other);
#endif
}

INLINE vector minimum(vector one, vector other) {
#if LANES == 16
    return (vector)_mm512_min_ps((__m512)one, (__m512)other);
#elif LANES == 8
    return (vector)_mm256_min_ps((__m256)one, (__m256)other);
#elif defined(__wasm_simd128__)
    return (vector)wasm_f32x4_pmin((v128_t)other, (v128_t)one);
#else
    return select_lanes(one < other, one, other);
#endif
}

/* Load the vector at `index` of an array of fp32, or of fp16. */
INLINE vector load_number(int fp16, const void *source, int64_t index) {
#if HAS_FP16
    const uint16_t *halves = (const uint16_t *)source + index;
#else
    (void)fp16;
#endif
#if LANES == 16
    if (fp16) return (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)halves));
#elif LANES == 8
    if (fp16) return (vector)_mm256_cvtph_ps(_mm_loadu_si128((const void *)halves));
#elif HAS_FP16
    if (fp16) return (vector)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
#endif
    return load((const float *)source + index);
}

/* Store a vector as fp32 or fp16. Values beyond the largest fp16 are clamped to it; a NaN stays a NaN. */
INLINE void store_number(int fp16, void *target, int64_t index, vector value) {
#if HAS_FP16
    if (fp16) {
        uint16_t *halves = (uint16_t *)target + index;
        value = maximum(broadcast(-65504.0f), minimum(broadcast(65504.0f), value));
#if LANES == 16
        __m256i packed = _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256((void *)halves, packed);
#elif LANES == 8
        _mm_storeu_si128((void *)halves, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#else
        vst1_u16(halves, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
#endif
        return;
    }
#else
    (void)fp16;
#endif
    store((float *)target + index, value);
}

INLINE int any_lane(integers where) {
#if LANES == 16
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
#elif LANES == 8
    return !_mm256_testz_si256((__m256i)where, (__m256i)where);
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)where) != 0;
#elif defined(__wasm_simd128__)
    return wasm_v128_any_true((v128_t)where);
#else
    int found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= where[lane];
    return found != 0;
#endif
}

/* Return a number whose bit k is set where lane k is. */
INLINE uint32_t lane_bits(integers where) {
#if LANES == 16
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where);
#elif LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)where);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= (uint32_t)(where[lane] & 1 << lane);
    return bits;
#endif
}

/* The largest lane of a vector without NaN. */
INLINE float max_lane(vector value) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)value);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)value);
#else
    float found = value[0];
    for (int lane = 1; lane < LANES; lane++) found = value[lane] > found ? value[lane] : found;
    return found;
#endif
}

typedef double doubles __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
typedef int64_t longs __attribute__((vector_size(4 * LANES), aligned(8), may_alias));

/* Convert the first and second half of a vector to fp64. */
INLINE void to_doubles(vector value, doubles *halves) {
#if LANES == 16
    halves[0] = (doubles)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)value));
    halves[1] = (doubles)_mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)value), 1)));
#elif LANES == 8
    halves[0] = (doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)value));
    halves[1] = (doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)value, 1));
#else
    for (int lane = 0; lane < LANES; lane++) halves[lane / (LANES / 2)][lane % (LANES / 2)] = (double)value[lane];
#endif
}

/* Add the first and second half of a vector to sums in fp64. */
INLINE void add_as_doubles(doubles *sums, vector value) {
    doubles halves[2];
    to_doubles(value, halves);
    sums[0] += halves[0], sums[1] += halves[1];
}

INLINE double sum_doubles(doubles value) {
    double sum = 0;
    for (int lane = 0; lane < LANES / 2; lane++) sum += value[lane];
    return sum;
}

/* e^x for x < 88, within 2 units in the last place; 0 below -87. Cody and Waite's reduction, Cephes' polynomial. */
INLINE vector exp_lanes(vector x) {
    vector magic = broadcast(12582912.0f); /* 1.5 * 2^23: adding it rounds to integers */
    vector whole = (x * 1.44269504088896341f + magic) - magic;
    vector rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vector power = broadcast(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
#if LANES == 16
    __mmask16 there = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (vector)_mm512_maskz_scalef_ps(there, (__m512)power, (__m512)whole);
#else
    integers scale = (__builtin_convertvector(whole, integers) + 127) << 23;
    return select_lanes(x < -87.0f, (vector){0}, power * (vector)scale);
#endif
}

/* e^x for x < 709, within 2 units in the last place; 0 below -708. The same reduction, Cephes' quotient. */
INLINE doubles exp_doubles(doubles x) {
    doubles shifted = x * 1.4426950408889634074 + 6755399441055744.0, whole = shifted - 6755399441055744.0; /* 1.5 * 2^52 */
    doubles rest = (x - whole * 6.93145751953125e-1) - whole * 1.42860682030941723212e-6, square = rest * rest;
    doubles odd = rest * ((1.26177193074810590878e-4 * square + 3.02994407707441961300e-2) * square + 9.99999999999999999910e-1);
    doubles even = ((3.00198505138664455042e-6 * square + 2.52448340349684104192e-3) * square
                    + 2.27265548208155028766e-1) * square + 2.0;
    longs power = (longs)(1.0 + 2.0 * odd / (even - odd)) + ((longs)shifted << 52); /* times 2^whole */
    return (doubles)((x >= -708.0) & power);
}

INLINE vector sigmoid(vector x) {
    vector small = exp_lanes((vector)((integers)x | INT32_MIN)); /* e^-|x| */
    vector positive = 1.0f / (1.0f + small);
    return select_lanes(x < 0.0f, small * positive, positive);
}

INLINE vector swish(vector x) { return x * sigmoid(x); }

/* GELU, x (1 + erf(x / sqrt(2))) / 2, within 2e-7 |x|: Abramowitz and Stegun, 7.1.26. */
INLINE vector gelu(vector x) {
    vector size = (vector)((integers)x & INT32_MAX) * 0.70710678118654752f, t = 1.0f / (1.0f + 0.3275911f * size);
    vector sum = broadcast(1.061405429f) * t - 1.453152027f;
    sum = (sum * t + 1.421413741f) * t - 0.284496736f;
    sum = (sum * t + 0.254829592f) * t;
    vector tail = 0.5f * sum * exp_lanes(-size * size); /* (1 - erf(size)) / 2 */
    return x * select_lanes(x < 0.0f, tail, 1.0f - tail);
}

/* GELU's approximation by a hyperbolic tangent: x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
INLINE vector gelu_tanh(vector x) { return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)); }

/* max(x, 0); a NaN stays a NaN. */
INLINE vector relu(vector x) { return (vector)((integers)x & ~(x <= 0.0f)); }

#endif
