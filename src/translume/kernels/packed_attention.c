/* Attention over packed sequences and its gradients, for training.

   Each head of each sentence is computed in fp32 in a workspace that fits the cache. No weights are kept for the
   gradients: they are computed again from the logarithms of the sums of exponentials. */

#include "numbers.h"

#define ROWS (LANES == 16 ? 8 : 4) /* of a tile of ROWS x 2 accumulators */

/* Queries of sentence b are the rows starts[b] to starts[b + 1] - 1 of `query`, keys and values likewise of `memory`.
   A row of `query` has `query_stride` numbers, of which the first are the queries of all heads; keys and values begin at
   `key_offset` and `value_offset` of the rows of `memory`. */
typedef struct {
    int64_t sentences, heads, head_size, causal, positions;
    const int64_t *starts, *memory_starts, *places; /* places: of the tokens, for `rotation` */
    const float *rotation;                          /* [2, positions, d] or NULL */
    const void *query, *memory;
    int64_t query_stride, memory_stride, key_offset, value_offset;
    float scale;
    void *output;      /* [n, heads * d] */
    float *log_sums;   /* [n, heads] */
    const void *gradient; /* of the output */
    void *by_query, *by_memory; /* with the strides and offsets of query and memory */
    float *workspace;
} attention;

static int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

/* Compute c [rows, columns] = a b. Row r and depth k of a are at r * row_stride + k * depth_stride; b and c have
   `columns` floats in a row, a multiple of LANES. `rows` is rounded up to a multiple of ROWS. */
INLINE void multiply_tile(int vectors, const float *a, int64_t row_stride, int64_t depth_stride, const float *b,
                          float *c, int64_t columns, int64_t depth) {
    vector sums[ROWS][2];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++) sums[row][0] = sums[row][1] = (vector){0};
    for (int64_t k = 0; k < depth; k++) {
        vector first = load(b + k * columns), second = vectors > 1 ? load(b + k * columns + LANES) : first;
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++) {
            float value = a[row * row_stride + k * depth_stride];
            sums[row][0] += value * first;
            if (vectors > 1) sums[row][1] += value * second;
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++) {
        store(c + row * columns, sums[row][0]);
        if (vectors > 1) store(c + row * columns + LANES, sums[row][1]);
    }
}

static void multiply(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t row_stride,
                     int64_t depth_stride, const float *b, float *c) {
    for (int64_t row = 0; row < rows; row += ROWS) {
        const float *from = a + row * row_stride;
        float *to = c + row * columns;
        int64_t column = 0;
        for (; column + 2 * LANES <= columns; column += 2 * LANES)
            multiply_tile(2, from, row_stride, depth_stride, b + column, to + column, columns, depth);
        if (column < columns) multiply_tile(1, from, row_stride, depth_stride, b + column, to + column, columns, depth);
    }
}

/* Write the transpose of x [rows, columns], both multiples of LANES. */
static void write_transpose(const float *x, int64_t rows, int64_t columns, float *to) {
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t column = 0; column < columns; column += LANES) {
            vector block[LANES];
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) block[k] = load(x + (row + k) * columns + column);
            transpose(block);
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) store(to + (column + k) * rows + row, block[k]);
        }
}

/* Read `count` rows of d numbers into rows of `width` floats, zero beyond d and count, up to `rows` rows. */
static void read_rows(int bf16, const void *from, int64_t stride, int64_t count, int64_t d, float scale, float *to,
                      int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < width; k += LANES) {
            vector value = {0};
            if (row < count && k < d)
                value = bf16 ? read_part(1, from, row * stride + k, d - k) : read_part(0, from, row * stride + k, d - k);
            store(to + row * width + k, value * scale);
        }
}

static void write_rows(int bf16, void *to, int64_t stride, int64_t count, int64_t d, const float *from,
                       int64_t width) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t k = 0; k < d; k += LANES) {
            if (bf16)
                write_part(1, to, row * stride + k, load(from + row * width + k), d - k);
            else
                write_part(0, to, row * stride + k, load(from + row * width + k), d - k);
        }
}

/* Rotate rows by their places, or back with sign -1: component i is paired with component i + d / 2. */
static void rotate(const attention *in, int64_t start, int64_t count, float *x, int64_t width, float sign) {
    int64_t d = in->head_size, half = d / 2;
    for (int64_t row = 0; row < count; row++, x += width) {
        const float *cosine = in->rotation + in->places[start + row] * d, *sine = cosine + in->positions * d;
        for (int64_t k = 0; k < half; k++) {
            float one = x[k], other = x[k + half];
            x[k] = one * cosine[k] - sign * other * sine[k];
            x[k + half] = other * cosine[k + half] + sign * one * sine[k + half];
        }
    }
}

/* A head of a sentence in the workspace. */
typedef struct {
    int64_t queries, keys, query_rows, key_rows, width; /* counts, and padded */
    float *query, *key, *value, *key_columns, *value_columns, *weights, *slopes, *gradient, *by_query, *by_key, *by_value;
} head;

/* The floats of a workspace for sentences of at most so many queries and keys. */
int64_t translume_attention_workspace(int64_t queries, int64_t keys, int64_t head_size) {
    int64_t rows = padded(queries, ROWS), columns = padded(keys, LANES), width = padded(head_size, LANES);
    return 3 * rows * width + 6 * columns * width + 2 * rows * columns + LANES;
}

static head carve(const attention *in, int64_t sentence) {
    head at = {0};
    at.queries = in->starts[sentence + 1] - in->starts[sentence];
    at.keys = in->memory_starts[sentence + 1] - in->memory_starts[sentence];
    at.query_rows = padded(at.queries, ROWS), at.key_rows = padded(at.keys, LANES);
    at.width = padded(in->head_size, LANES);
    float **by_queries[] = {&at.query, &at.gradient, &at.by_query};
    float **by_keys[] = {&at.key, &at.value, &at.key_columns, &at.value_columns, &at.by_key, &at.by_value};
    float *next = (float *)(((uintptr_t)in->workspace + 63) / 64 * 64);
    for (int k = 0; k < 3; k++, next += at.query_rows * at.width) *by_queries[k] = next;
    for (int k = 0; k < 6; k++, next += at.key_rows * at.width) *by_keys[k] = next;
    at.weights = next, at.slopes = next + at.query_rows * at.key_rows;
    return at;
}

/* Read queries (scaled), keys and values of a head, and compute scores. */
static void read_head(int bf16, const attention *in, const head *at, int64_t sentence, int64_t number) {
    int64_t d = in->head_size, size = bf16 ? 2 : 4, first = in->starts[sentence], second = in->memory_starts[sentence];
    const char *query = (const char *)in->query + (first * in->query_stride + number * d) * size;
    const char *memory = (const char *)in->memory + (second * in->memory_stride + number * d) * size;
    read_rows(bf16, query, in->query_stride, at->queries, d, in->scale, at->query, at->query_rows, at->width);
    read_rows(bf16, memory + in->key_offset * size, in->memory_stride, at->keys, d, 1, at->key, at->key_rows, at->width);
    read_rows(bf16, memory + in->value_offset * size, in->memory_stride, at->keys, d, 1, at->value, at->key_rows,
              at->width);
    if (in->rotation) {
        rotate(in, first, at->queries, at->query, at->width, 1);
        rotate(in, second, at->keys, at->key, at->width, 1);
    }
    write_transpose(at->key, at->key_rows, at->width, at->key_columns);
    multiply(at->query_rows, at->key_rows, d, at->query, at->width, 1, at->key_columns, at->weights);
}

/* The keys that a query may read. */
INLINE int64_t readable(const attention *in, const head *at, int64_t query) {
    return in->causal && query + 1 < at->keys ? query + 1 : at->keys;
}

/* Replace the scores of a head by weights, and write the logarithms of their sums; or, if `again`, read those. */
static void softmax(const attention *in, const head *at, int64_t sentence, int64_t number, int again) {
    for (int64_t query = 0; query < at->queries; query++) {
        float *scores = at->weights + query * at->key_rows;
        float *log_sum = in->log_sums + (in->starts[sentence] + query) * in->heads + number;
        int32_t limit = readable(in, at, query);
        float shift = again ? *log_sum : 0.0f;
        vector most = broadcast(-INFINITY), total = {0};
        if (!again) {
            for (int32_t k = 0; k < at->key_rows; k += LANES)
                most = maximum(select_lanes(first_lanes(limit - k), load(scores + k), most), most);
            shift = max_lane(most);
        }
        for (int32_t k = 0; k < at->key_rows; k += LANES) {
            vector value = select_lanes(first_lanes(limit - k), exp_lanes(load(scores + k) - shift), (vector){0});
            store(scores + k, value);
            total += value;
        }
        if (again) continue;
        float sum = sum_lanes(total);
        *log_sum = shift + logf(sum);
        float factor = limit ? 1.0f / sum : 0.0f;
        for (int64_t k = 0; k < at->key_rows; k += LANES) store(scores + k, load(scores + k) * factor);
    }
    memset(at->weights + at->queries * at->key_rows, 0, 4 * (at->query_rows - at->queries) * at->key_rows);
}

static void forward(int bf16, const attention *in) {
    int64_t d = in->head_size, size = bf16 ? 2 : 4, stride = in->heads * d;
    for (int64_t sentence = 0; sentence < in->sentences; sentence++) {
        head at = carve(in, sentence);
        for (int64_t number = 0; number < in->heads && at.queries; number++) {
            read_head(bf16, in, &at, sentence, number);
            softmax(in, &at, sentence, number, 0);
            multiply(at.query_rows, at.width, at.keys, at.weights, at.key_rows, 1, at.value, at.gradient);
            write_rows(bf16, (char *)in->output + (in->starts[sentence] * stride + number * d) * size, stride,
                       at.queries, d, at.gradient, at.width);
        }
    }
}

static void backward(int bf16, const attention *in) {
    int64_t d = in->head_size, size = bf16 ? 2 : 4, stride = in->heads * d;
    for (int64_t sentence = 0; sentence < in->sentences; sentence++) {
        head at = carve(in, sentence);
        int64_t first = in->starts[sentence], second = in->memory_starts[sentence];
        for (int64_t number = 0; number < in->heads; number++) {
            read_head(bf16, in, &at, sentence, number);
            softmax(in, &at, sentence, number, 1);
            read_rows(bf16, (const char *)in->gradient + (first * stride + number * d) * size, stride, at.queries, d, 1,
                      at.gradient, at.query_rows, at.width);
            write_transpose(at.value, at.key_rows, at.width, at.value_columns);
            multiply(at.query_rows, at.key_rows, d, at.gradient, at.width, 1, at.value_columns, at.slopes);
            for (int64_t query = 0; query < at.query_rows; query++) {
                float *slopes = at.slopes + query * at.key_rows, *weights = at.weights + query * at.key_rows;
                vector total = {0};
                for (int64_t k = 0; k < at.key_rows; k += LANES) total += load(slopes + k) * load(weights + k);
                float mean = sum_lanes(total);
                for (int64_t k = 0; k < at.key_rows; k += LANES)
                    store(slopes + k, load(weights + k) * (load(slopes + k) - mean));
            }
            multiply(at.query_rows, at.width, at.keys, at.slopes, at.key_rows, 1, at.key, at.by_query);
            multiply(at.key_rows, at.width, at.queries, at.slopes, 1, at.key_rows, at.query, at.by_key);
            multiply(at.key_rows, at.width, at.queries, at.weights, 1, at.key_rows, at.gradient, at.by_value);
            for (int64_t k = 0; k < at.query_rows * at.width; k += LANES)
                store(at.by_query + k, load(at.by_query + k) * in->scale);
            if (in->rotation) {
                rotate(in, first, at.queries, at.by_query, at.width, -1);
                rotate(in, second, at.keys, at.by_key, at.width, -1);
            }
            char *query = (char *)in->by_query + (first * in->query_stride + number * d) * size;
            char *memory = (char *)in->by_memory + (second * in->memory_stride + number * d) * size;
            write_rows(bf16, query, in->query_stride, at.queries, d, at.by_query, at.width);
            write_rows(bf16, memory + in->key_offset * size, in->memory_stride, at.keys, d, at.by_key, at.width);
            write_rows(bf16, memory + in->value_offset * size, in->memory_stride, at.keys, d, at.by_value, at.width);
        }
    }
}

void translume_attention(int64_t bf16, const attention *in) {
    if (bf16)
        forward(1, in);
    else
        forward(0, in);
}

void translume_attention_gradient(int64_t bf16, const attention *in) {
    if (bf16)
        backward(1, in);
    else
        backward(0, in);
}
