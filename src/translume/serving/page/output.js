// The translation as tokens to select; the background is darker the less probable a token was.
import { doubt, element, percent } from "./steps.js";
import { END, Line } from "./sentence.js";

const box = document.getElementById("output");
let chosen = null;  // { line, part, token }, by number
let onchoose = () => {};

export const current = () => chosen;

export function whenChosen(callback) {
  onchoose = callback;
}

// lines: each a Line, or the prefix of an unfinished translation; gaps: the white space around them.
export function draw(lines, gaps) {
  const drawn = [gaps[0] ?? ""];
  lines.forEach((line, number) => {
    if (line instanceof Line) drawn.push(...tokensOf(line, number));
    else if (line) drawn.push(element("span", { class: "coming" }, line));
    drawn.push(gaps[number + 1] ?? "");
  });
  const any = drawn.some((each) => each.getAttribute?.("role") === "option");
  box.setAttribute("role", any ? "listbox" : "group");
  const focused = box.contains(document.activeElement);
  box.replaceChildren(...drawn);
  mark();
  if (focused) at()?.focus();
}

const made = new WeakMap();

// The nodes of a line, rebuilt only if it has changed.
function tokensOf(line, number) {
  const before = made.get(line);
  if (before?.number === number && before.version === line.version) return before.nodes;
  const nodes = nodesOf(line, number);
  made.set(line, { number, version: line.version, nodes });
  return nodes;
}

function nodesOf(line, number) {
  const drawn = [];
  let end = 0;
  line.parts.forEach((part, place) => part.tokens.forEach((token, index) => {
    const [begin, after] = part.places[index], ends = token === END;
    if (after <= begin && !ends) return;
    if (begin > end) drawn.push(line.text.slice(end, begin));
    end = Math.max(end, after);
    const p = Math.exp(part.logs[index] ?? -Infinity), shown = ends ? "∎" : line.text.slice(begin, after);
    const kind = "token" + (ends ? " end" : "") + (index < part.free ? " bound" : "");
    const button = element("span", {
      class: kind, role: "option", tabindex: "-1", "aria-selected": "false", title: `p = ${percent(p)}`,
      "aria-label": `${ends ? "the end" : shown}, ${percent(p)}`, style: { "--share": doubt(part.logs[index]) },
      onclick: () => choose({ line: number, part: place, token: index }),
    }, shown);
    Object.assign(button.dataset, { line: number, part: place, token: index });
    drawn.push(button);
  }));
  drawn.push(line.text.slice(end));
  return drawn;
}

const all = () => [...box.querySelectorAll(".token")];
const same = (each, place) => place && Number(each.dataset.line) === place.line &&
  Number(each.dataset.part) === place.part && Number(each.dataset.token) === place.token;
const at = () => all().find((each) => same(each, chosen));

export function choose(place, focus = true) {
  chosen = place;
  mark();
  if (place && focus) at()?.focus();
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
