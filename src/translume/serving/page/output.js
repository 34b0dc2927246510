// The translation as tokens to select, and the hint at the pointer. With details, the background is darker the less
// probable a token was.
import { doubt, element, percent } from "./steps.js";
import { END, Line } from "./sentence.js";

const UNSURE = 0.4;  // A token that is less probable is marked in a line that the model is unsure about.
export const UNSURE_LINE = 0.5;  // The same for the geometric mean of a line.

const box = document.getElementById("output");
let chosen = null;  // { line, part, token }, by number
let onchoose = () => {}, detailed = false;

export const current = () => chosen;

export function whenChosen(callback) {
  onchoose = callback;
}

// lines: each a Line or a Pending; gaps: the white space around them.
export function draw(lines, gaps) {
  detailed = document.body.classList.contains("detailed");
  const drawn = [gaps[0] ?? ""];
  lines.forEach((line, number) => {
    if (line instanceof Line) drawn.push(...tokensOf(line, number));
    else {
      if (line.prefix) drawn.push(element("span", { class: `coming${line.isBroken ? " broken" : ""}` }, line.prefix));
      if (line.rest) drawn.push(element("span", { class: "stale" }, line.rest));
    }
    drawn.push(gaps[number + 1] ?? "");
  });
  const any = drawn.some((each) => each.getAttribute?.("role") === "option");
  box.setAttribute("role", any ? "listbox" : "group");
  const focused = box.contains(document.activeElement);
  box.replaceChildren(...drawn);
  mark();
  if (focused) focusFirst();
}

const made = new WeakMap();

// The nodes of a line, rebuilt only if it has changed.
function tokensOf(line, number) {
  const before = made.get(line);
  if (before?.number === number && before.version === line.version && before.detailed === detailed) return before.nodes;
  const nodes = nodesOf(line, number);
  made.set(line, { number, version: line.version, detailed, nodes });
  return nodes;
}

function nodesOf(line, number) {
  const drawn = [], unsure = line.confidence < UNSURE_LINE;
  let end = 0;
  line.parts.forEach((part, place) => part.tokens.forEach((token, index) => {
    const [begin, after] = part.places[index], ends = token === END;
    if (after <= begin && !(ends && detailed)) return;
    if (begin > end) drawn.push(line.text.slice(end, begin));
    end = Math.max(end, after);
    const p = Math.exp(part.logs[index] ?? -Infinity), shown = ends ? "" : line.text.slice(begin, after);
    const kind = "token" + (ends ? " end" : "") + (index < part.free ? " bound" : "") + (unsure && p < UNSURE && !ends ? " doubtful" : "");
    const button = element("span", {
      class: kind, role: "option", tabindex: "-1", "aria-selected": "false", style: { "--share": doubt(part.logs[index]) },
      ...(detailed ? { "aria-label": `${ends ? "end of the sentence" : shown}, ${percent(p)}` } : {}),
      onclick: () => choose({ line: number, part: place, token: index }),
    }, shown);
    Object.assign(button.dataset, { line: number, part: place, token: index, p: percent(p) });
    drawn.push(button);
  }));
  drawn.push(line.text.slice(end));
  return drawn;
}

const all = () => [...box.querySelectorAll(".token")];
const same = (each, place) => place && Number(each.dataset.line) === place.line &&
  Number(each.dataset.part) === place.part && Number(each.dataset.token) === place.token;
const at = () => all().find((each) => same(each, chosen));
// The element of the selected token.
export const selected = at;

export function choose(place, focus = true) {
  hideTip();
  chosen = place;
  mark();
  if (place && focus) focusFirst();  // A token without characters, such as a space, is not shown.
  onchoose(place);
}

// One token can be reached with the Tab key: the selected or the first one.
function mark() {
  const tokens = all(), mine = at();
  for (const each of tokens) {
    each.setAttribute("aria-selected", String(each === mine));
    each.tabIndex = each === (mine ?? tokens[0]) ? 0 : -1;
  }
}

export function focusFirst() {
  (at() ?? all()[0])?.focus();
}

box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const tokens = all(), index = tokens.indexOf(document.activeElement);
  if (index < 0) return;
  const moves = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: tokens.length - 1, Enter: index, " ": index };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const { line, part, token } = tokens[Math.max(0, Math.min(tokens.length - 1, moves[event.key]))].dataset;
  choose({ line: Number(line), part: Number(part), token: Number(token) });
});

// The hint at the token under the pointer.
const tip = document.getElementById("tip");
export const hideTip = () => { tip.hidden = true; };

// active(): whether tokens have alternatives.
export function setUpTip(active) {
  box.addEventListener("pointerover", ({ target, pointerType }) => {
    if (!target.classList?.contains("token") || pointerType === "touch" || target.getAttribute("aria-selected") === "true" || !active()) {
      hideTip();
      return;
    }
    tip.textContent = detailed ? `${target.dataset.p} · click for alternatives` : "Click for alternatives";
    tip.hidden = false;
    const place = target.getClientRects()[0], { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(innerWidth - width - 6, place.left + (place.width - width) / 2))}px`;
    tip.style.top = `${place.top > height + 12 ? place.top - height - 6 : place.bottom + 6}px`;
  });
  box.addEventListener("pointerleave", hideTip);
  addEventListener("scroll", hideTip, { passive: true });
}
