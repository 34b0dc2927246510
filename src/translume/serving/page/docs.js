// The API reference: openapi.json as a web page.
import { example, requestOf } from "./example.js";
import { sentencesOf } from "./examples.js";
import { shape, withCode } from "./shape.js";
import { get, useKey } from "./server.js";
import { element } from "./steps.js";
import { setUpTheme } from "./theming.js";

const at = (id) => document.getElementById(id);
const nameOf = (method, path) => `${method}${path.replaceAll(/[^\w]+/g, "-")}`;
const resolved = (schema, shapes) => (schema.$ref ? shapes[schema.$ref.split("/").pop()] : schema);

function operationsOf(api, tag) {
  return Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods)
    .filter(([, operation]) => operation.tags.includes(tag))
    .map(([method, operation]) => ({ method, path, operation, id: nameOf(method, path) })));
}

const badge = (method) => element("span", { class: `method ${method}` }, method);

function requestSection(operation, shapes) {
  const kinds = Object.entries(operation.requestBody?.content ?? {});
  if (!kinds.length) return [];
  const also = kinds.length > 1 ? `${kinds.map(([type]) => type).join(" or ")}` : kinds[0][0];
  return [element("h3", {}, "Request"), element("p", { class: "hint" }, also), ...shape(resolved(kinds[0][1].schema, shapes), true)];
}

function responseSection(operation, shapes) {
  const rows = [], made = [element("h3", {}, "Response")];
  for (const [status, answer] of Object.entries(operation.responses)) {
    const [type, content] = Object.entries(answer.content ?? {})[0] ?? ["", {}];
    if (status < "300") {
      made.push(element("p", { class: "hint" }, `${status} ${type}: ${answer.description}`));
      if (content.schema) made.push(...shape(resolved(content.schema, shapes)));
    } else rows.push(element("div", {}, element("dt", {}, element("code", {}, status)), element("dd", {}, answer.description)));
  }
  const refused = element("details", { class: "more" }, element("summary", {}, `${rows.length} error statuses`),
    element("p", { class: "hint" }, "The body is an ", element("a", { href: "#shape-Error" }, "Error"), "."), element("dl", { class: "fields" }, ...rows));
  return [...made, refused];
}

function card({ method, path, operation, id }, shapes, server) {
  const secret = server.keyRequired && Boolean(operation.security);
  const inside = element("div", { class: "inside" });
  const made = element("details", { class: "card", id },
    element("summary", {}, badge(method), element("code", {}, path), element("span", { class: "hint" }, ...withCode(operation.description))), inside);
  // Rendered when it is opened.
  const draw = () => {
    if (!made.open || inside.childElementCount) return;
    inside.append(element("h3", {}, "Example"), ...example(requestOf(method, path, operation, server.languages), secret),
      ...requestSection(operation, shapes), ...responseSection(operation, shapes));
  };
  made.addEventListener("toggle", draw);
  return made;
}

function shapesOf(shapes) {
  return Object.entries(shapes).sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, schema]) => {
    const [first, ...rest] = (schema.description ?? "").split(/(?<=\.)\s+/);
    return element("details", { class: "card", id: `shape-${name}` },
      element("summary", {}, element("span", { class: "method" }, "schema"), element("code", {}, name), element("span", { class: "hint" }, ...withCode(first))),
      element("div", { class: "inside" }, ...(rest.length ? [element("p", { class: "hint" }, ...withCode(rest.join(" ")))] : []), ...shape(schema)));
  });
}

const LIMITS = ["characters", "texts", "lines", "width", "body_bytes", "file_bytes", "timeout_seconds"];

function limits(found) {
  const rows = LIMITS.map((name) => element("div", {}, element("dt", {}, name), element("dd", {}, found[name].toLocaleString("en"))));
  return element("details", { class: "more" }, element("summary", {}, "Limits of this server"), element("dl", {}, ...rows));
}

function draw(api, server) {
  const shapes = api.components.schemas, groups = [];
  const link = (id, ...words) => element("li", {}, element("a", { href: `#${id}` }, ...words));
  for (const { name, description } of api.tags) {
    const operations = operationsOf(api, name);
    groups.push(element("section", { "aria-label": name }, element("h2", {}, name), element("p", { class: "hint" }, description),
      ...operations.map((each) => card(each, shapes, server))));
    at("list").append(element("h2", {}, name), element("ul", {}, ...operations.map(({ id, method, path }) => link(id, badge(method), path))));
  }
  groups.push(element("section", { "aria-label": "Schemas" }, element("h2", {}, "Schemas"), element("p", { class: "hint" }, "Types of the fields of responses."), ...shapesOf(shapes)));
  at("groups").append(...groups);
  at("about").replaceChildren(...withCode(api.info.description));
  at("limits").replaceChildren(limits(server.limits));
}

// The first example: a translation by a model of this server.
function start(api, models, keyRequired) {
  const model = models.find((each) => each.offers.includes("translate"));
  if (!model) return;
  const path = "/v1/translate", request = requestOf("post", path, api.paths[path].post, {});
  request.example = { text: sentencesOf(model.source)[0] ?? "a man", ...(models.length > 1 ? { model: model.name } : {}) };
  at("start").append(...example(request, keyRequired, false));
  at("start").hidden = false;
}

// Open the element named in the URL.
function follow() {
  const found = location.hash && at(decodeURIComponent(location.hash.slice(1)));
  if (found?.tagName !== "DETAILS") return;
  found.open = true;
  found.querySelector("summary").focus();
  found.scrollIntoView();
}

async function begin() {
  setUpTheme();
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(at("key").value.trim());
    at("key-form").hidden = true;
  });
  try {
    const [api, info, models, settings] = await Promise.all(["openapi.json", "v1/info", "v1/models", "frontend/settings"].map((path) => get(path)));
    const pair = models.models.find((each) => each.source && each.target);
    const languages = pair ? { source: pair.source, target: pair.target } : {};
    start(api, models.models, settings.keyRequired);
    draw(api, { languages, limits: info.limits, keyRequired: settings.keyRequired });
    at("key-form").hidden = !settings.keyRequired;
  } catch (error) {
    at("problem").textContent = error.message;
    at("problem").hidden = false;
    return;
  }
  addEventListener("hashchange", follow);
  // Also if the URL does not change.
  document.addEventListener("click", (event) => { if (event.target.closest("a[href^='#']")) setTimeout(follow); });
  follow();
  document.documentElement.dataset.ready = "yes";
}

begin();
