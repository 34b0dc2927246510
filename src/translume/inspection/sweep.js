const { curves } = data;

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

showPage("translume sweep", showCurves);
