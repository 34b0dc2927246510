/* Compare the vectors, products, attention and draws of the kernels with scalar loops; print the first difference, or "agrees"
   and a digest of the int8 products, which are equal bit for bit with every instruction set. */

#include <stdio.h>
#include <stdlib.h>

#include "attention.h"
#include "sampling.h"

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define WIDEST 192
#define MOST_ROWS 37
#define FAIL(...) (printf(__VA_ARGS__), exit(1))

static uint32_t state = 1;
static float draw(void) { return (float)((state = state * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1; }

static void expect(const char *what, double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance)) FAIL("%s: found %.9g, expected %.9g\n", what, found, expected);
}

static void check_vectors(void) {
    for (float first = -100; first < 88 - LANES / 4.0f; first += 0.37f) {
        float x[LANES], y[LANES];
        for (int lane = 0; lane < LANES; lane++) x[lane] = first + lane * 0.25f;
        store(y, gelu_tanh(load(x)));
        for (int lane = 0; lane < LANES; lane++)
            expect("gelu by tanh", y[lane], x[lane] / 2 * (1 + tanh(0.79788456 * (x[lane] + 0.044715 * pow(x[lane], 3)))), 2e-6);
        store(y, gelu(load(x)));
        for (int lane = 0; lane < LANES; lane++)
            expect("gelu by erf", y[lane], x[lane] / 2 * (1 + erf(x[lane] * sqrt(0.5))), 2e-7 * fabs(x[lane]));
        store(y, exp_lanes(load(x)));
        for (int lane = 0; lane < LANES; lane++)
            expect("exp", y[lane], x[lane] < -87 ? 0 : exp(x[lane]), 1e-7 * exp(x[lane]));
        doubles halves[2];
        to_doubles(load(x), halves);
        for (int lane = 0; lane < LANES; lane++) {
            double value = 8 * halves[2 * lane / LANES][lane % (LANES / 2)], wanted = value < -708 ? 0 : exp(value);
            expect("fp64", value, 8 * x[lane], 0);
            expect("exp in fp64", exp_doubles(8 * halves[2 * lane / LANES])[lane % (LANES / 2)], wanted, 4e-16 * wanted);
        }
    }
    float parts[4][LANES], sums[4];
    vector four[4];
    for (int k = 0; k < 4; k++) {
        for (int lane = 0; lane < LANES; lane++) parts[k][lane] = draw();
        four[k] = load(parts[k]);
    }
    sum_lanes_of_4(four, sums);
    for (int k = 0; k < 4; k++) {
        double sum = 0, largest = -9;
        for (int lane = 0; lane < LANES; lane++)
            sum += parts[k][lane], largest = parts[k][lane] > largest ? parts[k][lane] : largest;
        expect("sum_lanes_of_4", sums[k], sum, 1e-6);
        expect("sum_lanes", sum_lanes(four[k]), sum, 1e-6);
        expect("max_lane", max_lane(four[k]), largest, 0);
        expect("any_lane", any_lane(four[k] >= broadcast((float)largest)) != 0, 1, 0);
        uint32_t bits = lane_bits(four[k] >= broadcast((float)largest));
        expect("lane_bits", parts[k][__builtin_ctz(bits)], largest, 0);
        expect("one bit", bits & (bits - 1), 0, 0);
        expect("no lane", any_lane(four[k] > broadcast((float)largest)) != 0, 0, 0);
    }
    float rough[LANES] = {1e6f, -1e6f, 0.1f, NAN};
    uint16_t halves[LANES];
    if (HAS_FP16) {
        store_number(1, halves, 0, load(rough));
        vector back = load_number(1, halves, 0);
        expect("largest fp16", back[0], 65504, 0);
        expect("smallest fp16", back[1], -65504, 0);
        expect("fp16", back[2], 0.0999755859375, 0);
        expect("NaN in fp16", back[3] != back[3], 1, 0);
    }
}

/* Return a number without the bits that bf16 lacks. */
static float bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits &= 0xffff0000;
    memcpy(&x, &bits, 4);
    return x;
}

/* Compare the products of MOST_ROWS rows, together and alone, with scalar loops; add those of int8 to the digest. */
static void check_linear(int64_t inputs, int64_t outputs, enum format format, uint32_t *digest) {
    static float x[MOST_ROWS * WIDEST], found[MOST_ROWS * WIDEST], alone[WIDEST], bias[2 * WIDEST], scale[2 * WIDEST];
    static float dense[WIDEST * WIDEST], packed[2 * WIDEST * WIDEST];
    static char memory[16 * MOST_ROWS * WIDEST] __attribute__((aligned(64)));
    static int8_t bytes[WIDEST * WIDEST];
    int64_t group = format == FP32 ? 1 : format == BF16 ? 2 : GROUP;
    state = (uint32_t)inputs;
    memset(packed, format == QUANTIZED ? WEIGHT_OFFSET : 0, sizeof packed);
    for (int64_t k = 0; k < MOST_ROWS * inputs; k++) x[k] = format == BF16 ? bf16(draw()) : draw();
    for (int64_t k = 0; k < outputs; k++) bias[k] = draw(), scale[k] = 0.01f + 0.001f * (float)(k % 7);
    for (int64_t n = 0; n < outputs; n++)
        for (int64_t k = 0; k < inputs; k++) {
            int64_t index = ((n / PANEL * (inputs / group) + k / group) * PANEL + n % PANEL) * group + k % group;
            dense[n * inputs + k] = draw();
            bytes[n * inputs + k] = (int8_t)lrintf(127 * dense[n * inputs + k]);
            if (format == BF16) dense[n * inputs + k] = bf16(dense[n * inputs + k]);
            if (format == FP32) packed[index] = dense[n * inputs + k];
            else if (format == BF16) memcpy((uint16_t *)packed + index, (uint16_t *)(dense + n * inputs + k) + 1, 2);
            else ((uint8_t *)packed)[index] = (uint8_t)(bytes[n * inputs + k] + WEIGHT_OFFSET);
        }
    linear layer = {inputs, outputs, format, packed, scale, bias};
    for (int accumulate = 0; accumulate < 2; accumulate++)
        linear_forward(&layer, x, MOST_ROWS, found, accumulate, carve_quantized(MOST_ROWS, inputs, memory));
    for (int64_t row = 0; row < MOST_ROWS; row++) {
        float peak = 0;
        for (int64_t k = 0; k < inputs; k++)
            peak = fabsf(x[row * inputs + k]) > peak ? fabsf(x[row * inputs + k]) : peak;
        for (int accumulate = 0; accumulate < 2; accumulate++)
            linear_forward(&layer, x + row * inputs, 1, alone, accumulate, carve_quantized(1, inputs, memory));
        for (int64_t n = 0; n < outputs; n++) {
            double sum = 0;
            for (int64_t k = 0; k < inputs; k++)
                sum += format != QUANTIZED ? (double)x[row * inputs + k] * dense[n * inputs + k]
                                      : rint(x[row * inputs + k] * (127.0f / peak)) * bytes[n * inputs + k];
            if (format == QUANTIZED) sum *= scale[n] * (peak / 127.0f);
            expect((const char *[]){"fp32 product", "int8 product", "bf16 product"}[format], found[row * outputs + n], 2 * (sum + bias[n]), 1e-4);
            if (memcmp(found + row * outputs + n, alone + n, 4)) FAIL("row %d differs alone\n", (int)row);
            uint32_t bits;
            memcpy(&bits, alone + n, 4);
            *digest = *digest * 31 + bits;
        }
    }
}

static void check_attention(int64_t head_size, int64_t count) {
    float query[64], keys[16 * 64], values[16 * 64], scores[16 + LANES], found[64];
    int64_t offsets[16 + KEY_BLOCK];
    for (int64_t k = 0; k < head_size; k++) query[k] = draw();
    for (int64_t k = 0; k < count * head_size; k++) keys[k] = draw(), values[k] = draw();
    for (int64_t position = 0; position < count; position++) offsets[position] = position * head_size;
    pad_offsets(offsets, count);
    attend(query, (head_cache){keys, values, head_size, 0, 0}, offsets, count, scores, found);
    double shares[16], total = 0;
    for (int64_t position = 0; position < count; position++) {
        double dot = 0;
        for (int64_t k = 0; k < head_size; k++) dot += (double)query[k] * keys[position * head_size + k];
        total += shares[position] = exp(dot);
    }
    for (int64_t k = 0; k < head_size; k++) {
        double expected = 0;
        for (int64_t position = 0; position < count; position++)
            expected += shares[position] / total * values[position * head_size + k];
        expect("attention", found[k], expected, 1e-5);
    }
}

/* Compare the self-attention of three packed sentences, of whole and partial blocks, with scalar loops. */
static void check_encoder_attention(int64_t size) {
    static float projected[90 * 3 * 2 * 64], mixed[90 * 2 * 64], bias[2 * 11];
    static char memory[1 << 18] __attribute__((aligned(64)));
    const int64_t begins[] = {0, 37, 38, 90}, width = 2 * size;
    stack model = {.heads = 2, .head_size = size, .bias = bias, .reach = 5, .distances = 11};
    head_block block;
    if (carve_head(&model, 52, NULL, &block) > (int64_t)sizeof memory) FAIL("the workspace is too small\n");
    for (int64_t k = 0; k < 90 * 3 * width; k++) projected[k] = draw();
    for (int64_t k = 0; k < 22; k++) bias[k] = draw();
    encoder_self_attention(&model, begins, 3, 52, projected, (workspace){.mixed = mixed}, memory);
    UNPOISON(memory, sizeof memory);
    for (int sentence = 0; sentence < 3; sentence++)
        for (int64_t query = begins[sentence]; query < begins[sentence + 1]; query++)
            for (int64_t head = 0; head < 2; head++) {
                double sums[64] = {0}, total = 0;
                for (int64_t key = begins[sentence]; key < begins[sentence + 1]; key++) {
                    const float *one = projected + 3 * query * width + head * size,
                                *other = projected + (3 * key + 1) * width + head * size;
                    int64_t distance = key - query < -5 ? -5 : key - query > 5 ? 5 : key - query;
                    double score = bias[head * 11 + 5 + distance];
                    for (int64_t k = 0; k < size; k++) score += (double)one[k] * other[k];
                    total += exp(score);
                    for (int64_t k = 0; k < size; k++) sums[k] += exp(score) * other[width + k];
                }
                for (int64_t k = 0; k < size; k++)
                    expect("encoder attention", mixed[query * width + head * size + k], sums[k] / total, 1e-5);
            }
}

/* Compare rotations and biases of distances with scalar loops. */
static void check_positions(int64_t head_size) {
    float rotation[2 * 64], projected[4 * 64], before[4 * 64], bias[2 * 5 + 1], scores[40];
    stack model = {.heads = 2, .head_size = head_size, .rotation = rotation - 6 * head_size};
    int64_t half = head_size / 2;
    for (int64_t k = 0; k < 2 * head_size; k++) rotation[k] = draw();
    for (int64_t k = 0; k < 4 * head_size; k++) before[k] = projected[k] = draw();
    rotate(&model, 3, projected);
    for (int64_t k = 0; k < 4 * head_size; k++) {
        int64_t place = k % head_size;
        float other = place < half ? -before[k + half] : before[k - half];
        expect("rotation", projected[k], before[k] * rotation[place] + other * rotation[head_size + place], 1e-6);
    }
    for (int64_t k = 0; k < 11; k++) bias[k] = draw();
    for (int64_t query = 0; query < 40; query += 13) {
        for (int64_t k = 0; k < 40; k++) scores[k] = 1;
        add_distance_bias(&(head_cache){.bias = bias, .reach = 5, .query = query}, scores, 40);
        for (int64_t k = 0; k < 40; k++)
            expect("bias", scores[k], 1 + bias[k < query - 5 ? 0 : k > query + 5 ? 10 : k - query + 5], 0);
    }
}

typedef struct {
    float x;
    int32_t token;
} ranked_token;

static int compare_ranks(const void *one, const void *other) {
    const ranked_token *left = one, *right = other;
    if (left->x != right->x) return left->x > right->x ? -1 : 1;
    return left->token - right->token;
}

/* Compare truncations and draws of a row with definitions in fp64 over sorted tokens. spread: of the logits, 0: ties. */
static void check_draws(int64_t size, float spread, int64_t top_k, double top_p, double eta) {
    enum { BLOCKS = 5, PADDED = BLOCKS * 128 };
    static float logits[PADDED], x[PADDED], weights[PADDED], near_x[PADDED], tops[BLOCKS], maxima[BLOCKS];
    static double exact[PADDED], near_weights[PADDED], sums[BLOCKS];
    static int32_t near[2 * PADDED];
    static ranked_token order[PADDED];
    choices found = {x, weights, exact, near, near_x, near_weights, tops, sums, BLOCKS, 128, 0, 0, EVERY_TOKEN};
    sampling settings = {0, top_k, 0.7, top_p, -INFINITY, -INFINITY, eta ? log(eta) : -INFINITY};
    float peak = -INFINITY;
    double total = 0, entropy = 0, before = 0, kept = 0, wanted = 0;
    for (int64_t k = 0; k < PADDED; k++) {
        logits[k] = k < size ? spread ? spread * (draw() + draw() + draw()) : rintf(4 * draw()) : -INFINITY;
        peak = logits[k] > peak ? logits[k] : peak;
    }
    for (int64_t k = 0; k < PADDED; k++) x[k] = -INFINITY, maxima[k / 128] = k % 128 && maxima[k / 128] > logits[k] ? maxima[k / 128] : logits[k];
    copy_scores(&settings, logits, size, maxima, peak, 3, &found);
    if (!find_choices(&settings, peak, 3, &found)) FAIL("no choices\n");
    float bottom = is_by_logits(&settings) && !top_k ? peak : (peak - peak) - 3;
    for (int64_t k = 0; k < size; k++) {
        float score = is_by_logits(&settings) && !top_k ? logits[k] : (logits[k] - peak) - 3;
        order[k] = (ranked_token){(score - bottom) / 0.7f, (int32_t)k};
        total += exp(order[k].x);
    }
    qsort(order, size, sizeof *order, compare_ranks);
#define KEPT(token) (tops[(token) / 128] != -INFINITY && is_kept(found.border, x[token], token))
    for (int64_t k = 0; k < size; k++) entropy -= exp(order[k].x) / total * (order[k].x - log(total));
    double least = 0.5 * log(eta) - entropy < log(eta) ? 0.5 * log(eta) - entropy : log(eta);
    for (int64_t k = 0; k < size; k++) {
        int inside = (!top_k || k < top_k) && before < top_p * total && (!eta || !k || order[k].x >= least + log(total));
        before += exp(order[k].x);
        expect("kept", KEPT(order[k].token), inside, 0);
        if (inside) kept += exp(order[k].x);
    }
    for (int64_t k = 0; k < 20; k++) {
        double chance = (k + 0.5) / 20;
        int64_t token = draw_token(&found, chance), next = 0;
        for (wanted = 0; next < size; next++) {
            if (KEPT(next)) wanted += exp(x[next]);
            if (wanted > chance * kept) break;
        }
        expect("token drawn", token, next, 0);
    }
#undef KEPT
}

int main(void) {
    uint32_t digest = 0, ignored = 0;
#if defined(__AMX_TILE__) /* Linux grants a program the tile registers on request; `_may_use_amx` of cpu.py */
    if (syscall(SYS_arch_prctl, 0x1023, 18)) FAIL("Linux does not grant the tile registers\n");
#endif
    check_vectors();
    for (int64_t size = 600; size > 1; size /= 3)
        for (int64_t top_k = 0; top_k <= 300; top_k = 10 * top_k + 3)
            for (int spread = 0; spread <= 4; spread += 2)
                for (int number = 0; number < 6; number++)
                    check_draws(size, spread, top_k, (double[]){1, 0.9, 0.5}[number % 3], number / 3 * 0.003);
    check_linear(48, 71, FP32, &ignored);
    check_linear(37, 131, FP32, &ignored);
    check_linear(48, 71, BF16, &ignored);
    check_linear(128, 150, BF16, &ignored);
    if (GROUP) {
        check_linear(48, 71, QUANTIZED, &digest);
        check_linear(128, 150, QUANTIZED, &digest);
    }
    for (int64_t count = 1; count < 16; count += 3)
        for (int64_t head_size = 16; head_size <= 64; head_size += 16) check_attention(head_size, count);
    for (int64_t head_size = 16; head_size <= 64; head_size *= 2) check_positions(head_size);
    for (int64_t head_size = 16; head_size <= 64; head_size += 16) check_encoder_attention(head_size);
    printf("agrees %u\n", digest);
    return 0;
}
