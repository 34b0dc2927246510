const { head, rows, left, notes, command, curves } = JSON.parse(document.getElementById("data").textContent);
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

function showCurves() {
  const points = curves.flatMap((curve) => curve.points);
  at("curves-section").hidden = !points.length;
  if (!points.length) return;
  const xs = [0, Math.max(...points.map(([update]) => update))];
  const ys = [Math.min(...points.map(([, mean, sd]) => mean - sd)), Math.max(...points.map(([, mean, sd]) => mean + sd))];
  const { made, x, y } = picture("curves", `Validation nll of ${curves.length} rows`,
    { height: 360, xs, ys, xTicks: ticks(...xs, 6), yTicks: ticks(...ys, 6), xName: "update", xLabel: (value) => value.toLocaleString("en") });
  curves.forEach((curve, place) => {
    const colour = COLOURS[place % COLOURS.length], dashes = DASHES[Math.floor(place / COLOURS.length) % DASHES.length];
    const edge = (sign) => curve.points.map(([update, mean, sd]) => [x(update), y(mean + sign * sd)]);
    const band = drawn("path", { d: path([...edge(1), ...edge(-1).reverse()]) });
    Object.assign(band.style, { fill: colour, opacity: 0.2, stroke: "none" });
    const line = drawn("path", { class: "curve", d: path(edge(0)) });
    Object.assign(line.style, { stroke: colour, strokeDasharray: dashes });
    made.append(band, line);
    for (const [update, mean, sd] of curve.points) {
      const dot = drawn("circle", { class: "dot", cx: x(update), cy: y(mean), r: 4 });
      dot.style.fill = colour;
      made.append(hinted(dot, `${curve.name}, update ${update.toLocaleString("en")}: ${mean.toFixed(3)} ± ${sd.toFixed(3)}`));
    }
  });
  at("key").replaceChildren(...curves.flatMap((curve, place) => curve.points.length ?
    [element("i", { class: "key", style: { background: COLOURS[place % COLOURS.length] } }), `${curve.name}  `] : []));
}

function theme() {
  const dark = at("theme").value === "dark" || (at("theme").value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

at("command").textContent = command;
at("theme").addEventListener("change", theme);
window.addEventListener("resize", showCurves);
at("footer").textContent = "translume sweep";
theme();
showTable();
showCurves();
