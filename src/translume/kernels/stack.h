/* The structures of a stack of layers, of the inputs of a step and of the workspace of a call. */

#ifndef TRANSLUME_STACK
#define TRANSLUME_STACK

#include "linear.h"

#define KEY_BLOCK 4 /* keys whose scores are computed together */

enum activation { RELU, GELU, SWISH, SWIGLU, GEGLU };

typedef struct {
    const float *weight, *bias;  /* [D]; bias may be NULL */
} norm;

typedef struct {
    linear query_key_value, self_output; /* SSRU: gate and update, and no output */
    linear cross_query, cross_output; /* without weights in an encoder and in a language model */
    linear inner, outer;
    norm norm_self, norm_cross, norm_feed_forward;
} layer;

typedef struct {
    int64_t width, heads, head_size, layers, pre_norm, ssru, activation, rms_norm, inner;
    float epsilon;
    const layer *layer;
    norm first_norm, final_norm;  /* of a decoder's embeddings and output; weight is NULL if there is none */
    const float *rotation;        /* [positions, 2, d], cosines and sines for queries and keys; NULL: no rotation */
    const float *bias;            /* [H, distances], added to the scores of self-attention: at index `reach` for the key
                                     at the position of the query, at larger ones for later keys; NULL: none */
    int64_t reach, distances;     /* keys further than `reach` have the bias of that distance */
} stack;

/* Whether feed-forward blocks have a gate. */
INLINE int is_gated(const stack *model) { return model->activation == SWIGLU || model->activation == GEGLU; }

/* The size of the queries, keys and values of all heads. */
INLINE int64_t attention_width(const stack *model) { return model->heads * model->head_size; }

/* Keys and values of B sentences with at most K hypotheses each. */
typedef struct {
    char *past;  /* KV cache of the target, keys and values alternating: [2L, B, H, capacity, K, d], with the strides
                    below */
    int64_t past_layer, past_sentence, past_head, past_position;
    const char *cross;  /* keys and values of the memory: [2L, B, H, S, d] */
    int64_t cross_layer, cross_sentence, cross_head;
    const float *source_bias;  /* [B, S], added to scores: -inf at padding; NULL without padding */
    int64_t source, capacity;  /* S; positions of `past` */
    int64_t fp16;  /* whether past and cross hold fp16; never for SSRU */
} key_value_cache;

/* A sentence in a step. It has `beam` rows for each token. */
typedef struct {
    const key_value_cache *cache;
    int64_t slot;              /* its index in the cache */
    int64_t position, beam;    /* of its first token in the step; hypotheses */
    const int64_t *ancestors;  /* [beam, position + 1], the entry of the cache that a hypothesis reads at each position;
                                  NULL: its own */
} lane;

/* The sentences of a step and the tokens per hypothesis, t. Rows are in order of lanes; with t > 1, beam is 1. */
typedef struct {
    const lane *const *lanes;
    int64_t sentences, count;
    float *attention;          /* [B K t, attention_width], filled with the attention of each row to the source, the mean
                                  over the heads of the last layer; NULL: none */
    int64_t attention_width;   /* at least the longest source */
} step_input;

int64_t translume_workspace(const stack *model, int64_t rows, int64_t longest, int64_t rows_per_sentence);
void translume_step(const stack *model, const step_input *step, float *x, char *memory);

/* The most inputs of a linear layer. */
INLINE int64_t widest_input(const stack *model) {
    int64_t attended = attention_width(model), widest = model->inner > model->width ? model->inner : model->width;
    return attended > widest ? attended : widest;
}

/* With AddressSanitizer, accesses beyond a buffer of the workspace are found. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define RED_ZONE 64
#define POISON(from, size) __asan_poison_memory_region(from, size)
#define UNPOISON(from, size) __asan_unpoison_memory_region(from, size)
#else
#define RED_ZONE 0
#define POISON(from, size) (void)(from)
#define UNPOISON(from, size) (void)(from)
#endif

/* Scratch buffers of a call, carved from one block of memory. */
typedef struct {
    float *normalized, *projected, *mixed, *inner, *scores;
    int64_t *offsets;
    quantized bytes;
} workspace;

/* Carve a workspace. rows_per_sentence: rows that read the same keys and values. */
INLINE workspace carve_workspace(const stack *model, int64_t rows, int64_t longest, int64_t rows_per_sentence,
                                 char *memory) {
    int64_t width = model->width, attended = attention_width(model), inner = model->inner * (is_gated(model) ? 2 : 1);
    workspace work;
#define CARVE(name, type, count) \
    work.name = (type *)memory, memory += aligned((count) * sizeof(type)) + RED_ZONE; \
    POISON((char *)(work.name + (count)), memory - (char *)(work.name + (count)))
    CARVE(normalized, float, rows * width);
    CARVE(projected, float, 3 * rows * attended);
    CARVE(mixed, float, rows * attended);
    CARVE(inner, float, rows * inner + LANES);
    CARVE(scores, float, longest + LANES);
    CARVE(offsets, int64_t, rows_per_sentence * (longest + KEY_BLOCK));
#undef CARVE
    work.bytes = carve_quantized(rows, widest_input(model), memory);
    return work;
}

#endif
