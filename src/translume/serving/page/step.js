// The selected token: its alternatives, and the translation with another token in its place.
import * as choice from "./choice.js";
import * as output from "./output.js";
import { Refused, post, postForText } from "./server.js";
import { bars, facts } from "./steps.js";

const LISTED = 7;
// A translation that was cut off at the length limit has no end token, so its end is unknown.
const ENDLESS = "A sentence of this line was cut off. Put it on a line of its own to inspect it.";
const at = (id) => document.getElementById(id);
let page;  // shared by page.js: state, draw, fail, say, scheduleHistory
let controller = null;

export function setUpStep(shared) {
  page = shared;
  at("close").addEventListener("click", () => {
    closeStep();
    output.focusFirst();
  });
  at("undo").addEventListener("click", () => {
    const place = output.current(), line = page.state.lines[place.line];
    line.restore(place.part);
    at("spoken").textContent = line.text;
    page.draw();
    page.scheduleHistory();
    const last = line.parts[place.part].tokens.length - 1;
    output.choose({ ...place, token: Math.min(place.token, last) });
  });
}

export function closeStep() {
  controller?.abort();
  at("step").hidden = true;
  if (output.current()) output.choose(null, false);
}

const requestFor = (line, number, tokens) => ({ ...line.requestFor(number, tokens), model: choice.model().name });

async function inspect(line, number, tokens) {
  controller?.abort();
  controller = new AbortController();
  const request = { ...requestFor(line, number, tokens), k: LISTED, show: [] };
  const found = await post("v1/inspect", request, controller.signal).catch((error) => {
    throw error.field === "target_tokens" ? new Error(ENDLESS) : error;
  });
  if (found.parts !== line.parts.length) throw new Error(ENDLESS);
  return found.trace;
}

export async function showStep(place) {
  if (!choice.offers("inspect")) return;
  const line = page.state.lines[place.line], part = line.parts[place.part];
  try {
    part.trace ??= await inspect(line, place.part, { target_tokens: part.tokens });
  } catch (error) {
    page.fail(error);
    return;
  }
  // Meanwhile another token may have been selected, or the text changed.
  const now = output.current();
  if (page.state.lines[place.line] !== line || now?.token !== place.token || now.part !== place.part) return;
  at("facts").replaceChildren(facts(part.trace, place.token));
  at("bars").replaceChildren(...bars(part.trace, place.token, (candidate, mine) => take(place, candidate, mine)));
  for (const each of at("bars").querySelectorAll("button.bar:not(.chosen)")) {
    if (Number(each.dataset.used)) continue;
    each.disabled = true;
    each.title = "excluded by a decoding rule";
  }
  at("undo").disabled = !part.before.length;
  at("step").hidden = false;
}

// Choose the n-th alternative of the selected token.
export function takeNumber(number) {
  if (!at("step").hidden) at("bars").querySelectorAll("button.bar")[number - 1]?.click();
}

async function take(place, candidate, mine) {
  const line = page.state.lines[place.line], part = line.parts[place.part];
  if (mine) {
    page.say(`“${candidate.text}” is the current token.`);
    return;
  }
  page.say("Translating the rest…");
  try {
    const begin = [...part.tokens.slice(0, place.token), candidate.text];
    const trace = await inspect(line, place.part, { prefix_tokens: begin });
    if (page.state.lines[place.line] !== line) return;
    line.replace(place.part, trace, begin.length);
    page.say("");
    at("problem").hidden = true;
    at("spoken").textContent = line.text;
    page.draw();
    page.scheduleHistory();
    output.choose(place);
  } catch (error) {
    page.fail(error);
  }
}

// Open the inspection of the selected sentence, or of the first one, in a new tab.
export async function openInspection() {
  const { state } = page;
  const chosen = output.current() ?? { line: state.lines.findIndex((each) => each.parts?.length), part: 0 };
  const line = state.lines[chosen.line], part = line?.parts?.[chosen.part];
  if (!part) return;
  // Open the tab now: browsers block tabs that are opened later than the click.
  const tab = open("", "_blank");
  const search = ["beam", "greedy"].includes(choice.model().decoding.strategy) && !part.before.length;
  const request = { ...requestFor(line, chosen.part, { target_tokens: part.tokens }), search };
  page.say("Inspecting…");
  try {
    const html = await postForText("v1/inspect/page", request).catch((error) => {
      if (!(error instanceof Refused) || error.code !== "too_much_to_inspect") throw error;
      return postForText("v1/inspect/page", { ...request, show: ["lens", "prior"] });
    });
    const address = URL.createObjectURL(new Blob([html], { type: "text/html;charset=utf-8" }));
    if (tab) tab.location = address;
    page.say(tab ? "" : "The browser blocked the new tab.");
  } catch (error) {
    tab?.close();
    page.fail(error);
  }
}
