/* What a search wants to know of logits before it looks at any of them. */

#include "vectors.h"

/* Of each row of logits [rows, size] the largest in each block of columns, maxima [rows, blocks], the first column of the
   largest of all, and the sum of e^logit, which is of no use where a logit is beyond 88. A row that holds a NaN has one
   among its maxima, and any column. */
void translume_maxima_and_sums(const float *logits, int64_t rows, int64_t size, int64_t block, float *maxima,
                               int64_t *first, float *sums) {
    int64_t blocks = (size + block - 1) / block;
    for (int64_t row = 0; row < rows; row++, logits += size, maxima += blocks) {
        int64_t best = 0;
        vector total = {0};
        float tail = 0;
        for (int64_t number = 0; number < blocks; number++) {
            int64_t end = (number + 1) * block < size ? (number + 1) * block : size, column = number * block;
            vector peaks = all(-INFINITY);
            for (; column + LANES <= end; column += LANES) {
                vector value = load(logits + column);
                peaks = pick(value > peaks, value, peaks);
                total += exponential(pick(value > 88.0f, all(88.0f), value)); /* beyond, its sign would turn */
            }
            float peak = largest(peaks);
            for (; column < end; column++) {
                peak = logits[column] > peak ? logits[column] : peak;
                tail += expf(logits[column] > 88.0f ? 88.0f : logits[column]);
            }
            maxima[number] = peak;
            if (peak > maxima[best]) best = number;
        }
        first[row] = best * block;
        while (logits[first[row]] < maxima[best]) first[row]++;
        sums[row] = sum(total) + tail;
        if (sums[row] != sums[row]) maxima[0] = NAN;
    }
}
