const trace = JSON.parse(document.getElementById("data").textContent).trace;
const at = (id) => document.getElementById(id);
const SHADED = 0.4; // opacity of the strongest token's background
const FAINT = 0.1; // nats that are never coloured strongly, even if all others are smaller
let chosen = 0;

const explained = Math.max(1, ...trace.evidence.map((each) => each.values.length));
const shown = (token) => trace.source.slice(...codeUnits(token)).trim() || token.text;

// Offsets count code points; JavaScript strings count UTF-16 code units.
function codeUnits(token) {
  const characters = Array.from(trace.source);
  const before = characters.slice(0, token.begin).join("").length;
  return [before, before + characters.slice(token.begin, token.end).join("").length];
}

function evidenceOf(method) {
  if (method === "pooling") return trace.pooling;
  return trace.evidence.find((each) => each.method === method)?.values[chosen] ?? null;
}

// How strongly a token is shaded, from 0 to SHADED.
function share(method, row, place) {
  const most = Math.max(method === "pooling" ? 1e-9 : FAINT, ...row.map((each) => Math.abs(each ?? 0)));
  return (SHADED * Math.abs(row[place] ?? 0)) / most;
}

function ground(method, row, place) {
  const colour = method === "pooling" ? "--used" : (row[place] ?? 0) >= 0 ? "--model" : "--against";
  return `color-mix(in srgb, var(${colour}) ${(100 * share(method, row, place)).toFixed(1)}%, transparent)`;
}

function tooltip(method, value) {
  if (value === null) return "none";
  if (method === "pooling") return value.toFixed(3);
  return Math.abs(value) < 0.005 ? "0.00" : (value > 0 ? "+" : "−") + Math.abs(value).toFixed(2);
}

function showText() {
  const method = at("shade").value, row = evidenceOf(method);
  const begins = new Set(trace.source_words.map((word) => word.first));
  at("source").replaceChildren(...trace.source_tokens.map((token, place) =>
    element("span", { class: "token" + (begins.has(place) ? " begins" : "") + (row?.[place] < 0 ? " against" : ""),
      title: row ? tooltip(method, row[place]) : "",
      style: { background: row ? ground(method, row, place) : "none", "--share": row ? share(method, row, place) : 0 } }, shown(token))));
}

function showClasses() {
  const first = trace.classes.slice(0, explained);
  const rows = first.map((each, place) => {
    const made = element("button", { class: "bar one" + (each.given ? " chosen" : ""), role: "option", "data-class": place,
      "data-p": each.p, onclick: () => choose(place) },
      element("span", { class: "name" }, each.label),
      element("span", { class: "track" }, element("i", { style: { width: `${100 * each.p}%` } })),
      element("span", { class: "number" }, percent(each.p)));
    return made;
  });
  const others = trace.classes.slice(explained), mass = others.reduce((sum, each) => sum + each.p, 0);
  if (others.length && !trace.facts.several) rows.push(element("div", { class: "bar one tail", "data-p": mass },
    element("span", { class: "name" }, `${others.length} others`),
    element("span", { class: "track" }, element("i", { style: { width: `${100 * mass}%` } })),
    element("span", { class: "number" }, percent(mass))));
  at("bars").replaceChildren(...rows);
  const fact = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  const given = trace.classes.filter((each) => each.given).map((each) => each.label);
  at("facts").replaceChildren(element("dl", {}, fact("assigned", given.join(", ") || "none"),
    fact("margin", number(trace.margin)), fact("entropy", `${number(trace.entropy, 2)} nats`)));
}

function showTable() {
  const methods = [...trace.evidence.map((each) => each.method), ...(trace.pooling ? ["pooling"] : [])];
  const rows = methods.map(evidenceOf);
  const titles = ["token", ...methods.map((method) => method.replaceAll("-", " "))];
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
  const lines = trace.source_tokens.map((token, place) => element("tr", {}, element("td", {}, shown(token)),
    ...rows.map((row, column) => element("td", { style: { background: ground(methods[column], row, place) } },
      tooltip(methods[column], row[place])))));
  at("evidence").replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines));
  const notes = trace.evidence.map((each) => `${each.method.replaceAll("-", " ")}: against ${each.baseline}`);
  if (trace.pooling) notes.push(`pooling (${trace.facts.pooling}): the weight of a token in the text's vector, the same for all classes`);
  at("methods").textContent = `For “${trace.classes[chosen].label}”, log p in nats. ${notes.join("; ")}.`;
}

function choose(place, focus = false) {
  chosen = Math.max(0, Math.min(explained - 1, place));
  for (const each of document.querySelectorAll("[data-class]")) {
    const mine = Number(each.dataset.class) === chosen;
    each.setAttribute("aria-selected", String(mine));
    each.tabIndex = mine ? 0 : -1;
    if (mine && focus) each.focus();
  }
  showText();
  showTable();
}

function theme() {
  const dark = at("theme").value === "dark" || (at("theme").value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

const ways = [...trace.evidence.map((each) => [each.method, each.method.replaceAll("-", " ")])];
if (trace.pooling) ways.push(["pooling", "pooling weight"]);
ways.push(["none", "nothing"]);
at("shade").replaceChildren(...ways.map(([value, text]) => element("option", { value }, text)));
at("shade").addEventListener("change", showText);
at("theme").addEventListener("change", theme);
at("bars").addEventListener("keydown", (event) => {
  const moves = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, Home: 0, End: explained - 1 };
  if (event.key in moves) { event.preventDefault(); choose(moves[event.key], true); }
});
at("warnings").textContent = trace.warnings.join("; ");
at("footer").textContent = `pooling ${trace.facts.pooling}, ${trace.facts.dtype} on ${trace.facts.device}, ${trace.classes.length} classes; schema ${trace.schema}`;
theme();
showClasses();
choose(0);
