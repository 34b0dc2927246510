const FATES = {
  continued: "continued", best: "the result", finished: "finished, but another one scored higher", length: "the result, cut at the limit",
  outscored: "outscored", stopped: "in the beam when the search ended", forbidden: "no continuation allowed by rules",
};
const VERDICTS = {
  same: "The reference is the search's result.", "search error": "Search error: the reference scores above the result.",
  "model error": "Model error: the model prefers its result to the reference.", forbidden: "Rules forbid the reference.",
};

function showBeam(record, section, verdict, place) {
  section.hidden = !record;
  if (!record) return;
  const score = (target) => (target.score === null ? "no score" : number(target.score, 4));
  let summary = `${record.strategy}, width ${record.width}, ${record.nodes.length} hypotheses considered. Result: “${record.finished[0].text}” (${score(record.finished[0])}). `;
  if (record.greedy.ids.join() === record.finished[0].ids.join()) summary += "Greedy search finds the same. ";
  else summary += `Greedy search finds “${record.greedy.text}” (${score(record.greedy)}), whose score is ${record.beat_greedy ? "lower" : "no lower"}. `;
  if (record.reference) summary += `Reference: “${record.reference.text}” (${score(record.reference)}). ${VERDICTS[record.verdict] ?? ""}`;
  verdict.textContent = summary;
  const children = new Map();
  for (const node of record.nodes) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node);
  }
  const winners = new Set();
  let last = record.nodes.find((node) => node.id === record.finished[0].node);
  for (; last; last = record.nodes[last.parent]) winners.add(last.id);
  place.replaceChildren(element("div", { class: "tree" }, branch(null)));

  function branch(parent) {
    const list = element("ol");
    const nodes = (children.get(parent) ?? []).sort((one, other) => other.total - one.total);
    for (const node of nodes) {
      const item = element("li", { class: winners.has(node.id) ? "kept" : node.place === null ? "dead" : "", "data-node": node.id });
      const label = element("span", {}, node.text, " ", element("small", {},
        `log p ${number(node.log_p, 2)}, total ${number(node.total, 2)}${node.score === null ? "" : `, score ${number(node.score, 3)}`}; ${FATES[node.fate]}`));
      if (!children.has(node.id)) item.append(label);
      else {
        const open = element("button", { "aria-expanded": "false" }, "+"), inside = element("div");
        const toggle = (shown) => {
          open.textContent = shown ? "−" : "+";
          open.setAttribute("aria-expanded", String(shown));
          inside.replaceChildren(...(shown ? [branch(node.id)] : []));
        };
        open.setAttribute("aria-label", `continuations of ${node.text}`);
        open.addEventListener("click", () => toggle(open.textContent === "+"));
        item.append(open, " ", label, inside);
        if (winners.has(node.id)) toggle(true);
      }
      list.append(item);
    }
    return list;
  }
}
