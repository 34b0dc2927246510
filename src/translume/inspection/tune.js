const { trials, metric: final, pruned_by: metric, best, importance, pruned_by_larger: larger } = data;
const measured = trials.filter((trial) => trial.curve.length);
const named = (trial) => `trial ${trial.number}, ${trial.state}: ` +
  (Object.entries(trial.chosen).map(([name, value]) => `${name}=${value}`).join(", ") || "as given") +
  (trial.value === null ? "" : `; ${final} ${trial.value.toFixed(3)} at its end`);

// Distances of a hundredth below and above, so that no point is on the frame.
function range(values) {
  const least = Math.min(...values), most = Math.max(...values), space = (most - least || 1) / 100;
  return [least - space, most + space];
}

function showHistory() {
  const points = measured.flatMap((trial) => trial.curve);
  if (!points.length) return;
  const xs = [0, Math.max(...points.map(([seconds]) => seconds))], ys = range(points.map(([, value]) => value));
  const { made, x, y } = picture("history", `${metric} of ${measured.length} trials`,
    { height: 360, xs, ys, xTicks: ticks(...xs, 6), yTicks: ticks(...ys, 6), xName: "seconds of training", yName: metric });
  for (const trial of [...measured].sort((one, other) => (one.number === best) - (other.number === best))) {
    const colour = trial.number === best ? COLOURS[1] : trial.number ? COLOURS[5] : "currentColor";
    const line = drawn("path", { class: "curve", d: path(trial.curve.map(([seconds, value]) => [x(seconds), y(value)])) });
    Object.assign(line.style, { stroke: colour });
    made.append(line);
    for (const [seconds, value] of trial.curve) {
      const dot = drawn("circle", { class: "dot", cx: x(seconds), cy: y(value), r: 4 });
      dot.style.fill = colour;
      made.append(hinted(dot, `${named(trial)}; ${metric} ${value.toFixed(3)} after ${Math.round(seconds)} s`));
    }
  }
}

function showImportance() {
  const found = Object.entries(importance).sort(([, one], [, other]) => other - one);
  at("importance-section").hidden = !found.length;
  at("importance").replaceChildren(element("tbody", {}, ...found.map(([name, share]) => element("tr", {},
    element("th", { scope: "row", style: { "text-align": "left" } }, name),
    element("td", { style: { "text-align": "right" } }, `${(100 * share).toFixed(0)} %`),
    element("td", {}, element("i", { class: "key", style: { background: COLOURS[0], width: `${(20 * share).toFixed(2)}em` } }))))));
}

function showParallel() {
  const names = [...new Set(measured.flatMap((trial) => Object.keys(trial.parameters)))];
  const whole = measured.filter((trial) => names.every((name) => name in trial.parameters));
  at("parallel-section").hidden = whole.length < 2;
  if (whole.length < 2) return;
  const values = whole.map((trial) => trial.curve[0][1]), order = [...values].sort((one, other) => (larger ? one - other : other - one));
  const axes = [...names.map((name) => ({ name, of: (trial) => trial.parameters[name] })), { name: metric, of: (trial) => trial.curve[0][1] }];
  const { made, x, y } = picture("parallel", `Settings of ${whole.length} trials`,
    { height: 360, left: 60, right: 60, xs: [0, axes.length - 1], ys: [0, 1], xTicks: axes.map((_, place) => place), yTicks: [], xName: "",
      xLabel: (place) => axes[place].name.split(".").pop() });
  for (const [place, axis] of axes.entries()) {
    const found = whole.map(axis.of), numbers = found.every((value) => !Number.isNaN(Number(value)));
    const known = numbers ? null : [...new Set(found)];
    const [least, most] = numbers ? [Math.min(...found.map(Number)), Math.max(...found.map(Number))] : [0, known.length - 1];
    axis.at = (trial) => 0.05 + (0.9 * ((numbers ? Number(axis.of(trial)) : known.indexOf(axis.of(trial))) - least)) / (most - least || 1);
    made.append(drawn("line", { class: "axis", x1: x(place), x2: x(place), y1: y(0), y2: y(1) }));
    for (const [height, value] of [[0.05, numbers ? least : known[0]], [0.95, numbers ? most : known.at(-1)]])
      made.append(drawn("text", { x: x(place) + 4, y: y(height) + (height < 0.5 ? 14 : -5) }, typeof value === "number" ? String(Number(value.toPrecision(3))) : value));
  }
  for (const trial of whole) {
    const line = drawn("path", { class: "curve", d: path(axes.map((axis, place) => [x(place), y(axis.at(trial))])) });
    Object.assign(line.style, { stroke: COLOURS[trial.number === best ? 1 : 0], opacity: 0.15 + 0.85 * ((order.indexOf(trial.curve[0][1]) + 1) / order.length) ** 2 });
    made.append(hinted(line, named(trial)));
  }
}

showPage("translume tune", showHistory, showImportance, showParallel);
