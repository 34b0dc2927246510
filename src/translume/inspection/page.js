const data = JSON.parse(document.getElementById("data").textContent);
const trace = data.trace;
const at = (id) => document.getElementById(id);
const alone = !trace.source_tokens.length;  // a text of a language model
let chosen = 0;

const begins = (words) => new Set(words.map((word) => word.first));

function showTexts() {
  const sourceBegins = begins(trace.source_words), targetBegins = begins(trace.target_words);
  at("warnings").textContent = trace.warnings?.join("; ") ?? "";
  if (!trace.frames) at("source").replaceChildren(...trace.source_tokens.map((token, place) =>
    element("span", { class: "token" + (sourceBegins.has(place) ? " begins" : "") }, token.text)));
  at("target").replaceChildren(...trace.target_tokens.map((token, place) => {
    const step = trace.steps[place];
    return element("button", {
      class: "token" + (targetBegins.has(place) ? " begins" : ""), role: "option", "data-step": place,
      style: { "--share": doubt(step.log_p_model) }, title: `p = ${percent(step.p_model)}`, onclick: () => choose(place),
    }, token.text);
  }));
}

function choose(place, focus = false) {
  chosen = Math.max(0, Math.min(trace.steps.length - 1, place));
  for (const each of document.querySelectorAll("[data-step]")) {
    const mine = Number(each.dataset.step) === chosen;
    const isOption = each.getAttribute("role") === "option";
    each.setAttribute(isOption ? "aria-selected" : "aria-current", String(mine));
    if (isOption) {
      each.tabIndex = mine ? 0 : -1;
      if (mine && focus) each.focus();
    }
  }
  showStep();
  shadeSource();
  showAttention();
}

function showStep() {
  const step = trace.steps[chosen];
  at("facts").replaceChildren(facts(trace, chosen));
  if (trace.frames) at("facts").firstChild.append(fact("part of the source", partOf(trace.frames, chosen)));
  at("bars").replaceChildren(...bars(trace, chosen, force));
  at("whatif").replaceChildren();
  const lens = step.lens.map((layer) => element("tr", {}, element("td", {}, String(layer.layer)),
    element("td", {}, layer.top.candidates.slice(0, 3).map((each) => `${each.text} ${percent(each.p_model)}`).join(", ")),
    element("td", {}, number(layer.log_p, 2)), element("td", {}, String(layer.rank))));
  const titles = ["layer", "likeliest", "log p", "rank"].map((name) => element("th", { scope: "col" }, name));
  at("lens").replaceChildren(element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...lens));
  at("lens-section").hidden = !step.lens.length;
  document.querySelector(".columns").classList.toggle("alone", !step.lens.length);
}

function force(candidate, mine) {
  const found = (data.alternatives[chosen] ?? {})[candidate.id];
  const begin = trace.target_tokens.slice(0, chosen).map((each) => each.text).join("").replaceAll("▁", " ").trim();
  let outcome = `“${candidate.text}” is the chosen token.`;
  if (!mine && found) outcome = `With “${candidate.text}” here: ${found.text} (log p ${number(found.log_p, 2)} instead of ${number(trace.log_p, 2)})`;
  else if (!mine) {
    const prefix = (begin + candidate.text.replace("▁", " ")).trim();
    outcome = alone ? `translume generate MODEL "${prefix}" continues with it.` : `Not computed; run the command again with --prefix "${prefix}".`;
  }
  at("whatif").replaceChildren(element("p", {}, outcome));
}

function shadeSource() {
  const way = at("shade").value;
  let row = null;
  if (way === "attention" && trace.attention.cross) {
    const last = trace.attention.cross[Math.max(0, trace.attention.cross.length - 2)];
    row = trace.source_tokens.map((_, place) => last.reduce((sum, head) => sum + head[chosen][place], 0) / last.length);
  }
  const attribution = trace.attributions.find((each) => each.method === way);
  if (attribution) row = attribution.values[chosen];
  if (trace.frames) {
    at("source").replaceChildren(overSource(trace, row ? [row] : [], [], { chosen }));
    return;
  }
  const most = row ? Math.max(1e-9, ...row.map((each) => Math.abs(each ?? 0))) : 1;
  [...at("source").children].forEach((each, place) => {
    const value = row ? (row[place] ?? 0) : 0;
    each.style.setProperty("--share", (0.75 * Math.max(0, value) / most).toFixed(3));
    each.title = row ? number(value) : "";
  });
}

function showPrior() {
  const gains = trace.steps.map((step) => (step.prior ? step.prior.gain : null));
  at("prior-section").hidden = !trace.steps.some((step) => step.prior);
  const most = Math.max(1, ...gains.map((gain) => Math.abs(gain ?? 0)));
  at("prior").replaceChildren(...gains.map((gain, place) => {
    const up = element("div", { class: "up" }), down = element("div", { class: "down" });
    const part = element("i", { style: { height: `${(100 * Math.abs(gain ?? 0)) / most}%` } });
    (gain >= 0 ? up : down).append(part);
    return element("button", { "data-step": place, title: `${number(gain, 2)} nats`, onclick: () => choose(place) },
      up, down, element("span", {}, trace.target_tokens[place].text));
  }));
}

function matrices() {
  const kinds = trace.attention;
  return kinds ? kinds[at("kind").value][Number(at("layer").value)] : null;
}

function showAttention() {
  if (!trace.attention) return;
  const heads = matrices();
  if (!heads) { at("attention").replaceChildren("This layer has no attention."); return; }
  const which = at("head").value;
  const matrix = which === "mean"
    ? heads[0].map((row, y) => row.map((_, x) => heads.reduce((sum, head) => sum + head[y][x], 0) / heads.length))
    : heads[Number(which)];
  const kind = at("kind").value;
  const target = trace.target_tokens.map((token) => token.text);
  const source = trace.source_tokens.map((token) => token.text);
  const rows = kind === "encoder" ? source : target;
  const columns = kind === "decoder" ? ["start", ...target.slice(0, -1)] : source;
  if (trace.frames && kind !== "decoder") {
    const texts = kind === "encoder" ? [""] : rows;
    at("attention").replaceChildren(overSource(trace, matrix, texts, { chosen, choose: kind === "cross" ? choose : null }));
    return;
  }
  at("attention").replaceChildren(at("form").value === "map" ? map(matrix, rows, columns) : links(matrix, rows, columns));
}

function links(matrix, rows, columns) {
  const room = at("attention").clientWidth || 480, usual = Math.max(260, Math.min(480, room)), least = Math.min(150, usual * 0.34);
  const side = (texts) => Math.max(least, Math.min(room * 0.4, 7.5 * Math.max(...texts.map((text) => text.length))));
  const left = side(columns), between = usual - 2 * least, right = Math.min(room * 0.6, left + between);
  const width = right + side(rows), step = 22, height = step * Math.max(rows.length, columns.length) + 12;
  const label = (text, place) => short(text, Math.floor(place / 7.5));
  const picture = drawn("svg", { width, height, role: "img", "aria-label": "Attention as links" });
  matrix.forEach((row, y) => row.forEach((weight, x) => {
    if (weight < 0.03) return;
    picture.append(drawn("line", { x1: left + 4, y1: 16 + x * step - 4, x2: right - 4, y2: 16 + y * step - 4,
      "stroke-width": (0.6 + 3 * weight).toFixed(2), "stroke-opacity": (weight * (y === chosen ? 1 : 0.35)).toFixed(3) }));
  }));
  columns.forEach((text, x) => picture.append(drawn("text", { x: left, y: 16 + x * step, "text-anchor": "end" }, label(text, left))));
  rows.forEach((text, y) => picture.append(drawn("text", { x: right, y: 16 + y * step, class: y === chosen ? "chosen" : "" }, label(text, width - right))));
  return picture;
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function map(matrix, rows, columns) {
  const cell = 16, left = 110, top = 96;
  const canvas = element("canvas", { role: "img", "aria-label": "Attention as a heat map" });
  const width = left + cell * columns.length + 8, height = top + cell * rows.length + 8, scale = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: width * scale, height: height * scale });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const brush = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  brush.scale(scale, scale);
  brush.font = "11px system-ui, sans-serif";
  brush.fillStyle = style.getPropertyValue("--model");
  matrix.forEach((row, y) => row.forEach((weight, x) => {
    brush.globalAlpha = weight;
    brush.fillRect(left + x * cell, top + y * cell, cell - 1, cell - 1);
  }));
  brush.globalAlpha = 1;
  brush.fillStyle = style.getPropertyValue("--ink");
  brush.textAlign = "right";
  rows.forEach((text, y) => brush.fillText(short(text, 16), left - 5, top + y * cell + 12));
  brush.textAlign = "left";
  columns.forEach((text, x) => {
    brush.save();
    brush.translate(left + x * cell + 12, top - 5);
    brush.rotate(-Math.PI / 2);
    brush.fillText(short(text, 14), 0, 0);
    brush.restore();
  });
  brush.strokeStyle = style.getPropertyValue("--focus");
  if (chosen < rows.length) brush.strokeRect(left - 0.5, top + chosen * cell - 0.5, cell * columns.length, cell);
  return canvas;
}

function fill(select, pairs) {
  at(select).replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
}

function setUp() {
  const ways = [["none", "nothing"]];
  if (trace.attention?.cross) ways.push(["attention", "cross-attention"]);
  for (const each of trace.attributions) ways.push([each.method, each.method.replaceAll("-", " ")]);
  fill("shade", ways);
  at("shade").selectedIndex = trace.frames && ways.length > 1 ? 1 : ways.length - 1;
  if (alone) at("h-text").textContent = "The text";
  at("shade").parentElement.hidden = alone;
  at("attention-section").hidden = !trace.attention;
  if (trace.attention) {
    const kinds = [["cross", "target over source"], ["decoder", alone ? "text over text" : "target over target"], ["encoder", "source over source"]];
    fill("kind", kinds.filter(([kind]) => trace.attention[kind]?.length));
    at("form").parentElement.hidden = Boolean(trace.frames);
    const refill = () => {
      const layers = trace.attention[at("kind").value];
      fill("layer", layers.map((_, place) => [place, String(place + 1)]));
      at("layer").value = String(Math.max(0, layers.length - 2));
      const heads = matrices() ?? [];
      fill("head", [["mean", "mean"], ...heads.map((_, place) => [place, String(place + 1)])]);
    };
    refill();
    at("kind").addEventListener("change", () => { refill(); showAttention(); });
    for (const id of ["layer", "head", "form"]) at(id).addEventListener("change", showAttention);
  }
  at("shade").addEventListener("change", shadeSource);
  at("theme").addEventListener("change", theme);
  at("target").addEventListener("keydown", (event) => {
    const moves = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: trace.steps.length - 1 };
    if (event.key in moves) { event.preventDefault(); choose(moves[event.key], true); }
  });
  const facts = trace.facts;
  at("footer").textContent = `head ${facts.head}, ${facts.dtype} on ${facts.device}, vocabulary ${facts.vocabulary.toLocaleString("en")}, ` +
    `log p ${number(trace.log_p, 3)} nats${alone ? "" : `, finished by ${trace.finished_by}, ${trace.origin === "given" ? "target given" : "target found by search"}`}; schema ${trace.schema}`;
}

function theme() {
  const dark = at("theme").value === "dark" || (at("theme").value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  showAttention();
}

setUp();
showTexts();
showPrior();
showBeam(data.beam, at("beam-section"), at("verdict"), at("beam"));
theme();
choose(trace.steps.reduce((worst, step, place) => ((step.log_p_model ?? -99) < (trace.steps[worst].log_p_model ?? -99) ? place : worst), 0));
