// Translation of a text line by line: translated lines are kept, the others arrive as stable prefixes.
import { parted } from "./lines.js";
import { Line } from "./sentence.js";
import { Refused, patiently, post, stream } from "./server.js";

const CHARACTERS = 20_000;
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

// Translate a text.  kept: Lines translated before.  most: texts per request.  show(lines, gaps): called with the results
// so far; an unfinished line is a text.  waiting: see `patiently`.
export async function translate(text, { model, kept, most, show, waiting, signal }) {
  const { lines, gaps } = parted(text);
  const reusable = new Map();
  for (const each of kept) if (each instanceof Line) reusable.set(each.source, [...(reusable.get(each.source) ?? []), each]);
  const slots = lines.map((line) => reusable.get(line)?.shift() ?? "");
  const untranslated = [...new Set(lines.filter((_, place) => slots[place] === ""))];
  const put = (line, make) => lines.forEach((each, place) => {
    if (each === line && !(slots[place] instanceof Line)) slots[place] = make();
  });
  const translateBatch = (batch) => patiently(async () => {
    for await (const [kind, value] of events({ text: batch, model, detail: true, alignment: false }, signal)) {
      if (kind === "prefix") put(batch[value.place], () => value.text);
      else if (kind === "done") value.translations.forEach((each, place) => put(batch[place], () => new Line(batch[place], each)));
      else if (kind === "error") throw new Refused(value.status ?? 422, value, value.code === "queue_full" ? 1 : 0);
      show(slots, gaps);
    }
  }, waiting, signal);
  if (!untranslated.length) show(slots, gaps);
  try {
    for (const batch of batches(untranslated, most)) await translateBatch(batch);
  } catch (error) {
    // Show the results so far: the earlier ones belong to another text.
    show(slots, gaps);
    throw error;
  }
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

