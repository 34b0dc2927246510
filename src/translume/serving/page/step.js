// A token that was chosen: what else might have stood there, and the translation with another one in its place.
import * as choice from "./choice.js";
import * as output from "./output.js";
import { Refused, post, postForText } from "./server.js";
import { bars, facts } from "./steps.js";

const LISTED = 7;
// A translation that was cut at its limit has no end mark, and cannot be told from the one behind it.
const ENDLESS = "One of the line's sentences has no end: look at it in a line of its own.";
const at = (id) => document.getElementById(id);
let page;  // what the page shares: state, draw, fail, say, settle
let asking = null;

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
    page.settle();
    const last = line.parts[place.part].tokens.length - 1;
    output.choose({ ...place, token: Math.min(place.token, last) });
  });
}

export function closeStep() {
  asking?.abort();
  at("step").hidden = true;
  if (output.current()) output.choose(null, false);
}

const question = (line, number, tokens) => ({ ...line.asked(number, tokens), model: choice.model().name });

async function asked(line, number, tokens) {
  asking?.abort();
  asking = new AbortController();
  const request = { ...question(line, number, tokens), k: LISTED, show: [] };
  const found = await post("v1/inspect", request, asking.signal).catch((error) => {
    throw error.field === "target_tokens" ? new Error(ENDLESS) : error;
  });
  if (found.parts !== line.parts.length) throw new Error(ENDLESS);
  return found.trace;
}

export async function showStep(place) {
  if (!choice.offers("inspect")) return;
  const line = page.state.lines[place.line], part = line.parts[place.part];
  try {
    part.trace ??= await asked(line, place.part, { target_tokens: part.tokens });
  } catch (error) {
    page.fail(error);
    return;
  }
  // Meanwhile another token, or another text, may have come.
  const now = output.current();
  if (page.state.lines[place.line] !== line || now?.token !== place.token || now.part !== place.part) return;
  at("facts").replaceChildren(facts(part.trace, place.token));
  at("bars").replaceChildren(...bars(part.trace, place.token, (candidate, mine) => take(place, candidate, mine)));
  for (const each of at("bars").querySelectorAll("button.bar:not(.chosen)")) {
    if (Number(each.dataset.used)) continue;
    each.disabled = true;
    each.title = "rules forbid it";
  }
  at("undo").disabled = !part.before.length;
  at("step").hidden = false;
}

// The n-th bar of the token that is shown.
export function takeNumber(number) {
  if (!at("step").hidden) at("bars").querySelectorAll("button.bar")[number - 1]?.click();
}

async function take(place, candidate, mine) {
  const line = page.state.lines[place.line], part = line.parts[place.part];
  if (mine) {
    page.say(`“${candidate.text}” is what stands there.`);
    return;
  }
  page.say("Translating from there…");
  try {
    const begin = [...part.tokens.slice(0, place.token), candidate.text];
    const trace = await asked(line, place.part, { prefix_tokens: begin });
    if (page.state.lines[place.line] !== line) return;
    line.replace(place.part, trace, begin.length);
    page.say("");
    at("problem").hidden = true;
    at("spoken").textContent = line.text;
    page.draw();
    page.settle();
    output.choose(place);
  } catch (error) {
    page.fail(error);
  }
}

// The whole inspection of the sentence that is chosen, or else of the first, in a tab of its own.
export async function lookInside() {
  const { state } = page;
  const chosen = output.current() ?? { line: state.lines.findIndex((each) => each.parts?.length), part: 0 };
  const line = state.lines[chosen.line], part = line?.parts?.[chosen.part];
  if (!part) return;
  // Opened at once: a browser lets nothing be opened later than the click.
  const tab = open("", "_blank");
  const searched = ["beam", "greedy"].includes(choice.model().decoding.strategy) && !part.before.length;
  const request = { ...question(line, chosen.part, { target_tokens: part.tokens }), search: searched };
  page.say("Looking inside…");
  try {
    const html = await postForText("v1/inspect/page", request).catch((error) => {
      if (!(error instanceof Refused) || error.code !== "too_much_to_inspect") throw error;
      return postForText("v1/inspect/page", { ...request, show: ["lens", "prior"] });
    });
    const address = URL.createObjectURL(new Blob([html], { type: "text/html;charset=utf-8" }));
    if (tab) tab.location = address;
    page.say(tab ? "" : "The browser let no tab be opened.");
  } catch (error) {
    tab?.close();
    page.fail(error);
  }
}
