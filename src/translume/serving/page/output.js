// The translation as tokens to select, and the hint at the pointer. With details, the background is darker the less
// probable a token was.
import { doubt, element, percent } from "./steps.js";
import { END, Line } from "./sentence.js";

const UNSURE = 0.4;  // A token that is less probable is marked in a line that the model is unsure about.
export const UNSURE_LINE = 0.5;  // The same for the geometric mean of a line.
const AT_ONCE = 1000;  // Tokens of a text that become elements even out of view.

const box = document.getElementById("output");
const rows = [];  // What is shown of each line, with its element.
let chosen = null;  // { line, part, token }, by number
let marked, reachable;  // The elements that are selected and in the order of the Tab key.
let onchoose = () => {}, detailed = false;

export const current = () => chosen;

export function whenChosen(callback) {
  onchoose = callback;
}

// lines: each a Line or a Pending; gaps: the white space around them.
export function draw(lines, gaps) {
  detailed = document.body.classList.contains("detailed");
  const focused = box.contains(document.activeElement);
  const isLong = lines.reduce((sum, { parts = [] }) => parts.reduce((all, part) => all + part.tokens.length, sum), 0) > AT_ONCE;
  // The gap between two lines belongs to the first one up to its last line break.
  const leads = lines.map((_, number) => (number ? gaps[number].replace(/^.*[\r\n]/s, "") : gaps[0]));
  rows.splice(lines.length).forEach((row) => row.element.remove());
  lines.forEach((line, number) => {
    const tail = number + 1 < lines.length ? gaps[number + 1].slice(0, gaps[number + 1].length - leads[number + 1].length) : gaps[number + 1];
    const before = rows[number], row = { line, lead: leads[number], tail, version: line.version, text: line.text, prefix: line.prefix, isBroken: line.isBroken, detailed };
    if (before && Object.keys(row).every((name) => row[name] === before[name])) return;
    row.element = element("div", { dir: "auto" }, row.lead, ...(line instanceof Line ? partsOf(line, number, isLong) : comingOf(line)), tail);
    rows[number] = row;
    if (before) before.element.replaceWith(row.element);
    else box.append(row.element);
  });
  mark();
  box.setAttribute("role", box.querySelector(".token") ? "listbox" : "group");
  if (focused && !box.contains(document.activeElement)) focusFirst();
}

const comingOf = ({ prefix, rest, isBroken }) => [
  ...(prefix ? [element("span", { class: `coming${isBroken ? " broken" : ""}` }, prefix)] : []),
  ...(rest ? [element("span", { class: "stale" }, rest)] : []),
];

// The parts of a line as elements. Those of a long text get elements for their tokens when they come into view.
function partsOf(line, number, isLong) {
  let end = 0;
  const made = line.parts.map((part, place) => {
    const begin = end;
    end = part.places.reduce((most, [, after]) => Math.max(most, after), begin);
    const shown = element("span", { class: "part" }, line.text.slice(begin, end));
    unfilled.set(shown, { line, number, place, begin });
    if (isLong) inView.observe(shown);
    else fill(shown);
    return shown;
  });
  return [...made, line.text.slice(end)];
}

const unfilled = new WeakMap();
const inView = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) fill(target);
}, { rootMargin: "200px" });

// Make elements of the tokens of a part; return them.
function fill(shown) {
  if (unfilled.has(shown)) {
    shown.replaceChildren(...nodesOf(unfilled.get(shown)));
    unfilled.delete(shown);
    inView.unobserve(shown);
  }
  return [...shown.querySelectorAll(".token")];
}

function nodesOf({ line, number, place, begin: first }) {
  const drawn = [], part = line.parts[place], unsure = line.confidence < UNSURE_LINE;
  let end = first;
  part.tokens.forEach((token, index) => {
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
  });
  return drawn;
}

const parts = () => [...box.querySelectorAll(".part")];
// The first or the last token of some parts.
function endOf(found, last) {
  for (const part of last ? found.reverse() : found) {
    const tokens = fill(part);
    if (tokens.length) return tokens.at(last ? -1 : 0);
  }
  return undefined;
}

// The element of the selected token. A token without characters, such as a space, has none.
export function selected() {
  if (!chosen) return undefined;
  const part = rows[chosen.line]?.element.querySelectorAll(".part")[chosen.part];
  return part && fill(part).find((each) => Number(each.dataset.token) === chosen.token);
}

export function choose(place, focus = true) {
  hideTip();
  chosen = place;
  mark();
  if (place && focus) focusFirst();
  onchoose(place);
}

// One token can be reached with the Tab key: the selected or the first one.
function mark() {
  const mine = selected(), reached = mine ?? endOf(parts(), false);
  if (marked !== mine) marked?.setAttribute("aria-selected", "false");
  if (reachable !== reached) reachable?.setAttribute("tabindex", "-1");
  mine?.setAttribute("aria-selected", "true");
  reached?.setAttribute("tabindex", "0");
  [marked, reachable] = [mine, reached];
}

export function focusFirst() {
  reachable?.focus();
}

box.addEventListener("keydown", (event) => {
  const token = document.activeElement, part = token.closest(".part");
  if (!part || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  const tokens = fill(part), all = parts(), at = all.indexOf(part), index = tokens.indexOf(token);
  const next = {
    ArrowRight: () => tokens[index + 1] ?? endOf(all.slice(at + 1), false), ArrowLeft: () => tokens[index - 1] ?? endOf(all.slice(0, at), true),
    Home: () => endOf(all, false), End: () => endOf(all, true), Enter: () => token, " ": () => token,
  }[event.key];
  if (!next) return;
  event.preventDefault();
  const { line, part: place, token: number } = (next() ?? token).dataset;
  choose({ line: Number(line), part: Number(place), token: Number(number) });
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
