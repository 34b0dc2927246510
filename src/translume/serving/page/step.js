// The selected token: its alternatives in a box beside it, and the translation with another token in its place.
import * as choice from "./choice.js";
import { inspectFile, readsFiles } from "./given.js";
import * as output from "./output.js";
import { Refused, post, postForText } from "./server.js";
import { END } from "./sentence.js";
import { bars, element, facts } from "./steps.js";

const LISTED = 7;
// A translation that was cut off at the length limit has no end token, so its end is unknown.
const ENDLESS = "A sentence of this line was cut off. Put it on a line of its own to see its alternatives.";
const at = (id) => document.getElementById(id);
let page;  // shared by page.js: state, draw, fail, say, scheduleHistory, tapped
let controller = null;

export function setUpStep(shared) {
  page = shared;
  at("close").addEventListener("click", () => {
    closeStep();
    output.focusFirst();
  });
  addEventListener("resize", () => { if (!at("step").hidden) position(); });
  document.addEventListener("pointerdown", ({ target }) => {
    if (!at("step").hidden && !at("step").contains(target) && !target.closest?.("#output .token, #details")) closeStep();
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
  document.body.style.removeProperty("padding-bottom");
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
  if (!choice.explains()) return;
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
  at("h-step").replaceChildren("Instead of ", element("b", { lang: choice.model().target ?? "" }, inWords(part.tokens, place.token, part.tokens[place.token], false)));
  at("facts").replaceChildren(facts(part.trace, place.token));
  at("bars").replaceChildren(...bars(part.trace, place.token, (candidate, mine) => take(place, candidate, mine)));
  for (const each of at("bars").querySelectorAll("button.bar:not(.chosen)")) {
    if (Number(each.dataset.used)) continue;
    each.disabled = true;
    each.title = "excluded by a decoding rule";
  }
  for (const each of at("bars").querySelectorAll("button.bar")) {
    const token = each.querySelector(".name").textContent;
    each.dataset.token = token;
    if (each.classList.contains("chosen")) each.setAttribute("aria-current", "true");
    each.querySelector(".name").replaceChildren(...inWords(part.tokens, place.token, token, true));
  }
  at("undo").disabled = !part.before.length;
  at("undo").hidden = !part.before.length;
  at("step").hidden = false;
  position();
  page.tapped();
}

// A token as users read it: after the beginning of its word, and without the mark of a space.
function inWords(tokens, index, token, split) {
  if (token === END) return split ? [element("i", {}, "end of the sentence")] : "the end";
  const shown = token.replaceAll("▁", " ").trim();
  if (!split) return shown || "space";
  let begin = "";
  if (!token.startsWith("▁")) {
    for (let place = index - 1; place >= 0 && tokens[place] !== END && /^▁?[\p{Script=Latin}\p{Script=Cyrillic}\p{Script=Greek}\p{M}]+$/u.test(tokens[place]); place -= 1) {
      begin = tokens[place].replace("▁", "") + begin;
      if (tokens[place].startsWith("▁")) break;
    }
  }
  const joins = begin && /^[\p{L}\p{M}]/u.test(shown);
  return [...(joins ? [element("i", {}, begin)] : []), shown || element("i", {}, "space")];
}

// Put the box below the selected token, or above it if there is more space; narrow screens have it at the bottom.
function position() {
  const box = at("step"), pane = box.offsetParent, token = output.selected();
  if (!token) return;
  if (getComputedStyle(box).position === "fixed") {
    // Keep the word visible above the box.
    for (const side of ["left", "top"]) box.style.removeProperty(side);
    document.body.style.paddingBottom = `${box.offsetHeight}px`;
    const hidden = token.getBoundingClientRect().bottom + 24 - (innerHeight - box.offsetHeight);
    if (hidden > 0) scrollBy(0, hidden);
    return;
  }
  const rects = token.getClientRects(), from = pane.getBoundingClientRect();
  const first = rects[0], last = rects[rects.length - 1], { offsetWidth: width, offsetHeight: height } = box;
  const left = Math.max(10, Math.min(from.width - width - 10, first.left - from.left - 14));
  const above = last.bottom + height + 16 > innerHeight && first.top - height - 16 > 0;
  box.style.left = `${left}px`;
  box.style.top = `${above ? first.top - from.top - height - 8 : last.bottom - from.top + 8}px`;
}

// Choose the n-th alternative of the selected token.
export function takeNumber(number) {
  if (!at("step").hidden) at("bars").querySelectorAll("button.bar")[number - 1]?.click();
}

// Move the focus from the selected token (0) or between alternatives; return whether it moved. Above the first is the token.
export function moveInAlternatives(by) {
  const rows = [...at("bars").querySelectorAll("button.bar:enabled")], now = rows.indexOf(document.activeElement);
  if (by && now < 0) return false;
  if (by && now + by < 0) output.focusFirst();
  else rows[by ? Math.min(now + by, rows.length - 1) : 0]?.focus();
  return true;
}

async function take(place, candidate, mine) {
  const line = page.state.lines[place.line], part = line.parts[place.part];
  if (mine) {
    closeStep();
    output.focusFirst();
    return;
  }
  page.say("Translating the rest…");
  try {
    const begin = [...part.tokens.slice(0, place.token), candidate.text];
    const trace = await inspect(line, place.part, { prefix_tokens: begin });
    if (page.state.lines[place.line] !== line) return;
    line.replace(place.part, trace, begin.length);
    page.say("");
    page.clear();
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
  const inspected = (less) => (readsFiles() ? inspectFile(part.tokens, { search, ...(less && { show: JSON.stringify(less) }) })
    : postForText("v1/inspect/page", { ...request, ...(less && { show: less }) }));
  page.say("Inspecting…");
  try {
    const html = await inspected().catch((error) => {
      if (!(error instanceof Refused) || error.code !== "too_much_to_inspect") throw error;
      return inspected(["lens", "prior"]);
    });
    const address = URL.createObjectURL(new Blob([html], { type: "text/html;charset=utf-8" }));
    if (tab) tab.location = address;
    page.say(tab ? "" : "The browser blocked the new tab.");
  } catch (error) {
    tab?.close();
    page.fail(error);
  }
}

// Show the box again where the selected token now is.
export function reposition() {
  if (!at("step").hidden) position();
}
