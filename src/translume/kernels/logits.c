/* Statistics of logits that a search needs: block maxima, argmax and normaliser. */

#include "logits.h"

/* Compute one logit again in fp32. Returns the change of e^logit. */
static float refine_logit(const refinement *refinement, const float *hidden, float *logit, int64_t column) {
    const float *weight = refinement->weight + column * refinement->inputs;
    vector total = {0};
    for (int64_t k = 0; k < refinement->inputs; k += LANES) total += load(hidden + k) * load(weight + k);
    float result = sum_lanes(total) + (refinement->bias ? refinement->bias[column] : 0.0f), previous = *logit;
    *logit = result;
    return expf(result > 88.0f ? 88.0f : result) - expf(previous > 88.0f ? 88.0f : previous);
}

/* Refine the logits of a row that are at least `threshold`, and update the block maxima. Returns the change of the sum
   of e^logit. */
static float refine_near_max(const refinement *refinement, const float *hidden, float *logits, int64_t size,
                             int64_t block, float *maxima, float threshold) {
    float gain = 0;
    for (int64_t first = 0; first < size; first += block, maxima++) {
        if (!(*maxima >= threshold)) continue;
        int64_t end = first + block < size ? first + block : size;
        for (int64_t start = first; start < end; start += LANES) {
            int64_t stop = start + LANES < end ? start + LANES : end;
            if (stop - start == LANES && !any_lane(load(logits + start) >= broadcast(threshold))) continue;
            for (int64_t column = start; column < stop; column++)
                if (logits[column] >= threshold) gain += refine_logit(refinement, hidden, logits + column, column);
        }
        *maxima = max_of(logits + first, end - first);
    }
    return gain;
}

/* Return the sum of e^(logit - peak), for logits whose sum of e^logit could overflow. */
static float shifted_sum(const float *logits, int64_t size, float peak) {
    vector total = {0};
    int64_t column = 0;
    for (; column + LANES <= size; column += LANES) total += exp_lanes(load(logits + column) - peak);
    float result = sum_lanes(total);
    for (; column < size; column++) result += expf(logits[column] - peak);
    return result;
}

/* For each row of logits [rows, size] compute:
     maxima    [rows, blocks], the largest logit of each block of columns;
     first     [rows], the first column of the largest logit;
     sums      [rows], the sum of e^logit, invalid if a logit is above 88;
     peaks     [rows], the largest logit;
     log_sums  [rows], the logarithm of the sum of e^(logit - peak).
   refinement: applied to the logits first; NULL: none. unshifted_limit: magnitude of a peak above which the sum is
   computed again relative to the peak. A row with a NaN has a NaN among its maxima. Returns the number of rows with a
   NaN or an infinite peak, whose log_sums are invalid. */
int64_t translume_summarize(float *logits, int64_t rows, int64_t size, int64_t block, float unshifted_limit,
                            const refinement *refinement,
                            float *maxima, int64_t *first, float *sums, float *peaks, float *log_sums) {
    int64_t blocks = (size + block - 1) / block, not_finite = 0;
    for (int64_t row = 0; row < rows; row++, logits += size, maxima += blocks) {
        int64_t best = 0;
        vector total = {0};
        float tail = 0;
        for (int64_t number = 0; number < blocks; number++) {
            int64_t end = (number + 1) * block < size ? (number + 1) * block : size, column = number * block;
            vector tops = broadcast(-INFINITY);
            for (; column + LANES <= end; column += LANES) {
                vector value = load(logits + column);
                tops = maximum(value, tops);
                total += exp_lanes(minimum(broadcast(88.0f), value)); /* e^89 overflows */
            }
            float peak = max_lane(tops);
            for (; column < end; column++) {
                peak = logits[column] > peak ? logits[column] : peak;
                tail += expf(logits[column] > 88.0f ? 88.0f : logits[column]);
            }
            maxima[number] = peak;
            if (peak > maxima[best]) best = number;
        }
        if (refinement) {
            const float *hidden = refinement->hidden + row * refinement->inputs;
            tail += refine_near_max(refinement, hidden, logits, size, block, maxima, maxima[best] - refinement->margin);
            best = 0;
            for (int64_t number = 1; number < blocks; number++) best = maxima[number] > maxima[best] ? number : best;
        }
        first[row] = best * block;
        while (logits[first[row]] < maxima[best]) first[row]++;
        sums[row] = sum_lanes(total) + tail;
        if (sums[row] != sums[row]) maxima[0] = NAN;
        peaks[row] = maxima[best];
        float share = fabsf(peaks[row]) <= unshifted_limit ? sums[row] * expf(-peaks[row]) : shifted_sum(logits,
                size, peaks[row]);
        log_sums[row] = logf(share > 1.0f ? share : 1.0f); /* the peak itself contributes 1 */
        not_finite += !(peaks[row] - peaks[row] == 0 && sums[row] == sums[row]); /* a NaN, or an infinite peak */
    }
    return not_finite;
}
