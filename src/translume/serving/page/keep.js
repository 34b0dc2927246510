// The text that survives a reload of the tab, and links that contain a text.
import { store, stored } from "./storage.js";

const TEXT = "translume.text", LONGEST_LINK = 8000;

// Without storage, or when it is full, the text is lost at a reload.
export function keepText(text) {
  store(TEXT, text, "sessionStorage");
  dropLink();
}
export const keptText = () => stored(TEXT, "sessionStorage") ?? "";

// The link to a text and its languages, all after "#", which browsers do not send; null if it would be too long.
export function linkTo(text, { source, target, name }) {
  const fields = new URLSearchParams(source && target ? { from: source, to: target, text } : { model: name, text });
  const link = `${location.href.split("#")[0]}#${fields}`;
  return link.length > LONGEST_LINK ? null : link;
}

const linked = () => new URLSearchParams(location.hash.slice(1));

// Shorten the address if it contains a text: a reload keeps later changes.
export function dropLink() {
  if (linked().get("text")) history.replaceState(null, "", location.href.split("#")[0]);
}

// The text and languages of the address, which is then shortened.
export function takeLinked() {
  const fields = linked();
  dropLink();
  return fields.get("text") ? Object.fromEntries(fields) : null;
}
