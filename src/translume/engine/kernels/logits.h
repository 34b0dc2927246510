/* What logits are made of, and what is found in one reading of them. */

#ifndef TRANSLUME_LOGITS
#define TRANSLUME_LOGITS

#include "vectors.h"

/* What logits are made of, in fp32. Those that come from bytes and are within `margin` of their row's largest are summed
   again from it: what decides between the likeliest tokens shall not be rounding. */
typedef struct {
    const float *hidden;         /* [rows, inputs]; whole vectors */
    const float *weight, *bias;  /* [size, inputs], [size] or NULL */
    int64_t inputs;
    float margin;
} origin;

int64_t translume_summarise(float *logits, int64_t rows, int64_t size, int64_t block, float limit, const origin *by,
                            float *maxima, int64_t *first, float *sums, float *peaks, float *rests);

#endif
