/* Copying from the source by a pointer-generator head (See et al. 2017). */

#include "copying.h"

INLINE float product(const float *one, const float *other, int64_t count) {
    vector sums[2] = {{0}, {0}};
    int64_t k = 0;
    for (; k + 2 * LANES <= count; k += 2 * LANES) {
        sums[0] += load(one + k) * load(other + k);
        sums[1] += load(one + k + LANES) * load(other + k + LANES);
    }
    if (k < count) sums[0] += load(one + k) * load(other + k);
    return sum_lanes(sums[0] + sums[1]);
}

/* ln(1 + e^x) */
INLINE float softplus(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }

/* Of the tokens of the source, e^l becomes e^l + S (1 - g) / g a, where S is the sum of e^l over all tokens, g the gate and a
   the attention to the token. The new sum is S / g, so that the softmax of the new logits is g p + (1 - g) a. */
void add_copies(const copy_gate *gate, const copy_source *source, const float *hidden, row_logits row, float *shares) {
    int64_t width = gate->width;
    float largest = -INFINITY, total = 0, added = 0;
    for (int64_t k = 0; k < source->length; k++)
        if (source->ids[k] >= 0) {
            shares[k] = product(hidden, source->keys + k * (width + 1), width);
            largest = shares[k] > largest ? shares[k] : largest;
            total += shares[k]; /* a NaN, or nothing */
        }
    if (total != total) largest = NAN;
    if (largest == -INFINITY) return;
    total = 0;
    for (int64_t k = 0; k < source->length; k++)
        if (source->ids[k] >= 0) {
            float share = expf(shares[k] - largest);
            total += share, added += share * source->keys[k * (width + 1) + width];
            shares[k] = share;
            if (source->first[k] != k) shares[source->first[k]] += share;
        }
    float logit = product(hidden, gate->weight, width) + gate->bias + added / total;
    float log_sum = *row.peak + *row.log_sum, scale = (log_sum - logit) - logf(total);
    *row.log_sum = log_sum + softplus(-logit);
    *row.sum *= 1 + expf(-logit > 80 ? 80 : -logit); /* 0 must not become a NaN */
    for (int64_t k = 0; k < source->length; k++)
        if (source->ids[k] >= 0 && source->first[k] == k) {
            int64_t token = source->ids[k];
            float copied = scale + logf(shares[k]), written = row.logits[token], *top = row.maxima + token / row.block;
            if (copied == -INFINITY) continue;
            written = written > copied ? written + log1pf(expf(copied - written)) : copied + log1pf(expf(written - copied));
            row.logits[token] = written;
            if (!(written <= *top)) *top = written;
            if (written > *row.peak || (written == *row.peak && token < *row.first)) *row.peak = written, *row.first = token;
        }
    *row.log_sum -= *row.peak;
    if (*row.log_sum < 0) *row.log_sum = 0; /* the peak itself contributes 1 */
}

/* Add copies to the logits [rows, size] after hidden states [rows, D], whose sources are sources[owners[row]], and correct
   their statistics: see translume_summarize. shares: workspace for the longest source. Returns the number of rows with a NaN
   or an infinite peak. */
int64_t translume_add_copies(const copy_gate *gate, const copy_source *sources, const int64_t *owners, const float *hidden,
                             int64_t rows, int64_t size, int64_t block, float *logits, float *maxima, int64_t *first,
                             float *sums, float *peaks, float *log_sums, float *shares) {
    int64_t blocks = (size + block - 1) / block, not_finite = 0;
    for (int64_t row = 0; row < rows; row++) {
        row_logits own = {logits + row * size, maxima + row * blocks, block, first + row, sums + row, peaks + row,
                          log_sums + row};
        add_copies(gate, sources + owners[row], hidden + row * gate->width, own, shares);
        not_finite += !(peaks[row] - peaks[row] == 0 && sums[row] == sums[row]);
    }
    return not_finite;
}
