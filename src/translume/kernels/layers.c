/* All layers of a decoder step, or of an encoder, in one call on one core. */

#include "attention.h"

/* Return the layout of int8 weights, see linear.h; a group of 0: no int8. */
int64_t translume_group(void) { return GROUP; }
int64_t translume_weight_offset(void) { return WEIGHT_OFFSET; }
int64_t translume_has_fp16(void) { return HAS_FP16; }
int64_t translume_panel(void) { return PANEL; }

/* Return the size of a call's workspace in bytes. longest: maximum number of positions read. rows_per_sentence: rows
   that read the same keys. */
int64_t translume_workspace(const stack *model, int64_t rows, int64_t longest, int64_t rows_per_sentence) {
    int64_t row = model->width + 4 * attention_width(model) + 2 * model->inner;
    return 4 * (rows * row + longest + 2 * LANES) + 8 * rows_per_sentence * (longest + KEY_BLOCK) + 6 * (64 + RED_ZONE) +
           quantized_bytes(rows, widest_input(model));
}

/* Return the size of the workspace of `translume_encode` in bytes. longest: tokens of a sentence. */
int64_t translume_encode_workspace(const stack *model, int64_t rows, int64_t longest) {
    head_block block;
    return translume_workspace(model, rows, longest, 1) + carve_head(model, longest, NULL, &block);
}

/* LayerNorm or RMSNorm of x [rows, D]; y may be x. */
static void normalize(const stack *model, norm norm, const float *x, int64_t rows, float *y) {
    int64_t width = model->width;
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        vector total = {0}, squares = {0};
        float mean = 0;
        if (!model->rms_norm) {
            for (int64_t k = 0; k < width; k += LANES) total += load(x + k);
            mean = sum_lanes(total) / (float)width;
        }
        for (int64_t k = 0; k < width; k += LANES) {
            vector centered = load(x + k) - mean;
            squares += centered * centered;
        }
        float scale = 1.0f / sqrtf(sum_lanes(squares) / (float)width + model->epsilon);
        for (int64_t k = 0; k < width; k += LANES) {
            vector value = (load(x + k) - mean) * scale * load(norm.weight + k);
            if (norm.bias) value += load(norm.bias + k);
            store(y + k, value);
        }
    }
}

/* Apply GELU to x [count] in place; count: a multiple of LANES. */
void translume_gelu(float *x, int64_t count) {
    for (int64_t k = 0; k < count; k += LANES) store(x + k, gelu(load(x + k)));
}

/* Apply the activation function in place. Gated ones read gate and value, [rows, 2 inner], and write [rows, inner]. */
static void activate(const stack *model, float *x, int64_t rows) {
    int64_t inner = model->inner, count = rows * inner;
    if (model->activation == RELU)
        for (int64_t k = 0; k < count; k += LANES) store(x + k, relu(load(x + k)));
    else if (model->activation == GELU)
        translume_gelu(x, count);
    else if (model->activation == SWISH)
        for (int64_t k = 0; k < count; k += LANES) store(x + k, swish(load(x + k)));
    else
        for (int64_t row = 0; row < rows; row++) {
            const float *gate = x + 2 * row * inner, *value = gate + inner;
            for (int64_t k = 0; k < inner; k += LANES) {
                vector open = model->activation == SWIGLU ? swish(load(gate + k)) : gelu_tanh(load(gate + k));
                store(x + row * inner + k, open * load(value + k));
            }
        }
}

/* Return the input of a residual block: x for post-norm, the normalised x for pre-norm. */
static const float *block_input(const stack *model, norm norm, const float *x, int64_t rows, workspace work) {
    if (!model->pre_norm) return x;
    normalize(model, norm, x, rows, work.normalized);
    return work.normalized;
}

/* Normalise x after a residual block in place for post-norm; do nothing for pre-norm. */
static void block_output(const stack *model, norm norm, float *x, int64_t rows) {
    if (!model->pre_norm) normalize(model, norm, x, rows, x);
}

static void feed_forward(const stack *model, const layer *layer, float *x, int64_t rows, workspace work) {
    linear_forward(&layer->inner, block_input(model, layer->norm_feed_forward, x, rows, work), rows, work.inner, 0,
                   work.bytes);
    activate(model, work.inner, rows);
    linear_forward(&layer->outer, work.inner, rows, x, 1, work.bytes);
    block_output(model, layer->norm_feed_forward, x, rows);
}

/* Run the decoder layers over embedded target tokens x [N, D], in place. Their keys and values are written to the
   cache. */
void translume_step(const stack *model, const step_input *step, float *x, char *memory) {
    int64_t rows = 0, rows_per_sentence = 0, longest = 0;
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        const lane *lane = step->lanes[sentence];
        int64_t own = lane->beam * step->count, end = lane->position + step->count;
        rows += own;
        if (own > rows_per_sentence) rows_per_sentence = own;
        if (lane->cache->source > longest) longest = lane->cache->source;
        if (end > longest) longest = end;
    }
    workspace work = carve_workspace(model, rows, longest, rows_per_sentence, memory);
    if (model->first_norm.weight) normalize(model, model->first_norm, x, rows, x);
    for (int64_t index = 0; index < model->layers; index++) {
        const layer *layer = model->layer + index;
        linear_forward(&layer->query_key_value, block_input(model, layer->norm_self, x, rows, work), rows,
                       work.projected,
                       0, work.bytes);
        if (model->ssru) {
            ssru_cells(model, step, index, work.projected, x);
        } else {
            self_attention(model, step, index, work.projected, work);
            linear_forward(&layer->self_output, work.mixed, rows, x, 1, work.bytes);
        }
        block_output(model, layer->norm_self, x, rows);
        if (layer->cross_query.weight) {
            linear_forward(&layer->cross_query, block_input(model, layer->norm_cross, x, rows, work), rows,
                           work.projected, 0,
                           work.bytes);
            cross_attention(model, step, index, work.projected, work);
            linear_forward(&layer->cross_output, work.mixed, rows, x, 1, work.bytes);
            block_output(model, layer->norm_cross, x, rows);
        }
        feed_forward(model, layer, x, rows, work);
    }
    if (model->final_norm.weight) normalize(model, model->final_norm, x, rows, x);
    UNPOISON(memory, translume_workspace(model, rows, longest, rows_per_sentence));
}

/* Run the encoder over embedded source tokens x [T, D] in place. begins: [B + 1], first token of each sentence. */
void translume_encode(const stack *model, const int64_t *begins, int64_t sentences, int64_t longest, float *x,
                      char *memory) {
    int64_t rows = begins[sentences];
    workspace work = carve_workspace(model, rows, longest, 1, memory);
    char *rest = memory + translume_workspace(model, rows, longest, 1);
    for (int64_t index = 0; index < model->layers; index++) {
        const layer *layer = model->layer + index;
        linear_forward(&layer->query_key_value, block_input(model, layer->norm_self, x, rows, work), rows,
                       work.projected, 0, work.bytes);
        encoder_self_attention(model, begins, sentences, longest, work.projected, work, rest);
        linear_forward(&layer->self_output, work.mixed, rows, x, 1, work.bytes);
        block_output(model, layer->norm_self, x, rows);
        feed_forward(model, layer, x, rows, work);
    }
    if (model->final_norm.weight) normalize(model, model->final_norm, x, rows, x);
    UNPOISON(memory, translume_encode_workspace(model, rows, longest));
}

/* Return the size of the workspace of a linear layer in bytes. */
int64_t translume_linear_workspace(int64_t rows, int64_t inputs) { return quantized_bytes(rows, inputs); }

/* Run one linear layer. */
void translume_linear(const linear *layer, const float *x, int64_t rows, float *y, char *memory) {
    linear_forward(layer, x, rows, y, 0, carve_quantized(rows, layer->inputs, memory));
}

/* How a model reads its source: embedding, encoder and the keys and values of each decoder layer. */
typedef struct {
    const stack *encoder;
    const float *table, *positions; /* embeddings [V, D], multiplied by `scale`; positions [capacity, D] or NULL */
    float scale;
    int64_t layers, heads, head_size; /* of the decoder */
    const linear *const *key_values;  /* [layers], with 2 heads head_size outputs */
} source_reader;

/* Return the size of the workspace of `translume_read_sources` in bytes. rows, longest: tokens. */
int64_t translume_sources_workspace(const source_reader *reader, int64_t rows, int64_t longest) {
    int64_t width = reader->encoder->width, outputs = 2 * reader->heads * reader->head_size;
    return aligned(4 * rows * width) + aligned(4 * rows * outputs) + quantized_bytes(rows, width) +
           translume_encode_workspace(reader->encoder, rows, longest);
}

/* Encode sources and write the keys and values of the decoder's layers, zero at padding, to the cache. ids: those of
   all sources. begins: [B + 1], the first token of each. bias: [B, S] of the cache, to be filled; NULL without
   padding. */
void translume_read_sources(const source_reader *reader, const int64_t *ids, const int64_t *begins, int64_t sentences,
                            const key_value_cache *cache, float *bias, char *memory) {
    const stack *encoder = reader->encoder;
    int64_t rows = begins[sentences], width = encoder->width, size = reader->head_size, longest = 0;
    int64_t own = reader->heads * size, fp16 = cache->fp16;
    float *x = (float *)memory, *found = (float *)(memory + aligned(4 * rows * width));
    char *rest = (char *)found + aligned(8 * rows * own);
    quantized scratch = carve_quantized(rows, width, rest);
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
        int64_t length = begins[sentence + 1] - begins[sentence];
        if (length > longest) longest = length;
        for (int64_t place = 0; place < length; place++) {
            int64_t row = begins[sentence] + place;
            for (int64_t k = 0; k < width; k += LANES) {
                vector value = load(reader->table + ids[row] * width + k) * reader->scale;
                if (reader->positions) value += load(reader->positions + place * width + k);
                store(x + row * width + k, value);
            }
        }
        if (bias)
            for (int64_t place = 0; place < cache->source; place++)
                bias[sentence * cache->source + place] = place < length ? 0 : -INFINITY;
    }
    if (encoder->first_norm.weight) normalize(encoder, encoder->first_norm, x, rows, x);
    translume_encode(encoder, begins, sentences, longest, x, rest + quantized_bytes(rows, width));
    for (int64_t index = 0; index < reader->layers; index++) {
        linear_forward(reader->key_values[index], x, rows, found, 0, scratch);
        for (int64_t part = 0; part < 2; part++)
            for (int64_t sentence = 0; sentence < sentences; sentence++)
                for (int64_t head = 0; head < reader->heads; head++) {
                    int64_t length = begins[sentence + 1] - begins[sentence];
                    int64_t to = (2 * index + part) * cache->cross_layer + sentence * cache->cross_sentence +
                                 head * cache->cross_head;
                    for (int64_t place = 0; place < cache->source; place++, to += size) {
                        const float *from = found + (begins[sentence] + place) * 2 * own + part * own + head * size;
                        for (int64_t k = 0; k < size; k += LANES)
                            store_number((int)fp16, (void *)cache->cross, to + k,
                                         place < length ? load(from + k) : (vector){0});
                    }
                }
    }
}
