/* What a stack of layers is, what a step reads and writes, and what a call works in. */

#ifndef TRANSLUME_STACK
#define TRANSLUME_STACK

#include "linear.h"

#define FOUR 4 /* places whose scores are summed together */

enum activation { RELU, GELU, SWISH, SWIGLU };

typedef struct {
    const float *weight, *bias;  /* [D]; no bias: NULL */
} norm;

typedef struct {
    linear query_key_value, mixed, query, looked, inner, outer; /* of cells: gate and update first, nothing after */
    norm around_self, around_cross, around_feed_forward;
} layer;

typedef struct {
    int64_t width, heads, layers, before, cells, activation, root_mean_square, inner;
    float epsilon;
    const layer *layer;
    norm last;  /* weight NULL: none */
} stack;

typedef struct {
    char *past;             /* keys and values of each layer by turns: [2L, B, H, capacity, K, d], by these strides */
    int64_t past_layer, past_sentence, past_head, past_place;
    const char *cross;      /* [2L, B, H, S, d] */
    int64_t cross_layer, cross_sentence, cross_head;
    const float *hidden;    /* [B, S], added to scores: -inf where no token stands; NULL: all stand */
    const int64_t *reach;   /* [B, K, place + 1], who wrote what a hypothesis reads; NULL: itself, one a sentence */
    const int64_t *slots;   /* [B], where a sentence stands in past, cross and hidden; NULL: in order */
    int64_t sentences, width, count, place, source;  /* B, K, t, place of the first token, S */
    int64_t halves;         /* whether past and cross are of halves; of cells they are not */
} reading;

int64_t translume_room(const stack *of, int64_t rows, int64_t longest, int64_t each);
void translume_step(const stack *of, const reading *steps, int64_t count, float *x, char *block);

/* All of it taken from one block. */
typedef struct {
    float *normal, *parts, *mixed, *inner, *scores;
    int64_t *at;
    quantized bytes;
} room;

static int64_t whole(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* each: rows that read the same keys and values. */
static room take(const stack *of, int64_t rows, int64_t longest, int64_t each, char *block) {
    int64_t width = of->width, inner = of->inner * (of->activation == SWIGLU ? 2 : 1);
    int64_t widest = of->inner > width ? of->inner : width;
    room found;
#define TAKE(name, type, count) found.name = (type *)block, block += whole((count) * sizeof(type))
    TAKE(normal, float, rows * width);
    TAKE(parts, float, 3 * rows * width);
    TAKE(mixed, float, rows * width);
    TAKE(inner, float, rows * inner + LANES);
    TAKE(scores, float, longest + LANES);
    TAKE(at, int64_t, each * (longest + FOUR));
    TAKE(bytes.bytes, int8_t, rows * widest);
    TAKE(bytes.scales, float, rows);
    TAKE(bytes.shifts, int32_t, rows);
#undef TAKE
    return found;
}

#endif
