// Translation of files: by the server if it accepts files; otherwise plain text is sent line by line.
import { detecting, model } from "./choice.js";
import { readable, tooLarge } from "./messages.js";
import { broken, drop, get, getBlob, patiently, pause, postForm } from "./server.js";
import { element } from "./steps.js";
import { translateLines } from "./translating.js";

const at = (id) => document.getElementById(id);
const POLL_MILLISECONDS = 300;
let most = 32, largest = Infinity, waiting = () => {}, formats = [];

const renamed = (name, code) => name.replace(/(\.[^.]*)?$/, (end) => `_${code || "translated"}${end || ".txt"}`);

async function textOf(file) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("The file is not UTF-8 text.");
  }
}

// A row in the list of files, with functions that update it.
function row(file, stop) {
  const bar = element("progress", { max: 1, value: 0, "aria-label": `Progress of ${file.name}` });
  const progressText = element("span", { class: "hint" }, "0 %");
  const cancel = element("button", { type: "button", onclick: stop, "aria-label": `Cancel ${file.name}` }, "Cancel");
  const item = element("li", {}, element("span", { class: "name" }, file.name), cancel, bar, progressText);
  at("files-section").hidden = false;
  at("files").prepend(item);
  return {
    progress(share) {
      bar.value = share;
      progressText.textContent = `${Math.round(100 * share)} %`;
    },
    done(blob, name, warnings = []) {
      const link = element("a", { href: URL.createObjectURL(blob), download: name }, `Save ${name}`);
      const said = warnings.map((each) => element("span", { class: "hint" }, each));
      item.replaceChildren(element("span", { class: "name" }, file.name), element("span", { role: "status" }, link, ...said));
    },
    failed(reason) {
      item.replaceChildren(element("span", { class: "name" }, file.name), element("span", { class: "problem", role: "alert" }, reason));
    },
  };
}

// Have the server translate a file; return the result as a blob, its name and warnings, and delete it from the server.
async function byServer(file, chosen, { progress, signal }) {
  const form = new FormData();
  if (detecting()) {
    form.append("source", "auto");
    form.append("target", chosen.target);
  } else form.append("model", chosen.name);
  form.append("file", file, file.name);
  // A request that gets lost does not lose the file.
  const again = (work) => patiently(() => work().catch((error) => { throw error.code === "unreachable" ? broken() : error; }), waiting, signal);
  let job = await patiently(() => postForm("v1/files", form, signal), waiting, signal);
  try {
    while (job.status === "waiting" || job.status === "working") {
      await pause(POLL_MILLISECONDS, signal);
      job = await again(() => get(`v1/files/${job.id}`, signal));
      progress(job.sentences ? job.done / job.sentences : 0);
    }
    if (job.status !== "done") throw new Error(job.error?.error ?? "The file could not be translated.");
    return [await again(() => getBlob(`v1/files/${job.id}/result`, signal)), job.name, job.warnings];
  } finally {
    drop(`v1/files/${job.id}`).catch(() => {});
  }
}

async function byLines(file, chosen, { progress, signal }) {
  const found = await translateLines(await textOf(file), { model: chosen.name, most, progress, waiting, signal });
  return [new Blob([found], { type: "text/plain;charset=utf-8" }), renamed(file.name, chosen.target)];
}

// Why a file is not sent to the server, or "".
function refusal({ name, size }) {
  const suffix = /\.[^.]+$/.exec(name)?.[0].toLowerCase();
  if (formats.length && !formats.includes(suffix)) return `${suffix ? `Files ending in ${suffix}` : "Folders, and files without an ending,"} cannot be translated. Possible are ${formats.join(", ")}.`;
  return tooLarge(size, largest);
}

export async function translateFile(file) {
  const run = new AbortController(), shown = row(file, () => run.abort()), chosen = model();
  if (refusal(file)) {
    shown.failed(refusal(file));
    return;
  }
  const options = { progress: shown.progress, signal: run.signal };
  try {
    shown.done(...await (formats.length ? byServer : byLines)(file, chosen, options));
  } catch (error) {
    shown.failed(error.name === "AbortError" ? "Cancelled" : readable(error));
  }
}

// What files the button takes, for a model of texts.
export function showFormats() {
  const kinds = formats.length ? formats : [".txt"];
  at("kinds").textContent = `Files: ${kinds.join(", ")}`;
  at("pick").title = `Translate a document: ${kinds.join(", ")}`;
  at("file").accept = kinds.join(",");
}

// settings, limits: those of the server.
export function knowFiles(settings, limits) {
  [most, largest] = [limits.texts, limits.file_bytes];
  if (settings.filesTranslation) formats = settings.supportedFilesFormat;
  showFormats();
}

// loaded(): resolves when the page knows models and formats.  onBusy: see `patiently`.
// take(files): whether they were taken, and are no documents to translate.
export function setUpFiles(loaded, onBusy, take) {
  waiting = onBusy;
  const open = async (given) => {
    const files = [...given];
    await loaded();
    if (!take(files)) for (const file of files) translateFile(file);
  };
  at("pick").addEventListener("click", () => at("file").click());
  at("file").addEventListener("change", () => {
    open(at("file").files);
    at("file").value = "";
  });
  const { documentElement: whole, body } = document;
  for (const kind of ["dragenter", "dragover"]) whole.addEventListener(kind, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();  // Otherwise the browser leaves the page for the file.
    if (at("pick").hidden) event.dataTransfer.dropEffect = "none";
    else body.classList.add("dropping");
  });
  whole.addEventListener("dragleave", (event) => { if (!event.relatedTarget) body.classList.remove("dropping"); });
  whole.addEventListener("drop", (event) => {
    body.classList.remove("dropping");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    if (!at("pick").hidden) open(event.dataTransfer.files);
  });
}
