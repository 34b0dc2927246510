// The choice of the model: by languages if models have them, otherwise by name.
import { element } from "./steps.js";
import { store, stored } from "./storage.js";

const CHOSEN = "translume.model";
const at = (id) => document.getElementById(id);
const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
let models = [], onchange = () => {};

export const model = () => models.find((each) => each.name === at("model").value);
export const offers = (what) => Boolean(model()?.offers.includes(what));

function named(code) {
  try {
    return names.of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

const between = (source, target) => models.filter((each) => (each.source ?? "") === source && (each.target ?? "") === target);
const hasLanguages = (each) => Boolean(each.source && each.target);
const unique = (values) => [...new Set(values)];

function fill(id, pairs, value) {
  at(id).replaceChildren(...pairs.map(([key, text]) => element("option", { value: key }, text)));
  if (pairs.some(([key]) => key === value)) at(id).value = value;
}

// Show a model in the three boxes, with the other choices.
function show(selected) {
  const withLanguages = models.filter(hasLanguages), withoutLanguages = models.filter((each) => !hasLanguages(each));
  const sources = unique(withLanguages.map((each) => each.source)).map((code) => [code, named(code)]);
  const source = hasLanguages(selected) ? selected.source : "", target = hasLanguages(selected) ? selected.target : "";
  fill("source", withoutLanguages.length ? [...sources, ["", "by model"]] : sources, source);
  const targets = unique(withLanguages.filter((each) => each.source === source).map((each) => each.target));
  fill("target", targets.map((code) => [code, named(code)]), target);
  const sameLanguages = source ? between(source, target) : withoutLanguages;
  fill("model", sameLanguages.map((each) => [each.name, each.name]), selected.name);
  for (const each of document.querySelectorAll(".languages")) each.hidden = !withLanguages.length;
  at("target").parentElement.hidden = at("swap").hidden = !source;
  at("swap").disabled = !between(target, source).length;
  at("model-label").hidden = sameLanguages.length < 2 && Boolean(source);
  store(CHOSEN, selected.name);
}

function select(selected) {
  if (!selected) return;
  show(selected);
  onchange();
}

export function swap() {
  const back = between(at("target").value, at("source").value)[0];
  if (!back || at("swap").disabled) return false;
  show(back);
  return true;
}

export function choose(name) {
  const found = models.find((each) => each.name === name);
  if (found) show(found);
}

// found: models of /v1/models.  callback: called when another model is chosen.
export function setUpChoice(found, callback) {
  models = found;
  onchange = callback;
  at("source").addEventListener("change", () => {
    const source = at("source").value;
    const same = models.find((each) => each.source === source && each.target === at("target").value);
    select(source ? same ?? models.find((each) => each.source === source && each.target) : models.find((each) => !hasLanguages(each)));
  });
  at("target").addEventListener("change", () => select(between(at("source").value, at("target").value)[0]));
  at("model").addEventListener("change", () => select(model()));
  show(models.find((each) => each.name === stored(CHOSEN)) ?? models[0]);
}
