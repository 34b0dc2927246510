/* Sampling: the random numbers, truncations and draws of decoding/sampling.py.

   A token has the weight e^x, where x = (score - largest score) / temperature in fp32. The decoding loop computes weights
   in fp64. Here they are fp32 unless their rounding errors could change a truncation or a draw; then they are computed
   again in fp64. Each truncation keeps the first tokens in order of descending x, ties by smaller id, so that together
   they have one border. */

#ifndef TRANSLUME_SAMPLING
#define TRANSLUME_SAMPLING

#include <float.h>
#include <stdlib.h>

#include "vectors.h"

/* The settings of sampling. top_k: 0: off; top_p: 1: off; logarithms of min_p, epsilon and eta: -INFINITY: off. */
typedef struct {
    uint64_t seed;
    int64_t top_k;
    double temperature, top_p, log_min_p, log_epsilon, log_eta;
} sampling;

/* Tokens that are kept: those with x > least, and those with x == least up to `last`. */
typedef struct {
    float least;
    int32_t last;
} border;

typedef struct {
    float x;
    int32_t token;
} ranked_token;

/* The tokens of a row that may be drawn. V is padded to whole blocks. */
typedef struct {
    float *x;            /* [V], first the scores; -INFINITY for padding */
    float *weights;      /* [V], fp32 */
    double *exact;       /* [V], fp64, valid if `is_exact` */
    ranked_token *near;  /* [V], tokens near a border */
    float *tops;         /* [blocks], the largest x; -INFINITY: no token of the block is kept, and its x is invalid */
    double *sums;        /* [blocks], of the weights of tokens that are kept */
    int64_t blocks, block, is_exact;
    double total;        /* of `sums` */
    border border;
} choices;

#define WEIGHT_ERROR 4e-7 /* relative, of fp32 weights: two units in the last place, and rounding */
#define ALL_EQUAL INT32_MAX
#define EVERY_TOKEN ((border){-FLT_MAX, ALL_EQUAL})
#define FEW 48            /* tokens that are sorted to find a border */
#define UNCERTAIN (-1)

/* The finaliser of SplitMix64 (Steele, Lea and Flood 2014). */
INLINE uint64_t mix(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

/* Return `uniforms` of decoding/sampling.py, in (0, 1). */
static double uniform(uint64_t seed, int64_t key, int64_t place, int64_t step) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    uint64_t state = mix(seed + golden);
    state = mix(state + ((uint64_t)key + 1) * golden);
    state = mix(state + ((uint64_t)place + 1) * golden);
    state = mix(state + ((uint64_t)step + 1) * golden);
    return ((double)(state >> 12) + 0.5) * 0x1p-52;
}

INLINE int is_kept(border border, float x, int64_t token) {
    return x > border.least || (x == border.least && token <= border.last);
}

INLINE integers kept_lanes(border border, vector x, int64_t first) {
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (border.last == ALL_EQUAL) return x >= border.least;
    return (x > border.least) | ((x == border.least) & (*(const integers *)lanes + (int32_t)first <= border.last));
}

INLINE double weight_of(const choices *found, int64_t token) {
    return found->is_exact ? found->exact[token] : (double)found->weights[token];
}

/* Compute the weights in fp64. */
static void compute_exact(choices *found) {
    for (int64_t number = 0; number < found->blocks; number++)
        for (int64_t k = number * found->block; k < (number + 1) * found->block && found->tops[number] != -INFINITY; k++)
            found->exact[k] = exp((double)found->x[k]);
    found->is_exact = 1;
}

/* Return the sum of the weights of the tokens within a border. count: their number. sums: where to store the sum of each
   block, or NULL. */
static double weigh(const choices *found, border border, int64_t *count, double *sums) {
    double total = 0;
    *count = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        double sum = 0;
        int64_t first = number * found->block, end = first + found->block;
        if (found->tops[number] >= border.least && found->is_exact) {
            for (int64_t token = first; token < end; token++)
                if (is_kept(border, found->x[token], token)) sum += found->exact[token], ++*count;
        } else if (found->tops[number] >= border.least) {
            doubles halves[4] = {{0}};
            integers counts[2] = {{0}};
            for (int64_t token = first; token < end; token += 2 * LANES)
#pragma GCC unroll 2
                for (int part = 0; part < 2; part++) { /* independent sums hide the latency of additions */
                    int64_t place = token + part * LANES;
                    integers kept = kept_lanes(border, load(found->x + place), place);
                    counts[part] -= kept;
                    add_as_doubles(halves + 2 * part, (vector)(kept & (integers)load(found->weights + place)));
                }
            halves[0] = (halves[0] + halves[1]) + (halves[2] + halves[3]), counts[0] += counts[1];
            for (int lane = 0; lane < LANES / 2; lane++) sum += halves[0][lane];
            for (int lane = 0; lane < LANES; lane++) *count += counts[0][lane];
        }
        if (sums) sums[number] = sum;
        total += sum;
    }
    return total;
}

/* Return the number of tokens with x >= least, and the sum of their weights in `mass`, within 1e-6; mass: may be NULL. */
static int64_t count_from(const choices *found, float least, double *mass) {
    integers counts[4] = {{0}};
    int64_t total = 0;
    if (mass && found->is_exact) *mass = weigh(found, (border){least, ALL_EQUAL}, &total, NULL);
    if (mass && found->is_exact) return total;
    double sum = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        if (found->tops[number] < least) continue;
        vector sums[4] = {{0}};
        for (int64_t first = number * found->block; first < (number + 1) * found->block; first += 4 * LANES)
#pragma GCC unroll 4
            for (int part = 0; part < 4; part++) { /* independent sums hide the latency of additions */
                integers kept = load(found->x + first + part * LANES) >= least;
                counts[part] -= kept;
                if (mass) sums[part] += (vector)(kept & (integers)load(found->weights + first + part * LANES));
            }
        if (mass) sum += sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    counts[0] += counts[1] + (counts[2] + counts[3]);
    for (int lane = 0; lane < LANES; lane++) total += counts[0][lane];
    if (mass) *mass = sum;
    return total;
}

static int compare_ranks(const void *one, const void *other) {
    const ranked_token *left = one, *right = other;
    if (left->x != right->x) return left->x > right->x ? -1 : 1;
    return left->token - right->token;
}

/* Collect the tokens with least <= x < end in order; return their number. */
static int64_t collect(const choices *found, float least, float end) {
    int64_t count = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        if (found->tops[number] < least) continue;
        for (int64_t first = number * found->block; first < (number + 1) * found->block; first += LANES) {
            vector x = load(found->x + first);
            if (!any_lane((x >= least) & (x < end))) continue;
            for (int64_t token = first; token < first + LANES; token++)
                if (found->x[token] >= least && found->x[token] < end)
                    found->near[count++] = (ranked_token){found->x[token], (int32_t)token};
        }
    }
    qsort(found->near, count, sizeof *found->near, compare_ranks);
    return count;
}

/* Find the border of the tokens whose predecessors weigh less than `wanted`, or, if `by_rank`, are fewer than that. peak:
   the largest x. Returns 0 if a change of a sum by `margin` could move it. */
static int find_border(const choices *found, float peak, int by_rank, double wanted, double margin, border *result) {
    float above = nextafterf(peak, INFINITY), least = -INFINITY, reach = 4; /* the border is in [least, above) */
    int64_t count_above = 0, count_least = INT64_MAX, count;
    double mass_above = 0, mass_least = 0, mass;
    for (int probe = 0; count_least - count_above > FEW; probe += least != -INFINITY) {
        /* Go down from the peak until the border is passed; then look a little below and above where it is expected to
           be, and every third time in the middle. */
        double share = 0.5;
        if (!by_rank && probe % 3 < 2) share = (mass_least - wanted) / (mass_least - mass_above) * 0.875 + (probe % 3 ? 0.125 : 0);
        float middle = least == -INFINITY ? peak - reach : least + (float)share * (above - least);
        if (middle <= least || middle >= above) middle = 0.5f * least + 0.5f * above;
        if (middle <= least || middle >= above) break; /* all others are equal */
        if (by_rank && reach == 128 && (double)count_from(found, -FLT_MAX, NULL) <= wanted) {
            *result = EVERY_TOKEN;
            return 1;
        }
        count = count_from(found, middle, by_rank ? NULL : &mass);
        if (by_rank) mass = (double)count;
        if (mass > wanted) least = middle, count_least = count, mass_least = mass;
        else above = middle, count_above = count, mass_above = mass, reach *= 2;
    }
    *result = (border){above, ALL_EQUAL};
    if (!by_rank) mass_above = weigh(found, *result, &count, NULL);
    if (margin > 0 && mass_above >= wanted) return 0; /* the sums in the loop were less exact */
    count = collect(found, least, above);
    for (int64_t k = 0; k < count; k++) {
        if (fabs(mass_above - wanted) < margin) return 0;
        if (mass_above >= wanted) return 1;
        *result = (border){found->near[k].x, found->near[k].token};
        mass_above += by_rank ? 1 : weight_of(found, found->near[k].token);
    }
    return mass_above - wanted >= margin;
}

/* Return the border within both. */
INLINE border inner(border one, border other) {
    if (one.least != other.least) return one.least > other.least ? one : other;
    return one.last < other.last ? one : other;
}

/* Return the border of the tokens with x >= cut. */
static border border_at(double cut) {
    float least = cut < -FLT_MAX ? -FLT_MAX : (float)cut;
    return (border){least < cut ? nextafterf(least, INFINITY) : least, ALL_EQUAL};
}

/* Return -1 times the mean of x. */
static double mean_depth(const choices *found, double total) {
    double sum = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        doubles halves[2] = {{0}, {0}};
        if (found->tops[number] == -INFINITY) continue;
        for (int64_t k = number * found->block; k < (number + 1) * found->block; k += LANES)
            if (found->is_exact) {
                for (int64_t token = k; token < k + LANES; token++)
                    if (found->exact[token] > 0) sum += found->exact[token] * found->x[token];
            } else
                add_as_doubles(halves, load(found->weights + k) * maximum(broadcast(-100.0f), load(found->x + k)));
        for (int lane = 0; lane < LANES / 2; lane++) sum += halves[0][lane] + halves[1][lane];
    }
    return -sum / total;
}

/* Restrict a border to the tokens with x >= cut. Returns 0 if a change of `cut` by `error` could remove others. */
static int cut_at(const choices *found, double cut, double error, border *result) {
    if (error > 0 && collect(found, (float)(cut - error), (float)(cut + error))) return 0;
    *result = inner(*result, border_at(cut < 0 ? cut : 0)); /* the largest x, 0, always passes */
    return 1;
}

/* Whether a truncation depends on the shares of the weights in their sum. */
INLINE int is_by_shares(const sampling *settings) {
    return settings->top_p < 1 || settings->log_epsilon != -INFINITY || settings->log_eta != -INFINITY;
}

/* Whether tokens are ordered by their logits, before these are normalised and divided by the temperature. */
INLINE int is_by_logits(const sampling *settings) {
    return !is_by_shares(settings) && (settings->top_k || settings->log_min_p == -INFINITY);
}

/* Find the border of all truncations that are not by logits. Returns 0 if rounding errors of fp32 weights could change
   it. */
static int find_inner_border(const sampling *settings, choices *found) {
    double error = found->is_exact ? 0 : WEIGHT_ERROR, total = 0, log_total = 0;
    int64_t count;
    border result = inner(EVERY_TOKEN, border_at(settings->log_min_p)), other;
    if (is_by_shares(settings))
        log_total = log(total = found->is_exact ? weigh(found, EVERY_TOKEN, &count, NULL) : found->total);
    if (settings->log_epsilon != -INFINITY && !cut_at(found, settings->log_epsilon + log_total, 2 * error, &result))
        return 0;
    if (settings->log_eta != -INFINITY) {
        double depth = mean_depth(found, total), limit = 0.5 * settings->log_eta - (log_total + depth);
        limit = limit < settings->log_eta ? limit : settings->log_eta;
        if (!cut_at(found, limit + log_total, error * (4 + 2 * depth), &result)) return 0;
    }
    if (settings->top_k && !is_by_logits(settings)) {
        find_border(found, 0, 1, (double)settings->top_k, 0, &other);
        result = inner(result, other);
    }
    if (settings->top_p < 1) {
        if (!find_border(found, 0, 0, settings->top_p * total, 2 * error * total, &other)) return 0;
        result = inner(result, other);
    }
    found->border = result;
    return 1;
}

/* Copy the logits of a row [size] to `x`, as log-probabilities unless tokens are ordered by their logits, and their
   maxima by block to `tops`. */
static void copy_scores(const sampling *settings, const float *logits, int64_t size, const float *maxima, float peak,
                        float log_sum, choices *found) {
    int64_t token = 0;
    if (is_by_logits(settings)) peak = log_sum = 0;
    for (; token + LANES <= size; token += LANES) store(found->x + token, (load(logits + token) - peak) - log_sum);
    for (; token < size; token++) found->x[token] = (logits[token] - peak) - log_sum;
    for (int64_t number = 0; number < found->blocks; number++) found->tops[number] = (maxima[number] - peak) - log_sum;
}

/* Return the largest score of a block. */
INLINE float top_of(const choices *found, int64_t number) {
    vector tops = broadcast(-INFINITY);
    for (int64_t k = number * found->block; k < (number + 1) * found->block; k += LANES)
        tops = maximum(load(found->x + k), tops);
    return max_lane(tops);
}

/* Return the largest score. Rules only lower scores, so that `tops` are bounds, which are corrected where they are large. */
static float find_largest(const choices *found) {
    for (int tries = 0;; tries++) {
        int64_t best = 0;
        for (int64_t number = 1; number < found->blocks; number++)
            if (found->tops[number] > found->tops[best]) best = number;
        float bound = found->tops[best];
        if (tries == 8)
            for (int64_t number = 0; number < found->blocks; number++) found->tops[number] = top_of(found, number);
        found->tops[best] = top_of(found, best);
        if (found->tops[best] == bound) return bound;
    }
}

/* Compute the fp32 weights of a block and their sum. */
INLINE void weigh_block(choices *found, int64_t number) {
    doubles halves[2] = {{0}, {0}};
    double sum = 0;
    for (int64_t k = number * found->block; k < (number + 1) * found->block; k += LANES) {
        vector weight = exp_lanes(load(found->x + k));
        store(found->weights + k, weight);
        add_as_doubles(halves, weight);
    }
    halves[0] += halves[1];
    for (int lane = 0; lane < LANES / 2; lane++) sum += halves[0][lane];
    found->sums[number] = sum, found->total += sum;
}

/* Compute x = (score - largest) / temperature of the tokens within a border, where a score is what is in `x`, less peak
   and log_sum; remove all others. weighs: whether to compute the weights, too. */
static void set_x(choices *found, border border, float peak, float log_sum, float largest, float temperature, int weighs) {
    found->total = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        float *top = found->tops + number;
        *top = *top < border.least ? -INFINITY : (((*top - peak) - log_sum) - largest) / temperature;
        found->sums[number] = 0;
        if (*top == -INFINITY) continue;
        for (int64_t k = number * found->block; k < (number + 1) * found->block; k += LANES) {
            vector score = load(found->x + k), x = ((score - peak) - log_sum) - largest;
            if (temperature != 1) x /= temperature;
            store(found->x + k, select_lanes(kept_lanes(border, score, k), x, broadcast(-INFINITY)));
        }
        if (weighs) weigh_block(found, number);
    }
}

/* Find the tokens that may be drawn, from the scores in `x`. peak, log_sum: those of the logits. Returns whether there are
   any. */
static int find_choices(const sampling *settings, float peak, float log_sum, choices *found) {
    float temperature = (float)settings->temperature, largest = find_largest(found);
    int by_shares = is_by_shares(settings), is_cut = settings->top_k || settings->log_min_p != -INFINITY;
    border kept = EVERY_TOKEN;
    int64_t count;
    if (largest == -INFINITY) return 0;
    if (is_by_logits(settings) && settings->top_k) {
        find_border(found, largest, 1, (double)settings->top_k, 0, &kept);
        set_x(found, kept, peak, log_sum, (largest - peak) - log_sum, temperature, 0);
    } else
        set_x(found, kept, 0, 0, largest, temperature, by_shares || !is_cut);
    found->is_exact = 0;
    if (!find_inner_border(settings, found)) {
        compute_exact(found);
        find_inner_border(settings, found);
    }
    for (int64_t number = 0; number < found->blocks && !by_shares && is_cut; number++)
        if (found->tops[number] >= found->border.least) weigh_block(found, number);
    if (by_shares || is_cut) found->total = weigh(found, found->border, &count, found->sums);
    return 1;
}

/* Return the token whose share of the weights contains `chance`, in order of tokens, or UNCERTAIN. */
static int64_t find_token(const choices *found, double chance) {
    double wanted = chance * found->total, before = 0,
           margin = found->is_exact ? -1 : 2 * WEIGHT_ERROR * wanted + 1e-12 * found->total;
    int64_t number = 0, last = UNCERTAIN;
    while (number < found->blocks - 1 && before + found->sums[number] <= wanted) before += found->sums[number++];
    for (; number < found->blocks; number++) {
        if (found->tops[number] < found->border.least) continue;
        for (int64_t token = number * found->block; token < (number + 1) * found->block; token++) {
            double weight = weight_of(found, token);
            if (!is_kept(found->border, found->x[token], token) || weight == 0) continue;
            if (before + weight > wanted) {
                /* The first token begins at 0 exactly. */
                int certain = (wanted - before > margin || before == 0) && before + weight - wanted > margin;
                return certain ? token : UNCERTAIN;
            }
            before += weight, last = token;
        }
    }
    return found->is_exact ? last : UNCERTAIN;
}

/* Draw a token that may be drawn with a uniform number. */
static int64_t draw_token(choices *found, double chance) {
    int64_t token = find_token(found, chance), count;
    if (token != UNCERTAIN) return token;
    if (!found->is_exact) {
        compute_exact(found);
        found->total = weigh(found, found->border, &count, found->sums);
    }
    return find_token(found, chance);
}

#endif
