/* Sampling: the random numbers, truncations and draws of decoding/sampling.py.

   A token has the weight e^x, where x = (score - largest score) / temperature in fp32. The decoding loop computes weights
   in fp64. Here they are fp32 unless their rounding errors could change a truncation or a draw; then they are computed
   again in fp64. Each truncation keeps the first tokens in order of descending x, ties by smaller id, so that together
   they have one border. */

#ifndef TRANSLUME_SAMPLING
#define TRANSLUME_SAMPLING

#include <float.h>

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

/* The tokens of a row that may be drawn. V is padded to whole blocks. */
typedef struct {
    float *x;            /* [V], first the scores; -INFINITY for padding */
    float *weights;      /* [V], fp32 */
    double *exact;       /* [V], fp64, valid if `is_exact` */
    int32_t *near;       /* [2 V], tokens near a border, in ascending order, and room for collecting them */
    float *near_x;       /* [V], their x */
    double *near_weights; /* [V], their weights */
    float *tops;         /* [blocks], the largest x; -INFINITY: no token of the block is kept, and its x is invalid */
    double *sums;        /* [blocks], of the weights of tokens that are kept */
    int64_t blocks, block, is_exact;
    double total;        /* of `sums` */
    border border;
} choices;

#define WEIGHT_ERROR 2.5e-7 /* relative, of sums of fp32 weights: 8.6e-8 of any weight, and two roundings of 6e-8 */
#define ALL_EQUAL INT32_MAX
#define EVERY_TOKEN ((border){-FLT_MAX, ALL_EQUAL})
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

INLINE double weight_of(const choices *found, int64_t token) {
    return found->is_exact ? found->exact[token] : (double)found->weights[token];
}

/* Compute the weights in fp64. */
static void compute_exact(choices *found) {
    for (int64_t number = 0; number < found->blocks; number++)
        for (int64_t k = number * found->block; k < (number + 1) * found->block && found->tops[number] != -INFINITY;
             k += LANES) {
            doubles x[2], *exact = (doubles *)(found->exact + k);
            to_doubles(load(found->x + k), x);
            exact[0] = exp_doubles(x[0]), exact[1] = exp_doubles(x[1]);
        }
    found->is_exact = 1;
}

/* Return the sum of the weights, or if `by_rank` the number, of the tokens of a block with x >= least. */
INLINE double weigh_block(const choices *found, int by_rank, int64_t number, float least) {
    const float *x = found->x + number * found->block, *weights = found->weights + number * found->block;
    doubles halves[2] = {{0}, {0}}, wide[2];
    if (found->is_exact && !by_rank)
        for (int64_t k = 0; k < found->block; k += LANES) {
            const longs *exact = (const longs *)(found->exact + number * found->block + k);
            to_doubles(load(x + k), wide);
            for (int half = 0; half < 2; half++) halves[half] += (doubles)((wide[half] >= (double)least) & exact[half]);
        }
    else
        for (int64_t k = 0; k < found->block; k += 4 * LANES) {
            vector parts[4];
#pragma GCC unroll 4
            for (int part = 0; part < 4; part++) {
                vector weight = by_rank ? broadcast(1) : load(weights + k + part * LANES);
                parts[part] = (vector)((load(x + k + part * LANES) >= least) & (integers)weight);
            }
            add_as_doubles(halves, (parts[0] + parts[1]) + (parts[2] + parts[3]));
        }
    return sum_doubles(halves[0] + halves[1]);
}

/* Return the sum of the weights, or if `by_rank` the number, of the tokens within a border. sums: where to store the sum
   of each block, or NULL. */
static double weigh(const choices *found, int by_rank, border border, double *sums) {
    float next = nextafterf(border.least, INFINITY);
    double total = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        int64_t first = number * found->block, end = first + found->block;
        double sum = 0;
        int is_mixed = first <= border.last && border.last < end - 1; /* `last` is within the block */
        for (int64_t token = first; token < end && is_mixed; token++)
            if (is_kept(border, found->x[token], token)) sum += by_rank ? 1 : weight_of(found, token);
        if (!is_mixed && found->tops[number] >= border.least)
            sum = weigh_block(found, by_rank, number, border.last < first ? next : border.least);
        if (sums) sums[number] = sum;
        total += sum;
    }
    return total;
}

/* Fill the last vector of collected tokens. */
INLINE void pad_near(const choices *found, int64_t count) {
    for (; count % LANES; count++) found->near_x[count] = -INFINITY, found->near_weights[count] = 0;
}

/* Collect the tokens with least <= x < above; return their number. */
static int64_t collect(const choices *found, int by_rank, float least, float above) {
    const float *x = found->x;
    int32_t *near = found->near, *vectors = near + found->blocks * found->block;
    int64_t count = 0, chosen = 0;
    /* Branches on the vectors would be mispredicted, so that those with such tokens are listed first. */
    for (int64_t number = 0; number < found->blocks; number++) {
        if (found->tops[number] < least) continue;
        for (int64_t first = number * found->block, end = first + found->block; first < end; first += LANES) {
            vectors[chosen] = (int32_t)first;
            chosen += any_lane((load(x + first) >= least) & (load(x + first) < above));
        }
    }
    for (int64_t k = 0; k < chosen; k++) {
        vector own = load(x + vectors[k]);
        for (uint32_t bits = lane_bits((own >= least) & (own < above)); bits; bits &= bits - 1)
            near[count++] = vectors[k] + __builtin_ctz(bits);
    }
    for (int64_t k = 0; k < count; k++) {
        found->near_x[k] = x[near[k]];
        found->near_weights[k] = by_rank ? 1 : weight_of(found, near[k]);
    }
    pad_near(found, count);
    return count;
}

/* Return the sum of the weights of the collected tokens with x >= least. */
static double weigh_near(const choices *found, int64_t count, float least) {
    doubles halves[2] = {{0}, {0}}, x[2];
    for (int64_t k = 0; k < count; k += LANES) {
        const longs *weights = (const longs *)(found->near_weights + k);
        to_doubles(load(found->near_x + k), x);
        for (int half = 0; half < 2; half++) halves[half] += (doubles)((x[half] >= (double)least) & weights[half]);
    }
    return sum_doubles(halves[0] + halves[1]);
}

/* Return the float halfway between two in their order; it is `low` if there is none between. */
static float float_between(float low, float high) {
    int32_t ends[2], middle;
    memcpy(ends, &low, sizeof low), memcpy(ends + 1, &high, sizeof high);
    for (int k = 0; k < 2; k++) ends[k] ^= ends[k] < 0 ? INT32_MAX : 0;
    middle = (int32_t)(((int64_t)ends[0] + ends[1]) >> 1);
    middle ^= middle < 0 ? INT32_MAX : 0;
    memcpy(&low, &middle, sizeof low);
    return low;
}

/* Return an estimate of a border, from a sample: the largest tokens of the blocks for a few tokens, else LANES tokens of
   each block. slope: set to the weight of tokens by x there. */
static float guess_border(const choices *found, float peak, int by_rank, double wanted, double *slope) {
    int by_tops = by_rank && wanted <= (double)found->blocks;
    int64_t count = 0;
    if (by_tops)
        for (; count < found->blocks; count++)
            found->near_x[count] = found->tops[count], found->near_weights[count] = 1;
    else
        for (int64_t number = 0; number < found->blocks; number++, count += LANES) {
            int64_t first = number * found->block + number % 4 * LANES;
            store(found->near_x + count, load(found->x + first));
            doubles *weights = (doubles *)(found->near_weights + count);
            to_doubles(by_rank ? broadcast(1) : load(found->weights + first), weights);
        }
    pad_near(found, count);
    double share = by_tops ? 1 : (double)LANES / (double)found->block;
    double high_mass = 0, low_mass = weigh_near(found, count, -FLT_MAX);
    /* A sample may not have the heaviest tokens, so that the weight below a border is estimated better. */
    double target = by_rank ? wanted * share : low_mass - (found->total - wanted) * share;
    float low = peak - 32, high = peak;
    for (int probe = 0; probe < 8; probe++) {
        float middle = 0.5f * low + 0.5f * high;
        double mass = weigh_near(found, count, middle);
        if (mass >= target) low = middle, low_mass = mass;
        else high = middle, high_mass = mass;
    }
    *slope = (low_mass - high_mass) / ((double)(high - low) * share);
    return by_tops ? low : 0.5f * low + 0.5f * high;
}

/* Find the border of the tokens whose predecessors weigh less than `wanted`, or, if `by_rank`, are fewer than that. peak:
   the largest x. Returns 0 if a change of a sum by `margin` could move it. */
static int find_border(const choices *found, float peak, int by_rank, double wanted, double margin, border *result) {
    double slope, part;
    float least = guess_border(found, peak, by_rank, wanted, &slope), above = least, middle;
    double mass = weigh(found, by_rank, (border){least, ALL_EQUAL}, NULL); /* of the tokens with x >= above */
    double width = 1.5 * fabs(mass - wanted) / slope + 0x1p-6; /* 1.5 times the expected distance, and a little */
    int goes_down = mass < wanted;
    int64_t count;
    if (!(width < 0.5)) width = 0.5;
    /* Collect the tokens next to the guess, on the side of the border, until it is among them. */
    for (;; width *= 2) {
        if (fabs(mass - wanted) < margin) return 0;
        if (goes_down) above = least, least = width < 256 ? above - (float)width : -FLT_MAX;
        else least = above, above = width < 256 ? least + (float)width : INFINITY;
        count = collect(found, by_rank, least, above), part = weigh_near(found, count, least);
        if (!goes_down) mass = above == INFINITY ? 0 : mass - part;
        if (goes_down ? mass + part >= wanted : mass < wanted) break;
        if (goes_down) mass += part;
        if (goes_down && least == -FLT_MAX) {
            *result = EVERY_TOKEN;
            return mass - wanted >= margin || margin == 0;
        }
    }
    /* The tokens with x >= above weigh less than `wanted`, those with x >= least do not. */
    double before = mass;
    while ((middle = float_between(least, above)) > least) {
        part = weigh_near(found, count, middle);
        if (fabs(before + part - wanted) < margin) return 0;
        if (before + part >= wanted) least = middle;
        else above = middle, mass = before + part;
    }
    if (fabs(mass - wanted) < margin) return 0;
    *result = (border){least, ALL_EQUAL};
    for (int64_t k = 0; k < count && mass < wanted; k++) {
        if (found->near_x[k] != least) continue;
        *result = (border){least, found->near[k]};
        mass += found->near_weights[k];
        if (fabs(mass - wanted) < margin) return 0;
    }
    return 1;
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
        sum += sum_doubles(halves[0] + halves[1]);
    }
    return -sum / total;
}

/* Restrict a border to the tokens with x >= cut. Returns 0 if a change of `cut` by `error` could remove others. */
static int cut_at(const choices *found, double cut, double error, border *result) {
    if (error > 0 && collect(found, 1, (float)(cut - error), (float)(cut + error))) return 0;
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
    border result = inner(EVERY_TOKEN, border_at(settings->log_min_p)), other;
    if (is_by_shares(settings))
        log_total = log(total = found->is_exact ? weigh(found, 0, EVERY_TOKEN, NULL) : found->total);
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
INLINE void set_weights(choices *found, int64_t number) {
    const float *x = found->x + number * found->block;
    float *weights = found->weights + number * found->block;
    int64_t size = found->block;
    doubles halves[2] = {{0}, {0}};
    for (int64_t k = 0; k < size; k += 4 * LANES) {
        vector parts[4];
#pragma GCC unroll 4
        for (int part = 0; part < 4; part++) {
            parts[part] = exp_lanes(load(x + k + part * LANES));
            store(weights + k + part * LANES, parts[part]);
        }
        add_as_doubles(halves, (parts[0] + parts[1]) + (parts[2] + parts[3]));
    }
    found->sums[number] = sum_doubles(halves[0] + halves[1]);
    found->total += found->sums[number];
}

/* Compute x = (score - largest) / temperature of the tokens within a border, where a score is what is in `x`, less peak
   and log_sum; remove all others. weighs: whether to compute the weights, too. */
static void set_x(choices *found, border border, float peak, float log_sum, float largest, float temperature, int weighs) {
    found->total = 0;
    for (int64_t number = 0; number < found->blocks; number++) {
        float *top = found->tops + number, *own = found->x + number * found->block;
        int64_t size = found->block;
        *top = *top < border.least ? -INFINITY : (((*top - peak) - log_sum) - largest) / temperature;
        found->sums[number] = 0;
        if (*top == -INFINITY) continue;
        for (int64_t k = 0; k < size && border.least > -FLT_MAX; k++)
            if (!is_kept(border, own[k], number * size + k)) own[k] = -INFINITY;
        if (temperature == 1)
            for (int64_t k = 0; k < size; k += LANES) store(own + k, ((load(own + k) - peak) - log_sum) - largest);
        else
            for (int64_t k = 0; k < size; k += LANES)
                store(own + k, (((load(own + k) - peak) - log_sum) - largest) / temperature);
        if (weighs) set_weights(found, number);
    }
}

/* Find the tokens that may be drawn, from the scores in `x`. peak, log_sum: those of the logits. Returns whether there are
   any. */
static int find_choices(const sampling *settings, float peak, float log_sum, choices *found) {
    float temperature = (float)settings->temperature, largest = find_largest(found);
    int by_shares = is_by_shares(settings), is_cut = settings->top_k || settings->log_min_p != -INFINITY;
    border kept = EVERY_TOKEN;
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
        if (found->tops[number] >= found->border.least) set_weights(found, number);
    if (by_shares || is_cut) found->total = weigh(found, 0, found->border, found->sums);
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
    int64_t token = find_token(found, chance);
    if (token != UNCERTAIN) return token;
    if (!found->is_exact) {
        compute_exact(found);
        found->total = weigh(found, 0, found->border, found->sums);
    }
    return find_token(found, chance);
}

#endif
