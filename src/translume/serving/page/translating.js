// Translation of a text line by line: translated lines are kept, the others arrive as stable prefixes.
import { parted } from "./lines.js";
import { Line, Pending } from "./sentence.js";
import { Refused, patiently, post, stream } from "./server.js";

const CHARACTERS = 20_000, WORDINGS = 5, DETECTED = 500;
let streams = true;

// Split lines into batches that fit into a request.
function* batches(lines, most) {
  let batch = [], characters = 0;
  for (const line of lines) {
    if (batch.length && (batch.length >= most || characters + line.length > CHARACTERS)) {
      yield batch;
      batch = [];
      characters = 0;
    }
    batch.push(line);
    characters += line.length;
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

// Translate a text.  kept: Lines and Pendings shown before.  most: texts per request.  phrasesFor(line): phrases that its
// translation must contain.  show(lines, gaps): called with the results so far.  waiting: see `patiently`.
export async function translate(text, { model, kept, most, phrasesFor, show, waiting, signal }) {
  const { lines, gaps } = parted(text);
  const phrases = new Map(lines.map((line) => [line, phrasesFor(line)]));
  const reusable = new Map();
  for (const each of kept) {
    if (!(each instanceof Line) || String(each.phrases) !== String(phrases.get(each.source) ?? "")) continue;
    reusable.set(each.source, [...(reusable.get(each.source) ?? []), each]);
  }
  const reused = lines.map((line) => reusable.get(line)?.shift());
  // What is shown in the place of a line stays until its translation arrives.
  const slots = lines.map((line, place) => reused[place] ?? new Pending(reused.includes(kept[place]) ? "" : kept[place]?.text));
  const untranslated = [...new Set(lines.filter((_, place) => slots[place] instanceof Pending))];
  const put = (line, change) => lines.forEach((each, place) => {
    if (each === line && slots[place] instanceof Pending) change(slots[place], place);
  });
  const translateBatch = (batch) => patiently(async () => {
    const request = { text: batch, model, detail: true, alignment: false };
    if (batch.some((line) => phrases.get(line).length)) request.constraints = batch.map((line) => phrases.get(line));
    for await (const [kind, value] of events(request, signal)) {
      if (kind === "prefix") put(batch[value.place], (pending) => { pending.prefix = value.text; });
      else if (kind === "done") value.translations.forEach((each, at) => put(batch[at], (_, place) => {
        slots[place] = new Line(batch[at], each, phrases.get(batch[at]));
      }));
      else if (kind === "error") throw new Refused(value.status ?? 422, value, value.code === "queue_full" ? 1 : 0);
      show(slots, gaps);
    }
  }, waiting, signal);
  show(slots, gaps);
  for (const batch of batches(untranslated, most)) await translateBatch(batch);
}

// Other translations of a line, as hypotheses with tokens, the best first.  width: most hypotheses of a request.
export async function otherWordings(line, { model, width, signal }) {
  const beam = Math.min(WORDINGS, width);
  const request = { text: line.source, model, strategy: "beam", beam, nbest: beam, detail: true };
  if (line.phrases.length) request.constraints = line.phrases;
  const answer = await post("v1/translate", request, signal);
  const found = new Map(answer.translations[0].hypotheses.map((each) => [each.text, each]));
  return [...found.values()].filter((each) => each.text.trim());
}

export const classify = async (text, { model, waiting, signal }) =>
  (await patiently(() => post("v1/classify", { text, model }, signal), waiting, signal)).classifications[0];

// Translate a file line by line; progress(share) is called with the fraction done.
export async function translateLines(text, { model, most, progress, waiting, signal }) {
  const { lines, gaps } = parted(text);
  const found = [];
  for (const batch of batches(lines, Math.min(most, 32))) {
    const answer = await patiently(() => post("v1/translate", { text: batch, model }, signal), waiting, signal);
    found.push(...answer.translations.map((each) => each.text));
    progress(found.length / lines.length);
  }
  return gaps[0] + found.map((each, place) => each + gaps[place + 1]).join("");
}


// The most probable language of a text among those of the server, { language, confidence }.
export const detect = async (text, signal) => (await post("detect", { q: text.slice(0, DETECTED) }, signal))[0];
