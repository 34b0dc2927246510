/* What a search wants to know of logits before it looks at any of them. */

#include "logits.h"

INLINE float largest_of(const float *from, int64_t count) {
    vector tops = all(-INFINITY);
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES) tops = higher(load(from + k), tops);
    float peak = largest(tops);
    for (; k < count; k++) peak = from[k] > peak ? from[k] : peak;
    return peak;
}

/* What the sum of e^logit gains when the logit of `column` is summed again. */
static float summed_again(const origin *by, const float *hidden, float *logit, int64_t column) {
    const float *weight = by->weight + column * by->inputs;
    vector total = {0};
    for (int64_t k = 0; k < by->inputs; k += LANES) total += load(hidden + k) * load(weight + k);
    float found = sum(total) + (by->bias ? by->bias[column] : 0.0f), before = *logit;
    *logit = found;
    return expf(found > 88.0f ? 88.0f : found) - expf(before > 88.0f ? 88.0f : before);
}

/* What the sum of e^logit gains by that; `block` logits belong to each of a row's maxima, which are kept true. */
static float sharpen(const origin *by, const float *hidden, float *logits, int64_t size, int64_t block, float *maxima,
                     float border) {
    float gained = 0;
    for (int64_t first = 0; first < size; first += block, maxima++) {
        if (!(*maxima >= border)) continue;
        int64_t end = first + block < size ? first + block : size;
        for (int64_t some = first; some < end; some += LANES) {
            int64_t stop = some + LANES < end ? some + LANES : end;
            if (stop - some == LANES && !any(load(logits + some) >= all(border))) continue;
            for (int64_t column = some; column < stop; column++)
                if (logits[column] >= border) gained += summed_again(by, hidden, logits + column, column);
        }
        *maxima = largest_of(logits + first, end - first);
    }
    return gained;
}

/* The sum of e^(logit - peak), where that of e^logit may be beyond floats. */
static float shifted(const float *logits, int64_t size, float peak) {
    vector total = {0};
    int64_t column = 0;
    for (; column + LANES <= size; column += LANES) total += exponential(load(logits + column) - peak);
    float found = sum(total);
    for (; column < size; column++) found += expf(logits[column] - peak);
    return found;
}

/* Of each row of logits [rows, size] the largest in each block of columns, maxima [rows, blocks], the first column of the
   largest of all, and the sum of e^logit, which is of no use where a logit is beyond 88. A row that holds a NaN has one
   among its maxima, and any column. rests: [rows], the logarithm of the sum of e^(logit - largest). by: what to sharpen the
   logits by first; NULL: they stay. limit: size of a largest logit beyond which the sum is taken again, shifted. Returns how
   many rows have a NaN or no finite largest logit, whose rests are of no use. */
int64_t translume_summarise(float *logits, int64_t rows, int64_t size, int64_t block, float limit, const origin *by,
                            float *maxima, int64_t *first, float *sums, float *peaks, float *rests) {
    int64_t blocks = (size + block - 1) / block, broken = 0;
    for (int64_t row = 0; row < rows; row++, logits += size, maxima += blocks) {
        int64_t best = 0;
        vector total = {0};
        float tail = 0;
        for (int64_t number = 0; number < blocks; number++) {
            int64_t end = (number + 1) * block < size ? (number + 1) * block : size, column = number * block;
            vector tops = all(-INFINITY);
            for (; column + LANES <= end; column += LANES) {
                vector value = load(logits + column);
                tops = higher(value, tops);
                total += exponential(lower(all(88.0f), value)); /* beyond, it would be infinite */
            }
            float peak = largest(tops);
            for (; column < end; column++) {
                peak = logits[column] > peak ? logits[column] : peak;
                tail += expf(logits[column] > 88.0f ? 88.0f : logits[column]);
            }
            maxima[number] = peak;
            if (peak > maxima[best]) best = number;
        }
        if (by) {
            const float *hidden = by->hidden + row * by->inputs;
            tail += sharpen(by, hidden, logits, size, block, maxima, maxima[best] - by->margin);
            best = 0;
            for (int64_t number = 1; number < blocks; number++) best = maxima[number] > maxima[best] ? number : best;
        }
        first[row] = best * block;
        while (logits[first[row]] < maxima[best]) first[row]++;
        sums[row] = sum(total) + tail;
        if (sums[row] != sums[row]) maxima[0] = NAN;
        peaks[row] = maxima[best];
        float share = fabsf(peaks[row]) <= limit ? sums[row] * expf(-peaks[row]) : shifted(logits, size, peaks[row]);
        rests[row] = logf(share > 1.0f ? share : 1.0f); /* the peak's own share is 1 */
        broken += !(peaks[row] - peaks[row] == 0 && sums[row] == sums[row]); /* a NaN, or no finite largest */
    }
    return broken;
}
