// Models that read recordings, images or arrays: a file is recorded, chosen, dropped or pasted, and shown.
import { model, named, offers } from "./choice.js";
import { tooLarge } from "./messages.js";
import { canRecord, record } from "./record.js";
import { patiently, postForm, postFormForText } from "./server.js";
import { element } from "./steps.js";

const WORDS = { audio: "recording", whisper: "recording", image: "image", features: "array" };
const at = (id) => document.getElementById(id);
let limits = {}, changed = () => {}, failed = () => {}, file = null, address = "", recording = null;

// Whether the chosen model reads files.
export const readsFiles = () => offers("transcribe");
export const givenFile = () => file;

const isRecording = () => Boolean(model()?.reads?.seconds);
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
const mostSeconds = () => Math.min(model().reads.seconds, limits.seconds);

function preview() {
  if (address) URL.revokeObjectURL(address);
  address = file ? URL.createObjectURL(file) : "";
  const { kind } = model().reads ?? {}, shown = [];
  if (file && isRecording()) shown.push(element("audio", { controls: "", src: address, "aria-label": file.name }));
  if (file && kind === "image") {
    const image = element("img", { src: address, alt: `The image ${file.name}` });
    image.addEventListener("error", () => image.remove());  // The browser does not show every format.
    shown.push(image);
  }
  if (file) shown.push(element("p", { class: "hint" }, `${file.name}, ${Math.ceil(file.size / 1000).toLocaleString("en")} kB`));
  at("preview").replaceChildren(...shown);
  at("preview").hidden = !file;
  at("invitation").hidden = Boolean(file);
  at("remove").hidden = !file;
}

// Read another file, or none.
export function give(found) {
  const refusal = tooLarge(found?.size ?? 0, limits.file_bytes);
  if (refusal) {
    failed(refusal);
    return;
  }
  file = found;
  preview();
  changed();
}

function showRecording() {
  at("record").setAttribute("aria-pressed", String(Boolean(recording)));
  at("record").querySelector("span").textContent = recording ? "Stop" : "Record";
  at("recorded").textContent = recording ? `0:00 of ${clock(mostSeconds())}` : "";
}

async function toggleRecording() {
  if (recording) {
    recording.stop();
    return;
  }
  try {
    const ontime = (passed, most) => { at("recorded").textContent = `${clock(passed)} of ${clock(most)}`; };
    recording = await record({ seconds: mostSeconds(), bytes: limits.file_bytes, ontime });
  } catch (error) {
    const denied = error.name === "NotAllowedError";
    failed(denied ? "The browser does not allow this page to use the microphone." : "This browser found no microphone.");
    return;
  }
  showRecording();
  const { done } = recording, found = await done, kept = recording;
  recording = null;
  showRecording();
  if (found && !kept.dropped) give(found);
}

// What depends on the chosen model.
export function showGiven() {
  const reads = readsFiles();
  document.body.classList.toggle("reads", reads);
  at("given").hidden = !reads;
  showSegments([]);
  if (recording) {
    recording.dropped = true;
    recording.stop();
  }
  if (!reads) return;
  const { kind, files } = model().reads, word = WORDS[kind] ?? "file", { languages = [] } = model();
  at("record").hidden = !isRecording() || !canRecord();
  at("invitation-text").textContent = `${at("record").hidden ? "Choose" : "Record, choose"}, drop or paste ${/^[aeiou]/.test(word) ? "an" : "a"} ${word}`;
  at("kinds").textContent = `Files: ${files.join(", ")}`;
  at("pick").title = `Choose a file: ${files.join(", ")}`;
  at("file").accept = files.join(",");
  at("speech").hidden = !languages.length;
  if (at("spoken-language").childElementCount !== languages.length + 1) {
    const sorted = languages.map((code) => [code, named(code)]).sort(([, one], [, other]) => one.localeCompare(other));
    at("spoken-language").replaceChildren(...[["", "Detect language"], ...sorted].map(([code, name]) => element("option", { value: code }, name)));
  }
  preview();
}

function formOf(options) {
  const form = new FormData();
  const english = at("english").checked && !at("speech").hidden, source = at("speech").hidden ? "" : at("spoken-language").value;
  for (const [name, value] of Object.entries({ model: model().name, source, target: english ? "en" : "", ...options })) {
    if (value !== "") form.append(name, value);
  }
  form.append("file", file, file.name);
  return form;
}

// What the file says, as /v1/transcribe returns it.
export async function transcribe({ waiting, signal, options = {} }) {
  const times = model().reads.times ? { timestamps: "true" } : {}, form = () => formOf({ detail: "true", ...times, ...options });
  const found = await patiently(() => postForm("v1/transcribe", form(), signal), waiting, signal);
  const detect = at("spoken-language").options[0];
  if (detect) detect.textContent = found.language && !at("spoken-language").value ? `Detected: ${named(found.language)}` : "Detect language";
  return found;
}

// Show what is said when.  segments: as /v1/transcribe returns them.
export function showSegments(segments) {
  const play = (start) => {
    const sound = at("preview").querySelector("audio");
    if (!sound) return;
    sound.currentTime = start;
    sound.play().catch(() => {});  // The browser does not play every format.
  };
  at("segments").replaceChildren(...segments.map(({ start, end, text }) => {
    const times = `${clock(start)} – ${clock(end)}`;
    return element("li", {}, element("button", { type: "button", class: "tool", onclick: () => play(start), title: "Play from here" }, times), element("span", {}, text));
  }));
  at("segments").hidden = !segments.length;
}

// The inspection of the file's text as a page.  tokens: of the text, unless the model writes times.
export async function inspectFile(tokens, options) {
  const given = model().reads.times ? {} : { target_tokens: JSON.stringify(tokens) };
  return postFormForText("v1/inspect/page", formOf({ ...given, ...options }));
}

// The files of a drop or a paste are for the model.
export function take(files) {
  if (!readsFiles()) return false;
  if (files.length) give(files[0]);
  return true;
}

// info: limits of the server.  onchange: called for another file.  onfail(message): called if there is no recording.
export function setUpGiven(info, onchange, onfail) {
  [limits, changed, failed] = [info, onchange, onfail];
  at("record").addEventListener("click", toggleRecording);
  at("remove").addEventListener("click", () => {
    give(null);
    (at("record").hidden ? at("pick") : at("record")).focus();
  });
  for (const id of ["spoken-language", "english"]) at(id).addEventListener("change", () => { if (file) changed(); });
  document.addEventListener("paste", (event) => {
    if (readsFiles() && event.clipboardData.files.length && take(event.clipboardData.files)) event.preventDefault();
  });
}
