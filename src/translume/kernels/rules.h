/* Rules of a search: which tokens may not follow a hypothesis, and which become less likely. */

#ifndef TRANSLUME_RULES
#define TRANSLUME_RULES

#include "vectors.h"

/* States of the automaton of banned phrases: the beginning of a text; after a phrase; somewhere in a text. */
enum { TEXT_START, PHRASE_FOUND, TEXT_MIDDLE };

/* The rules of all sentences of a search, V tokens. A NULL pointer or 0 turns a rule off. */
typedef struct {
    const uint8_t *forbidden;        /* [V], 1 for tokens that are never generated */
    const uint8_t *forbidden_first;  /* [V], 1 for tokens that do not begin a target */
    int64_t eos, min_length;         /* eos is forbidden before min_length tokens */
    int64_t ngram;                   /* no n-gram of this order occurs twice */
    float repetition;                /* added once to the logit of each token that a hypothesis contains, at most 0 */
    const int32_t *phrase_states;    /* [states, 256], the state of the automaton of banned phrases after each byte */
    const uint8_t *phrase_ends;      /* [states], 1 if the text may not end here */
    int64_t phrase_window;           /* bytes at the end of a text that determine its state */
    const uint8_t *spelled;          /* the bytes of all tokens, one after the other */
    const int64_t *spelled_begins;   /* [V + 1] */
    int64_t forced_bytes;            /* of the text with which targets begin */
    const int64_t *forced_lengths;   /* [V], the number of bytes that each token spells */
    const int64_t *choices;          /* tokens that may follow when some bytes are spelled, in ascending order */
    const int64_t *choices_left;     /* for each of these the fewest tokens that spell the rest */
    const int64_t *choices_begins;   /* [forced_bytes + 1], the first choice for each number of bytes */
} rules;

/* A cache of the tokens that would end a banned phrase, by the state of the automaton before them. Finding them means reading
   the bytes of all tokens, which takes longer than sampling, and most texts are in a few states. */
enum { KNOWN_STATES = 16 };
typedef struct {
    int32_t *states;                 /* [KNOWN_STATES], a state in the place that is its remainder; -1: none */
    uint8_t *ends;                   /* [KNOWN_STATES, V], 1 for such tokens */
} known_phrases;

/* A hypothesis whose next token is chosen. */
typedef struct {
    const int64_t *tokens;           /* [length], set if `reads_tokens` */
    int64_t length;
    int64_t *banned, banned_count;   /* tokens that would repeat an n-gram */
    int32_t state;                   /* of the automaton of banned phrases */
    int64_t limit;                   /* its maximum length */
    int64_t forced;                  /* whether it begins with the forced text */
} hypothesis;

INLINE int reads_tokens(const rules *rules, int64_t length) {
    return rules->ngram || rules->repetition != 0 || length < rules->forced_bytes;
}

/* Find the tokens that would complete an n-gram which the hypothesis contains. */
static void find_repeated_ngrams(const rules *rules, hypothesis *text) {
    int64_t before = rules->ngram - 1;
    const int64_t *last = text->tokens + text->length - before;
    text->banned_count = 0;
    if (!rules->ngram) return;
    for (int64_t first = 0; first + before < text->length; first++)
        if (!memcmp(text->tokens + first, last, before * sizeof *last))
            text->banned[text->banned_count++] = text->tokens[first + before];
}

INLINE int contains(const int64_t *tokens, int64_t count, int64_t token) {
    for (int64_t k = 0; k < count; k++)
        if (tokens[k] == token) return 1;
    return 0;
}

/* Return the state of the automaton after one more token. */
static int32_t phrase_state(const rules *rules, int32_t state, int64_t token) {
    for (int64_t k = rules->spelled_begins[token]; k < rules->spelled_begins[token + 1]; k++)
        state = rules->phrase_states[256 * (int64_t)state + rules->spelled[k]];
    return state;
}

/* Return the state after a text in which a phrase was found, as only a forced text can contain one: the state that its
   last bytes determine. */
static int32_t phrase_state_of_end(const rules *rules, const int64_t *tokens, int64_t length) {
    const int64_t *begins = rules->spelled_begins;
    int64_t first = length > rules->phrase_window ? length - rules->phrase_window : 0, bytes = 0;
    for (int64_t k = first; k < length; k++) bytes += begins[tokens[k] + 1] - begins[tokens[k]];
    int64_t skipped = bytes > rules->phrase_window ? bytes - rules->phrase_window : 0;
    int32_t state = first || skipped ? TEXT_MIDDLE : TEXT_START;
    for (int64_t k = first; k < length; k++)
        for (int64_t byte = begins[tokens[k]]; byte < begins[tokens[k] + 1]; byte++)
            if (skipped) skipped--;
            else state = rules->phrase_states[256 * (int64_t)state + rules->spelled[byte]];
    return state;
}

/* Return whether a text may not end with a token, because of a banned phrase. */
INLINE int ends_phrase(const rules *rules, const hypothesis *text, int64_t token) {
    return rules->spelled_begins[token] < rules->spelled_begins[token + 1] &&
           rules->phrase_ends[phrase_state(rules, text->state, token)];
}

/* Return what the rules add to the logit of a token: 0, a penalty, or -INFINITY if it is forbidden. */
static float rule_bias(const rules *rules, const hypothesis *text, int64_t token) {
    if (rules->forbidden[token] || (token == rules->eos && text->length < rules->min_length)) return -INFINITY;
    if (!text->length && rules->forbidden_first && rules->forbidden_first[token]) return -INFINITY;
    if (contains(text->banned, text->banned_count, token)) return -INFINITY;
    if (rules->phrase_states && ends_phrase(rules, text, token)) return -INFINITY;
    if (rules->repetition != 0 && contains(text->tokens, text->length, token)) return rules->repetition;
    return 0;
}

/* Return whether the text that a target must begin with is not yet complete, and where its choices begin and end. */
static int forced_choices(const rules *rules, const hypothesis *text, int64_t *begin, int64_t *end) {
    int64_t bytes = 0;
    if (!text->forced || text->length >= rules->forced_bytes) return 0; /* every token spells at least one byte */
    for (int64_t k = 0; k < text->length; k++) bytes += rules->forced_lengths[text->tokens[k]];
    if (bytes >= rules->forced_bytes) return 0;
    *begin = rules->choices_begins[bytes], *end = rules->choices_begins[bytes + 1];
    return 1;
}

/* Forbid the tokens [size] that are marked by a 1. */
INLINE void forbid(const uint8_t *marks, int64_t size, float *scores) {
    for (const uint8_t *next = marks; (next = memchr(next, 1, marks + size - next)); next++) scores[next - marks] = -INFINITY;
}

/* Return marks [size] of the tokens with which a text may not end. */
static const uint8_t *phrase_marks(const rules *rules, const hypothesis *text, int64_t size, const known_phrases *known) {
    int32_t place = text->state % KNOWN_STATES;
    uint8_t *marks = known->ends + place * size;
    if (known->states[place] != text->state)
        for (int64_t token = 0; token < size; token++) marks[token] = (uint8_t)ends_phrase(rules, text, token);
    known->states[place] = text->state;
    return marks;
}

/* Add to the scores of all tokens what the rules add. */
static void apply_rules(const rules *rules, const hypothesis *text, int64_t size, const known_phrases *known,
                        float *scores) {
    int64_t choice, end;
    if (forced_choices(rules, text, &choice, &end)) {
        for (int64_t token = 0; token < size; token++) {
            int chosen = choice < end && rules->choices[choice] == token;
            int fits = chosen && text->length + 1 + rules->choices_left[choice] <= text->limit;
            scores[token] = fits ? scores[token] + rule_bias(rules, text, token) : -INFINITY;
            choice += chosen;
        }
        return;
    }
    forbid(rules->forbidden, size, scores);
    if (!text->length && rules->forbidden_first) forbid(rules->forbidden_first, size, scores);
    if (text->length < rules->min_length) scores[rules->eos] = -INFINITY;
    for (int64_t k = 0; k < text->banned_count; k++) scores[text->banned[k]] = -INFINITY;
    for (int64_t k = 0; rules->repetition != 0 && k < text->length; k++)
        if (!contains(text->tokens, k, text->tokens[k])) scores[text->tokens[k]] += rules->repetition;
    if (rules->phrase_states) forbid(phrase_marks(rules, text, size, known), size, scores);
}

#endif
