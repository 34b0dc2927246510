/* The engine in WebAssembly: a model file, and searches of one source at a time. All kernels are compiled with this file.

   `write_model` in interchange/web writes the file; translume.js there calls what is exported here. A file has a
   head of fp64 numbers, in the order of the calls of `number`, and arrays in the order of the calls of `array`. */

#include "copying.c"
#include "layers.c"
#include "threads.c"
#include "linear.c"
#include "logits.c"
#include "search.c"

#define EXPORT(name) __attribute__((export_name(#name)))
#define INPUTS 4096        /* most tokens that JavaScript can pass */
#define SHORTEST 16        /* fewest positions of a source in a cache */
#define MAX_BEAM 64
#define MAX_LISTED 64      /* most tokens of a distribution */
static const char MAGIC[8] = "TLMWEB01";

static int32_t input[INPUTS];
static const double *next_number, *last_number;
static const char *next_array, *end_of_file;
static int damaged;

static stack encoder, decoder;
static source_reader reader;
static linear head;
static refinement refiner;
static rules target_rules;
static search_settings settings;
static int64_t longest, source_size, target_size; /* positions; vocabularies */
static key_value_cache cache; /* of the source that was read last */
static uintptr_t top, after_model, after_search;

extern char __heap_base;

/* Return `bytes` bytes of memory, which are zero where they were not used before. There is no free: `top` is set back. */
static void *take(int64_t bytes) {
    uint64_t begin = ((top ? top : (uintptr_t)&__heap_base) + 63) / 64 * 64, end = begin + (uint64_t)bytes;
    uint64_t pages = (end + 65535) / 65536, there = __builtin_wasm_memory_size(0);
    if (pages > 65536 || (pages > there && __builtin_wasm_memory_grow(0, pages - there) == SIZE_MAX)) __builtin_trap();
    top = (uintptr_t)end;
    return (void *)(uintptr_t)begin;
}

static float *take_floats(int64_t count) { return take(4 * count); }
static int64_t *take_integers(int64_t count) { return take(8 * count); }

static double number(void) {
    if (next_number == last_number) damaged = 1;
    return damaged ? 0 : *next_number++;
}

/* Return a number that must be from `least` to `most`. */
static int64_t integer(int64_t least, int64_t most) {
    double found = number();
    if (!(found >= (double)least && found <= (double)most)) damaged = 1;
    return damaged ? least : (int64_t)found;
}

/* Return the next array, which must have `bytes` bytes; NULL if the file does not have this one. Arrays begin with their
   size, at multiples of 16 bytes. */
static const void *array(int64_t bytes) {
    int64_t size = 0;
    if (damaged || end_of_file - next_array < 16) damaged = 1;
    else memcpy(&size, next_array, sizeof size), next_array += 16;
    if (!size) return NULL;
    if (size != bytes || end_of_file - next_array < size) {
        damaged = 1;
        return NULL;
    }
    const char *found = next_array;
    next_array += (size + 15) / 16 * 16;
    return found;
}

static const void *needed(const void *found) {
    if (!found) damaged = 1;
    return found;
}

/* Return a table [rows, width], which the file has in fp16, in fp32; `other` if it does not have this one. */
static const float *table(int64_t rows, int64_t width, const float *other) {
    const uint16_t *halves = array(2 * rows * width);
    if (!halves) return needed(other);
    float *numbers = take_floats(rows * width);
    for (int64_t k = 0; k < rows * width; k++) {
        uint32_t bits = (uint32_t)(halves[k] & 0x7fff) << 13, sign = (uint32_t)(halves[k] & 0x8000) << 16;
        float size;
        memcpy(&size, &bits, 4);
        size *= 0x1p112f;
        memcpy(&bits, &size, 4);
        bits |= sign;
        memcpy(numbers + k, &bits, 4);
    }
    return numbers;
}

static linear read_linear(int64_t inputs, int64_t outputs) {
    int64_t all = padded(outputs, PANEL);
    linear layer = {inputs, outputs, QUANTIZED, needed(array(all * inputs)), NULL, NULL};
    layer.scale = needed(array(4 * all));
    layer.bias = needed(array(4 * all));
    return layer;
}

static norm read_norm(int64_t width) {
    norm found = {array(4 * width), NULL};
    found.bias = array(4 * width);
    return found;
}

/* Read a side, in the order of `Layers` of engine/layers.py. */
static void read_stack(stack *model, int crosses) {
    model->width = integer(16, 1 << 16), model->heads = integer(1, 4096), model->head_size = integer(16, 1 << 16);
    model->layers = integer(1, 1000), model->pre_norm = integer(0, 1), model->ssru = integer(0, 1);
    model->activation = integer(RELU, GEGLU), model->rms_norm = integer(0, 1), model->inner = integer(16, 1 << 20);
    model->reach = integer(0, 1 << 20), model->distances = integer(0, 1 << 21), model->epsilon = (float)number();
    int64_t width = model->width, attended = attention_width(model);
    if (width % 16 || model->head_size % 16 || model->inner % 16) damaged = 1;
    layer *layers = take(model->layers * (int64_t)sizeof *layers);
    memset(layers, 0, model->layers * sizeof *layers);
    model->layer = layers;
    for (layer *each = layers; each < layers + model->layers && !damaged; each++) {
        each->inner = read_linear(width, model->inner * (is_gated(model) ? 2 : 1));
        each->outer = read_linear(model->inner, width);
        each->norm_feed_forward = read_norm(width);
        each->query_key_value = read_linear(width, model->ssru ? 2 * width : 3 * attended);
        if (!model->ssru) each->self_output = read_linear(attended, width);
        each->norm_self = read_norm(width);
        if (!crosses) continue;
        each->norm_cross = read_norm(width);
        each->cross_query = read_linear(width, attended);
        each->cross_output = read_linear(attended, width);
    }
    model->first_norm = read_norm(width), model->final_norm = read_norm(width);
    model->rotation = array(8 * longest * model->head_size), model->bias = array(4 * model->heads * model->distances);
}

/* Return memory for a file, which JavaScript fills before it calls `load`. */
EXPORT(reserve) void *web_reserve(int32_t bytes) { return take((uint32_t)bytes); }

/* Return where JavaScript writes up to INPUTS tokens. */
EXPORT(input) int32_t *web_input(void) { return input; }

/* Read a model file; return 0 for one that is damaged or of another version. The file stays in its place. */
EXPORT(load) int32_t web_load(const char *file, int32_t bytes) {
    int64_t count;
    if (bytes < 16 || memcmp(file, MAGIC, sizeof MAGIC)) return 0;
    memcpy(&count, file + 8, sizeof count);
    if (count < 0 || count > (bytes - 16) / 8) return 0;
    damaged = 0, end_of_file = file + bytes;
    next_number = (const double *)(file + 16), last_number = next_number + count;
    next_array = file + 16 + padded(8 * count, 16);
    longest = integer(1, 1 << 20), source_size = integer(1, 1 << 24), target_size = integer(1, 1 << 24);
    read_stack(&encoder, 0);
    read_stack(&decoder, 1);
    int64_t width = decoder.width, attended = attention_width(&decoder);
    if (encoder.width != width) damaged = 1;
    float scale = (float)number();
    linear *key_values = take(decoder.layers * (int64_t)sizeof *key_values);
    const linear **pointers = take(decoder.layers * (int64_t)sizeof *pointers);
    for (int64_t k = 0; k < decoder.layers && !damaged; k++)
        key_values[k] = read_linear(width, 2 * attended), pointers[k] = key_values + k;
    reader = (source_reader){&encoder, NULL, NULL, scale, decoder.layers, decoder.heads, decoder.head_size, pointers};
    reader.table = table(source_size, width, NULL);
    reader.positions = array(4 * longest * width);
    settings = (search_settings){.stack = &decoder, .head = &head, .refinement = &refiner, .rules = &target_rules,
                                 .scale = scale, .vocabulary = target_size};
    settings.table = table(target_size, width, source_size == target_size ? reader.table : NULL);
    settings.positions = array(4 * longest * width);
    if (!settings.positions) settings.positions = reader.positions;
    head = read_linear(width, target_size);
    refiner = (refinement){NULL, table(target_size, width, settings.table), head.bias, width, (float)number()};
    settings.unshifted_limit = (float)number(), settings.block = integer(16, 4096);
    settings.eos = target_rules.eos = integer(0, target_size - 1);
    target_rules.min_length = integer(0, 1 << 20), target_rules.ngram = integer(0, 1 << 20);
    target_rules.repetition = (float)number();
    settings.divisors = needed(array(4 * (longest + 2)));
    target_rules.forbidden = needed(array(target_size)), target_rules.forbidden_first = array(target_size);
    if (next_number != last_number || next_array != end_of_file) damaged = 1;
    after_model = top;
    return !damaged;
}

/* Return a cache of the source for `beam` hypotheses of up to `capacity` target tokens. */
static key_value_cache with_past(int64_t beam, int64_t capacity) {
    key_value_cache made = cache;
    made.past_position = beam * decoder.head_size, made.past_head = capacity * made.past_position;
    made.past_layer = made.past_sentence = decoder.heads * made.past_head, made.capacity = capacity;
    made.past = take(8 * decoder.layers * made.past_layer);
    return made;
}

/* Encode the source of `count` ids, and keep its keys and values. */
static void read_source(const int64_t *ids, int64_t count) {
    int64_t begins[] = {0, count}, positions = count > SHORTEST ? count : SHORTEST;
    cache = (key_value_cache){.source = positions, .cross_head = positions * decoder.head_size};
    cache.cross_layer = cache.cross_sentence = decoder.heads * cache.cross_head;
    cache.cross = take(8 * decoder.layers * cache.cross_layer);
    float *bias = count < positions ? take_floats(positions) : NULL;
    cache.source_bias = bias;
    translume_read_sources(&reader, ids, begins, 1, &cache, bias, take(translume_sources_workspace(&reader, count, count)));
}

/* Read `count` target tokens at once, from the first position; return the hidden states [count, D]. */
static float *read_target(const int64_t *tokens, int64_t count, const key_value_cache *own) {
    lane one = {own, 0, 0, 1, NULL};
    const lane *lanes[] = {&one};
    int64_t width = decoder.width;
    float *x = take_floats(count * width);
    for (int64_t row = 0; row < count; row++)
        for (int64_t k = 0; k < width; k++) {
            x[row * width + k] = settings.table[tokens[row] * width + k] * settings.scale;
            if (settings.positions) x[row * width + k] += settings.positions[row * width + k];
        }
    step_input step = {lanes, 1, count, NULL, 0};
    int64_t most = count > own->source ? count : own->source;
    translume_step(&decoder, &step, x, take(translume_workspace(&decoder, count, most, count)));
    return x;
}

/* Return the next `count` tokens of the input; NULL if one is none of the first `size`. */
static int64_t *tokens_of(const int32_t *from, int64_t count, int64_t size) {
    int64_t *tokens = take_integers(count);
    for (int64_t k = 0; k < count; k++) {
        if (from[k] < 0 || from[k] >= size) return NULL;
        tokens[k] = from[k];
    }
    return tokens;
}

/* Search for the targets of the source in `input`, the first `count` tokens, after a prompt, the next `prompts`. beam: 1
   for greedy search. patience: as in `search_settings`. Returns for each finished hypothesis, best first: its length,
   negative if the limit ended it; its score; its tokens; their cumulative log-probabilities. A length of 0 is the end.
   NULL: a number is out of range, or a logit is not finite. */
EXPORT(search) int32_t *web_search(int32_t count, int32_t prompts, int32_t beam, int32_t limit, float patience) {
    top = after_model;
    if (count < 1 || prompts < 1 || limit < 1 || beam < 1 || beam > MAX_BEAM || 2 * beam > target_size) return NULL;
    if (count > longest || (int64_t)prompts - 1 + limit > longest || (int64_t)count + prompts > INPUTS) return NULL;
    const int64_t *ids = tokens_of(input, count, source_size), *prompt = tokens_of(input + count, prompts, target_size);
    if (!ids || !prompt) return NULL;
    int64_t begin = prompts - 1, end = begin + limit + 1, blocks = (target_size + settings.block - 1) / settings.block;
    read_source(ids, count);
    key_value_cache own = with_past(beam, end);
    if (begin) read_target(prompt, begin, &own);
    settings.beam = settings.nbest = beam, settings.candidates = beam > 1 ? 2 * beam : 1, settings.patience = patience;
    float divisor = settings.divisors[limit];
    sentence one = {.lane = {&own, 0, begin, 1, NULL}, .begin = begin, .limit = limit, .limit_divisor = &divisor};
    one.ancestors = take_integers(beam * end), one.spare = take_integers(beam * end);
    one.read_tokens = take_integers((limit + 1) * beam), one.read_log_probs = take_floats((limit + 1) * beam);
    one.totals = take_floats(beam), one.best = take_floats(beam), one.lengths = take_integers(beam);
    one.tokens = take_integers(beam * limit), one.log_probs = take_floats(beam * limit);
    one.finished_totals = take_floats(beam), one.coverage = take_floats(beam);
    memset(one.ancestors, 0, (char *)top - (char *)one.ancestors);
    for (int64_t k = 0; k < beam; k++) one.best[k] = -INFINITY;
    one.read_tokens[0] = prompt[begin];
    const lane *live[] = {&one.lane};
    int64_t most = end > own.source ? end : own.source;
    search_state search = {.step = {NULL, 1, 1, NULL, most}, .live = live, .group = beam};
    search.ranked = take((int64_t)sizeof *search.ranked * settings.candidates);
    search.own_tokens = take_integers(end), search.banned = take_integers(end), search.first = take_integers(beam);
    search.x = take_floats(beam * decoder.width), search.logits = take_floats(beam * target_size);
    search.maxima = take_floats(beam * blocks), search.sums = take_floats(beam), search.peaks = take_floats(beam);
    search.log_sums = take_floats(beam), search.workspace = take(translume_workspace(&decoder, beam, most, beam));
    translume_search(&settings, &search, limit);
    if (one.state != DONE) return NULL;
    int32_t *found = take(4 * (beam * (2 * limit + 2) + 1)), *to = found;
    for (int64_t place = 0; place < beam && one.lengths[place]; place++) {
        int64_t size = one.lengths[place] < 0 ? -one.lengths[place] : one.lengths[place];
        *to++ = (int32_t)one.lengths[place];
        memcpy(to++, one.best + place, 4);
        for (int64_t k = 0; k < size; k++) *to++ = (int32_t)one.tokens[place * limit + k];
        memcpy(to, one.log_probs + place * limit, 4 * size), to += size;
    }
    *to = 0;
    after_search = top;
    return found;
}

/* Read a target after the source of the last search: the first `prompts` tokens of `input`, and `count` that follow. For
   each of the latter return its log-probability, and the `listed` likeliest tokens in its place with theirs. NULL: a
   number is out of range. */
EXPORT(inspect) int32_t *web_inspect(int32_t prompts, int32_t count, int32_t listed) {
    top = after_search;
    int64_t rows = (int64_t)prompts + count - 1, size = target_size;
    if (!top || prompts < 1 || count < 1 || listed < 0 || listed > MAX_LISTED || listed > size) return NULL;
    const int64_t *tokens = rows < INPUTS && rows <= longest ? tokens_of(input, rows + 1, size) : NULL;
    if (!tokens) return NULL;
    key_value_cache own = with_past(1, rows);
    const float *x = read_target(tokens, rows, &own) + (prompts - 1) * decoder.width;
    int64_t blocks = (size + settings.block - 1) / settings.block;
    float *logits = take_floats(count * size), *maxima = take_floats(count * blocks), *numbers = take_floats(3 * count);
    float *peaks = numbers + count, *log_sums = peaks + count;
    refiner.hidden = x;
    linear_forward(&head, x, count, logits, 0, carve_quantized(count, head.inputs, take(quantized_bytes(count, head.inputs))));
    translume_summarize(logits, count, size, settings.block, settings.unshifted_limit, &refiner, maxima,
                        take_integers(count), numbers, peaks, log_sums);
    int32_t *found = take(4 * count * (1 + 2 * listed)), *to = found;
    for (int64_t row = 0; row < count; row++, logits += size, to += 2 * listed) {
        candidate best[MAX_LISTED + 1];
        int64_t there = 0;
#define LOG_PROB(token) ((logits[token] - peaks[row]) - log_sums[row])
        for (int64_t token = 0; token < size; token++)
            if (there < listed || (listed && logits[token] > best[there - 1].total))
                insert_candidate(best, &there, listed, (candidate){logits[token], logits[token], token, 0});
        float log_prob = LOG_PROB(tokens[prompts + row]);
        memcpy(to++, &log_prob, 4);
        for (int64_t k = 0; k < there; k++) {
            log_prob = LOG_PROB(best[k].token), to[k] = (int32_t)best[k].token;
            memcpy(to + listed + k, &log_prob, 4);
        }
#undef LOG_PROB
    }
    return found;
}
