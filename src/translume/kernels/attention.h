/* Self-attention and cross-attention over a KV cache, encoder self-attention, and SSRU cells. */

#ifndef TRANSLUME_ATTENTION
#define TRANSLUME_ATTENTION

#include "stack.h"

/* Replace scores [count], which may be -inf, by their softmax. Pads with zeros to a multiple of LANES. */
static void softmax(float *scores, int64_t count) {
    vector peaks = broadcast(-INFINITY);
    for (int64_t position = count; position % LANES; position++) scores[position] = -INFINITY;
    for (int64_t position = 0; position < count; position += LANES) peaks = maximum(load(scores + position), peaks);
    float peak = max_lane(peaks);
    if (peak == -INFINITY) peak = 0; /* every position is masked: all weights are 0 */
    vector total = {0};
    for (int64_t position = 0; position < count; position += LANES) {
        vector value = exp_lanes(load(scores + position) - peak);
        store(scores + position, value);
        total += value;
    }
    float mass = sum_lanes(total), inverse = mass > 0 ? 1.0f / mass : 0;
    for (int64_t position = 0; position < count; position += LANES) store(scores + position,
                                                                          load(scores + position) * inverse);
}

/* The keys and values of one head; the positions to read are given as offsets. */
typedef struct {
    const void *keys, *values;
    int64_t head_size;  /* a multiple of LANES */
    int64_t next_keys, next_values;  /* offsets of the keys and values that are read next; 0: do not prefetch */
    int fp16;
    const float *bias;  /* of this head, see `stack`; the keys are at positions 0, 1, 2, ...; NULL: none */
    int64_t reach, query;  /* query: its position */
} head_cache;

/* Add the biases of distances to scores [count]. */
static void add_distance_bias(const head_cache *from, float *scores, int64_t count) {
    int64_t position = 0, first = from->query - from->reach, last = from->query + from->reach + 1;
    const float *bias = from->bias - first;
    if (last > count) last = count;
    for (; position < first; position++) scores[position] += from->bias[0];
    for (; position + LANES <= last; position += LANES)
        store(scores + position, load(scores + position) + load(bias + position));
    for (; position < last; position++) scores[position] += bias[position];
    for (; position < count; position++) scores[position] += from->bias[2 * from->reach];
}

/* Rotate the queries and keys of a token, the first 2 H d numbers of `projected`, by its position. */
static void rotate(const stack *model, int64_t position, float *projected) {
    int64_t size = model->head_size, half = size / 2;
    const float *cosines = model->rotation + 2 * position * size, *sines = cosines + size;
    for (const float *end = projected + 2 * attention_width(model); projected < end; projected += size) {
        float *other = projected + half;
        int64_t k = 0;
        for (; k + LANES <= half; k += LANES) {
            vector one = load(projected + k), two = load(other + k);
            store(projected + k, one * load(cosines + k) - two * load(sines + k));
            store(other + k, two * load(cosines + half + k) + one * load(sines + half + k));
        }
        for (; k < half; k++) {
            float one = projected[k], two = other[k];
            projected[k] = one * cosines[k] - two * sines[k];
            other[k] = two * cosines[half + k] + one * sines[half + k];
        }
    }
}

INLINE const char *address_of(int fp16, const void *from, int64_t offset) {
    return (const char *)from + offset * (fp16 ? 2 : (int64_t)sizeof(float));
}

INLINE void prefetch(int fp16, int vectors, const void *from, int64_t offset) {
#pragma GCC unroll 4
    for (int line = 0; line < vectors; line += fp16 ? 2 : 1)
        __builtin_prefetch(address_of(fp16, from, offset + line * LANES), 0, 2);
}

/* Compute softmax(q K^T) V over `count` positions. offsets: padded by `pad_offsets`. */
INLINE void attend_vectors(int vectors, int fp16, const float *query, head_cache from, const int64_t *offsets,
                           int64_t count, float *scores, float *to) {
    for (int64_t position = 0; position < count; position += KEY_BLOCK) {
        vector totals[KEY_BLOCK];
#pragma GCC unroll 4
        for (int one = 0; one < KEY_BLOCK; one++) {
            totals[one] = (vector){0};
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                totals[one] += load(query + v * LANES) * load_number(fp16, from.keys,
                                                                     offsets[position + one] + v * LANES);
            if (from.next_keys) prefetch(fp16, vectors, from.keys, offsets[position + one] + from.next_keys);
        }
        sum_lanes_of_4(totals, scores + position);
    }
    if (from.bias) add_distance_bias(&from, scores, count);
    softmax(scores, count);
    for (int first = 0; first < vectors; first += KEY_BLOCK) {
        int some = vectors - first < KEY_BLOCK ? vectors - first : KEY_BLOCK;
        vector totals[KEY_BLOCK] = {{0}};
        for (int64_t position = 0; position < count; position++) {
            vector share = broadcast(scores[position]);
#pragma GCC unroll 4
            for (int v = 0; v < some; v++)
                totals[v] += share * load_number(fp16, from.values, offsets[position] + (first + v) * LANES);
            if (from.next_values) prefetch(fp16, some, from.values,
                                           offsets[position] + first * LANES + from.next_values);
        }
#pragma GCC unroll 4
        for (int v = 0; v < some; v++) store(to + (first + v) * LANES, totals[v]);
    }
}

static void attend(const float *query, head_cache from, const int64_t *offsets, int64_t count, float *scores,
                   float *to) {
#define ATTEND(vectors) \
    if (from.fp16) attend_vectors(vectors, 1, query, from, offsets, count, scores, to); \
    else attend_vectors(vectors, 0, query, from, offsets, count, scores, to)
    switch (from.head_size) {
        case 16: ATTEND(16 / LANES); break;
        case 32: ATTEND(32 / LANES); break;
        case 64: ATTEND(64 / LANES); break;
        default: ATTEND((int)(from.head_size / LANES));
    }
#undef ATTEND
}

/* Repeat the last of `count` offsets KEY_BLOCK times, since keys are read in blocks. */
INLINE void pad_offsets(int64_t *offsets, int64_t count) {
    for (int more = 0; more < KEY_BLOCK; more++) offsets[count + more] = count ? offsets[count - 1] : 0;
}

/* Return the keys of a layer of a lane's sentence in the KV cache. */
INLINE const char *past_keys(const lane *lane, int64_t layer_index) {
    const key_value_cache *cache = lane->cache;
    return address_of((int)cache->fp16, cache->past,
                      2 * layer_index * cache->past_layer + lane->slot * cache->past_sentence);
}

INLINE int64_t distance(int fp16, const void *from, const void *to) {
    return ((const char *)to - (const char *)from) / (fp16 ? 2 : (int64_t)sizeof(float));
}

/* Write the new keys and values of a lane to the cache. projected: of its rows. */
static void store_keys_and_values(const stack *model, const step_input *step, const lane *lane, int64_t layer_index,
                                  const float *projected) {
    const key_value_cache *cache = lane->cache;
    int64_t width = attention_width(model), head_size = model->head_size, rows = lane->beam * step->count;
    char *keys = (char *)past_keys(lane, layer_index);
    for (int64_t row = 0; row < rows; row++) {
        int64_t offset = (lane->position + row / lane->beam) * cache->past_position + row % lane->beam * head_size;
        const float *new_keys = projected + 3 * row * width + width;
        for (int64_t head = 0; head < model->heads; head++, offset += cache->past_head, new_keys += head_size)
            for (int64_t k = 0; k < head_size; k += LANES) {
                store_number((int)cache->fp16, keys, offset + k, load(new_keys + k));
                store_number((int)cache->fp16, keys, cache->past_layer + offset + k, load(new_keys + width + k));
            }
    }
}

/* Write the new keys and values to the cache, then attend over each hypothesis's own ancestors.
   projected: [N, 3 H d], queries, keys and values, which are rotated in place. Result: work.mixed. */
static void self_attention(const stack *model, const step_input *step, int64_t layer_index, float *projected,
                           workspace work) {
    int64_t width = attention_width(model), heads = model->heads, head_size = model->head_size;
    float *mixed = work.mixed;
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        const lane *lane = step->lanes[sentence];
        const key_value_cache *cache = lane->cache;
        int fp16 = (int)cache->fp16;
        int64_t rows = lane->beam * step->count, longest = lane->position + step->count + KEY_BLOCK;
        for (int64_t row = 0; model->rotation && row < rows; row++)
            rotate(model, lane->position + row / lane->beam, projected + 3 * row * width);
        store_keys_and_values(model, step, lane, layer_index, projected);
        for (int64_t row = 0; row < rows; row++) {
            int64_t count = lane->position + row / lane->beam + 1, *offsets = work.offsets + row * longest;
            const int64_t *own_ancestors = lane->ancestors ? lane->ancestors + row * (lane->position + 1) : NULL;
            for (int64_t position = 0; position < count; position++)
                offsets[position] = position * cache->past_position + (own_ancestors ?
                        own_ancestors[position] : row % lane->beam) * head_size;
            pad_offsets(offsets, count);
        }
        head_cache from = {past_keys(lane, layer_index), NULL, head_size, 0, 0, fp16, NULL, model->reach, 0};
        from.values = address_of(fp16, from.keys, cache->past_layer);
        for (int64_t head = 0; head < heads; head++) {
            if (model->bias) from.bias = model->bias + head * model->distances;
            for (int64_t row = 0; row < rows; row++) {
                from.query = lane->position + row / lane->beam;
                if (row == rows - 1 && head < heads - 1) {
                    from.next_keys = from.next_values = cache->past_head;
                } else if (row == rows - 1 && sentence < step->sentences - 1) {
                    const char *next = past_keys(step->lanes[sentence + 1], layer_index);
                    from.next_keys = distance(fp16, from.keys, next);
                    from.next_values = distance(fp16, from.values, address_of(
                            fp16, next, step->lanes[sentence + 1]->cache->past_layer));
                }
                attend(projected + 3 * row * width + head * head_size, from, work.offsets + row * longest,
                       from.query + 1, work.scores, mixed + row * width + head * head_size);
                from.next_keys = from.next_values = 0;
            }
            from.keys = address_of(fp16, from.keys, cache->past_head);
            from.values = address_of(fp16, from.values, cache->past_head);
        }
        projected += 3 * rows * width, mixed += rows * width;
    }
}

/* SSRU (Kim et al. 2019): c = f c' + (1 - f) u; ReLU(c) is added to x. Cells are stored in the buffer of the keys.
   projected: [N, 2D], gates before the sigmoid, and updates. */
static void ssru_cells(const stack *model, const step_input *step, int64_t layer_index, const float *projected,
                       float *x) {
    int64_t width = model->width, head_size = model->head_size;
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        const lane *lane = step->lanes[sentence];
        const key_value_cache *cache = lane->cache;
        float *cells = (float *)past_keys(lane, layer_index);
        for (int64_t row = 0; row < lane->beam * step->count; row++, projected += 2 * width, x += width) {
            int64_t position = lane->position + row / lane->beam, own = row % lane->beam * head_size, from = own,
                    offset = position * cache->past_position;
            if (lane->ancestors && position)
                from = lane->ancestors[row * (lane->position + 1) + position - 1] * head_size;
            for (int64_t head = 0; head < model->heads; head++, offset += cache->past_head)
                for (int64_t k = 0; k < head_size; k += LANES) {
                    vector gate = sigmoid(load(projected + head * head_size + k)),
                        update = load(projected + width + head * head_size + k);
                    vector cell = (1.0f - gate) * update;
                    if (position) cell += gate * load(cells + offset - cache->past_position + from + k);
                    store(cells + offset + own + k, cell);
                    store(x + head * head_size + k, load(x + head * head_size + k) + relu(cell));
                }
        }
    }
}

/* Add the weights of a head to the attention of a token, [source]; the first head sets it. */
static void add_attention(float *attention, int64_t source, const float *weights, const int64_t *offsets, int64_t count,
                          int64_t head, int64_t heads, int64_t head_size) {
    if (!head) memset(attention, 0, source * sizeof *attention);
    for (int64_t k = 0; k < count; k++) attention[offsets[k] / head_size] += weights[k] / (float)heads;
}

/* Compute the attention of queries [N, H d] over the memory. Result: work.mixed. */
static void cross_attention(const stack *model, const step_input *step, int64_t layer_index, const float *queries,
                            workspace work) {
    int64_t width = attention_width(model), heads = model->heads, head_size = model->head_size, row = 0;
    float *attention = layer_index == model->layers - 1 ? step->attention : NULL;
    for (int64_t sentence = 0; sentence < step->sentences; sentence++) {
        const lane *lane = step->lanes[sentence];
        const key_value_cache *cache = lane->cache;
        int fp16 = (int)cache->fp16;
        int64_t first = row, last = row + lane->beam * step->count, count = 0;
        const float *source_bias = cache->source_bias ? cache->source_bias + lane->slot * cache->source : NULL;
        for (int64_t position = 0; position < cache->source; position++)
            if (!source_bias || source_bias[position] == 0.0f) work.offsets[count++] = position * head_size;
        pad_offsets(work.offsets, count);
        head_cache from = {NULL, NULL, head_size, 0, 0, fp16, NULL, 0, 0};
        from.keys = address_of(fp16, cache->cross, 2 * layer_index * cache->cross_layer +
                               lane->slot * cache->cross_sentence);
        for (int64_t head = 0; head < heads; head++) {
            from.values = address_of(fp16, from.keys, cache->cross_layer);
            for (row = first; row < last; row++) {
                attend(queries + row * width + head * head_size, from, work.offsets, count, work.scores,
                       work.mixed + row * width + head * head_size);
                if (attention)
                    add_attention(attention + row * step->attention_width, cache->source, work.scores, work.offsets,
                                  count, head, heads, head_size);
            }
            from.keys = address_of(fp16, from.keys, cache->cross_head);
        }
    }
}

/* Queries that are multiplied with all keys, and then with all values, at once. */
#define QUERY_BLOCK (4 * TILE_ROWS)

INLINE int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

/* The keys and values of a head of a sentence, packed as the weights of two linear layers, and a block of queries. */
typedef struct {
    float *keys, *values, *zeros, *queries, *scores, *mixed;
} head_block;

/* Carve the buffers for sentences of at most `longest` tokens; return the bytes that they need if `memory` is NULL. */
INLINE int64_t carve_head(const stack *model, int64_t longest, char *memory, head_block *block) {
    int64_t size = model->head_size, count = padded(longest, LANES), keys = padded(count, PANEL), values = padded(size, PANEL);
    int64_t sizes[] = {keys * size, values * count, keys > values ? keys : values,
                       QUERY_BLOCK * size, QUERY_BLOCK * count, QUERY_BLOCK * size}, bytes = 0;
    float **buffers[] = {&block->keys, &block->values, &block->zeros, &block->queries, &block->scores, &block->mixed};
    for (int k = 0; k < 6; k++) {
        if (memory) {
            *buffers[k] = (float *)(memory + bytes);
            POISON(memory + bytes + 4 * sizes[k], aligned(4 * sizes[k]) + RED_ZONE - 4 * sizes[k]);
        }
        bytes += aligned(4 * sizes[k]) + RED_ZONE;
    }
    return bytes;
}

/* Pack the keys and values of `count` tokens, a token every `stride` numbers. Those up to a multiple of LANES are 0. */
static void pack_keys_and_values(const head_block *block, int64_t size, const float *keys, const float *values,
                                 int64_t stride, int64_t count) {
    int64_t all = padded(count, LANES);
    for (int64_t first = 0; first < all; first += PANEL) {
        float *to = block->keys + first * size;
        for (int64_t token = 0; token < PANEL; token++) {
            const float *from = keys + (first + token) * stride;
            for (int64_t k = 0; k < size; k++) to[k * PANEL + token] = first + token < count ? from[k] : 0;
        }
    }
    for (int64_t first = 0; first < size; first += PANEL) {
        float *to = block->values + first * all;
        for (int64_t token = 0; token < all; token++, to += PANEL)
            for (int64_t k = 0; k < PANEL; k += LANES)
                store(to + k, token < count && first + k < size ? load(values + token * stride + first + k) : (vector){0});
    }
}

/* Compute self-attention within each sentence of packed source tokens. projected: [T, 3 H d], queries and keys of which
   are rotated in place. begins: [B + 1], first token of each sentence. Result: work.mixed. */
static void encoder_self_attention(const stack *model, const int64_t *begins, int64_t sentences, int64_t longest,
                                   float *projected, workspace work, char *memory) {
    int64_t width = attention_width(model), heads = model->heads, size = model->head_size;
    head_block block;
    quantized none = {0};
    carve_head(model, longest, memory, &block);
    memset(block.zeros, 0, 4 * (padded(longest, PANEL) > padded(size, PANEL) ? padded(longest, PANEL) : padded(size, PANEL)));
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
        int64_t first = begins[sentence], last = begins[sentence + 1], count = last - first;
        linear by_keys = {size, padded(count, LANES), FP32, block.keys, NULL, block.zeros};
        linear by_values = {padded(count, LANES), size, FP32, block.values, NULL, block.zeros};
        for (int64_t row = first; model->rotation && row < last; row++)
            rotate(model, row - first, projected + 3 * row * width);
        for (int64_t head = 0; head < heads; head++) {
            const float *query = projected + 3 * first * width + head * size;
            pack_keys_and_values(&block, size, query + width, query + 2 * width, 3 * width, count);
            head_cache from = {.bias = model->bias ? model->bias + head * model->distances : NULL, .reach = model->reach};
            for (int64_t begin = 0; begin < count; begin += QUERY_BLOCK) {
                int64_t rows = count - begin < QUERY_BLOCK ? count - begin : QUERY_BLOCK;
                for (int64_t row = 0; row < rows; row++, query += 3 * width)
                    memcpy(block.queries + row * size, query, 4 * size);
                linear_forward(&by_keys, block.queries, rows, block.scores, 0, none);
                for (int64_t row = 0; row < rows; row++) {
                    float *scores = block.scores + row * by_keys.outputs;
                    from.query = begin + row;
                    if (from.bias) add_distance_bias(&from, scores, count);
                    softmax(scores, count);
                }
                linear_forward(&by_values, block.scores, rows, block.mixed, 0, none);
                for (int64_t row = 0; row < rows; row++)
                    memcpy(work.mixed + (first + begin + row) * width + head * size, block.mixed + row * size, 4 * size);
            }
        }
    }
}

#endif
