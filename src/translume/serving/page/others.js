// Other translations of a whole line, from a beam search.
import * as choice from "./choice.js";
import * as output from "./output.js";
import { Line } from "./sentence.js";
import { element } from "./steps.js";
import { otherWordings } from "./translating.js";

const at = (id) => document.getElementById(id);
let page, controller = null;

const isOpen = () => !at("others").hidden;

export function closeOthers() {
  controller?.abort();
  at("others").hidden = true;
  at("more").setAttribute("aria-expanded", "false");
}

// The line of the selected token, or the first one.
function chosenLine() {
  const { lines } = page.state, number = output.current()?.line ?? lines.findIndex((each) => each instanceof Line && each.text.trim());
  return lines[number] instanceof Line ? number : -1;
}

function show(number, found) {
  const now = page.state.lines[number];
  at("h-others").textContent = page.state.lines.length > 1 ? `Other wordings of “${now.source}”` : "Other wordings";
  const others = found.filter((each) => each.text !== now.text);
  const use = (hypothesis) => {
    page.state.lines[number] = Object.assign(new Line(now.source, { text: hypothesis.text, hypotheses: [hypothesis] }, now.phrases), { file: now.file, isOther: true });
    page.changed();
    show(number, found);
    at("wordings").querySelector("button")?.focus();
  };
  const rows = others.map((each) => element("li", {},
    element("button", { type: "button", lang: choice.model().target ?? "", dir: "auto", onclick: () => use(each) }, each.text)));
  at("wordings").replaceChildren(...(rows.length ? rows : [element("li", {}, element("p", {}, "The model's search found no other wording."))]));
}

async function open() {
  const number = chosenLine();
  if (number < 0) return;
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  try {
    const line = page.state.lines[number];
    const found = await otherWordings(line, { model: choice.model().name, width: page.state.limits.width, signal });
    if (signal.aborted || page.state.lines[number] !== line) return;
    // The translation shown is a choice as well, once another one was taken.
    if (!found.some((each) => each.text === line.text) && line.hypothesis) found.unshift(line.hypothesis);
    at("others").hidden = false;
    at("more").setAttribute("aria-expanded", "true");
    show(number, found);
  } catch (error) {
    page.fail(error);
  }
}

// shared: of page.js: state, fail, changed.
export function setUpOthers(shared) {
  page = shared;
  at("more").addEventListener("click", () => (isOpen() ? closeOthers() : open()));
}
