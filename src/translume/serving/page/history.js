// The history of translations, in the browser's storage only.
import { element } from "./steps.js";
import { store, stored } from "./storage.js";

const MOST = 50, LONGEST = 5000;
const ENTRIES = "translume.history", KEEP = "translume.keep";
const at = (id) => document.getElementById(id);

export const keeps = () => stored(KEEP) !== "no";

function read() {
  try {
    const found = JSON.parse(stored(ENTRIES) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each?.source === "string" && typeof each?.text === "string") : [];
  } catch {
    return [];
  }
}

function write(entries) {
  // If the storage is full, keep half of them.
  store(ENTRIES, JSON.stringify(entries)) || store(ENTRIES, JSON.stringify(entries.slice(0, entries.length >> 1)));
}

// Store a text and its translation. It replaces the last entry if that was a prefix of the text.
export function remember(entry) {
  if (!keeps() || !entry.source.trim() || entry.source.length > LONGEST) return;
  const entries = read().filter((each) => each.source !== entry.source || each.model !== entry.model);
  if (entries.length && entry.source.startsWith(entries[0].source) && entries[0].model === entry.model) entries.shift();
  write([entry, ...entries].slice(0, MOST));
  show();
}

let restore = () => {};

function show() {
  const entries = read();
  at("entries").replaceChildren(...entries.map((entry) => element("li", {},
    element("button", { type: "button", class: "entry", onclick: () => restore(entry) },
      element("span", { dir: "auto" }, entry.source), element("span", { class: "hint", dir: "auto" }, entry.text)))));
  at("forget").disabled = !entries.length;
}

// onrestore: called with the selected entry.
export function setUpHistory(onrestore) {
  restore = onrestore;
  at("keep").checked = keeps();
  const forget = () => {
    store(ENTRIES, null);
    show();
  };
  at("keep").addEventListener("change", () => {
    store(KEEP, at("keep").checked ? "yes" : "no");
    if (!keeps()) forget();
  });
  at("forget").addEventListener("click", forget);
  // Another tab has changed it.
  addEventListener("storage", () => {
    at("keep").checked = keeps();
    show();
  });
  show();
}
