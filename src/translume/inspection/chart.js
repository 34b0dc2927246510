// A chart as wide as its container, with axes; x and y map values to pixels.
function picture(id, label, { height = 280, left = 44, right = 12, top = 10, bottom = 38, xs, ys, xTicks, yTicks, xName, yName, xLabel = String }) {
  const width = Math.max(260, at(id).clientWidth);
  const x = (value) => left + ((width - left - right) * (value - xs[0])) / (xs[1] - xs[0] || 1);
  const y = (value) => height - bottom - ((height - top - bottom) * (value - ys[0])) / (ys[1] - ys[0] || 1);
  const made = drawn("svg", { width, height, role: "img", "aria-label": label });
  for (const tick of yTicks) {
    made.append(drawn("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    made.append(drawn("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
  }
  for (const tick of xTicks) made.append(drawn("text", { x: x(tick), y: height - bottom + 16, "text-anchor": "middle" }, xLabel(tick)));
  made.append(drawn("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xName));
  if (yName) made.append(drawn("text", { x: left + 4, y: top + 12 }, yName));
  at(id).replaceChildren(made);
  return { made, x, y, width };
}

function hinted(shape, text) {
  shape.append(drawn("title", {}, text));
  return shape;
}

const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
