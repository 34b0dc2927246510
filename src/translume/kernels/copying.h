/* Copying from the source: raises the logits of source tokens, so that their softmax is the mixture of a copy head. */

#ifndef TRANSLUME_COPYING
#define TRANSLUME_COPYING

#include "vectors.h"

/* The gate's weights [width] of a hidden state and its bias; width, D, is a multiple of LANES. */
typedef struct {
    int64_t width;
    const float *weight;
    float bias;
} copy_gate;

/* The S tokens of a source. */
typedef struct {
    int64_t length;
    const int64_t *ids;   /* [S], the target token of each position; -1: none */
    const int64_t *first; /* [S], the first position with the same token */
    const float *keys;    /* [S, D + 1], the logit of attention is the product with a hidden state; the last number is what
                             attention adds to the gate's logit */
} copy_source;

/* The logits [size] of a row and their statistics, as of translume_summarize. */
typedef struct {
    float *logits, *maxima;
    int64_t block;
    int64_t *first;
    float *sum, *peak, *log_sum;
} row_logits;

/* Add the probabilities of copies to the logits after a hidden state [D]. shares: workspace [S]. */
void add_copies(const copy_gate *gate, const copy_source *source, const float *hidden, row_logits row, float *shares);

#endif
