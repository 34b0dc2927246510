/* Drafts: a small decoder guesses the next tokens of a hypothesis, which one step of the search's own model checks
   (Leviathan et al. 2023). The step costs little more than one for a single token, since it reads the weights once. */

#ifndef TRANSLUME_DRAFT
#define TRANSLUME_DRAFT

#include "linear.h"
#include "logits.h"
#include "stack.h"

typedef struct {
    const stack *stack;
    const linear *head;
    const float *table, *positions; /* as in `search_settings` */
    float scale;
    int64_t vocabulary, eos, count; /* count: maximum number of tokens guessed */
    lane lane;                      /* `position`: number of tokens read */
    const int64_t *prompt;          /* the tokens before those that the search reads */
    int64_t *tokens;                /* [count], those guessed */
    float *x, *logits;              /* [count + 1, D], [V] */
    char *workspace;
} draft;

/* Return the first token with the largest logit. */
static int64_t likeliest_token(const float *logits, int64_t size) {
    float peak = max_of(logits, size);
    int64_t token = 0;
    while (token < size && logits[token] != peak) token++;
    return token < size ? token : 0; /* logits with a NaN */
}

/* Guess up to `most` tokens after position `position` of a hypothesis; return their number. The last may be EOS.
   known: the token at position `begin` and the later ones, up to `position`. */
static int64_t guess_tokens(draft *draft, const int64_t *known, int64_t begin, int64_t position, int64_t most) {
    lane *own = &draft->lane;
    const lane *const lanes[] = {own};
    int64_t width = draft->stack->width, guessed = 0;
    if (own->position > position) own->position = position; /* what it read there may have been rejected */
    while (guessed < most) {
        int64_t last = position + guessed, rows = 0;
        for (; rows <= draft->count && own->position + rows <= last; rows++) {
            int64_t place = own->position + rows;
            int64_t token = place < begin ? draft->prompt[place] :
                place <= position ? known[place - begin] : draft->tokens[place - position - 1];
            for (int64_t k = 0; k < width; k += LANES) {
                vector value = load(draft->table + token * width + k) * draft->scale;
                if (draft->positions) value += load(draft->positions + place * width + k);
                store(draft->x + rows * width + k, value);
            }
        }
        const step_input step = {lanes, 1, rows, NULL, 0};
        translume_step(draft->stack, &step, draft->x, draft->workspace);
        own->position += rows;
        if (own->position <= last) continue;
        linear_forward(draft->head, draft->x + (rows - 1) * width, 1, draft->logits, 0,
                       carve_quantized(1, width, draft->workspace));
        draft->tokens[guessed] = likeliest_token(draft->logits, draft->vocabulary);
        if (draft->tokens[guessed++] == draft->eos) break;
    }
    return guessed;
}

#endif
