// Spectrograms and images with what the model reads of them: trace.frames, levels [L][F] from 0 to 255.
const STOPS = [[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]];  // from dark to bright, as magma

function bright(level) {
  const at = (level / 255) * (STOPS.length - 1), below = Math.min(STOPS.length - 2, Math.floor(at));
  return STOPS[below].map((value, place) => value + (at - below) * (STOPS[below + 1][place] - value));
}

// A canvas with one pixel for each value: [F, L] with the last value on top, or the pixels of an image.
function pixelsOf(frames) {
  const image = frames.kind === "image", wide = frames.levels.length, high = frames.levels[0].length / frames.colors;
  const canvas = element("canvas", { width: wide, height: high });
  const pixels = new ImageData(wide, high);
  frames.levels.forEach((values, x) => {
    for (let y = 0; y < high; y++) {
      const level = values[image ? y * frames.colors : high - 1 - y];
      const colors = frames.colors > 1 ? values.slice(y * frames.colors, y * frames.colors + 3) : image ? [level, level, level] : bright(level);
      pixels.data.set([...colors, 255], 4 * (y * wide + x));
    }
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

export function partOf(frames, place) {
  const [begin, end] = frames.spans[place];
  if (end <= begin) return "";
  if (!frames.per_second) return `${frames.kind === "image" ? "columns" : "frames"} ${begin}–${end - 1}`;
  return `${(begin / frames.per_second).toFixed(2)}–${(end / frames.per_second).toFixed(2)} s`;
}

// The source, and below it the values of each position, [rows][S], over the same axis. choose(row): on a click in a row.
// signed: values below 0 have the colour of what is against a token. One row without a text is drawn over the source.
export function overSource(trace, rows, texts, { chosen = -1, signed = false, choose = null } = {}) {
  const frames = trace.frames, length = frames.levels.length, image = frames.kind === "image";
  const left = texts.length ? 96 : 8, cell = texts.length === rows.length ? 18 : 2, top = 20, axis = 22;
  const wide = Math.max(240, Math.min(1080, Math.max(length * (image ? 4 : 2.5), 480), (document.querySelector("main").clientWidth || 900) - left - 80));
  const values = frames.levels[0].length / frames.colors;
  const high = image ? Math.max(40, Math.min(300, (wide * values) / length)) : 120;
  const width = left + wide + 12, height = top + high + (texts.length ? 6 + cell * rows.length : 0) + axis, scale = window.devicePixelRatio || 1;
  const canvas = element("canvas", { role: "img", "aria-label": texts.length ? "Weights over the source" : "The source" });
  Object.assign(canvas, { width: width * scale, height: height * scale });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const brush = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name);
  brush.scale(scale, scale);
  brush.imageSmoothingEnabled = false;
  const pixels = pixelsOf(frames);
  brush.drawImage(pixels, left, top, wide, high);
  brush.font = "11px system-ui, sans-serif";
  const x = (frame) => left + (frame * wide) / length;
  const places = trace.source_tokens.map((token, place) => [token, place]).filter(([token]) => token.end > token.begin);
  const most = Math.max(1e-9, ...rows.flat().map((value) => Math.abs(value ?? 0)));
  const paint = (row, y, deep, strength) => places.forEach(([token, place]) => {
    const value = row[place] ?? 0;
    brush.globalAlpha = (strength * Math.abs(value)) / most;
    brush.fillStyle = color(signed && value < 0 ? "--against" : "--model");
    brush.fillRect(x(token.begin), y, x(token.end) - x(token.begin), deep);
  });
  if (texts.length) rows.forEach((row, y) => paint(row, top + high + 6 + y * cell, cell > 2 ? cell - 2 : cell, 1));
  else if (rows.length) {  // over the source: a bar below it, and light on it
    brush.globalAlpha = 0.55;
    brush.fillStyle = "#000";
    brush.fillRect(left, top, wide, high);
    places.forEach(([token, place]) => {
      const share = Math.max(0, rows[0][place] ?? 0) / most;
      brush.globalAlpha = share;
      const begin = x(token.begin), deep = x(token.end) - begin;
      brush.drawImage(pixels, token.begin, 0, token.end - token.begin, values, begin, top, deep, high);
    });
  }
  brush.globalAlpha = 1;
  brush.textAlign = "center";
  frames.spans.forEach(([begin, end], place) => {
    if (end <= begin) return;
    const mine = place === chosen;
    brush.fillStyle = brush.strokeStyle = color(mine ? "--focus" : "--soft");
    brush.font = `${mine ? "700 " : ""}12px system-ui, sans-serif`;
    brush.fillText(trace.target_tokens[place].text.replaceAll("▁", ""), (x(begin) + x(end)) / 2, top - 6);
    brush.lineWidth = mine ? 2 : 1;
    brush.beginPath();
    brush.moveTo(x(begin), top - 2);
    brush.lineTo(x(end), top - 2);
    brush.stroke();
    if (mine) brush.strokeRect(x(begin), top, x(end) - x(begin), high);
  });
  brush.font = "11px system-ui, sans-serif";
  brush.fillStyle = color("--ink");
  brush.textAlign = "right";
  texts.forEach((text, y) => brush.fillText(text.slice(0, 14), left - 6, top + high + 6 + y * cell + 12));
  if (chosen >= 0 && texts.length === trace.target_tokens.length) {
    brush.strokeStyle = color("--focus");
    brush.strokeRect(left - 0.5, top + high + 5.5 + chosen * cell, wide, cell - 1);
  }
  brush.textAlign = "center";
  brush.fillStyle = color("--soft");
  const unit = frames.per_second || 1, least = (length / unit) * (70 / wide), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((many) => many * power).find((each) => each >= least);
  for (let tick = 0; tick * step <= length / unit; tick++) {
    const last = (tick + 1) * step > length / unit;
    brush.fillText(`${Number((tick * step).toPrecision(3))}${last && frames.per_second ? " s" : ""}`, x(tick * step * unit), height - 6);
  }
  if (choose && texts.length) canvas.addEventListener("click", (event) => {
    const row = Math.floor((event.offsetY - top - high - 6) / cell);
    if (row >= 0 && row < rows.length) choose(row);
  });
  return canvas;
}
