// Translation of a text line by line: translated lines are kept, the others arrive as stable prefixes.
import { transcribe } from "./given.js";
import { parted } from "./lines.js";
import { Line, Pending } from "./sentence.js";
import { Refused, broken, patiently, post, stream } from "./server.js";

const CHARACTERS = 20_000, WORDINGS = 5, DETECTED = 500;
let streams = true;

// Split texts, each as { text }, into batches that fit into a request.
function* batches(units, most) {
  let batch = [], characters = 0;
  for (const unit of units) {
    if (batch.length && (batch.length >= most || characters + unit.text.length > CHARACTERS)) {
      yield batch;
      batch = [];
      characters = 0;
    }
    batch.push(unit);
    characters += unit.text.length;
  }
  if (batch.length) yield batch;
}

// The events of a request as they arrive, or all at the end if the server does not stream.
async function* events(request, signal) {
  if (streams) {
    try {
      yield* stream("v1/translate/stream", request, signal);
      return;
    } catch (error) {
      if (!(error instanceof Refused && (error.status === 404 || error.status === 405) && error.code !== "unknown_model")) throw error;
      streams = false;
    }
  }
  yield ["done", await post("v1/translate", request, signal)];
}

// Translate a text.  kept: Lines and Pendings shown before.  chosen: Lines whose words the user chose, to be used again.
// most: texts per request.  phrasesFor(line): the glossary's entries that it contains.  show(lines, gaps): called with the
// results so far.  waiting: see `patiently`.
export async function translate(text, { model, kept, chosen, most, phrasesFor, show, waiting, signal }) {
  const { lines, gaps } = parted(text);
  const phrases = new Map(lines.map((line) => [line, phrasesFor(line)]));
  const reusable = new Map();
  for (const each of [...kept, ...chosen.filter((each) => !kept.includes(each))]) {
    if (!(each instanceof Line) || String(each.phrases) !== String((phrases.get(each.source) ?? []).map((one) => one.translation))) continue;
    if (!reusable.has(each.source)) reusable.set(each.source, []);
    reusable.get(each.source).push(each);
  }
  for (const each of reusable.values()) each.reverse();
  const reused = lines.map((line) => reusable.get(line)?.pop()), elsewhere = new Set(reused);
  // What is shown in the place of a line stays until its translation arrives.
  const slots = lines.map((line, place) => reused[place] ?? new Pending(elsewhere.has(kept[place]) ? "" : kept[place]?.text));
  const places = new Map(lines.map((line) => [line, []]));
  lines.forEach((line, place) => { if (slots[place] instanceof Pending) places.get(line).push(place); });
  const untranslated = [...places].filter(([, open]) => open.length).map(([line]) => new Job(line, phrases.get(line)));
  const put = (line, change) => {
    for (const place of places.get(line)) if (slots[place] instanceof Pending) change(slots[place], place);
  };
  const translateBatch = (batch) => patiently(async () => {
    const request = { text: batch.map((unit) => unit.text), model, detail: true, alignment: false };
    if (batch.some((unit) => unit.phrases.length)) request.constraints = batch.map((unit) => unit.phrases);
    try {
      for await (const [kind, value] of events(request, signal)) {
        if (kind === "prefix") {
          const { job } = Object.assign(batch[value.place], { prefix: value.text });
          put(job.line, (pending) => pending.extend(job.prefix));
        } else if (kind === "done") (value.translations ?? []).slice(0, batch.length).forEach((each, at) => {
          const { job } = Object.assign(batch[at], { translation: each });
          if (job.done) put(job.line, (_, place) => { slots[place] = new Line(job.line, job.translation, job.phrases); });
        });
        else if (kind === "error") throw new Refused(value.status ?? 422, value, value.code === "queue_full" ? 1 : 0);
        show(slots, gaps);
      }
      if (!batch.every((unit) => unit.translation)) throw broken();
    } catch (error) {
      if (error.name !== "AbortError") for (const { job } of batch) put(job.line, (pending) => pending.breakOff());
      show(slots, gaps);
      throw error;
    }
  }, waiting, signal);
  show(slots, gaps);
  for (const batch of batches(untranslated.flatMap((job) => job.units), most)) await translateBatch(batch);
}

// A line to translate. If it must contain phrases, each of its sentences is translated on its own, with those of its terms:
// the server would look for a phrase of the target language in the source.
class Job {
  constructor(line, phrases) {
    Object.assign(this, { line, phrases: phrases.map((each) => each.translation) });
    this.units = sentences(line, phrases).map(([text, gap]) => ({ job: this, text, gap, prefix: "", translation: null,
      phrases: phrases.filter((each) => each.isIn(text)).map((each) => each.translation) }));
  }

  get done() {
    return this.units.every((unit) => unit.translation);
  }

  // What is certain of the translation: that of the first sentences.
  get prefix() {
    const open = this.units.findIndex((unit) => !unit.translation);
    const certain = this.units.slice(0, open < 0 ? this.units.length : open + 1);
    return certain.map((unit) => (unit.translation ? unit.translation.text + unit.gap : unit.prefix)).join("");
  }

  get translation() {
    const found = this.units.map((unit) => unit.translation);
    if (found.length === 1) return found[0];
    const best = found.map((each) => each.hypotheses?.[0] ?? {});
    return {
      text: found.map((each, place) => each.text + this.units[place].gap).join(""), warnings: found.flatMap((each) => each.warnings ?? []),
      hypotheses: [{ tokens: best.flatMap((each) => each.tokens ?? []), token_log_probs: best.flatMap((each) => each.token_log_probs ?? []) }],
    };
  }
}

// The sentences of a line as [text, white space after it].
function sentences(line, phrases) {
  if (!phrases.length || !Intl.Segmenter) return [[line, ""]];
  return [...new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(line)].map(({ segment }) =>
    [segment.trimEnd(), segment.slice(segment.trimEnd().length)]).filter(([text]) => text);
}

// Other translations of a line, as hypotheses with tokens, the best first.  width: most hypotheses of a request.
export async function otherWordings(line, { model, width, signal }) {
  const beam = Math.min(WORDINGS, width);
  if (line.file) {
    const { hypotheses } = await transcribe({ waiting: () => {}, signal, options: { strategy: "beam", beam, nbest: beam, timestamps: "false" } });
    return different(hypotheses);
  }
  const request = { text: line.source, model, strategy: "beam", beam, nbest: beam, detail: true };
  if (line.phrases.length) request.constraints = line.phrases;
  const answer = await post("v1/translate", request, signal);
  return different(answer.translations[0].hypotheses);
}

function different(hypotheses) {
  const found = new Map(hypotheses.map((each) => [each.text, each]));
  return [...found.values()].filter((each) => each.text.trim());
}

export const classify = async (text, { model, waiting, signal }) =>
  (await patiently(() => post("v1/classify", { text, model }, signal), waiting, signal)).classifications[0];

// Translate a file line by line; progress(share) is called with the fraction done.
export async function translateLines(text, { model, most, progress, waiting, signal }) {
  const { lines, gaps } = parted(text);
  const found = [];
  for (const batch of batches(lines.map((text) => ({ text })), Math.min(most, 32))) {
    const request = { text: batch.map((unit) => unit.text), model };
    const answer = await patiently(() => post("v1/translate", request, signal), waiting, signal);
    found.push(...answer.translations.map((each) => each.text));
    progress(found.length / lines.length);
  }
  return gaps[0] + found.map((each, place) => each + gaps[place + 1]).join("");
}


// The most probable language of a text among those of the server, { language, confidence }.
export const detect = async (text, signal) => (await post("detect", { q: text.slice(0, DETECTED) }, signal))[0];
