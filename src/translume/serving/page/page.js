// The web page: translates while the user types, and shows probabilities and alternatives of each token.
import * as choice from "./choice.js";
import { setUpFiles } from "./files.js";
import { remember, setUpHistory } from "./history.js";
import * as output from "./output.js";
import { Line } from "./sentence.js";
import { Refused, get, hasKey, pause, useKey } from "./server.js";
import { closeStep, openInspection, setUpStep, showStep, takeNumber } from "./step.js";
import { doubt, element, line, one, percent } from "./steps.js";
import { store, stored } from "./storage.js";
import { setUpTheme } from "./theming.js";
import { classify, translate } from "./translating.js";

const TYPING_DELAY = 350, HISTORY_DELAY = 1500;
const at = (id) => document.getElementById(id);
const state = { lines: [], gaps: [], model: "", run: null, historyTimer: 0, limits: { texts: 32 } };

const whole = () => (state.gaps[0] ?? "") + state.lines.map((each, place) => (each.text ?? each) + (state.gaps[place + 1] ?? "")).join("");
const say = (text) => { at("status").textContent = text; };
const waiting = (seconds) => say(`The server is busy. Trying again in ${seconds} s.`);

// Return the message of an error, in words that the users of this page understand.
function readableMessage(error) {
  const [, found, most] = (error.code === "text_too_long" && /found ([\d,]+) characters, expected at most ([\d,]+)/.exec(error.message)) || [];
  return found ? `Your text has ${found} characters. The limit is ${most}.` : error.message;
}

function fail(error) {
  if (error.name === "AbortError") return;
  say("");
  const locked = error instanceof Refused && error.status === 401;
  at("key-form").hidden = !locked;
  at("problem").textContent = locked && !hasKey() ? "Enter an API key to translate." : readableMessage(error);
  at("problem").hidden = false;
}

function draw() {
  output.draw(state.lines, state.gaps);
  const warnings = state.lines.flatMap((each) => each.warnings ?? []).map((each) => `${each.kind.replaceAll("_", " ")}: ${each.detail}`);
  at("warnings").textContent = [...new Set(warnings)].join("; ");
  at("warnings").hidden = !warnings.length;
  at("copy").disabled = !whole().trim();
  at("inside").disabled = !state.lines.some((each) => each instanceof Line && each.parts.length) || !choice.offers("inspect");
}

function count() {
  const characters = [...at("text").value].length;
  at("count").textContent = `${characters.toLocaleString("en")} character${characters === 1 ? "" : "s"}`;
  at("clear").disabled = !characters;
}

// Translate the text after a pause of some milliseconds, unless it is called again meanwhile.
async function go(milliseconds) {
  state.run?.abort();
  clearTimeout(state.historyTimer);
  const run = new AbortController(), { signal } = run;
  state.run = run;
  count();
  try {
    if (milliseconds) await pause(milliseconds, signal);
    at("problem").hidden = true;
    const text = at("text").value, model = choice.model().name;
    const kept = model === state.model ? state.lines : [];
    state.model = model;
    const classifies = choice.offers("classify");
    for (const id of ["output", "legend-row", "copy", "inside"]) at(id).hidden = classifies;
    at("labels").hidden = !classifies;
    at("pick").hidden = at("kinds").hidden = classifies;
    at("h-output").textContent = classifies ? "Labels" : "Translation";
    at("output").lang = choice.model().target ?? "";
    at("text").lang = choice.model().source ?? "";
    if (text.trim()) say(classifies ? "Classifying…" : "Translating…");
    at("output").setAttribute("aria-busy", "true");
    if (classifies) await label(text, model, signal);
    else await put(text, model, kept, signal);
    at("output").removeAttribute("aria-busy");
    say("");
    scheduleHistory();
  } catch (error) {
    if (state.run === run) at("output").removeAttribute("aria-busy");
    fail(error);
  }
}

// Add the translation to the history after a while.
function scheduleHistory() {
  clearTimeout(state.historyTimer);
  const entry = { source: at("text").value, text: whole() || at("spoken").textContent, model: state.model };
  state.historyTimer = setTimeout(() => remember(entry), HISTORY_DELAY);
}

async function put(text, model, kept, signal) {
  let frame = 0;
  const show = (lines, gaps) => {
    if (signal.aborted) return;
    if (lines.some((each, place) => each !== state.lines[place])) {
      // Keep the selected token if its line is still there.
      const chosen = output.current(), before = chosen && state.lines[chosen.line];
      Object.assign(state, { lines: [...lines], gaps });
      if (chosen && lines[chosen.line] !== before) closeStep();
    }
    Object.assign(state, { lines: [...lines], gaps });
    cancelAnimationFrame(frame);
    if (lines.every((each) => each instanceof Line)) draw();
    else frame = requestAnimationFrame(draw);
  };
  try {
    await translate(text, { model, kept, most: state.limits.texts, show, waiting, signal });
  } finally {
    cancelAnimationFrame(frame);
    if (!signal.aborted) draw();
  }
  at("spoken").textContent = whole();
}

async function label(text, model, signal) {
  closeStep();
  Object.assign(state, { lines: [], gaps: [] });
  if (!text.trim()) {
    at("labels").replaceChildren();
    return;
  }
  const found = await classify(text, { model, waiting, signal });
  const rows = Object.entries(found.probabilities).map(([name, p]) =>
    one(line(name, p, p, "bar" + (found.labels.includes(name) ? " chosen" : ""), "div")));
  const labels = found.labels.length ? found.labels.join(", ") : "no label";
  at("labels").replaceChildren(element("p", {}, labels, element("span", { class: "hint" }, `  margin ${percent(found.margin)}`)), ...rows);
  at("spoken").textContent = labels;
}

async function copy() {
  const text = whole();
  if (!text.trim()) return;
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    // Browsers deny access to the clipboard over plain HTTP; the user can copy the selection.
    getSelection().selectAllChildren(at("output"));
    say("Selected. Press Ctrl+C to copy.");
  }
}

function swap() {
  const text = whole().trim();
  if (!choice.swap()) return;
  if (text) at("text").value = text;
  go(0);
}

function keyboard(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
    event.preventDefault();
    go(0);
  } else if (event.altKey && !event.ctrlKey && !event.metaKey) {
    const known = {
      KeyT: () => at("text").focus(), KeyO: output.focusFirst, KeyS: swap, KeyC: copy, KeyI: () => at("inside").click(),
    }[event.code];
    if (!known) return;
    event.preventDefault();
    known();
  } else if (event.key === "Escape" && !at("step").hidden) {
    closeStep();
    output.focusFirst();
  } else if (/^[1-9]$/.test(event.key) && at("output").contains(document.activeElement)) takeNumber(Number(event.key));
}

function legend() {
  const shares = [1, 0.5, 0.2, 0.05, 0.02].map((p) =>
    element("span", { class: "token", style: { "--share": doubt(Math.log(p)) } }, `${100 * p} %${p === 0.02 ? " or less" : ""}`));
  at("legend").replaceChildren("Probability of a token: ", ...shares);
  const colour = () => at("output").classList.toggle("plain", !at("colour").checked);
  at("colour").checked = stored("translume.colour") !== "no";
  at("colour").addEventListener("change", () => {
    store("translume.colour", at("colour").checked ? "yes" : "no");
    colour();
  });
  colour();
}

function listen() {
  at("text").addEventListener("input", () => go(TYPING_DELAY));
  at("clear").addEventListener("click", () => {
    at("text").value = "";
    at("text").focus();
    go(0);
  });
  at("swap").addEventListener("click", swap);
  at("copy").addEventListener("click", copy);
  at("inside").addEventListener("click", () => openInspection());
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(at("key").value.trim());
    at("key-form").hidden = true;
    go(0);
  });
  document.addEventListener("keydown", keyboard);
  output.whenChosen((place) => (place ? showStep(place) : undefined));
  setUpStep({ state, draw, fail, say, scheduleHistory });
  setUpHistory((entry) => {
    at("text").value = entry.source;
    choice.choose(entry.model);
    go(0);
    at("text").focus();
  });
}

async function begin() {
  setUpTheme();
  legend();
  count();
  draw();
  try {
    const [models, info, settings] = await Promise.all(["v1/models", "v1/info", "frontend/settings"].map((path) => get(path)));
    state.limits = info.limits;
    choice.setUpChoice(models.models, () => go(0));
    setUpFiles(settings, info.limits, waiting);
    at("key-form").hidden = !settings.keyRequired || hasKey();
    at("about").replaceChildren(info.version === "0" ? "" : `Translume ${info.version}, `, element("a", { href: "docs" }, "API"));
  } catch (error) {
    fail(error);
    return;
  }
  listen();
  document.documentElement.dataset.ready = "yes";
  go(0);
}

begin();
