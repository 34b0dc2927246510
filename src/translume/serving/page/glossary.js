// Terms and their translations, in the browser's storage. They constrain the translations of lines that contain them.
import { element } from "./steps.js";
import { store, stored } from "./storage.js";

const TERMS = "translume.glossary", MOST = 16;
const at = (id) => document.getElementById(id);
let pair = () => "";

const plain = (text) => text.normalize().replace(/\s+/g, " ");
const fold = (text) => plain(text).toLowerCase();

// Whether two entries are for the same term. Two that both match case may differ in it.
function same(one, other) {
  const spelt = one.cased && other.cased ? plain : fold;
  return one.pair === other.pair && spelt(one.term) === spelt(other.term);
}

function read() {
  try {
    const found = JSON.parse(stored(TERMS) ?? "[]");
    const valid = Array.isArray(found) ? found.filter((each) => typeof each?.term === "string" && typeof each?.translation === "string") : [];
    return valid.filter((each, place) => !valid.slice(place + 1).some((later) => same(each, later)));
  } catch {
    return [];
  }
}

const own = () => read().filter((each) => each.pair === pair());

// The occurrences of a term in plain text, as whole words; scripts without spaces have no word boundaries.
function occurrences({ term, cased }) {
  const escaped = plain(term).replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const spaced = /^[\p{Script=Latin}\p{Script=Cyrillic}\p{Script=Greek}\p{N}]/u.test(term);
  return new RegExp(spaced ? `(?<![\\p{L}\\p{N}])${escaped}(?![\\p{L}\\p{N}])` : escaped, cased ? "gu" : "giu");
}

// A function of a text: the entries whose terms it contains, as { translation, isIn(text) }. A term within a longer one,
// such as York in New York, does not count.
export function phrasesIn() {
  const entries = own().sort((one, other) => other.term.length - one.term.length).map((each) => [each, occurrences(each)]);
  const found = (text) => {
    let rest = entries.length ? plain(text) : "";
    return entries.filter(([, pattern]) => rest !== (rest = rest.replace(pattern, "\0"))).map(([each]) => each).slice(0, MOST);
  };
  return (text) => found(text).map((each) => ({ translation: each.translation, isIn: (part) => found(part).includes(each) }));
}

export function showGlossary() {
  at("terms").replaceChildren(...own().map((entry) => element("li", {},
    element("span", { dir: "auto" }, entry.term, ...(entry.cased ? [element("span", { class: "hint" }, " (match case)")] : [])),
    element("span", { dir: "auto" }, entry.translation),
    element("button", { type: "button", class: "tool", "aria-label": `Delete ${entry.term}`, onclick: () => change((terms) => terms.filter((each) => !same(each, entry))) }, "Delete"))));
}

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
    const entry = { pair: pair(), term: at("term").value.trim(), translation: at("translated-term").value.trim(), cased: at("cased").checked };
    if (!entry.term || !entry.translation) return;
    at("add-term").reset();
    at("term").focus();
    change((terms) => [...terms.filter((each) => !same(each, entry)), entry]);
  });
  addEventListener("storage", showGlossary);  // Another tab has changed it.
  showGlossary();
}
