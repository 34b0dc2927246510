// Translates by the kernels in WebAssembly, in browsers, workers and Node.

// The scores and distributions of ids. `wasm` and `model` are the bytes of kernels.wasm and model.bin.
export class Engine {
  #kernels;

  static async load(wasm, model) {
    if (!globalThis.WebAssembly) throw new Error('This browser has no WebAssembly.');
    if (!WebAssembly.validate(wasm)) throw new Error('This browser has no WebAssembly with SIMD; a newer one has.');
    const engine = new Engine();
    engine.#kernels = (await WebAssembly.instantiate(wasm)).instance.exports;
    const place = engine.#kernels.reserve(model.length) >>> 0;
    new Uint8Array(engine.#kernels.memory.buffer).set(model, place);
    if (!engine.#kernels.load(place, model.length)) throw new Error('model.bin: damaged, or of another version');
    return engine;
  }

  #write(ids) {
    new Int32Array(this.#kernels.memory.buffer, this.#kernels.input(), ids.length).set(ids);
  }

  #read(place) {
    if (!place) throw new Error('the engine cannot read these tokens, or its logits are not finite');
    const { buffer } = this.#kernels.memory;
    return [new Int32Array(buffer), new Float32Array(buffer), (place >>> 0) / 4];
  }

  // The finished hypotheses, best first, for source ids that end with EOS. prompt: BOS, tags and tokens to begin with,
  // which the hypotheses do not contain.
  search(ids, prompt, { beam = 1, limit, patience = 0 }) {
    this.#write([...ids, ...prompt]);
    const place = this.#kernels.search(ids.length, prompt.length, beam, limit, patience);
    const found = [];
    let [numbers, floats, at] = this.#read(place);
    for (let length = Math.abs(numbers[at]); length; length = Math.abs(numbers[at])) {
      const tokens = Array.from(numbers.subarray(at + 2, at + 2 + length));
      const sums = floats.subarray(at + 2 + length, at + 2 + 2 * length);
      const logProbs = Array.from(sums, (sum, place) => sum - (place ? sums[place - 1] : 0));
      found.push({ tokens, logProbs, logProb: sums[length - 1], score: floats[at + 1], complete: numbers[at] > 0 });
      at += 2 + 2 * length;
    }
    return found;
  }

  // For each of `tokens`, after the source of the last search: its log-probability, and the `listed` likeliest tokens in
  // its place.
  inspect(prompt, tokens, listed) {
    this.#write([...prompt, ...tokens]);
    const [numbers, floats, first] = this.#read(this.#kernels.inspect(prompt.length, tokens.length, listed));
    return tokens.map((token, place) => {
      const at = first + place * (1 + 2 * listed);
      const likeliest = Array.from({ length: listed }, (_, k) => (
        { token: numbers[at + 1 + k], logProb: floats[at + 1 + listed + k] }));
      return { token, logProb: floats[at], likeliest };
    });
  }
}

// SentencePiece's rules: at each place the longest one that fits. charsmap: in base64, the size of a double array of UTF-8
// bytes (Darts-clone), that array, and what it leads to.
class Rules {
  constructor(charsmap) {
    const bytes = Uint8Array.from(atob(charsmap), (each) => each.charCodeAt(0)), size = new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.buffer.slice(4, 4 + size));
    this.texts = bytes.subarray(4 + size);
  }

  apply(text) {
    const bytes = new TextEncoder().encode(text), found = [];
    const child = (node) => node ^ ((this.units[node] >>> 10) << ((this.units[node] & 512) >>> 6));
    for (let at = 0; at < bytes.length;) {
      let node = child(0), length = 0, rule;
      for (let end = at; end < bytes.length; end++) {
        node ^= bytes[end];
        if ((this.units[node] & 0x800000ff) !== bytes[end]) break;
        const leaf = (this.units[node] >>> 8) & 1;
        node = child(node);
        if (leaf) [length, rule] = [end + 1 - at, this.units[node] & 0x7fffffff];
      }
      if (length) for (; this.texts[rule]; rule++) found.push(this.texts[rule]);
      else while (found.push(bytes[at + length++]), (bytes[at + length] & 0xc0) === 0x80);
      at += length;
    }
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(found));
  }
}

// Texts of a model. about: model.json.  tokenizer: encodes normalised sources, a Tokenizer of @huggingface/tokenizers.
export class Translator {
  constructor(engine, about, tokenizer) {
    Object.assign(this, { engine, about, tokenizer, rules: about.charsmap ? new Rules(about.charsmap) : null });
    this.spellings = about.spellings.map((bytes) => Uint8Array.from(bytes, (each) => each.charCodeAt(0)));
  }

  // Load a page's folder. fetched: reads a file of it, like `fetch`.
  static async load(Tokenizer, fetched) {
    const about = await (await fetched('model.json')).json();
    const [wasm, model, tokenizer] = await Promise.all(['kernels.wasm', 'model.bin', 'tokenizer.json'].map(fetched));
    const engine = await Engine.load(...await Promise.all([wasm, model].map(
      async (each) => new Uint8Array(await each.arrayBuffer()))));
    return new Translator(engine, about, new Tokenizer(await tokenizer.json(), {}));
  }

  // What `normaliser` and `with_mark` of text/segmentation.py do; imported tokenizers have rules of their own.
  #normalised(text) {
    const { form, lowercase, collapse, mark, unspaced, spaces } = this.about.normalise;
    let found = text.replace(/\p{Surrogate}/gu, '\ufffd');
    if (form) found = found.normalize(form);
    if (lowercase) found = form ? found.toLowerCase().normalize(form).toLowerCase() : found.toLowerCase();
    if (collapse) found = found.split(new RegExp(`[${spaces}]+`, 'u')).filter(Boolean).join(' ');
    return found && (mark === 'always' || (mark && !new RegExp(`^[${unspaced}]`, 'u').test(found))) ? ` ${found}` : found;
  }

  // The ids of a source, without tags and EOS.
  encode(text) {
    const normalised = this.about.normalise ? this.#normalised(text) : this.rules ? this.rules.apply(text) : text;
    if (!normalised) return [];
    const { ids, tokens } = this.tokenizer.encode(normalised, { add_special_tokens: false });
    return ids.flatMap((id, place) => (id === undefined || id === this.about.unknown.id ? this.#unknown(tokens[place]) : [id]));
  }

  // The ids of characters outside the vocabulary, which the tokenizer joins: their bytes, or one for each or all of them.
  #unknown(text) {
    const { as, first } = this.about.unknown;
    if (as === 'bytes') return Array.from(new TextEncoder().encode(text), (byte) => first + byte);
    return as === 'characters' ? Array.from(text, () => first) : [first];
  }

  // The text that each of the ids adds; one that completes a character adds all of it.
  spell(ids) {
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    return ids.map((id, place) => decoder.decode(this.spellings[id], { stream: place < ids.length - 1 }));
  }

  decode(ids) {
    const text = this.spell(ids).join('');
    return this.about.strip === 'all' ? text.trim() : this.about.strip ? text.replace(/^ /, '') : text;
  }

  // The sentences of a line, if the model was trained on sentences.
  sentences(line, language) {
    if (!this.about.splits || !Intl.Segmenter) return [line];
    return Array.from(new Intl.Segmenter(language || 'und', { granularity: 'sentence' }).segment(line), (each) => each.segment);
  }

  // One piece: { text, tokens, logProb, complete, source }. begin: target tokens to begin with. tokens: [{ token, name,
  // text, logProb, likeliest }].
  translatePiece(text, { beam = this.about.beam, direction = 0, listed = 0, begin = [] } = {}) {
    const { about } = this, { tags, prompt } = about.directions[direction];
    const ids = this.encode(text);
    if (!ids.length || (about.keepsLetterless && !/\p{L}/u.test(text))) return { text: ids.length ? text : '', tokens: [] };
    const source = [...tags, ...ids, about.eos[0]];
    if (source.length > about.longest) throw new Error(`found ${source.length} tokens, expected at most ${about.longest}`);
    const room = about.longest + 1 - prompt.length - begin.length;
    const limit = Math.max(1, Math.min(about.limits[ids.length] - begin.length, room));
    const [best] = this.engine.search(source, [...prompt, ...begin], { beam, limit, patience: about.patience * beam });
    const target = [...begin, ...best.tokens], spelt = this.spell(target);
    const steps = this.engine.inspect(prompt, target, listed).map(({ token, logProb, likeliest }, place) => ({
      token, logProb, name: about.pieces[token], text: spelt[place],
      likeliest: likeliest.map((each) => ({ ...each, name: about.pieces[each.token] })),
    }));
    const logProb = steps.reduce((sum, each) => sum + each.logProb, 0);
    return { text: this.decode(target), tokens: steps, logProb, complete: best.complete };
  }

  // A line: its pieces, and their texts with the white space between them.
  translate(line, options = {}) {
    const pieces = this.sentences(line, this.about.directions[options.direction ?? 0].source).map((sentence) => {
      const [, before, inner, after] = sentence.match(/^(\s*)([^]*?)(\s*)$/);
      return { before, ...this.translatePiece(inner, options), after, source: inner };
    });
    return { text: pieces.map(({ before, text, after }) => before + text + after).join('').trim(), pieces };
  }
}
