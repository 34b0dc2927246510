// The choice of the model: by languages if models have them, otherwise by name.
import { element } from "./steps.js";
import { store, stored } from "./storage.js";

const CHOSEN = "translume.model", AUTO = "auto", DETECTS = "translume.auto";
const at = (id) => document.getElementById(id);
const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
let models = [], onchange = () => {}, detects = false, auto = false, detected = "";

export const model = () => models.find((each) => each.name === at("model").value);
export const offers = (what) => Boolean(model()?.offers.includes(what));
// Whether tokens can be replaced by others: those of a file's text cannot.
export const explains = () => offers("inspect") && !offers("transcribe");
// Whether the source language is to be detected.
export const detecting = () => auto;

export function named(code) {
  if (/^zh-hans$/i.test(code)) return "Chinese";
  try {
    return names.of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

const between = (source, target) => models.filter((each) => (each.source ?? "") === source && (each.target ?? "") === target);
const hasLanguages = (each) => Boolean(each.source && each.target);
const unique = (values) => [...new Set(values)];
export const sources = () => unique(models.filter(hasLanguages).map((each) => each.source));

function fill(id, pairs, value) {
  at(id).replaceChildren(...pairs.map(([key, text]) => element("option", { value: key }, text)));
  if (pairs.some(([key]) => key === value)) at(id).value = value;
}

// Show a model in the three boxes, with the other choices.
function show(selected) {
  const withLanguages = models.filter(hasLanguages), withoutLanguages = models.filter((each) => !hasLanguages(each));
  const source = hasLanguages(selected) ? selected.source : "", target = hasLanguages(selected) ? selected.target : "";
  const choices = sources().map((code) => [code, named(code)]);
  if (detects && withLanguages.length) choices.unshift([AUTO, auto && detected ? `Detected: ${named(detected)}` : "Detect language"]);
  if (withoutLanguages.length) choices.push(["", "Other models"]);
  fill("source", choices, auto && source ? AUTO : source);
  const reachable = withLanguages.filter((each) => each.source === source || (auto && !detected));
  fill("target", unique(reachable.map((each) => each.target)).map((code) => [code, named(code)]), target);
  const sameLanguages = source ? between(source, target) : withoutLanguages;
  fill("model", sameLanguages.map((each) => [each.name, each.name]), selected.name);
  for (const each of document.querySelectorAll(".languages")) each.hidden = !withLanguages.length;
  at("target").parentElement.hidden = at("swap").hidden = !source;
  const back = source && between(target, source).length;
  at("swap").disabled = !back;
  at("swap").title = back ? "Swap the languages" : `This server has no model from ${named(target)} to ${named(source)}`;
  at("model-label").hidden = sameLanguages.length < 2 && Boolean(source);
  for (const where of ["localStorage", "sessionStorage"]) {
    store(CHOSEN, selected.name, where);
    store(DETECTS, auto ? "yes" : "no", where);
  }
}

function select(selected) {
  if (!selected) return;
  show(selected);
  onchange();
}

// A model from a language: to the chosen target if there is one.
function from(source) {
  return between(source, at("target").value)[0] ?? models.find((each) => each.source === source && each.target);
}

// Translate from the language that was detected; return whether a model does.
export function detectedSource(code) {
  const known = sources().find((each) => each.toLowerCase().split(/[-_]/)[0] === code.toLowerCase().split(/[-_]/)[0]);
  if (known && known === detected) return true;
  detected = known ?? "";
  const found = known && from(known);
  show(found || model());
  return Boolean(found);
}

// Translate from a language of the server, chosen by the user.
export function chooseSource(code) {
  auto = false;
  detected = "";
  select(from(code));
}

export function swap() {
  const source = model()?.source, back = between(at("target").value, source)[0];
  if (!back || at("swap").disabled) return false;
  auto = false;
  show(back);
  return true;
}

// What a text is translated by, for `choosePair`.
export const direction = () => ({ from: model()?.source, to: model()?.target, model: model()?.name, auto });

// Choose a model by its name or, if the server does not have it, by its languages. Return whether there is one.
export function choosePair({ from: source, to: target, model: name, auto: detected = false }) {
  const found = models.find((each) => each.name === name) ?? (source && target ? between(source, target)[0] : undefined);
  if (!found) return false;
  auto = detected && detects;
  if (found !== model() || !auto) show(found);
  return true;
}

// found: models of /v1/models.  hasDetector: whether the server detects languages.
// callback: called when another model is chosen.  Return whether the model of this tab is still there.
export function setUpChoice(found, hasDetector, callback) {
  // A model with several directions is offered once for each; the server knows these names.
  models = found.flatMap((each) => each.directions?.length
    ? each.directions.map(([source, target]) => ({ ...each, source, target, name: `${each.name}:${source}-${target}` })) : [each]);
  detects = hasDetector;
  onchange = callback;
  // Each tab keeps its own choice beside its text; a new tab begins with the last one of any tab.
  const mine = stored(CHOSEN, "sessionStorage"), kept = models.find((each) => each.name === (mine ?? stored(CHOSEN)));
  auto = detects && (stored(DETECTS, "sessionStorage") ?? stored(DETECTS)) === "yes";
  at("source").addEventListener("change", () => {
    const source = at("source").value;
    auto = source === AUTO;
    detected = "";
    if (auto) select(hasLanguages(model()) ? model() : models.find(hasLanguages));
    else select(source ? from(source) : models.find((each) => !hasLanguages(each)));
  });
  at("target").addEventListener("change", () => {
    const target = at("target").value;
    select(between(model().source, target)[0] ?? models.find((each) => each.source && each.target === target));
  });
  at("model").addEventListener("change", () => select(model()));
  show(kept ?? models[0]);
  return Boolean(kept) || !mine;
}
