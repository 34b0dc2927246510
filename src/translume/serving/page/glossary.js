// Terms and their translations, in the browser's storage. They constrain the translations of lines that contain them.
import { element } from "./steps.js";
import { store, stored } from "./storage.js";

const TERMS = "translume.glossary", MOST = 16;
const at = (id) => document.getElementById(id);
let pair = () => "";

function read() {
  try {
    const found = JSON.parse(stored(TERMS) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each?.term === "string" && typeof each?.translation === "string") : [];
  } catch {
    return [];
  }
}

const own = () => read().filter((each) => each.pair === pair());

// Whether a text contains a term as whole words; scripts without spaces have no word boundaries.
function contains(text, term) {
  const escaped = term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const spaced = /^[\p{Script=Latin}\p{Script=Cyrillic}\p{Script=Greek}\p{N}]/u.test(term);
  return new RegExp(spaced ? `(?<![\\p{L}\\p{N}])${escaped}(?![\\p{L}\\p{N}])` : escaped, "iu").test(text);
}

// A function of a text: the entries whose terms it contains, as { translation, isIn(text) }.
export function phrasesIn() {
  const entries = own();
  return (text) => entries.filter((each) => contains(text, each.term)).slice(0, MOST)
    .map(({ term, translation }) => ({ translation, isIn: (part) => contains(part, term) }));
}

export function showGlossary() {
  at("terms").replaceChildren(...own().map((entry) => element("li", {},
    element("span", {}, entry.term), element("span", {}, entry.translation),
    element("button", { type: "button", class: "tool", "aria-label": `Delete ${entry.term}`, onclick: () => change((terms) => terms.filter((each) => !same(each, entry))) }, "Delete"))));
}

const same = (one, other) => one.pair === other.pair && one.term === other.term;
let onchange = () => {};

function change(how) {
  store(TERMS, JSON.stringify(how(read())));
  showGlossary();
  onchange();
}

// currentPair(): the languages, or the model, that terms belong to.  callback: called when terms change.
export function setUpGlossary(currentPair, callback) {
  pair = currentPair;
  onchange = callback;
  at("add-term").addEventListener("submit", (event) => {
    event.preventDefault();
    const entry = { pair: pair(), term: at("term").value.trim(), translation: at("translated-term").value.trim() };
    if (!entry.term || !entry.translation) return;
    at("add-term").reset();
    at("term").focus();
    change((terms) => [...terms.filter((each) => !same(each, entry)), entry]);
  });
  showGlossary();
}
