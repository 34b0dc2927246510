/* Sampling: the random numbers, truncations and draws of decoding/sampling.py.

   torch rounds the same probabilities differently. A draw that this could change is uncertain: then torch makes it, so
   that draws are the same with and without the kernels. */

#ifndef TRANSLUME_SAMPLING
#define TRANSLUME_SAMPLING

#include <stdlib.h>

#include "vectors.h"

/* The settings of sampling. top_k: 0: off; top_p: 1: off; logarithms of min_p, epsilon and eta: -INFINITY: off. */
typedef struct {
    uint64_t seed;
    int64_t top_k;
    double temperature, top_p, log_min_p, log_epsilon, log_eta;
} sampling;

/* A row of logits, and the same with what the rules add. */
typedef struct {
    const float *logits, *scores;   /* [V] */
    const float *maxima;            /* of `logits` by block */
    const float *sum, *peak, *log_sum;
    double chance;                  /* the uniform number of a draw */
} row_of_logits;

/* A token that may be drawn. weight: e^x, where x is (score - largest score) / temperature. */
typedef struct {
    double weight;
    float score;
    int32_t token;
} weighed;

/* The tokens of a row that may be drawn: all of them with `weights` and `blocks`, else those of `kept`. */
typedef struct {
    float *weights;       /* [V] */
    double *blocks;       /* sums of weights by block */
    weighed *kept;        /* [V], by ascending token */
    int64_t count;        /* of kept; -1: all tokens */
    double total, error;  /* of the weights; their relative error */
    double unsure;        /* the weight of tokens that torch may keep or not, which are not in `kept` */
} choices;

#define WEIGHT_ERROR 4e-7 /* relative: a unit in the last place of e^x in torch, two of exp_lanes */
#define LOG_ERROR 4e-7    /* of log-probabilities in torch, relative to the terms that they are computed from */
#define UNCERTAIN (-1)
#define RANKS 256         /* largest rank that is searched for without sorting */

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

/* Return the sum of e^((score - peak) / temperature) by block in `blocks` and over all, and the sum of weight times x.
   weights: where to store them, or NULL. */
static double sum_weights(const float *scores, int64_t size, int64_t block, float peak, float temperature,
                          float *weights, double *blocks, double *weighted) {
    typedef double doubles __attribute__((vector_size(8 * LANES)));
    double total = 0;
    doubles products = {0};
    for (int64_t first = 0; first < size; first += block) {
        int64_t end = first + block < size ? first + block : size;
        doubles sums = {0};
        for (int64_t start = first; start < end; start += LANES) {
            vector x = broadcast(-INFINITY);
            memcpy(&x, scores + start, (end - start < LANES ? end - start : LANES) * sizeof *scores);
            x = (x - peak) / temperature;
            vector weight = exp_lanes(x);
            if (weights) memcpy(weights + start, &weight, (end - start < LANES ? end - start : LANES) * sizeof weight[0]);
            sums += __builtin_convertvector(weight, doubles);
            if (weighted) products += __builtin_convertvector(weight * maximum(broadcast(-100.0f), x), doubles);
        }
        double sum = 0;
        for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
        if (blocks) blocks[first / block] = sum;
        total += sum;
    }
    if (weighted)
        for (int lane = 0; lane < LANES; lane++) *weighted += products[lane];
    return total;
}

static int compare_weights(const void *one, const void *other) {
    const weighed *left = one, *right = other;
    if (left->score != right->score) return left->score > right->score ? -1 : 1;
    return left->token - right->token;
}

static int compare_tokens(const void *one, const void *other) {
    return ((const weighed *)one)->token - ((const weighed *)other)->token;
}

/* Collect the tokens with x >= cut; return their number. */
static int64_t collect(const row_of_logits *row, int64_t size, int64_t block, float peak, float temperature, double cut,
                       weighed *kept) {
    int64_t count = 0;
    float threshold = peak + (float)(cut * temperature) - 1e-5f * (1 + fabsf(peak));
    for (int64_t first = 0; first < size; first += block) {
        if (row->maxima[first / block] < threshold) continue;
        for (int64_t token = first; token < size && token < first + block; token++) {
            if (!(row->scores[token] >= threshold)) continue;
            float x = (row->scores[token] - peak) / temperature;
            if (x >= cut && x > -87) kept[count++] = (weighed){exp((double)x), row->scores[token], (int32_t)token};
        }
    }
    return count;
}

/* Return the `rank`-th largest score, at most RANKS; -INFINITY if there are fewer. */
static float score_of_rank(const row_of_logits *row, int64_t size, int64_t block, int64_t rank) {
    float best[RANKS + 1];
    for (int64_t k = 0; k < rank; k++) best[k] = -INFINITY;
    for (int64_t first = 0; first < size; first += block) {
        if (row->maxima[first / block] <= best[rank - 1]) continue;
        int64_t end = first + block < size ? first + block : size;
        for (int64_t start = first; start < end; start += LANES) {
            int64_t stop = start + LANES < end ? start + LANES : end;
            if (stop - start == LANES && !any_lane(load(row->scores + start) > broadcast(best[rank - 1]))) continue;
            for (int64_t token = start; token < stop; token++) {
                int64_t place = rank - 1;
                if (row->scores[token] <= best[place]) continue;
                for (; place > 0 && row->scores[token] > best[place - 1]; place--) best[place] = best[place - 1];
                best[place] = row->scores[token];
            }
        }
    }
    return best[rank - 1];
}

/* Compute which tokens of a row may be drawn. Returns whether there are any. */
static int find_choices(const sampling *settings, const row_of_logits *row, int64_t size, int64_t block,
                        choices *found) {
    float peak = -INFINITY, temperature = (float)settings->temperature;
    vector peaks = broadcast(-INFINITY);
    int64_t token = 0, count;
    for (; token + LANES <= size; token += LANES) peaks = maximum(load(row->scores + token), peaks);
    for (peak = max_lane(peaks); token < size; token++) peak = row->scores[token] > peak ? row->scores[token] : peak;
    if (peak == -INFINITY) return 0;
    int by_rank = settings->top_k || settings->top_p < 1, by_entropy = settings->log_eta != -INFINITY;
    int by_share = settings->top_p < 1 || settings->log_epsilon != -INFINITY || by_entropy;
    found->unsure = 0, found->count = -1, found->error = WEIGHT_ERROR * (temperature == 1 ? 1 : 4);
    if (!by_rank && !by_share && settings->log_min_p == -INFINITY) {
        found->total = sum_weights(row->scores, size, block, peak, temperature, found->weights, found->blocks, NULL);
        return 1;
    }
    double weighted = 0, total = 0, log_total = 0, cut = settings->log_min_p;
    if (by_share) {
        total = sum_weights(row->scores, size, block, peak, temperature, NULL, NULL, by_entropy ? &weighted : NULL);
        log_total = log(total);
    }
    /* Thresholds as limits of x. The best token always passes. */
#define AT_LEAST(limit) do { double other = (limit); other = other < 0 ? other : 0; cut = other > cut ? other : cut; } while (0)
    if (settings->log_epsilon != -INFINITY) AT_LEAST(settings->log_epsilon + log_total);
    if (by_entropy) {
        double threshold = 0.5 * settings->log_eta - (log_total - weighted / total);
        AT_LEAST((threshold < settings->log_eta ? threshold : settings->log_eta) + log_total);
    }
#undef AT_LEAST
    double error = LOG_ERROR * (4 + (*row->log_sum + fabsf(peak - *row->peak)) / temperature + fabs(log_total));
#define ERROR(x) (error + LOG_ERROR * 2 * fabs(x) + (by_entropy ? 3e-5 : 0))
#define X(k) ((found->kept[k].score - peak) / temperature)
    double reach = -2, least;
    if (settings->top_k && settings->top_k < RANKS) {
        /* Reach a little below the first token that is left out, so that nearly equal ones are seen. */
        double below = (score_of_rank(row, size, block, settings->top_k + 1) - peak) / temperature;
        reach = below < -87 ? -88 : below - 4 * ERROR(below) - 1e-6;
    }
    for (;; reach = 2 * reach - 1e-3) {
        double lowest = cut == -INFINITY ? cut : cut - ERROR(cut), mass = 0;
        least = by_rank && reach > lowest ? reach : lowest;
        count = collect(row, size, block, peak, temperature, least, found->kept);
        if (least == lowest || least < -87) break;
        for (int64_t k = 0; k < count; k++) mass += found->kept[k].weight;
        if ((settings->top_k && count > settings->top_k) ||
            (settings->top_p < 1 && mass > (settings->top_p + 1e-4) * total)) break;
    }
    int64_t kept = count, sure = count, next = 0; /* kept by rank, perhaps and for sure */
    if (by_rank) {
        double before = 0;
        qsort(found->kept, count, sizeof *found->kept, compare_weights);
        if (settings->top_k && kept > settings->top_k) kept = sure = settings->top_k;
        for (int64_t k = 0; settings->top_p < 1 && k < kept; k++) {
            double wanted = settings->top_p * total, margin = (2 * ERROR(X(k)) + 1e-6) * total;
            if (k && before > wanted + margin) kept = k;
            else if (k && before > wanted - margin && k < sure) sure = k;
            before += found->kept[k].weight;
        }
        sure = sure < kept ? sure : kept;
        /* torch may order tokens differently whose scores are nearly, but not exactly, equal. */
        for (int64_t border = sure, last = kept; border <= last && border < count; border++) {
            double middle = X(border), width = 2 * ERROR(middle);
            int64_t begin = border, end = border + 1;
            while (begin > 0 && X(begin - 1) - middle <= width) begin--;
            while (end < count && middle - X(end) <= width) end++;
            if (end == count && least > -87 && middle - width < least) found->unsure = total + count;
            if (begin == border || found->kept[begin].score == found->kept[end - 1].score) continue;
            sure = begin < sure ? begin : sure, kept = end > kept ? end : kept;
        }
    }
    double sum = 0;
    for (int64_t k = 0; k < kept; k++) {
        weighed each = found->kept[k];
        int near = cut > -INFINITY && each.score != peak && fabs(X(k) - cut) <= ERROR(cut);
        if (k >= sure || near) found->unsure += each.weight;
        else found->kept[next++] = each, sum += each.weight;
    }
    found->error = 2 * ERROR(8) + WEIGHT_ERROR;
#undef X
#undef ERROR
    found->count = next, found->total = sum;
    if (by_rank) qsort(found->kept, next, sizeof *found->kept, compare_tokens);
    return 1;
}

/* Return the token whose share of the weights contains `chance`, in order of tokens, or UNCERTAIN. */
static int64_t draw_token(const choices *found, int64_t size, int64_t block, double chance) {
    double wanted = chance * found->total, margin = 2 * found->error * wanted + found->unsure + 1e-12 * found->total,
           before = 0;
    int64_t k = 0, end = found->count < 0 ? size : found->count;
    if (found->count < 0) {
        int64_t number = 0, blocks = (size + block - 1) / block;
        while (number < blocks - 1 && before + found->blocks[number] <= wanted) before += found->blocks[number++];
        k = number * block;
    }
    for (; k < end; k++) {
        double weight = found->count < 0 ? found->weights[k] : found->kept[k].weight;
        if (before + weight > wanted) {
            /* The first token begins at 0 exactly, unless one that torch may keep is before it. */
            if (wanted - before <= margin && (before > 0 || found->unsure > 0)) return UNCERTAIN;
            if (before + weight - wanted <= margin && chance < 1) return UNCERTAIN;
            return found->count < 0 ? k : found->kept[k].token;
        }
        before += weight;
    }
    return UNCERTAIN;
}

#endif
