// The table of results, its notes and ticks, of the pages of sweeps and searches.
const data = JSON.parse(document.getElementById("data").textContent);
const { head, rows, left, notes, command } = data;
const at = (id) => document.getElementById(id);
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"]; // those of the picture
const DASHES = ["none", "7 4", "2 3"];

function showTable() {
  const side = (place) => ({ "text-align": place < left ? "left" : "right" });
  const names = head.map((name, place) => element("th", { scope: "col", style: side(place) }, name));
  const cells = (row) => row.map((value, place) => element(place ? "td" : "th", { ...(place ? {} : { scope: "row" }), style: side(place) }, value));
  at("table").replaceChildren(element("thead", {}, element("tr", {}, ...names)),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row)))));
  at("notes").replaceChildren(...notes.map((note) => element("p", { class: "hint" }, note)));
}

// About `many` round numbers from least to most.
function ticks(least, most, many) {
  const rough = (most - least || 1) / many, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const first = Math.ceil(least / step), last = Math.floor(most / step);
  return Array.from({ length: last - first + 1 }, (_, place) => Number(((first + place) * step).toPrecision(6)));
}

// Shows all of a page now, and the pictures again in another size.
function showPage(name, ...pictures) {
  at("command").textContent = command;
  at("theme").addEventListener("change", theme);
  window.addEventListener("resize", () => pictures.forEach((show) => show()));
  at("footer").textContent = name;
  theme();
  showTable();
  pictures.forEach((show) => show());
}

function theme() {
  const dark = at("theme").value === "dark" || (at("theme").value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
