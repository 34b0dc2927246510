// Shared by the trace page and the server's page: numbers, tokens by probability, the bars of a step.
export const number = (value, digits = 3) => (value === null ? "−∞" : value.toFixed(digits));
export const percent = (p) => (p >= 0.9995 && p < 1 ? ">99.9" : p > 0 && p < 0.0005 ? "<0.1" : (100 * p).toFixed(1)) + " %";
const SLIGHT = 0.0005;  // Rules that move the distribution by less are not shown.
// The opacity of a token's background from its log p (null: −∞): 0 for p = 1, strongest from e⁻⁴ on.
export const doubt = (logP) => (Math.min(1, -(logP ?? -9) / 4) * 0.85).toFixed(3);

export function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "style") for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    else if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function drawn(name, options = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(options)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function fact(name, value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value));
}

export function facts(trace, place) {
  const step = trace.steps[place], token = trace.target_tokens[place];
  const made = element("dl", {}, fact("token", token.text),
    fact("step", `${place} of 0 to ${trace.steps.length - 1}`),
    fact("p", percent(step.p_model)), fact("log p", number(step.log_p_model)), fact("rank", String(step.rank)),
    fact("entropy", `${number(step.entropy, 2)} nats`), fact("margin", number(step.margin)));
  if (Math.abs(step.p_used - step.p_model) >= SLIGHT) made.append(fact("p after rules", percent(step.p_used)));
  for (const rule of step.rules) if (rule.moved >= SLIGHT) made.append(fact("rule", `${rule.name} moved ${percent(rule.moved)}`));
  return made;
}

// The key, a bar for each candidate of the step, and one for all others. onchoose(candidate, mine) is called on a click;
// mine: whether the candidate is the chosen token.
export function bars(trace, place, onchoose) {
  const step = trace.steps[place], token = trace.target_tokens[place];
  const used = new Map(step.top_used.candidates.map((each) => [each.id, each.p_used]));
  const seen = new Set(step.top_model.candidates.map((each) => each.id));
  const rows = step.top_model.candidates.map((each) => bar(each, each.p_used ?? used.get(each.id) ?? 0, token, onchoose));
  for (const each of step.top_used.candidates) if (!seen.has(each.id)) rows.push(bar(each, each.p_used, token, onchoose));
  const shownUsed = rows.reduce((sum, row) => sum + Number(row.dataset.used), 0);
  const shownModel = rows.reduce((sum, row) => sum + Number(row.dataset.model), 0);
  rows.push(line("all others", Math.max(0, 1 - shownModel), Math.max(0, 1 - shownUsed), "bar tail", "div"));
  const key = element("p", { class: "hint" }, element("i", { class: "key" }), "model (p_model)");
  const moved = rows.some((row) => Math.abs(row.dataset.model - row.dataset.used) >= SLIGHT);
  if (moved) key.append(" ", element("i", { class: "key used" }), "after rules (p_used).");
  else {
    if (trace.source_tokens?.length) key.append("; rules changed nothing.");
    for (const row of rows) one(row);
  }
  const floor = trace.facts.smoothing_floor;
  if (floor) key.append(` Label smoothing trains every token to have at least ${floor.toExponential(1)}.`);
  return [key, ...rows];
}

// Show the bar of p_model alone.
export function one(row) {
  row.classList.add("single");
  row.querySelector(".number").textContent = percent(Number(row.dataset.model));
  return row;
}

export function line(name, model, used, kind, tag) {
  const made = element(tag, { class: kind, "data-model": model, "data-used": used },
    element("span", { class: "name" }, name),
    element("span", { class: "track" }, element("i", { style: { width: `${100 * model}%` } }),
      element("i", { class: "used", style: { width: `${100 * used}%` } })),
    element("span", { class: "number" }, `${percent(model)} → ${percent(used)}`));
  return made;
}

function bar(candidate, used, token, onchoose) {
  const mine = candidate.id === token.id;
  const made = line(candidate.text, candidate.p_model, used, "bar" + (mine ? " chosen" : ""), "button");
  made.dataset.id = candidate.id;
  made.addEventListener("click", () => onchoose(candidate, mine));
  return made;
}
