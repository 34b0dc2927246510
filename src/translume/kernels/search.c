/* Greedy search, beam search and sampling of sentences that enter and leave independently of each other.

   The result equals that of the decoding loop in Python, bit for bit, with the same order of summation, ties and
   finished hypotheses. Tokens and log-probabilities of hypotheses are never moved: like keys and values, they are
   looked up through `ancestors`. */

#include <float.h>

#include "copying.h"
#include "draft.h"
#include "logits.h"
#include "rules.h"
#include "sampling.h"
#include "stack.h"

/* The model and the settings of a search; K hypotheses per sentence, V tokens. */
typedef struct {
    const stack *stack;
    const linear *head;
    refinement *refinement;            /* for int8 heads, `hidden` is set here; NULL: none */
    const copy_gate *copying;          /* NULL: nothing is copied */
    const float *table, *positions;    /* embeddings [V, D], multiplied by `scale`; positions [capacity, D] or NULL */
    float scale, unshifted_limit;
    int64_t vocabulary, block, eos;
    const rules *rules;
    const sampling *sampling;          /* NULL: no sampling */
    double coverage;                   /* weight of the coverage penalty; 0: none */
    int64_t beam, candidates, nbest;   /* K; candidates ranked; finished hypotheses kept */
    float patience;                    /* finished hypotheses that end a sentence; 0: end when none can improve */
    const float *divisors;             /* [largest limit + 2], divisors of the length penalty by length */
} search_settings;

typedef struct {
    float total, logit; /* with what the rules add */
    int64_t token, parent;
} candidate;

enum { LIVE, DONE, FAILED }; /* FAILED: where the decoding loop would raise an error */

/* A sentence of a search. */
typedef struct {
    lane lane;                 /* first, so that the lanes of a step are sentences; `position`: of the next token */
    int64_t begin;             /* position of the first token that the search reads; a prompt stands before it */
    int64_t limit, state;      /* maximum length of a hypothesis */
    int64_t key;               /* for the random numbers of sampling */
    int64_t forced;            /* whether the target begins with the forced text of the rules */
    const copy_source *copied; /* NULL: nothing is copied */
    draft *draft;              /* used while no other sentence is live and K = 1; NULL: none */
    const float *limit_divisor; /* the length penalty's divisor at the limit */
    int64_t *ancestors, *spare; /* lane.ancestors is one of them; each allocated for [K, begin + limit + 1] */
    int64_t *read_tokens;      /* [limit + 1, K], the token that each hypothesis reads at position `begin` and later */
    float *read_log_probs;     /* [limit + 1, K], the log-probability of the hypothesis up to that token */
    int32_t *phrase_states;    /* [limit + 1, K], of the automaton of banned phrases after that token; NULL: none */
    float *totals;             /* [K], log-probabilities of live hypotheses with what the rules added; -INFINITY: no
                                  hypothesis */
    float *attended, *spare_attended; /* [K, S], sums of attention to the source, 1 at padding; NULL without coverage */
    int64_t finished;          /* number of finished hypotheses */
    float *best;               /* [nbest], scores of finished hypotheses, best first */
    int64_t *lengths;          /* [nbest], 0: none; negative: ended by the length limit */
    int64_t *tokens;           /* [nbest, limit] */
    float *log_probs;          /* [nbest, limit], cumulative, without what the rules added */
    float *finished_totals;    /* [nbest], log-probabilities with it */
    float *coverage;           /* [nbest], the coverage penalty in their scores */
} sentence;

/* The live sentences of a search and its buffers. n: rows whose logits are computed at a time, at least K, and at least
   one more than a draft's tokens. */
typedef struct {
    step_input step;                   /* its lanes are `live` */
    const lane **live;
    int64_t group;                     /* n */
    candidate *ranked;                 /* [candidates], of one sentence at a time, best first */
    choices choices;                   /* of one row, for sampling */
    known_phrases known;               /* of sampling with banned phrases */
    int64_t *own_tokens, *banned;      /* [largest limit + 1], of the hypothesis whose next token is chosen: rules.h */
    float *x, *logits, *maxima, *sums, *peaks, *log_sums; /* [N, D], [n, V], [n, blocks], [n] */
    int64_t *first;                    /* [n] */
    float *shares;                     /* [longest source], for copying */
    char *workspace;
} search_state;

INLINE sentence *live_sentence(const search_state *search, int64_t number) { return (sentence *)search->live[number]; }

/* Return the number of tokens of the live hypotheses. */
INLINE int64_t live_length(const sentence *sentence) { return sentence->lane.position - sentence->begin; }

/* Return where token k >= 1 of a hypothesis is in read_tokens and read_log_probs. ancestors: of the hypothesis. */
INLINE int64_t read_index(const search_settings *settings, const sentence *sentence, const int64_t *ancestors,
                          int64_t k) {
    return k * settings->beam + (settings->beam > 1 ? ancestors[sentence->begin + k] : 0);
}

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

/* Return the log-probability of hypothesis `parent` of a sentence with one more token. row: of its logits. */
static float log_prob_with(const search_settings *settings, const search_state *search, const sentence *sentence,
                           int64_t row, int64_t parent, int64_t token) {
    float before = sentence->read_log_probs[live_length(sentence) * settings->beam + parent];
    return ((search->logits[row * settings->vocabulary + token] - search->peaks[row]) - search->log_sums[row]) + before;
}

/* Copy the tokens of a hypothesis. ancestors: its own. */
static void copy_tokens(const search_settings *settings, const sentence *sentence, const int64_t *ancestors,
                        int64_t *tokens) {
    for (int64_t k = 1; k <= live_length(sentence); k++)
        tokens[k - 1] = sentence->read_tokens[read_index(settings, sentence, ancestors, k)];
}

/* Return live hypothesis `number` of a sentence as the rules read it. */
static hypothesis hypothesis_of(const search_settings *settings, const search_state *search, const sentence *sentence,
                                int64_t number) {
    hypothesis text = {search->own_tokens, live_length(sentence), search->banned, 0, 0, sentence->limit,
                       sentence->forced};
    if (reads_tokens(settings->rules, text.length)) {
        copy_tokens(settings, sentence, sentence->ancestors + number * (sentence->lane.position + 1),
                    search->own_tokens);
        find_repeated_ngrams(settings->rules, &text);
    }
    if (sentence->phrase_states) text.state = sentence->phrase_states[text.length * settings->beam + number];
    return text;
}

/* Return the state of the automaton of banned phrases after hypothesis `parent` of a sentence and one more token.
   ancestors: of the hypothesis. */
static int32_t phrase_state_with(const search_settings *settings, const search_state *search, const sentence *sentence,
                                 const int64_t *ancestors, int64_t parent, int64_t token) {
    int64_t length = live_length(sentence);
    int32_t before = sentence->phrase_states[length * settings->beam + parent];
    int32_t state = phrase_state(settings->rules, before, token);
    if (state != PHRASE_FOUND) return state;
    copy_tokens(settings, sentence, ancestors, search->own_tokens);
    search->own_tokens[length] = token;
    return phrase_state_of_end(settings->rules, search->own_tokens, length + 1);
}

/* Add the continuations of hypothesis `parent`, whose logits are row `row`, to the ranked candidates. before: the total
   of the hypothesis. Rules only lower logits, so they are applied only to tokens that would become candidates. */
static void rank_continuations(const search_settings *settings, const search_state *search, const sentence *sentence,
                               int64_t row, int64_t parent, float before, int64_t *count) {
    candidate *ranked = search->ranked;
    const float *logits = search->logits + row * settings->vocabulary, peak = search->peaks[row],
        rest = search->log_sums[row];
    const float *maxima = search->maxima + row * ((settings->vocabulary + settings->block - 1) / settings->block);
    hypothesis text = hypothesis_of(settings, search, sentence, parent);
    int64_t choice, end_of_choices;
#define TOTAL(logit) ((((logit) - peak) - rest) + before)
#define ADD(token) do { \
        float logit = logits[token] + rule_bias(settings->rules, &text, token), total = TOTAL(logit); \
        if (total != -INFINITY && (*count < settings->candidates || total >= ranked[*count - 1].total)) \
            insert_candidate(ranked, count, settings->candidates, (candidate){total, logit, token, parent}); \
    } while (0)
    if (forced_choices(settings->rules, &text, &choice, &end_of_choices)) {
        for (; choice < end_of_choices; choice++)
            if (text.length + 1 + settings->rules->choices_left[choice] <= text.limit)
                ADD(settings->rules->choices[choice]);
        return;
    }
    for (int64_t first = 0; first < settings->vocabulary; first += settings->block, maxima++) {
        if (*count == settings->candidates && TOTAL(*maxima) < ranked[*count - 1].total) continue;
        int64_t end = first + settings->block < settings->vocabulary ? first + settings->block : settings->vocabulary;
        for (int64_t start = first; start < end; start += LANES) {
            int64_t stop = start + LANES < end ? start + LANES : end;
            if (*count == settings->candidates && stop - start == LANES &&
                !any_lane(TOTAL(load(logits + start)) >= broadcast(ranked[*count - 1].total)))
                continue;
            for (int64_t token = start; token < stop; token++)
                if (*count < settings->candidates || TOTAL(logits[token]) >= ranked[*count - 1].total) ADD(token);
        }
    }
#undef ADD
#undef TOTAL
}

/* Draw a token for each of the K samples of a sentence, whose logits begin at `row`, as candidates in order of samples;
   the total of a sample without a possible token is -INFINITY. Before the first token all samples share a row. */
static void draw_samples(const search_settings *settings, search_state *search, const sentence *sentence, int64_t row) {
    const sampling *sampling = settings->sampling;
    int64_t size = settings->vocabulary, possible = 0;
    hypothesis text = {0};
    for (int64_t sample = 0; sample < settings->beam; sample++) {
        int64_t parent = sentence->lane.beam > 1 ? sample : 0, own = row + parent;
        const float *logits = search->logits + own * size, peak = search->peaks[own], log_sum = search->log_sums[own];
        candidate *drawn = search->ranked + sample;
        *drawn = (candidate){-INFINITY, 0, 0, parent};
        if (sentence->totals[parent] == -INFINITY) continue;
        if (!sample || parent) {
            text = hypothesis_of(settings, search, sentence, parent);
            copy_scores(sampling, logits, size, search->maxima + own * search->choices.blocks, peak, log_sum,
                        &search->choices);
            apply_rules(settings->rules, &text, size, &search->known, search->choices.x);
            possible = find_choices(sampling, peak, log_sum, &search->choices);
        }
        if (!possible) continue;
        drawn->token = draw_token(&search->choices, uniform(sampling->seed, sentence->key, sample, text.length));
        float added = rule_bias(settings->rules, &text, drawn->token);
        drawn->total = sentence->totals[parent] + (((logits[drawn->token] - peak) - log_sum) + added);
    }
}

/* Return the coverage penalty of a hypothesis: beta times the sum of log(min(attended, 1)). */
static float coverage_of(const search_settings *settings, const sentence *sentence, int64_t number) {
    int64_t source = sentence->lane.cache->source;
    const float *attended = sentence->attended + number * source;
    double sum = 0;
    if (!settings->coverage) return 0;
    for (int64_t k = 0; k < source; k++) {
        float share = attended[k] < FLT_MIN ? FLT_MIN : attended[k];
        if (share < 1) sum += log((double)share);
    }
    return (float)(settings->coverage * sum);
}

/* Add the attention of the last step, [rows, attention_width], to that of the hypotheses of a sentence. */
static void add_attended(const search_state *search, const sentence *sentence, const float *attention) {
    int64_t source = sentence->lane.cache->source;
    for (int64_t k = 0; k < sentence->lane.beam; k++, attention += search->step.attention_width)
        for (int64_t place = 0; place < source; place++) sentence->attended[k * source + place] += attention[place];
}

/* Store a finished hypothesis of a sentence. ancestors: those of its parent. last: its last token. log_prob: of the
   hypothesis. limited: whether the length limit ended it. */
static void add_finished(const search_settings *settings, sentence *sentence, const int64_t *ancestors, candidate last,
                         float log_prob, int limited) {
    int64_t length = live_length(sentence) + 1, limit = sentence->limit, place = settings->nbest,
        *lengths = sentence->lengths;
    float covered = coverage_of(settings, sentence, last.parent), *coverage = sentence->coverage;
    float score = last.total / settings->divisors[length] + covered, *best = sentence->best,
        *totals = sentence->finished_totals;
    sentence->finished++;
    /* a score may be -INFINITY */
    while (place > 0 && (!lengths[place - 1] || score > best[place - 1])) place--;
    if (place == settings->nbest) return;
    int64_t *tokens = sentence->tokens + place * limit, moved = settings->nbest - place - 1;
    float *log_probs = sentence->log_probs + place * limit;
    memmove(best + place + 1, best + place, moved * sizeof *best);
    memmove(totals + place + 1, totals + place, moved * sizeof *totals);
    memmove(coverage + place + 1, coverage + place, moved * sizeof *coverage);
    memmove(lengths + place + 1, lengths + place, moved * sizeof *lengths);
    memmove(tokens + limit, tokens, moved * limit * sizeof *tokens);
    memmove(log_probs + limit, log_probs, moved * limit * sizeof *log_probs);
    best[place] = score, totals[place] = last.total, coverage[place] = covered, lengths[place] = limited ? -length : length;
    for (int64_t k = 1; k < length; k++) {
        int64_t index = read_index(settings, sentence, ancestors, k);
        tokens[k - 1] = sentence->read_tokens[index], log_probs[k - 1] = sentence->read_log_probs[index];
    }
    tokens[length - 1] = last.token, log_probs[length - 1] = log_prob;
}

/* Embed the tokens that are read, drafts among them, times the scale. A separate function, so that the compiler cannot fuse the product
   with the sum of positions: the decoding loop rounds in between. */
static __attribute__((noinline)) void embed_tokens(const search_settings *settings, const search_state *search) {
    int64_t inputs = settings->stack->width;
    float *x = search->x;
    for (int64_t number = 0; number < search->step.sentences; number++) {
        const sentence *sentence = live_sentence(search, number);
        const int64_t *tokens = sentence->read_tokens + live_length(sentence) * settings->beam;
        for (int64_t row = 0; row < sentence->lane.beam * search->step.count; row++) {
            int64_t token = row < sentence->lane.beam ? tokens[row] : sentence->draft->tokens[row - 1];
            for (int64_t k = 0; k < inputs; k += LANES, x += LANES)
                store(x, load(settings->table + token * inputs + k) * settings->scale);
        }
    }
}

static __attribute__((noinline)) void add_positions(const search_settings *settings, const search_state *search) {
    int64_t inputs = settings->stack->width;
    float *x = search->x;
    for (int64_t number = 0; number < search->step.sentences; number++) {
        const lane *lane = search->live[number];
        const float *first = settings->positions + lane->position * inputs;
        for (int64_t row = 0; row < lane->beam * search->step.count; row++) {
            const float *position = first + row / lane->beam * inputs;
            for (int64_t k = 0; k < inputs; k += LANES, x += LANES) store(x, load(x) + load(position + k));
        }
    }
}

/* Return whether further steps cannot change the result of a sentence. best: the largest log-probability of its live
   hypotheses. */
static int is_done(const search_settings *settings, const sentence *sentence, float best, int64_t length) {
    if (best == -INFINITY || sentence->limit == length) return 1;
    if (settings->beam == 1) return sentence->finished > 0;
    if (settings->patience > 0) return (float)sentence->finished >= settings->patience;
    float sooner = best / settings->divisors[length + 1], later = best / *sentence->limit_divisor;
    return (sooner > later ? sooner : later) <= sentence->best[settings->nbest - 1];
}

/* Return whether the logits of some rows are numbers. */
static int are_finite(const search_state *search, int64_t row, int64_t rows) {
    for (int64_t last = row + rows; row < last; row++)
        if (!(search->peaks[row] - search->peaks[row] == 0 && search->sums[row] == search->sums[row])) return 0;
    return 1;
}

/* Extend the hypotheses of a sentence, whose logits begin at `row`. Its state says whether it continues. */
static void advance_sentence(const search_settings *settings, search_state *search, sentence *sentence, int64_t row) {
    int64_t beam = sentence->lane.beam, length = live_length(sentence) + 1, end = sentence->lane.position + 1, count = 0,
            going = 0;
    const int64_t *ancestors = sentence->ancestors;
    candidate *ranked = search->ranked;
    float best = -INFINITY;
    if (!are_finite(search, row, beam)) {
        sentence->state = FAILED;
        return;
    }
    if (settings->sampling) draw_samples(settings, search, sentence, row), count = settings->beam;
    for (int64_t k = 0; k < beam && !settings->sampling; k++)
        if (sentence->totals[k] != -INFINITY)
            rank_continuations(settings, search, sentence, row + k, k, sentence->totals[k], &count);
#define LOG_PROB(next) log_prob_with(settings, search, sentence, row + (next).parent, (next).parent, (next).token)
    for (int64_t k = 0; k < count; k++) {
        if (ranked[k].token != settings->eos || ranked[k].total == -INFINITY) {
            if (going < settings->beam) ranked[going++] = ranked[k];
        } else if (k < settings->beam)
            add_finished(settings, sentence, ancestors + ranked[k].parent * end, ranked[k], LOG_PROB(ranked[k]), 0);
    }
    if (sentence->limit == length)
        for (int64_t k = 0; k < going; k++)
            if (ranked[k].total != -INFINITY)
                add_finished(settings, sentence, ancestors + ranked[k].parent * end, ranked[k], LOG_PROB(ranked[k]), 1);
    for (int64_t k = 0; k < going; k++) best = ranked[k].total > best ? ranked[k].total : best;
    if (is_done(settings, sentence, best, length)) {
        sentence->state = sentence->finished ? DONE : FAILED;
        return;
    }
    for (int64_t k = 0; k < settings->beam; k++) {
        candidate next = k < going ? ranked[k] : (candidate){-INFINITY, 0, 0, 0};
        int64_t index = length * settings->beam + k;
        sentence->read_tokens[index] = next.token, sentence->totals[k] = next.total;
        int lives = next.total != -INFINITY;
        if (lives) sentence->read_log_probs[index] = LOG_PROB(next);
        if (lives && sentence->phrase_states)
            sentence->phrase_states[index] = phrase_state_with(settings, search, sentence, ancestors + next.parent * end,
                                                               next.parent, next.token);
        if (settings->beam == 1) continue;
        if (settings->coverage) {
            int64_t source = sentence->lane.cache->source;
            memcpy(sentence->spare_attended + k * source, sentence->attended + next.parent * source,
                   source * sizeof *sentence->attended);
        }
        int64_t *path = sentence->spare + k * (end + 1);
        memcpy(path, ancestors + next.parent * end, end * sizeof *path);
        path[end] = k;
    }
#undef LOG_PROB
    if (settings->beam > 1) {
        sentence->ancestors = sentence->spare, sentence->spare = (int64_t *)ancestors;
        sentence->lane.ancestors = sentence->ancestors;
        float *attended = sentence->attended;
        sentence->attended = sentence->spare_attended, sentence->spare_attended = attended;
    }
    sentence->lane.beam = settings->beam, sentence->lane.position++;
}

/* Compute the logits of some rows and their statistics. */
static void compute_logits(const search_settings *settings, search_state *search, int64_t first, int64_t rows) {
    const float *x = search->x + first * settings->stack->width;
    linear_forward(settings->head, x, rows, search->logits, 0,
                   carve_quantized(rows, settings->head->inputs, search->workspace));
    if (settings->refinement) settings->refinement->hidden = x;
    translume_summarize(search->logits, rows, settings->vocabulary, settings->block, settings->unshifted_limit,
                        settings->refinement, search->maxima, search->first, search->sums, search->peaks,
                        search->log_sums);
}

/* Add what a sentence copies to its logits, which begin at `row`, after the hidden states x [K, D]. */
static void copy_source_tokens(const search_settings *settings, search_state *search, const sentence *sentence, int64_t row,
                               const float *x) {
    int64_t size = settings->vocabulary, blocks = (size + settings->block - 1) / settings->block;
    for (int64_t last = row + sentence->lane.beam; row < last; row++, x += settings->stack->width) {
        row_logits own = {search->logits + row * size, search->maxima + row * blocks, settings->block, search->first + row,
                          search->sums + row, search->peaks + row, search->log_sums + row};
        add_copies(settings->copying, sentence->copied, x, own, search->shares);
    }
}

/* Let the draft of the only live sentence guess tokens; return their number. */
static int64_t guess_next_tokens(const search_settings *settings, const search_state *search) {
    const sentence *only = live_sentence(search, 0);
    const lane *lane = &only->lane;
    if (search->step.sentences > 1 || settings->beam > 1 || settings->coverage || !only->draft) return 0;
    int64_t room = lane->cache->capacity - lane->position, left = only->limit - live_length(only);
    int64_t most = (room < left ? room : left) - 1, count = only->draft->count;
    return guess_tokens(only->draft, only->read_tokens, only->begin, lane->position, most < count ? most : count);
}

/* Take up to `steps` steps, in each of which all live sentences read a token, and what a draft guessed after it.
   Sentences that are done leave. Returns the number of steps taken: fewer if no sentence is left, or if a cache must
   grow first. */
int64_t translume_search(const search_settings *settings, search_state *search, int64_t steps) {
    int64_t taken = 0;
    for (; taken < steps && search->step.sentences; taken++) {
        int64_t live = search->step.sentences, left = 0;
        search->step.lanes = search->live, search->step.count = 1;
        for (int64_t number = 0; number < live; number++)
            if (search->live[number]->position == search->live[number]->cache->capacity) return taken;
        int64_t guessed = guess_next_tokens(settings, search);
        search->step.count += guessed;
        embed_tokens(settings, search);
        if (settings->positions) add_positions(settings, search);
        translume_step(settings->stack, &search->step, search->x, search->workspace);
        for (int64_t first = 0, last = 0, begin = 0; first < live; first = last) {
            int64_t rows = 0, row = 0;
            for (; last < live && (last == first || rows + search->live[last]->beam <= search->group); last++)
                rows += search->live[last]->beam;
            compute_logits(settings, search, begin, rows + guessed);
            for (int64_t number = first; number < last; number++) {
                sentence *sentence = live_sentence(search, number);
                int64_t own = sentence->lane.beam;
                if (settings->coverage)
                    add_attended(search, sentence, search->step.attention + (begin + row) * search->step.attention_width);
                if (settings->copying)
                    copy_source_tokens(settings, search, sentence, row, search->x + (begin + row) * settings->stack->width);
                advance_sentence(settings, search, sentence, row);
                for (int64_t k = 0; k < guessed && sentence->state == LIVE; k++) {
                    if (sentence->read_tokens[live_length(sentence)] != sentence->draft->tokens[k]) break;
                    if (settings->copying)
                        copy_source_tokens(settings, search, sentence, k + 1, search->x + (k + 1) * settings->stack->width);
                    advance_sentence(settings, search, sentence, k + 1);
                }
                if (sentence->state == LIVE) search->live[left++] = &sentence->lane;
                row += own;
            }
            begin += rows;
        }
        search->step.sentences = left;
    }
    return taken;
}

/* Write the tokens with which the best hypothesis of a sentence is certain to begin; return their number. They are
   common to all live hypotheses and to the best finished one, or to all finished ones if `all`. */
int64_t translume_stable_prefix(const search_settings *settings, const sentence *sentence, int64_t all,
                                int64_t *tokens) {
    int64_t end = sentence->lane.position + 1, length = -1;
#define SHARE(size, token) do { \
        int64_t shared = 0; \
        for (; shared < (size) && (length < 0 || shared < length); shared++) { \
            if (length < 0) tokens[shared] = (token); \
            else if (tokens[shared] != (token)) break; \
        } \
        length = shared; \
    } while (0)
    for (int64_t place = 0; place < (all ? settings->nbest : 1) && sentence->lengths[place]; place++) {
        const int64_t *own = sentence->tokens + place * sentence->limit;
        int64_t size = sentence->lengths[place] < 0 ? -sentence->lengths[place] : sentence->lengths[place];
        SHARE(size, own[shared]);
    }
    for (int64_t k = 0; sentence->state == LIVE && k < sentence->lane.beam; k++) {
        const int64_t *path = sentence->ancestors + k * end;
        if (sentence->totals[k] != -INFINITY)
            SHARE(live_length(sentence), sentence->read_tokens[read_index(settings, sentence, path, shared + 1)]);
    }
#undef SHARE
    return length < 0 ? 0 : length;
}
