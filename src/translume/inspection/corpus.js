const { lens, title } = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en");
const nats = (value, digits = 3) => (value === null ? "–" : value.toFixed(digits));
const FEW = 10; // bins with fewer steps are drawn hollow
const sorting = {};

function range(least, most) {
  return most === null ? `${count(least)} or more` : least === most ? count(least) : `${count(least)}–${count(most)}`;
}

function showFacts() {
  const list = element("dl", {}, fact("pairs", count(lens.pairs)), fact("target tokens", count(lens.tokens)),
    fact("nll", lens.nll === null ? "none" : `${lens.nll.toFixed(3)} nats per token`),
    fact("accuracy", percent(lens.reliability.accuracy)), fact("confidence", percent(lens.reliability.confidence)),
    fact("ECE", lens.reliability.ece.toFixed(3)), fact("ECE of EOS", lens.end.ece.toFixed(3)));
  if (lens.impossible) list.append(fact("impossible tokens", count(lens.impossible)));
  if (lens.too_long) list.append(fact("left out, too long", `${count(lens.too_long)}, the first at line ${lens.first_too_long}`));
  if (lens.truncated) list.append(fact("sources truncated", count(lens.truncated)));
  at("facts").replaceChildren(list);
}

// The groups of steps that a reliability curve can show: all steps, one band, or p(end) at every step.
function groups() {
  const bands = lens.bands.filter((band) => band.reliability)
    .map((band) => [`tokens that occur ${range(band.least, band.most)} times`, band.reliability]);
  return [["all steps", lens.reliability], ...bands, ["EOS", lens.end]];
}

function showSure() {
  const [name, found] = groups()[Number(at("group").value)];
  const tens = [0, 0.2, 0.4, 0.6, 0.8, 1];
  const { made, x, y } = picture("sure", `Reliability of ${name}: ECE ${found.ece.toFixed(3)} over ${count(found.count)} steps, ` +
    `confidence ${percent(found.confidence)}, accuracy ${percent(found.accuracy)}`,
    { height: 320, bottom: 86, xs: [0, 1], ys: [0, 1], xTicks: tens, yTicks: tens, xName: "confidence", yName: "accuracy" });
  const ground = y(0), most = Math.max(1, ...found.bins.map((bin) => Math.log10(1 + bin.count)));
  made.append(drawn("line", { class: "exact", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  const bins = found.bins.filter((bin) => bin.count);
  made.append(drawn("path", { class: "curve", d: path(bins.filter((bin) => bin.count >= FEW).map((bin) => [x(bin.confidence), y(bin.accuracy)])) }));
  for (const bin of bins) {
    const tooltip = `${bin.low.toFixed(2)}–${bin.high.toFixed(2)}: ${count(bin.count)} steps, confidence ${percent(bin.confidence)}, accuracy ${percent(bin.accuracy)}`;
    const tall = (36 * Math.log10(1 + bin.count)) / most;
    made.append(drawn("line", { class: "gap", x1: x(bin.confidence), x2: x(bin.confidence), y1: y(bin.confidence), y2: y(bin.accuracy) }),
      hinted(drawn("circle", { class: "dot" + (bin.count < FEW ? " few" : ""), cx: x(bin.confidence), cy: y(bin.accuracy), r: 5, "data-steps": bin.count }), tooltip),
      hinted(drawn("rect", { class: "count", x: x(bin.low) + 1, width: Math.max(1, x(bin.high) - x(bin.low) - 2), y: ground + 22 + 36 - tall, height: tall }), tooltip));
  }
  const facts = `ECE ${found.ece.toFixed(3)} · ${count(found.count)} steps`;
  made.append(drawn("text", { class: "value", x: x(1) - 4, y: y(0) - 8, "text-anchor": "end", id: "sure-facts" }, facts));
}

function showPlaces() {
  const views = lens.places;
  const highest = Math.ceil(Math.max(0.1, ...views.flatMap((view) => [view.entropy ?? 0, view.nll ?? 0])));
  const step = Math.max(1, Math.ceil(highest / 6));
  const yTicks = Array.from({ length: Math.floor(highest / step) + 1 }, (_, place) => place * step);
  const last = views.at(-1).place;
  const xTicks = [...new Set([1, ...Array.from({ length: Math.floor(last / 5) }, (_, place) => 5 * (place + 1)), last])];
  const later = new Set(views.filter((view) => view.and_later).map((view) => view.place));
  const xLabel = (place) => (later.has(place) ? `${place}+` : String(place));
  const { made, x, y } = picture("places", `Entropy and nll of ${views.length} positions`,
    { xs: [1, Math.max(2, last)], ys: [0, highest], xTicks, yTicks, xName: "position in the target", yName: "nats", xLabel });
  for (const [name, kind] of [["entropy", ""], ["nll", " used"]]) {
    const known = views.filter((view) => view[name] !== null);
    made.append(drawn("path", { class: "curve" + kind, d: path(known.map((view) => [x(view.place), y(view[name])])) }));
    for (const view of known) {
      made.append(hinted(drawn("circle", { class: "dot" + kind, cx: x(view.place), cy: y(view[name]), r: 3 }),
        `position ${view.place}${view.and_later ? " and later" : ""}: ${name} ${view[name].toFixed(3)} nats of ${count(view.tokens)} tokens`));
    }
  }
}

function showRanks() {
  let before = 0;
  const names = lens.ranks.map((each) => {
    const name = each.most === null ? `> ${before}` : each.most === before + 1 ? String(each.most) : `${before + 1}–${each.most}`;
    before = each.most ?? before;
    return name;
  });
  const height = 30 * names.length, width = Math.max(260, at("ranks").clientWidth), left = 64, room = width - left - 64;
  const most = Math.max(1, ...lens.ranks.map((each) => each.tokens));
  const made = drawn("svg", { width, height, role: "img", "aria-label": "Reference tokens by rank" });
  lens.ranks.forEach((each, place) => {
    const long = (room * each.tokens) / most, top = 30 * place + 4;
    made.append(drawn("text", { x: left - 8, y: top + 15, "text-anchor": "end" }, names[place]),
      hinted(drawn("rect", { class: "rank", x: left, y: top, width: Math.max(1, long), height: 22, rx: 3, "data-tokens": each.tokens }), `${count(each.tokens)} tokens`),
      drawn("text", { class: "value", x: left + long + 6, y: top + 15 }, percent(each.tokens / lens.tokens)));
  });
  at("ranks").replaceChildren(made);
}

function showBands() {
  at("counted").textContent = "By the frequency of a token in " +
    (lens.frequency === "training" ? "the training targets" : "these targets") +
    "; nll and first (the fraction with rank 1) are of reference tokens; confidence, accuracy and ECE are of steps, by their likeliest token.";
  const names = ["times", "types", "tokens", "nll", "first", "confidence", "accuracy", "ECE"];
  const steps = (found) => (found ? [percent(found.confidence), percent(found.accuracy), found.ece.toFixed(3)] : ["–", "–", "–"]);
  const rows = lens.bands.map((band) => [range(band.least, band.most), count(band.types), count(band.tokens), nats(band.nll),
    band.first === null ? "–" : percent(band.first), ...steps(band.reliability)]);
  rows.push(["all", count(lens.types), count(lens.tokens), nats(lens.nll), percent(lens.ranks[0].tokens / lens.tokens), ...steps(lens.reliability)]);
  rows.push(["EOS", "", "", "", "", ...steps(lens.end)]);
  at("bands").replaceChildren(element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map(([name, ...cells]) =>
      element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))))));
}

// A table that sorts by its columns: a name, the value to sort by, and the content (a text, or nodes for a wide cell).
function sortable(id, entries, columns) {
  const state = (sorting[id] ??= { column: null, down: false });
  const order = entries.map((_, place) => place);
  if (state.column !== null) {
    const by = columns[state.column].value, sign = state.down ? -1 : 1;
    const least = (entry) => by(entry) ?? -Infinity;
    order.sort((one, other) => (least(entries[one]) < least(entries[other]) ? -sign : least(entries[one]) > least(entries[other]) ? sign : one - other));
  }
  const heads = columns.map((column, place) => {
    if (!column.value) return element("th", { scope: "col", class: "text" }, column.name);
    const sort = () => {
      state.down = state.column === place && !state.down;
      state.column = place;
      sortable(id, entries, columns);
      at(id).querySelectorAll("th")[place].querySelector("button").focus();
    };
    const now = state.column === place ? (state.down ? "descending" : "ascending") : "none";
    return element("th", { scope: "col", "aria-sort": now }, element("button", { onclick: sort }, column.name));
  });
  const rows = order.map((place) => element("tr", { "data-line": entries[place].line }, ...columns.map((column) => {
    const shown = column.show(entries[place]);
    return column.value ? element("td", { "data-name": column.name }, shown) : element("td", { class: "text" }, ...shown);
  })));
  at(id).replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

const text = (...parts) => element("div", {}, ...parts);
const byLine = { name: "line", value: (each) => each.line, show: (each) => count(each.line) };

function showPairs() {
  sortable("pairs", lens[at("list").value], [
    byLine,
    { name: "gain", value: (each) => each.gain, show: (each) => nats(each.gain, 2) },
    { name: "log p per token", value: (each) => (each.log_p === null ? null : each.log_p / each.tokens), show: (each) => (each.log_p === null ? "−∞" : (each.log_p / each.tokens).toFixed(2)) },
    { name: "tokens", value: (each) => each.tokens, show: (each) => String(each.tokens) },
    { name: "worst", value: (each) => each.worst_log_p, show: (each) => `${each.worst} ${number(each.worst_log_p, 1)}` },
    { name: "source and target", show: (each) => [text(each.source), text(each.target)] },
  ]);
}

function showNever() {
  at("never-section").hidden = !lens.never_types;
  at("never-count").textContent = `${count(lens.never_types)} of ${count(lens.types)} tokens, ${count(lens.never_tokens)} occurrences` +
    (lens.never_types > lens.never_predicted.length ? `; the ${lens.never_predicted.length} most frequent:` : ":");
  at("never").replaceChildren(...lens.never_predicted.flatMap((each) => [element("span", { class: "token" }, each.text, element("small", {}, ` ${count(each.tokens)}`)), " "]));
}

function showComparison() {
  const found = lens.comparison;
  at("comparison-section").hidden = !found;
  if (!found) return;
  const unit = found.unit === "token" ? "tokens" : "pieces between positions where both tokenizers split";
  at("verdict").textContent = `${count(found.pairs)} pairs, by ${unit}. log p of all references ${number(found.log_p, 1)}, of the other ` +
    `${number(found.other_log_p, 1)} nats: better for ${count(found.better)} pairs, worse for ${count(found.worse)}. ` +
    `${count(found.same)} translations are equal, ${count(found.pairs - found.same)} differ.`;
  const both = (name, one) => ({ name, value: one, show: (each) => number(one(each), 2) });
  sortable("gaps", found.gaps, [byLine, both("log p", (each) => each.log_p), both("other's", (each) => each.other_log_p),
    { name: "source, and the reference up to the difference", show: (each) => [text(each.source), text(each.before, element("mark", {}, each.text || " ▪"))] }]);
  const says = (who, parting, whole, own, byOther) => text(`${who}: ${parting.shared}`, element("mark", {}, own.text || " ▪"),
    whole.slice(parting.shared.length + own.text.length), element("small", {}, ` (log p ${number(own.log_p, 2)}, by the other model ${number(byOther, 2)})`));
  sortable("partings", found.partings, [byLine, both("log p", (each) => each.own.log_p), both("other's", (each) => each.other.log_p),
    { name: "source, and both translations", show: (each) => [text(each.source),
      says("this", each, each.text, each.own, each.other.of_other), says("other", each, each.other_text, each.other, each.own.of_other)] }]);
}

function showPictures() {
  showSure();
  showPlaces();
  showRanks();
}

function theme() {
  const dark = at("theme").value === "dark" || (at("theme").value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

at("of").textContent = title;
at("group").replaceChildren(...groups().map(([name], place) => element("option", { value: place }, name)));
at("group").addEventListener("change", showSure);
at("list").addEventListener("change", () => { sorting.pairs = undefined; showPairs(); });
at("theme").addEventListener("change", theme);
window.addEventListener("resize", showPictures);
at("footer").textContent = `forced decoding; ${lens.normalised ? "probabilities sum to one" : "the head gives no distribution"}; schema ${lens.schema}`;
theme();
showFacts();
showBands();
showPairs();
showNever();
showComparison();
showPictures();
