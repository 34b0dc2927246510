/* Run the kernels' entry points on random models and print what they compute, for comparison among instruction sets.

   run_kernels CASES: for each case a line of numbers: exact sums of int8 products; a product in fp32; keys and values of a
   source, hidden states, logits and their statistics of a model in fp32; the hypotheses of a search, and their scores. */

#include <stdio.h>
#include <stdlib.h>

#include "copying.c"
#include "layers.c"
#include "threads.c"
#include "linear.c"
#include "logits.c"
#include "search.c"

enum { WIDEST = 128, LONGEST = 24, TOKENS = 160, MOST = 4 };

static uint32_t state;
static uint32_t next(void) { return (state = state * 1664525u + 1013904223u) >> 8; }
static float draw(void) { return (float)next() / (1 << 23) - 1; }
static int64_t choose(int64_t least, int64_t most) { return least + next() % (most - least + 1); }

/* Memory of a case, freed as a whole. */
static char *memory, *top;
static void *take(int64_t bytes) {
    void *found = top;
    top += aligned(bytes);
    if (top > memory + (64 << 20)) exit(3);
    memset(found, 0, bytes);
    return found;
}

static float *draws(int64_t count, float size, float around) {
    float *found = take(4 * (count + LANES));
    for (int64_t k = 0; k < count; k++) found[k] = around + size * draw();
    return found;
}

static void print(const float *numbers, int64_t count) {
    for (int64_t k = 0; k < count; k++) printf(" %.9g", numbers[k]);
}

/* Return a layer in fp32 with weights [outputs, inputs]. */
static linear layer_of(const float *weight, int64_t inputs, int64_t outputs) {
    int64_t all = padded(outputs, PANEL);
    float *packed = take(4 * all * inputs), *bias = take(4 * all);
    for (int64_t n = 0; n < outputs; n++)
        for (int64_t k = 0; k < inputs; k++)
            packed[(n / PANEL * inputs + k) * PANEL + n % PANEL] = weight[n * inputs + k];
    for (int64_t n = 0; n < outputs; n++) bias[n] = 0.1f * draw();
    return (linear){inputs, outputs, FP32, packed, NULL, bias};
}

static linear random_layer(int64_t inputs, int64_t outputs) {
    return layer_of(draws(inputs * outputs, 1 / sqrtf((float)inputs), 0), inputs, outputs);
}

static norm random_norm(int64_t width) {
    const float *weight = draws(width, 0.1f, 1);
    return (norm){weight, draws(width, 0.1f, 0)};
}

/* Sums of products of int8, which scales of one leave as they are. */
static void run_int8(void) {
    int64_t inputs = 16 * choose(1, 8), outputs = choose(1, WIDEST), rows = choose(1, 9), all = padded(outputs, PANEL);
    float *x = take(4 * rows * inputs), *y = take(4 * rows * outputs), *scale = take(4 * all), *bias = take(4 * all);
    int8_t *weight = take(outputs * inputs);
    for (int64_t k = 0; k < rows * inputs; k++) x[k] = (float)(k % inputs ? choose(0, 254) - 127 : 127);
    for (int64_t k = 0; k < outputs * inputs; k++) weight[k] = (int8_t)(choose(0, 254) - 127);
#if GROUP
    uint8_t *packed = take(all * inputs);
    memset(packed, WEIGHT_OFFSET, all * inputs);
    for (int64_t n = 0; n < all; n++) scale[n] = 1;
    for (int64_t n = 0; n < outputs; n++)
        for (int64_t k = 0; k < inputs; k++)
            packed[((n / PANEL * (inputs / GROUP) + k / GROUP) * PANEL + n % PANEL) * GROUP + k % GROUP] =
                (uint8_t)(weight[n * inputs + k] + WEIGHT_OFFSET);
    linear layer = {inputs, outputs, QUANTIZED, packed, scale, bias};
    translume_linear(&layer, x, rows, y, take(translume_linear_workspace(rows, inputs)));
#else
    (void)scale, (void)bias;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < outputs; n++)
            for (int64_t k = 0; k < inputs; k++) y[row * outputs + n] += x[row * inputs + k] * weight[n * inputs + k];
#endif
    print(y, rows * outputs);
}

static void run_product(void) {
    int64_t inputs = choose(1, WIDEST), outputs = choose(1, WIDEST), rows = choose(1, 15);
    linear layer = random_layer(inputs, outputs);
    float *x = draws(rows * inputs, 1, 0), *y = take(4 * rows * outputs);
    translume_linear(&layer, x, rows, y, take(translume_linear_workspace(rows, inputs)));
    print(y, rows * outputs);
}

static stack random_stack(int64_t width, int64_t heads, int64_t size, int crosses) {
    stack model = {.width = width, .heads = heads, .head_size = size, .layers = choose(1, 2), .pre_norm = choose(0, 1),
                   .ssru = crosses && heads * size == width && choose(0, 3) == 0, .activation = choose(RELU, GEGLU),
                   .rms_norm = choose(0, 1), .inner = 16 * choose(1, 4), .epsilon = 1e-5f};
    int64_t attended = heads * size, positions = choose(0, 2);
    layer *layers = take(model.layers * (int64_t)sizeof *layers);
    for (layer *each = layers; each < layers + model.layers; each++) {
        each->query_key_value = random_layer(width, model.ssru ? 2 * width : 3 * attended);
        each->inner = random_layer(width, model.inner * (is_gated(&model) ? 2 : 1));
        each->outer = random_layer(model.inner, width);
        each->norm_self = random_norm(width), each->norm_feed_forward = random_norm(width);
        if (!model.ssru) each->self_output = random_layer(attended, width);
        if (!crosses) continue;
        each->norm_cross = random_norm(width);
        each->cross_query = random_layer(width, attended), each->cross_output = random_layer(attended, width);
    }
    model.layer = layers;
    if (choose(0, 1)) model.first_norm = random_norm(width);
    if (model.pre_norm) model.final_norm = random_norm(width);
    if (positions == 1 && !model.ssru) model.rotation = draws(2 * LONGEST * size, 1, 0);
    model.reach = choose(2, LONGEST), model.distances = 2 * model.reach + 1;
    if (positions == 2 && !model.ssru) model.bias = draws(heads * model.distances, 1, 0);
    return model;
}

/* Read a source and a target, then search. */
static void run_model(void) {
    int64_t width = 16 * choose(1, 4), size = 16 * choose(1, 2), heads = choose(1, 3), source = choose(1, LONGEST);
    int64_t count = choose(1, 9), beam = choose(1, MOST), limit = choose(1, 12), blocks = (TOKENS + 127) / 128;
    stack encoder = random_stack(width, heads, size, 0), decoder = random_stack(width, heads, size, 1);
    const float *table = draws(TOKENS * width, 1, 0), *positions = draws(LONGEST * width, 1, 0);
    const linear **projections = take(decoder.layers * (int64_t)sizeof *projections);
    for (int64_t k = 0; k < decoder.layers; k++) {
        linear *own = take(sizeof *own);
        *own = random_layer(width, 2 * heads * size);
        projections[k] = own;
    }
    source_reader reader = {&encoder, table, positions, 1.25f, decoder.layers, heads, size, projections};
    int64_t capacity = LONGEST, begins[] = {0, source}, *ids = take(8 * source), *target = take(8 * count);
    for (int64_t k = 0; k < source; k++) ids[k] = choose(0, TOKENS - 1);
    for (int64_t k = 0; k < count; k++) target[k] = choose(0, TOKENS - 1);
    key_value_cache cache = {.source = source, .capacity = capacity, .cross_head = source * size,
                             .past_position = beam * size, .past_head = capacity * beam * size};
    cache.cross_layer = cache.cross_sentence = heads * cache.cross_head;
    cache.past_layer = cache.past_sentence = heads * cache.past_head;
    cache.past = take(8 * decoder.layers * cache.past_layer), cache.cross = take(8 * decoder.layers * cache.cross_layer);
    translume_read_sources(&reader, ids, begins, 1, &cache, NULL, take(translume_sources_workspace(&reader, source, source)));
    print((const float *)cache.cross, 2 * decoder.layers * cache.cross_layer);

    lane one = {&cache, 0, 0, 1, NULL};
    const lane *lanes[] = {&one};
    step_input step = {lanes, 1, count, NULL, 0};
    float *x = take(4 * count * width);
    for (int64_t k = 0; k < count * width; k++) x[k] = table[target[k / width] * width + k % width] + positions[k];
    translume_step(&decoder, &step, x, take(translume_workspace(&decoder, count, LONGEST, count)));
    print(x, count * width);

    linear head = layer_of(table, width, TOKENS);
    float *logits = take(4 * MOST * TOKENS + 4 * 9 * TOKENS), *maxima = take(4 * 9 * blocks), *sums = take(4 * 9),
          *peaks = take(4 * 9), *log_sums = take(4 * 9);
    int64_t *first = take(8 * 9);
    translume_linear(&head, x, count, logits, take(translume_linear_workspace(count, width)));
    translume_summarize(logits, count, TOKENS, 128, 60, NULL, maxima, first, sums, peaks, log_sums);
    print(logits, count * TOKENS), print(peaks, count), print(log_sums, count);

    float divisors[LONGEST + 2], divisor;
    for (int k = 0; k < LONGEST + 2; k++) divisors[k] = k ? (float)k : 1;
    divisor = divisors[limit];
    uint8_t *forbidden = take(TOKENS);
    forbidden[0] = 1;
    rules rules = {.forbidden = forbidden, .eos = 2, .min_length = choose(0, 3), .ngram = choose(0, 3)};
    search_settings settings = {.stack = &decoder, .head = &head, .table = table, .positions = positions, .scale = 1.25f,
                                .unshifted_limit = 60, .vocabulary = TOKENS, .block = 128, .eos = 2, .rules = &rules,
                                .beam = beam, .candidates = beam > 1 ? 2 * beam : 1, .nbest = beam, .divisors = divisors};
    sentence text = {.lane = {&cache, 0, 0, 1, NULL}, .limit = limit, .limit_divisor = &divisor};
    text.ancestors = take(8 * beam * (limit + 1)), text.spare = take(8 * beam * (limit + 1));
    text.read_tokens = take(8 * beam * (limit + 1)), text.read_log_probs = take(4 * beam * (limit + 1));
    text.totals = take(4 * beam), text.best = take(4 * beam), text.lengths = take(8 * beam);
    text.tokens = take(8 * beam * limit), text.log_probs = take(4 * beam * limit);
    text.finished_totals = take(4 * beam), text.coverage = take(4 * beam);
    for (int64_t k = 0; k < beam; k++) text.best[k] = -INFINITY;
    text.read_tokens[0] = 1;
    const lane *live[] = {&text.lane};
    search_state search = {.step = {NULL, 1, 1, NULL, LONGEST}, .live = live, .group = beam, .logits = logits,
                           .maxima = maxima, .sums = sums, .peaks = peaks, .log_sums = log_sums, .first = first};
    search.ranked = take(settings.candidates * (int64_t)sizeof *search.ranked);
    search.own_tokens = take(8 * LONGEST), search.banned = take(8 * LONGEST), search.x = take(4 * beam * width);
    search.workspace = take(translume_workspace(&decoder, beam, LONGEST, beam));
    translume_search(&settings, &search, limit);
    for (int64_t place = 0; place < beam && text.lengths[place]; place++) {
        printf(" %.9g", text.best[place]);
        for (int64_t k = 0; k < llabs(text.lengths[place]); k++) printf(" t%d", (int)text.tokens[place * limit + k]);
    }
}

int main(int count, char **arguments) {
    int cases = count > 1 ? atoi(arguments[1]) : 0;
    memory = aligned_alloc(64, (64 << 20) + (1 << 16));
    for (int number = 1; number <= cases; number++) {
        state = (uint32_t)number * 2654435761u, top = memory;
        run_int8();
        printf(" |");
        run_product();
        printf(" |");
        run_model();
        printf("\n");
    }
    return 0;
}
