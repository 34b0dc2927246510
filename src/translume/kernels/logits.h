/* Statistics of logits, and their refinement in fp32. */

#ifndef TRANSLUME_LOGITS
#define TRANSLUME_LOGITS

#include "vectors.h"

/* The fp32 inputs of the logits. Logits of an int8 head that are within `margin` of their row's largest are computed
   again from these, so that quantisation does not decide between the likeliest tokens. */
typedef struct {
    const float *hidden;         /* [rows, inputs]; inputs is a multiple of LANES */
    const float *weight, *bias;  /* [size, inputs], [size] or NULL */
    int64_t inputs;
    float margin;
} refinement;

/* Return the largest of some numbers. */
INLINE float max_of(const float *from, int64_t count) {
    vector tops = broadcast(-INFINITY);
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES) tops = maximum(load(from + k), tops);
    float peak = max_lane(tops);
    for (; k < count; k++) peak = from[k] > peak ? from[k] : peak;
    return peak;
}

int64_t translume_summarize(float *logits, int64_t rows, int64_t size, int64_t block, float unshifted_limit,
                            const refinement *refinement,
                            float *maxima, int64_t *first, float *sums, float *peaks, float *log_sums);

#endif
