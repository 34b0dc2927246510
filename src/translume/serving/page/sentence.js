// A translated line: its tokens in parts (one per sentence), their log p, and the user's choices.
import { END, parts, placed } from "./lines.js";

export class Line {
  // translation: as /v1/translate returns it with `detail`.  phrases: those of the glossary that it was made with.
  constructor(source, translation, phrases = []) {
    const best = translation.hypotheses?.[0];
    const tokens = best?.tokens ?? [], logs = best?.token_log_probs ?? [];
    this.source = source;
    this.text = translation.text;
    this.hypothesis = best && { ...best, text: translation.text };
    this.warnings = translation.warnings ?? [];
    this.phrases = phrases;
    this.version = 0;
    this.parts = parts(tokens).map(([first, last]) => ({
      tokens: tokens.slice(first, last), logs: logs.slice(first, last), trace: null, before: [], free: 0,
    }));
    this.place();
  }

  // Whether the user chose its words.
  get isChosen() {
    return Boolean(this.isOther) || this.parts.some((part) => part.before.length);
  }

  // Update the characters of the text that each token of each part covers, and the confidence: the geometric mean of the
  // probabilities of the tokens that the model chose, 1 if there are none.
  place() {
    const logs = this.parts.flatMap((part) => part.logs).map((each) => each ?? -9);
    this.confidence = logs.length ? Math.exp(logs.reduce((sum, each) => sum + each, 0) / logs.length) : 1;
    const all = placed(this.parts.flatMap((part) => part.tokens), this.text);
    let at = 0;
    for (const part of this.parts) {
      part.places = all.slice(at, at + part.tokens.length);
      at += part.tokens.length;
    }
  }

  // The request for a part; tokens: all of its tokens (target_tokens) or the first ones (prefix_tokens).
  requestFor(number, tokens) {
    return { text: this.source, part: number, ...tokens };
  }

  // Replace the translation of a part; free: index of the first token that the model chose.
  replace(number, trace, free) {
    const part = this.parts[number], { tokens, logs, trace: before, free: bound, before: stack } = part;
    const range = this.range(part);
    const now = {
      tokens: trace.target_tokens.map((each) => each.text), logs: trace.steps.map((each) => each.log_p_model), trace, free,
      before: [...stack, { tokens, logs, trace: before, free: bound, text: this.text.slice(...range) }],
    };
    this.put(part, now, trace.target, range);
  }

  // Undo the last choice of a part.
  restore(number) {
    const part = this.parts[number], before = part.before.at(-1);
    if (!before) return;
    const { text, ...state } = before;
    this.put(part, { ...state, before: part.before.slice(0, -1) }, text, this.range(part));
  }

  range(part) {
    const spelling = part.places.filter(([begin, end]) => end > begin);
    return spelling.length ? [spelling[0][0], spelling.at(-1)[1]] : [part.places[0][0], part.places[0][0]];
  }

  put(part, state, text, [begin, end]) {
    Object.assign(part, state);
    this.version += 1;
    this.text = this.text.slice(0, begin) + text + this.text.slice(end);
    this.place();
  }
}

// A line whose translation is not complete: its stable prefix, then the rest of what was shown in its place before.
export class Pending {
  constructor(old = "") {
    this.prefix = "";
    this.old = old;
    this.isBroken = false;
  }

  extend(prefix) {
    Object.assign(this, { prefix, isBroken: false });
  }

  // The rest of the translation does not arrive: do not show that of another text below its beginning.
  breakOff() {
    if (this.prefix) Object.assign(this, { old: "", isBroken: true });
  }

  get rest() {
    return this.old.slice(this.prefix.length);
  }

  get text() {
    return this.prefix + this.rest;
  }
}

export { END };
