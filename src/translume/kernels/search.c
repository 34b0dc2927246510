/* Greedy and beam search of a batch.

   The result equals that of the decoding loop in Python, bit for bit, with the same order of summation, ties and
   finished hypotheses. Tokens and log-probabilities of hypotheses are never moved: like keys and values, they are
   looked up through `ancestors`. */

#include "logits.h"
#include "stack.h"

/* The model and the settings of a search; B sentences, K hypotheses each, V tokens. */
typedef struct {
    const stack *stack;
    const linear *head;
    refinement *refinement;            /* for int8 heads, `hidden` is set here; NULL: none */
    const float *table, *positions;    /* embeddings [V, D], multiplied by `scale`; positions [capacity, D] or NULL */
    float scale, unshifted_limit;
    int64_t vocabulary, block, eos;
    const int64_t *forbidden;          /* [forbidden_count]: tokens that are never generated */
    int64_t forbidden_count, min_length; /* eos is forbidden before min_length tokens */
    int64_t beam, candidates, nbest;   /* K; candidates ranked; finished hypotheses kept */
    float patience;                    /* finished hypotheses that end a sentence; 0: end when none can improve */
    const float *divisors;             /* [longest + 2], divisors of the length penalty by length */
    const float *limit_divisors;       /* [B], the divisor at each sentence's length limit */
    const int64_t *limits;             /* [B] */
} search_settings;

typedef struct {
    float total, logit;
    int64_t token, parent;
} candidate;

/* The state of a search. Unfinished ("live") sentences come first; `slots` has their indices. n: rows of a group. */
typedef struct {
    step_input step;
    int64_t sentences, length;         /* B; tokens of live hypotheses */
    int64_t longest, capacity;         /* largest limit; positions in the cache */
    int64_t *slots;                    /* [B] */
    int64_t *ancestors, *spare;        /* [live, K, length + 1], each allocated for [B, K, longest + 1] */
    int64_t *read_tokens;              /* [longest + 1, B, K], the token that each hypothesis reads at each position */
    float *read_log_probs;             /* [longest + 1, B, K], the log-probability of the hypothesis up to that token */
    float *totals;                     /* [live, K], log-probabilities; -INFINITY: no hypothesis */
    candidate *ranked;                 /* [candidates], of one sentence at a time, best first */
    float *best;                       /* [B, nbest], scores of finished hypotheses, best first */
    int64_t *finished;                 /* [B], number of finished hypotheses */
    int64_t *lengths;                  /* [B, nbest], 0: none; negative: ended by the length limit */
    int64_t *tokens;                   /* [B, nbest, longest] */
    float *log_probs;                  /* [B, nbest, longest], cumulative */
    int64_t group;                     /* sentences whose logits are computed at a time */
    float *x, *logits, *maxima, *sums, *peaks, *log_sums; /* [N, D], [n, V], [n, blocks], [n] */
    int64_t *first;                    /* [n] */
    char *workspace;
} search_state;

enum { FINISHED, CACHE_FULL, PAUSED, NOT_FINITE };

/* Insert `new` into the best `limit` candidates. Ties of one parent are ordered by logit, others by arrival. */
static void insert_candidate(candidate *ranked, int64_t *count, int64_t limit, candidate new) {
    int64_t position = *count;
    while (position > 0) {
        const candidate *other = ranked + position - 1;
        if (!(new.total > other->total ||
              (new.total == other->total && new.parent == other->parent && new.logit > other->logit)))
            break;
        position--;
    }
    if (position >= limit) return;
    if (*count < limit) ++*count;
    memmove(ranked + position + 1, ranked + position, (*count - position - 1) * sizeof *ranked);
    ranked[position] = new;
}

static int is_forbidden(const search_settings *settings, int64_t token, int64_t length) {
    if (token == settings->eos) return length < settings->min_length;
    for (int64_t k = 0; k < settings->forbidden_count; k++)
        if (settings->forbidden[k] == token) return 1;
    return 0;
}

/* Add the continuations of hypothesis `parent`, whose logits are row `row`, to the ranked candidates. before: the
   log-probability of the hypothesis. */
static void rank_continuations(const search_settings *settings, const search_state *search, int64_t row,
                               int64_t parent, float before, int64_t *count) {
    candidate *ranked = search->ranked;
    const float *logits = search->logits + row * settings->vocabulary, peak = search->peaks[row],
        rest = search->log_sums[row];
    const float *maxima = search->maxima + row * ((settings->vocabulary + settings->block - 1) / settings->block);
#define TOTAL(logit) ((((logit) - peak) - rest) + before)
    for (int64_t first = 0; first < settings->vocabulary; first += settings->block, maxima++) {
        if (*count == settings->candidates && TOTAL(*maxima) < ranked[*count - 1].total) continue;
        int64_t end = first + settings->block < settings->vocabulary ? first + settings->block : settings->vocabulary;
        for (int64_t start = first; start < end; start += LANES) {
            int64_t stop = start + LANES < end ? start + LANES : end;
            if (*count == settings->candidates && stop - start == LANES &&
                !any_lane(TOTAL(load(logits + start)) >= broadcast(ranked[*count - 1].total)))
                continue;
            for (int64_t token = start; token < stop; token++) {
                float total = TOTAL(logits[token]);
                if (*count == settings->candidates && total < ranked[*count - 1].total) continue;
                if (total == -INFINITY || is_forbidden(settings, token, search->length)) continue;
                insert_candidate(ranked, count, settings->candidates, (candidate){total, logits[token], token, parent});
            }
        }
    }
#undef TOTAL
}

/* Store a finished hypothesis of a sentence. ancestors: those of its parent. last: its last token. limited: whether the
   length limit ended it. */
static void add_finished(const search_settings *settings, search_state *search, int64_t sentence,
                         const int64_t *ancestors, candidate last, int limited) {
    int64_t length = search->length + 1, position = settings->nbest,
        *lengths = search->lengths + sentence * settings->nbest;
    float score = last.total / settings->divisors[length], *best = search->best + sentence * settings->nbest;
    search->finished[sentence]++;
    /* a score may be -INFINITY */
    while (position > 0 && (!lengths[position - 1] || score > best[position - 1])) position--;
    if (position == settings->nbest) return;
    int64_t *tokens = search->tokens + sentence * settings->nbest * search->longest;
    float *log_probs = search->log_probs + sentence * settings->nbest * search->longest;
    int64_t moved = settings->nbest - position - 1;
    memmove(best + position + 1, best + position, moved * sizeof *best);
    memmove(lengths + position + 1, lengths + position, moved * sizeof *lengths);
    tokens += position * search->longest, log_probs += position * search->longest;
    memmove(tokens + search->longest, tokens, moved * search->longest * sizeof *tokens);
    memmove(log_probs + search->longest, log_probs, moved * search->longest * sizeof *log_probs);
    best[position] = score, lengths[position] = limited ? -length : length;
    int64_t rows = search->sentences * settings->beam;
    for (int64_t k = 1; k < length; k++) {
        int64_t index = k * rows + sentence * settings->beam + (settings->beam > 1 ? ancestors[k] : 0);
        tokens[k - 1] = search->read_tokens[index], log_probs[k - 1] = search->read_log_probs[index];
    }
    tokens[length - 1] = last.token, log_probs[length - 1] = last.total;
}

/* Embed the tokens, times the scale. A separate function, so that the compiler cannot fuse the product with the sum of
   positions: the decoding loop rounds in between. */
static __attribute__((noinline)) void embed_tokens(const search_settings *settings, const search_state *search,
                                                   int64_t beam) {
    int64_t inputs = settings->stack->width;
    float *x = search->x;
    const int64_t *read_tokens = search->read_tokens + search->length * search->sentences * settings->beam;
    for (int64_t row = 0; row < search->step.sentences * beam; row++)
        for (int64_t k = 0; k < inputs; k += LANES, x += LANES)
            store(x, load(settings->table + read_tokens[search->slots[row / beam] * settings->beam + row % beam] *
                          inputs + k) * settings->scale);
}

static __attribute__((noinline)) void add_positions(const search_settings *settings, const search_state *search,
                                                    int64_t rows) {
    int64_t inputs = settings->stack->width;
    const float *position = settings->positions + search->length * inputs;
    for (float *x = search->x; x < search->x + rows * inputs; x += inputs)
        for (int64_t k = 0; k < inputs; k += LANES) store(x + k, load(x + k) + load(position + k));
}

/* Return whether further steps cannot change the result of a sentence. best: the largest log-probability of its live
   hypotheses. */
static int is_done(const search_settings *settings, const search_state *search, int64_t sentence, float best,
                   int64_t length) {
    if (best == -INFINITY || settings->limits[sentence] == length) return 1;
    if (settings->beam == 1) return search->finished[sentence] > 0;
    if (settings->patience > 0) return (float)search->finished[sentence] >= settings->patience;
    float sooner = best / settings->divisors[length + 1], later = best / settings->limit_divisors[sentence];
    return (sooner > later ? sooner : later) <= search->best[(sentence + 1) * settings->nbest - 1];
}

/* Extend the hypotheses of live sentence `live`, whose logits begin at `row`, and store them as live sentence `next`.
   Returns 1 if it continues, 0 if it is done, -1 if it is done without a finished hypothesis. */
static int64_t advance_sentence(const search_settings *settings, search_state *search, int64_t live, int64_t next,
                                int64_t row) {
    int64_t beam = search->step.beam, sentence = search->slots[live], length = search->length + 1, count = 0, going = 0;
    const float *total = search->totals + live * settings->beam;
    const int64_t *ancestors = search->ancestors + live * beam * length;
    candidate *ranked = search->ranked;
    for (int64_t k = 0; k < beam; k++)
        if (total[k] != -INFINITY) rank_continuations(settings, search, row + k, k, total[k], &count);
    for (int64_t k = 0; k < count; k++) {
        if (ranked[k].token != settings->eos) {
            if (going < settings->beam) ranked[going++] = ranked[k];
        } else if (k < settings->beam)
            add_finished(settings, search, sentence, ancestors + ranked[k].parent * length, ranked[k], 0);
    }
    if (settings->limits[sentence] == length)
        for (int64_t k = 0; k < going; k++)
            add_finished(settings, search, sentence, ancestors + ranked[k].parent * length, ranked[k], 1);
    if (is_done(settings, search, sentence, going ? ranked[0].total : -INFINITY, length))
        return search->finished[sentence] ? 0 : -1;
    int64_t own = (length * search->sentences + sentence) * settings->beam;
    search->slots[next] = sentence;
    for (int64_t k = 0; k < settings->beam; k++) {
        candidate next_token = k < going ? ranked[k] : (candidate){-INFINITY, 0, 0, 0};
        search->read_tokens[own + k] = next_token.token, search->read_log_probs[own + k] = next_token.total,
            search->totals[next * settings->beam + k] = next_token.total;
        if (settings->beam == 1) continue;
        int64_t *path = search->spare + (next * settings->beam + k) * (length + 1);
        memcpy(path, ancestors + next_token.parent * length, length * sizeof *path);
        path[length] = k;
    }
    return 1;
}

/* Compute the logits of some rows and their statistics. Returns whether some logits are not finite. */
static int compute_logits(const search_settings *settings, search_state *search, int64_t first, int64_t rows) {
    const float *x = search->x + first * settings->stack->width;
    int64_t inputs = settings->head->inputs;
    quantized bytes = {(int8_t *)search->workspace, (float *)(search->workspace + aligned(rows * inputs)),
                       (int32_t *)(search->workspace + aligned(rows * inputs) + aligned(4 * rows))};
    linear_forward(settings->head, x, rows, search->logits, 0, bytes);
    if (settings->refinement) settings->refinement->hidden = x;
    return translume_summarize(search->logits, rows, settings->vocabulary, settings->block,
                               settings->unshifted_limit, settings->refinement, search->maxima, search->first,
                               search->sums, search->peaks, search->log_sums) != 0;
}

/* Run up to `steps` steps. Returns FINISHED if no sentence is left, CACHE_FULL if the cache must grow first, PAUSED
   after `steps`, NOT_FINITE where the decoding loop would raise an error. */
int64_t translume_search(const search_settings *settings, search_state *search, int64_t steps) {
    for (; steps > 0; steps--) {
        int64_t beam = search->length ? settings->beam : 1, live = search->step.sentences, rows = live * beam, next = 0;
        if (!live) return FINISHED;
        if (search->length == search->capacity) return CACHE_FULL;
        search->step.beam = beam, search->step.position = search->length, search->step.count = 1;
        search->step.slots = search->slots, search->step.ancestors = beam > 1 ? search->ancestors : NULL;
        embed_tokens(settings, search, beam);
        if (settings->positions) add_positions(settings, search, rows);
        translume_step(settings->stack, &search->step, search->x, search->workspace);
        for (int64_t first = 0; first < live; first += search->group) {
            int64_t last = first + search->group < live ? first + search->group : live;
            if (compute_logits(settings, search, first * beam, (last - first) * beam)) return NOT_FINITE;
            for (int64_t sentence = first; sentence < last; sentence++) {
                int64_t stays = advance_sentence(settings, search, sentence, next, (sentence - first) * beam);
                if (stays < 0) return NOT_FINITE;
                next += stays;
            }
        }
        int64_t *ancestors = search->ancestors;
        search->ancestors = search->spare, search->spare = ancestors;
        search->step.sentences = next, search->length++;
    }
    return search->step.sentences ? PAUSED : FINISHED;
}
