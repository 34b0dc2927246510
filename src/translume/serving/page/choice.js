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
const speaks = (each) => Boolean(each.source && each.target);
const unique = (values) => [...new Set(values)];

function fill(id, pairs, value) {
  at(id).replaceChildren(...pairs.map(([key, text]) => element("option", { value: key }, text)));
  if (pairs.some(([key]) => key === value)) at(id).value = value;
}

// Show a model in the three boxes, with the other choices.
function show(wanted) {
  const speaking = models.filter(speaks), silent = models.filter((each) => !speaks(each));
  const sources = unique(speaking.map((each) => each.source)).map((code) => [code, named(code)]);
  const source = speaks(wanted) ? wanted.source : "", target = speaks(wanted) ? wanted.target : "";
  fill("source", silent.length ? [...sources, ["", "by model"]] : sources, source);
  const targets = unique(speaking.filter((each) => each.source === source).map((each) => each.target));
  fill("target", targets.map((code) => [code, named(code)]), target);
  const beside = source ? between(source, target) : silent;
  fill("model", beside.map((each) => [each.name, each.name]), wanted.name);
  for (const each of document.querySelectorAll(".languages")) each.hidden = !speaking.length;
  at("target").parentElement.hidden = at("swap").hidden = !source;
  at("swap").disabled = !between(target, source).length;
  at("model-label").hidden = beside.length < 2 && Boolean(source);
  store(CHOSEN, wanted.name);
}

function take(wanted) {
  if (!wanted) return;
  show(wanted);
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

// found: models of /v1/models.  tell: called when another model is chosen.
export function setUpChoice(found, tell) {
  models = found;
  onchange = tell;
  at("source").addEventListener("change", () => {
    const source = at("source").value;
    const same = models.find((each) => each.source === source && each.target === at("target").value);
    take(source ? same ?? models.find((each) => each.source === source && each.target) : models.find((each) => !speaks(each)));
  });
  at("target").addEventListener("change", () => take(between(at("source").value, at("target").value)[0]));
  at("model").addEventListener("change", () => take(model()));
  show(models.find((each) => each.name === stored(CHOSEN)) ?? models[0]);
}
