// An example of a request: a command to copy, and a button to send it.
import { headers } from "./server.js";
import { element } from "./steps.js";

const MOST_SHOWN = 20000;
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The example request of an operation.
export function requestOf(method, path, operation, languages) {
  const content = operation.requestBody?.content ?? {};
  const type = Object.keys(content)[0] ?? "";
  const example = { ...content[type]?.example };
  for (const [name, code] of Object.entries(languages)) if (name in example) example[name] = code;
  return { method: method.toUpperCase(), path: path.slice(1), type, example };
}

// JSON on one line, with spaces.
const written = (value) => JSON.stringify(value, null, 1).replaceAll(/\n\s*/g, " ").replaceAll(/([[{]) | (?=[\]}])/g, "$1");

export function curl({ method, path, type, example }, body, secret) {
  const words = ["curl -s"];
  if (method === "DELETE") words.push("-X DELETE");
  words.push(new URL(".", location.href).href + path.replaceAll("{name}", "ID"));
  if (secret) words.push('-H "Authorization: Bearer $KEY"');
  if (type === "application/json") words.push(`--json ${quoted(body)}`);
  else if (type) words.push(...Object.entries(example).map(([name, value]) => `-F ${name}=${value}`));
  else if (method === "POST") words.push("-X POST");
  return words.join(" ");
}

async function copy(command, say) {
  try {
    await navigator.clipboard.writeText(command.textContent);
    say("Copied.");
  } catch {
    // Browsers deny access to the clipboard over plain HTTP; the user can copy the selection.
    getSelection().selectAllChildren(command);
    say("Selected. Press Ctrl+C to copy.");
  }
}

function pretty(text, type) {
  if (!type.startsWith("application/json")) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

async function tried(request, body, answer, say) {
  say("Sending…");
  try {
    const options = { method: request.method, headers: headers() };
    if (request.type) Object.assign(options, { body, headers: { ...options.headers, "Content-Type": request.type } });
    const found = await fetch(request.path, options);
    const text = pretty(await found.text(), found.headers.get("Content-Type") ?? "");
    const cut = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n…` : text;
    answer.replaceChildren(cut);
    say(`${found.status} ${found.statusText}`);
  } catch {
    answer.replaceChildren();
    say("The server is unreachable.");
  }
  answer.hidden = !answer.textContent;
}

// The content of "Example".  secret: whether the server requires a key for it.  editable: whether its body can be changed.
export function example(request, secret, editable = true) {
  const said = element("span", { class: "hint", role: "status" });
  const say = (text) => { said.textContent = text; };
  const asks = request.type === "application/json", tryable = !request.path.includes("{") && (asks || !request.type) && request.path;
  const body = element("textarea", { class: "body", "aria-label": `Body of ${request.path}`, spellcheck: "false", rows: "3" });
  body.value = written(request.example);
  const command = element("pre", { tabindex: "0", "aria-label": `Command for ${request.path}` });
  const answer = element("pre", { class: "answer", tabindex: "0", "aria-label": `Answer of ${request.path}`, hidden: "" });
  const write = () => { command.textContent = curl(request, body.value, secret); };
  body.addEventListener("input", write);
  write();
  const row = element("div", { class: "row" }, element("button", { type: "button", class: "copy", onclick: () => copy(command, say) }, "Copy the command"));
  if (tryable) row.append(element("button", { type: "button", class: "try", onclick: () => tried(request, body.value, answer, say) }, "Try it"));
  row.append(said);
  return [...(asks && editable ? [body, element("div", { class: "row" })] : []), command, row, answer];
}
