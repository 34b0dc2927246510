/* Greedy and beam search of a batch, step after step, without leaving the kernels.

   It finds what the loop finds with the same beliefs, bit for bit: the order of sums, of ties and of what finishes first
   is the loop's. What a hypothesis says is never moved: it is looked up along `reach`, as keys and values are. */

#include "logits.h"
#include "stack.h"

/* What is searched with and for; B sentences, K hypotheses each, V tokens. */
typedef struct {
    const stack *stack;
    const linear *head;
    origin *sharp;                     /* what coarse logits are made of, `hidden` left open; NULL: they stay */
    const float *table, *places;       /* [V, D], times `scale`; [capacity, D], or NULL: no positions are added */
    float scale, unshifted;
    int64_t size, block, eos;
    const int64_t *forbidden;          /* [forbids]: tokens that are never said */
    int64_t forbids, shortest;         /* eos is not said before so many tokens */
    int64_t width, wanted, nbest;      /* K; how many candidates are ranked; how many that finished are kept */
    float patience;                    /* how many finish before a sentence is done; 0: until none can win any more */
    const float *divisors;             /* [longest + 2], of the length penalty, by length */
    const float *last;                 /* [B], the divisor at a sentence's limit */
    const int64_t *limits;             /* [B] */
} task;

typedef struct {
    float total, logit;
    int64_t token, origin;
} candidate;

/* How far it is. Live sentences stand first, `slots` has their numbers. */
typedef struct {
    reading read;
    int64_t sentences, length, longest, capacity; /* B; tokens of live hypotheses; the largest limit; places in the past */
    int64_t *slots, *reach, *free;     /* [B]; [live, K, length + 1] in room for B and longest + 1; as much room */
    int64_t *said;                     /* [longest + 1, B, K], the token that a hypothesis reads at a place */
    float *sums;                       /* the same shape, its log-probability with that token */
    float *total;                      /* [B, K] of live sentences; -INFINITY: no hypothesis */
    candidate *ranked;                 /* [wanted], of one sentence after another, best first */
    float *best;                       /* [B, nbest], scores of what finished, best first */
    int64_t *ended;                    /* [B], how many finished */
    int64_t *lengths;                  /* [B, nbest], of what finished, 0 of nothing; negative: its limit ended it */
    int64_t *tokens;                   /* [B, nbest, longest] */
    float *log_probs;                  /* [B, nbest, longest], of hypotheses up to each token */
    int64_t together;                  /* how many sentences are believed of at a time; n: their rows */
    float *x, *logits, *maxima, *each, *peaks, *rests; /* [N, D], [n, V], [n, blocks], [n] */
    int64_t *first;                    /* [n] */
    char *block;
} search;

enum { OVER, FULL, ASKED, BROKEN };

/* `new` where it belongs among the best `most`: equal totals of one hypothesis stand by their logits, all others as they
   come. */
static void offer(candidate *list, int64_t *count, int64_t most, candidate new) {
    int64_t place = *count;
    while (place > 0) {
        const candidate *other = list + place - 1;
        if (!(new.total > other->total ||
              (new.total == other->total && new.origin == other->origin && new.logit > other->logit)))
            break;
        place--;
    }
    if (place >= most) return;
    if (*count < most) ++*count;
    memmove(list + place + 1, list + place, (*count - place - 1) * sizeof *list);
    list[place] = new;
}

static int said_never(const task *of, int64_t token, int64_t length) {
    if (token == of->eos) return length < of->shortest;
    for (int64_t k = 0; k < of->forbids; k++)
        if (of->forbidden[k] == token) return 1;
    return 0;
}

/* Rank what continues hypothesis `origin`, of total `before`, among the `count` that are: row `row` of the logits. */
static void rank(const task *of, const search *at, int64_t row, int64_t origin, float before, int64_t *count) {
    candidate *list = at->ranked;
    const float *logits = at->logits + row * of->size, peak = at->peaks[row], rest = at->rests[row];
    const float *maxima = at->maxima + row * ((of->size + of->block - 1) / of->block);
#define TOTAL(logit) ((((logit) - peak) - rest) + before)
    for (int64_t first = 0; first < of->size; first += of->block, maxima++) {
        if (*count == of->wanted && TOTAL(*maxima) < list[*count - 1].total) continue;
        int64_t end = first + of->block < of->size ? first + of->block : of->size;
        for (int64_t some = first; some < end; some += LANES) {
            int64_t stop = some + LANES < end ? some + LANES : end;
            if (*count == of->wanted && stop - some == LANES &&
                !any(TOTAL(load(logits + some)) >= all(list[*count - 1].total)))
                continue;
            for (int64_t token = some; token < stop; token++) {
                float total = TOTAL(logits[token]);
                if (*count == of->wanted && total < list[*count - 1].total) continue;
                if (total == -INFINITY || said_never(of, token, at->length)) continue;
                offer(list, count, of->wanted, (candidate){total, logits[token], token, origin});
            }
        }
    }
#undef TOTAL
}

/* Write down that a hypothesis of sentence `number`, whose places are looked up in `reach`, finished by a candidate. */
static void finish(const task *of, search *at, int64_t number, const int64_t *reach, candidate by, int limited) {
    int64_t length = at->length + 1, place = of->nbest, *lengths = at->lengths + number * of->nbest;
    float score = by.total / of->divisors[length], *best = at->best + number * of->nbest;
    at->ended[number]++;
    while (place > 0 && (!lengths[place - 1] || score > best[place - 1])) place--; /* a score may be -INFINITY, too */
    if (place == of->nbest) return;
    int64_t *tokens = at->tokens + number * of->nbest * at->longest;
    float *log_probs = at->log_probs + number * of->nbest * at->longest;
    int64_t moved = of->nbest - place - 1;
    memmove(best + place + 1, best + place, moved * sizeof *best);
    memmove(lengths + place + 1, lengths + place, moved * sizeof *lengths);
    tokens += place * at->longest, log_probs += place * at->longest;
    memmove(tokens + at->longest, tokens, moved * at->longest * sizeof *tokens);
    memmove(log_probs + at->longest, log_probs, moved * at->longest * sizeof *log_probs);
    best[place] = score, lengths[place] = limited ? -length : length;
    int64_t each = at->sentences * of->width;
    for (int64_t k = 1; k < length; k++) {
        int64_t who = k * each + number * of->width + (of->width > 1 ? reach[k] : 0);
        tokens[k - 1] = at->said[who], log_probs[k - 1] = at->sums[who];
    }
    tokens[length - 1] = by.token, log_probs[length - 1] = by.total;
}

/* The rows' tokens times the scale; apart from the positions' sum, which shall not be fused with it. */
static __attribute__((noinline)) void embed(const task *of, const search *at, int64_t width) {
    int64_t inputs = of->stack->width;
    float *x = at->x;
    const int64_t *said = at->said + at->length * at->sentences * of->width;
    for (int64_t row = 0; row < at->read.sentences * width; row++)
        for (int64_t k = 0; k < inputs; k += LANES, x += LANES)
            store(x, load(of->table + said[at->slots[row / width] * of->width + row % width] * inputs + k) * of->scale);
}

static __attribute__((noinline)) void add_place(const task *of, const search *at, int64_t rows) {
    int64_t inputs = of->stack->width;
    const float *place = of->places + at->length * inputs;
    for (float *x = at->x; x < at->x + rows * inputs; x += inputs)
        for (int64_t k = 0; k < inputs; k += LANES) store(x + k, load(x + k) + load(place + k));
}

/* Whether going on cannot change what a sentence has found, `best` being its best live total. */
static int done(const task *of, const search *at, int64_t number, float best, int64_t length) {
    if (best == -INFINITY || of->limits[number] == length) return 1;
    if (of->width == 1) return at->ended[number] > 0;
    if (of->patience > 0) return (float)at->ended[number] >= of->patience;
    float sooner = best / of->divisors[length + 1], later = best / of->last[number];
    return (sooner > later ? sooner : later) <= at->best[(number + 1) * of->nbest - 1];
}

/* Choose how live sentence `live`, whose beliefs stand from `row` on, goes on, and write that down as the sentence
   `next`. Returns 1 if it goes on, 0 if it is done, -1 if it is and nothing finished. */
static int64_t choose(const task *of, search *at, int64_t live, int64_t next, int64_t row) {
    int64_t width = at->read.width, number = at->slots[live], length = at->length + 1, count = 0, going = 0;
    const float *total = at->total + live * of->width;
    const int64_t *reach = at->reach + live * width * length;
    candidate *list = at->ranked;
    for (int64_t k = 0; k < width; k++)
        if (total[k] != -INFINITY) rank(of, at, row + k, k, total[k], &count);
    for (int64_t k = 0; k < count; k++) {
        if (list[k].token != of->eos) {
            if (going < of->width) list[going++] = list[k];
        } else if (k < of->width)
            finish(of, at, number, reach + list[k].origin * length, list[k], 0);
    }
    if (of->limits[number] == length)
        for (int64_t k = 0; k < going; k++)
            finish(of, at, number, reach + list[k].origin * length, list[k], 1);
    if (done(of, at, number, going ? list[0].total : -INFINITY, length)) return at->ended[number] ? 0 : -1;
    int64_t each = at->sentences * of->width, own = length * each + number * of->width;
    at->slots[next] = number;
    for (int64_t k = 0; k < of->width; k++) {
        candidate by = k < going ? list[k] : (candidate){-INFINITY, 0, 0, 0};
        at->said[own + k] = by.token, at->sums[own + k] = by.total, at->total[next * of->width + k] = by.total;
        if (of->width == 1) continue;
        int64_t *path = at->free + (next * of->width + k) * (length + 1);
        memcpy(path, reach + by.origin * length, length * sizeof *path);
        path[length] = k;
    }
    return 1;
}

/* What is believed of the tokens behind some rows, which are summed up; whether some belief is broken. */
static int believe(const task *of, search *at, int64_t first, int64_t rows) {
    const float *x = at->x + first * of->stack->width;
    int64_t inputs = of->head->inputs;
    quantized bytes = {(int8_t *)at->block, (float *)(at->block + whole(rows * inputs)),
                       (int32_t *)(at->block + whole(rows * inputs) + whole(4 * rows))};
    apply(of->head, x, rows, at->logits, 0, bytes);
    if (of->sharp) of->sharp->hidden = x;
    return translume_summarise(at->logits, rows, of->size, of->block, of->unshifted, of->sharp, at->maxima, at->first,
                               at->each, at->peaks, at->rests) != 0;
}

/* Go on for up to `steps` steps: OVER when no sentence is left, FULL when the past wants more places, ASKED after `steps`,
   BROKEN where the loop would raise an error. */
int64_t translume_search(const task *of, search *at, int64_t steps) {
    for (; steps > 0; steps--) {
        int64_t width = at->length ? of->width : 1, live = at->read.sentences, rows = live * width, next = 0;
        if (!live) return OVER;
        if (at->length == at->capacity) return FULL;
        at->read.width = width, at->read.place = at->length, at->read.count = 1;
        at->read.slots = at->slots, at->read.reach = width > 1 ? at->reach : NULL;
        embed(of, at, width);
        if (of->places) add_place(of, at, rows);
        translume_step(of->stack, &at->read, 1, at->x, at->block);
        for (int64_t first = 0; first < live; first += at->together) {
            int64_t last = first + at->together < live ? first + at->together : live;
            if (believe(of, at, first * width, (last - first) * width)) return BROKEN;
            for (int64_t number = first; number < last; number++) {
                int64_t stays = choose(of, at, number, next, (number - first) * width);
                if (stays < 0) return BROKEN;
                next += stays;
            }
        }
        int64_t *reach = at->reach;
        at->reach = at->free, at->free = reach;
        at->read.sentences = next, at->length++;
    }
    return at->read.sentences ? ASKED : OVER;
}
