// A JSON schema in words and as a list of fields.
import { element } from "./steps.js";

const WORDS = { string: "text", integer: "whole number", number: "number", boolean: "true or false", null: "null", object: "object", array: "list" };
const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 6 });
const between = (parts, word) => parts.flatMap((each, place) => (place ? [word, ...each] : each));

// A description, with code in backticks.
export const withCode = (text = "") => text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));

// Words and links for the type of a value.
export function kind(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [element("a", { href: `#shape-${name}` }, name)];
  }
  if ("const" in schema) return [JSON.stringify(schema.const)];
  if (schema.enum) return [schema.enum.map((each) => JSON.stringify(each)).join(" or ")];
  const others = schema.oneOf ?? schema.anyOf;
  if (others) return between(others.map(kind), " or ");
  if (schema.type === "array") return schema.items ? ["list of ", ...kind(schema.items)] : ["list"];
  if (schema.properties) return [`{${Object.keys(schema.properties).join(", ")}}`];
  if (schema.format === "binary") return ["file"];
  if (typeof schema.additionalProperties === "object") return ["object of ", ...kind(schema.additionalProperties)];
  return [[schema.type ?? "anything"].flat().map((each) => WORDS[each] ?? each).join(" or ") + bounds(schema)];
}

function bounds(schema) {
  const limits = [];
  if ("minimum" in schema) limits.push(`at least ${number(schema.minimum)}`);
  if ("exclusiveMinimum" in schema) limits.push(`above ${number(schema.exclusiveMinimum)}`);
  if ("maximum" in schema) limits.push(`at most ${number(schema.maximum)}`);
  if ("exclusiveMaximum" in schema) limits.push(`below ${number(schema.exclusiveMaximum)}`);
  return limits.length ? `, ${limits.join(", ")}` : "";
}

const FIRST = 12;

// The fields of an object; all but the first are collapsed.  isRequest: whether they are those of a request or of a response.
function fields(schema, isRequest) {
  const rows = Object.entries(schema.properties).map(([name, each]) => {
    const must = (schema.required ?? []).includes(name);
    const mark = must === isRequest ? [" ", element("span", { class: isRequest ? "must hint" : "hint" }, isRequest ? "required" : "optional")] : [];
    return element("div", {},
      element("dt", {}, element("code", {}, name), ...mark),
      element("dd", {}, element("span", { class: "kind" }, ...kind(each)), ...withCode(each.description)));
  });
  if (rows.length <= FIRST) return [element("dl", { class: "fields" }, ...rows)];
  const rest = rows.splice(FIRST - 2);
  return [element("dl", { class: "fields" }, ...rows),
    element("details", { class: "more" }, element("summary", {}, `${rest.length} more fields`), element("dl", { class: "fields" }, ...rest))];
}

// The fields of an object, or the type of another value in words.
export function shape(schema, isRequest = false) {
  return schema.properties ? fields(schema, isRequest) : [element("p", {}, ...kind(schema), ...(schema.description ? [": ", ...withCode(schema.description)] : []))];
}
