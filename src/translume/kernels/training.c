/* Elementwise operations of training, fused: Adam, dropout with residuals and norms, ReLU with the gradient of a bias,
   exponentials with their sums, and the divergence of two softmaxes.

   Arrays of activations are fp32 or bf16 (`bf16` is 0 or 1); all sums are fp32, added row by row. */

#include "numbers.h"

/* The sum of several gradients at an index. fp32: [n] or NULL; others: `count` arrays of bf16 or fp32. */
typedef struct {
    float *fp32;
    void *const *others;
    int64_t count, bf16;
} gradients;

INLINE vector read_gradient(const gradients *from, int bf16, int64_t index, int64_t part) {
    vector sum = from->fp32 ? read_part(0, from->fp32, index, part) : (vector){0};
    for (int64_t each = 0; each < from->count; each++) sum += read_part(bf16, from->others[each], index, part);
    return sum;
}

/* Return the sum of the squares of gradients [start, end). */
double translume_square_sum(const gradients *from, int64_t start, int64_t end) {
    double total = 0;
    while (start < end) {
        int64_t stop = start + 4096 < end ? start + 4096 : end;
        vector sums[2] = {{0}, {0}};
        for (int64_t index = start; index < stop; index += LANES) {
            vector value = from->bf16 ? read_gradient(from, 1, index, stop - index)
                                      : read_gradient(from, 0, index, stop - index);
            sums[index / LANES % 2] += value * value;
        }
        total += sum_lanes(sums[0] + sums[1]);
        start = stop;
    }
    return total;
}

/* factor: of gradients.  rate, root: step sizes corrected for the bias of both moments.  decay: L2 for Adam, of weights
   for AdamW (`decoupled`, times the learning rate). */
typedef struct {
    float factor, rate, root, beta1, beta2, epsilon, decay;
    int64_t decoupled;
} adam;

/* Update weights [start, end) by Adam, write their bf16 copies, if there are any, and set gradients to zero. */
void translume_adam(const adam *by, const gradients *from, float *weights, float *moment1, float *moment2,
                    uint16_t *copies, int64_t start, int64_t end) {
    for (int64_t index = start; index < end; index += LANES) {
        int64_t part = end - index;
        vector weight = read_part(0, weights, index, part), first = read_part(0, moment1, index, part),
               second = read_part(0, moment2, index, part);
        vector gradient =
            from->bf16 ? read_gradient(from, 1, index, part) : read_gradient(from, 0, index, part);
        gradient *= by->factor;
        if (by->decoupled)
            weight -= by->decay * weight;
        else
            gradient += by->decay * weight;
        first += (1.0f - by->beta1) * (gradient - first);
        second = by->beta2 * second + (1.0f - by->beta2) * gradient * gradient;
        weight -= by->rate * first / (square_roots(second) * by->root + by->epsilon);
        write_part(0, weights, index, weight, part);
        write_part(0, moment1, index, first, part);
        write_part(0, moment2, index, second, part);
        if (copies) write_part(1, copies, index, weight, part);
        if (from->fp32) write_part(0, from->fp32, index, (vector){0}, part);
        for (int64_t each = 0; each < from->count; each++) {
            if (from->bf16)
                write_part(1, from->others[each], index, (vector){0}, part);
            else
                write_part(0, from->others[each], index, (vector){0}, part);
        }
    }
}

/* Compute y = residual + x * keep * scale over n elements. residual may be NULL. */
INLINE void drop_add(int bf16, int64_t n, const void *x, const void *residual, const uint8_t *keep, float scale,
                     void *y) {
    for (int64_t index = 0; index < n; index += LANES) {
        int64_t part = n - index;
        vector value = read_part(bf16, x, index, part) * read_mask(keep + index, part, scale);
        if (residual) value += read_part(bf16, residual, index, part);
        write_part(bf16, y, index, value, part);
    }
}

void translume_drop_add(int64_t bf16, int64_t n, const void *x, const void *residual, const uint8_t *keep,
                        float scale, void *y) {
    if (bf16)
        drop_add(1, n, x, residual, keep, scale, y);
    else
        drop_add(0, n, x, residual, keep, scale, y);
}

/* Layer norm of rows x [n, width], or of residual + x * keep * scale, which is then written to `sums`. keep NULL: all.
   statistics: [n, 2], the mean and 1 / deviation of each row.  bias may be NULL. */
typedef struct {
    int64_t rows, width;
    const void *x, *residual;
    const uint8_t *keep;
    float scale, epsilon;
    const void *weight, *bias;
    void *sums, *y;
    float *statistics;
} norm_inputs;

INLINE void norm(int bf16, const norm_inputs *in) {
    int64_t width = in->width;
    for (int64_t row = 0; row < in->rows; row++) {
        int64_t begin = row * width;
        const void *x = in->x;
        vector total = {0};
        if (in->residual) {
            for (int64_t k = 0; k < width; k += LANES) {
                vector value = read_part(bf16, x, begin + k, width - k);
                if (in->keep) value *= read_mask(in->keep + begin + k, width - k, in->scale);
                value += read_part(bf16, in->residual, begin + k, width - k);
                write_part(bf16, in->sums, begin + k, value, width - k);
                total += bf16 ? widen(narrow(value)) : value;
            }
            x = in->sums;
        } else {
            for (int64_t k = 0; k < width; k += LANES) total += read_part(bf16, x, begin + k, width - k);
        }
        float mean = sum_lanes(total) / width;
        vector squares = {0};
        for (int64_t k = 0; k < width; k += LANES) {
            vector value = read_part(bf16, x, begin + k, width - k) - mean;
            if (width - k < LANES) value = select_lanes(first_lanes(width - k), value, (vector){0});
            squares += value * value;
        }
        float inverse = 1.0f / sqrtf(sum_lanes(squares) / width + in->epsilon);
        in->statistics[2 * row] = mean, in->statistics[2 * row + 1] = inverse;
        for (int64_t k = 0; k < width; k += LANES) {
            vector value = (read_part(bf16, x, begin + k, width - k) - mean) * inverse;
            value *= read_part(bf16, in->weight, k, width - k);
            if (in->bias) value += read_part(bf16, in->bias, k, width - k);
            write_part(bf16, in->y, begin + k, value, width - k);
        }
    }
}

void translume_norm(int64_t bf16, const norm_inputs *in) {
    if (bf16)
        norm(1, in);
    else
        norm(0, in);
}

/* The gradients of `norm`: of its rows (after dropout and residual), of x if there is dropout, and sums over rows. */
typedef struct {
    int64_t rows, width;
    const void *gradient, *normed; /* of y, and the rows that were normalised */
    const float *statistics;
    const void *weight;
    const uint8_t *keep;
    float scale;
    void *by_rows, *by_x;       /* by_x may be NULL */
    float *by_weight, *by_bias; /* [width], added to */
} norm_gradients;

INLINE void norm_gradient(int bf16, const norm_gradients *in) {
    int64_t width = in->width;
    for (int64_t row = 0; row < in->rows; row++) {
        int64_t begin = row * width;
        float mean = in->statistics[2 * row], inverse = in->statistics[2 * row + 1];
        vector sum = {0}, product = {0};
        for (int64_t k = 0; k < width; k += LANES) {
            int64_t part = width - k;
            vector slope = read_part(bf16, in->gradient, begin + k, part);
            vector place = (read_part(bf16, in->normed, begin + k, part) - mean) * inverse;
            vector both = slope * place;
            write_part(0, in->by_weight, k, read_part(0, in->by_weight, k, part) + both, part);
            write_part(0, in->by_bias, k, read_part(0, in->by_bias, k, part) + slope, part);
            vector weight = read_part(bf16, in->weight, k, part);
            sum += slope * weight;
            product += both * weight;
        }
        float offset = sum_lanes(sum) / width, factor = sum_lanes(product) / width;
        for (int64_t k = 0; k < width; k += LANES) {
            int64_t part = width - k;
            vector place = (read_part(bf16, in->normed, begin + k, part) - mean) * inverse;
            vector slope = read_part(bf16, in->gradient, begin + k, part) * read_part(bf16, in->weight, k, part);
            vector value = inverse * (slope - offset - place * factor);
            write_part(bf16, in->by_rows, begin + k, value, part);
            if (in->by_x)
                write_part(bf16, in->by_x, begin + k, value * read_mask(in->keep + begin + k, part, in->scale), part);
        }
    }
}

void translume_norm_gradient(int64_t bf16, const norm_gradients *in) {
    if (bf16)
        norm_gradient(1, in);
    else
        norm_gradient(0, in);
}

/* Write gradients [n, width] where y is positive, else zero, to `by_x`, and add its rows to `sums` [width]. Without y
   only the sums are computed. */
INLINE void sum_rows(int bf16, int64_t rows, int64_t width, const void *gradient, const void *y, void *by_x,
                     float *sums) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < width; k += LANES) {
            int64_t index = row * width + k, part = width - k;
            vector value = read_part(bf16, gradient, index, part);
            if (y) {
                value = select_lanes(read_part(bf16, y, index, part) > 0.0f, value, (vector){0});
                write_part(bf16, by_x, index, value, part);
            }
            if (sums) write_part(0, sums, k, read_part(0, sums, k, part) + value, part);
        }
}

void translume_sum_rows(int64_t bf16, int64_t rows, int64_t width, const void *gradient, const void *y, void *by_x,
                        float *sums) {
    if (bf16)
        sum_rows(1, rows, width, gradient, y, by_x, sums);
    else
        sum_rows(0, rows, width, gradient, y, by_x, sums);
}

/* Replace logits [rows, classes] by their exponentials, that of each row's label by zero, and write the sums [rows] of
   what the array then holds. Logits above 88 count as 88, whose exponential is finite. */
INLINE void exponentials(int bf16, int64_t rows, int64_t classes, void *logits, const int64_t *labels, float *sums) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t begin = row * classes;
        vector totals[4] = {{0}, {0}, {0}, {0}};
        write_part(bf16, logits, begin + labels[row], broadcast(-INFINITY), 1);
        for (int64_t k = 0; k < classes; k += LANES) {
            int64_t part = classes - k;
            vector logit = read_part(bf16, logits, begin + k, part);
            vector value = exp_lanes(select_lanes(logit > 88.0f, broadcast(88.0f), logit));
            if (part < LANES) value = select_lanes(first_lanes(part), value, (vector){0});
            write_part(bf16, logits, begin + k, value, part);
            totals[k / LANES % 4] += bf16 ? widen(narrow(value)) : value;
        }
        sums[row] = sum_lanes((totals[0] + totals[1]) + (totals[2] + totals[3]));
    }
}

void translume_exponentials(int64_t bf16, int64_t rows, int64_t classes, void *logits, const int64_t *labels,
                            float *sums) {
    if (bf16)
        exponentials(1, rows, classes, logits, labels, sums);
    else
        exponentials(0, rows, classes, logits, labels, sums);
}

/* Return log of the sum of exponentials of a row. */
INLINE float log_normaliser(int bf16, const void *logits, int64_t begin, int64_t classes) {
    vector most = broadcast(-INFINITY), totals[2] = {{0}, {0}};
    for (int64_t k = 0; k < classes; k += LANES) {
        vector value = read_part(bf16, logits, begin + k, classes - k);
        if (classes - k < LANES) value = select_lanes(first_lanes(classes - k), value, broadcast(-INFINITY));
        most = maximum(value, most);
    }
    float shift = max_lane(most);
    for (int64_t k = 0; k < classes; k += LANES) {
        vector value = exp_lanes(read_part(bf16, logits, begin + k, classes - k) - shift);
        if (classes - k < LANES) value = select_lanes(first_lanes(classes - k), value, (vector){0});
        totals[k / LANES % 2] += value;
    }
    return shift + logf(sum_lanes(totals[0] + totals[1]));
}

/* Write KL(p||q) + KL(q||p) of each row to `sums` [rows], for the softmaxes p and q of logits [rows, classes], which are
   replaced by its gradients in them: p - q + p (log p/q - KL(p||q)), and the same with p and q exchanged. */
INLINE void divergence(int bf16, int64_t rows, int64_t classes, void *first, void *second, float *sums) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t begin = row * classes;
        float lse_p = log_normaliser(bf16, first, begin, classes), lse_q = log_normaliser(bf16, second, begin, classes);
        vector from_p = {0}, from_q = {0};
        for (int pass = 0; pass < 2; pass++) {
            float kl_p = sum_lanes(from_p), kl_q = sum_lanes(from_q);
            if (pass) sums[row] = kl_p + kl_q;
            for (int64_t k = 0; k < classes; k += LANES) {
                int64_t part = classes - k;
                vector log_p = read_part(bf16, first, begin + k, part) - lse_p;
                vector log_q = read_part(bf16, second, begin + k, part) - lse_q;
                vector p = exp_lanes(log_p), q = exp_lanes(log_q), ratio = log_p - log_q;
                if (part < LANES) {
                    p = select_lanes(first_lanes(part), p, (vector){0});
                    q = select_lanes(first_lanes(part), q, (vector){0});
                }
                if (pass) {
                    write_part(bf16, first, begin + k, p - q + p * (ratio - kl_p), part);
                    write_part(bf16, second, begin + k, q - p - q * (ratio + kl_q), part);
                } else {
                    from_p += p * ratio;
                    from_q -= q * ratio;
                }
            }
        }
    }
}

void translume_divergence(int64_t bf16, int64_t rows, int64_t classes, void *first, void *second, float *sums) {
    if (bf16)
        divergence(1, rows, classes, first, second, sums);
    else
        divergence(0, rows, classes, first, second, sums);
}
