// A translated line: its tokens in parts (one for each sentence), their log p, and what became of choices.
import { END, parts, placed } from "./lines.js";

export class Line {
  // translation: as /v1/translate tells it in detail.
  constructor(source, translation) {
    const best = translation.hypotheses?.[0];
    const tokens = best?.tokens ?? [], logs = best?.token_log_probs ?? [];
    this.source = source;
    this.text = translation.text;
    this.warnings = translation.warnings ?? [];
    this.version = 0;
    this.parts = parts(tokens).map(([first, last]) => ({
      tokens: tokens.slice(first, last), logs: logs.slice(first, last), trace: null, before: [], free: 0,
    }));
    this.place();
  }

  // Say anew which characters of the text each token of each part spells.
  place() {
    const all = placed(this.parts.flatMap((part) => part.tokens), this.text);
    let at = 0;
    for (const part of this.parts) {
      part.places = all.slice(at, at + part.tokens.length);
      at += part.tokens.length;
    }
  }

  // What the server is asked about a part; tokens: those that it consists of (target_tokens) or begins with.
  asked(number, tokens) {
    return { text: this.source, part: number, ...tokens };
  }

  // Take over another translation of a part; free: from which token on it was searched for.
  replace(number, trace, free) {
    const part = this.parts[number], { tokens, logs, trace: before, free: bound, before: stack } = part;
    const range = this.range(part);
    const now = {
      tokens: trace.target_tokens.map((each) => each.text), logs: trace.steps.map((each) => each.log_p_model), trace, free,
      before: [...stack, { tokens, logs, trace: before, free: bound, text: this.text.slice(...range) }],
    };
    this.put(part, now, trace.target, range);
  }

  // Take the last choice of a part back.
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

export { END };
