// Errors and warnings of the server in words for the users of the page.
import { named, offers, sources } from "./choice.js";

const BUSY = "The server is busy.";
// A moment, in milliseconds, as the time of day, with the date if that is not today.
export function time(moment) {
  const then = new Date(moment), today = then.toDateString() === new Date().toDateString();
  return then.toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit", ...(today ? {} : { day: "numeric", month: "long" }) });
}

const MESSAGES = {
  unreachable: "There is no connection to the server. Check your network.",
  broken_answer: "The answer of the server broke off, or came from something else in your network.",
  deadline_exceeded: "This took too long. Try a shorter text.",
  over_quota: "This API key has used up its characters for today.",
  quota_used_up: "This API key has used up its characters. Try again later.",
  too_many_requests: "Too many requests. Wait a moment.",
  queue_full: BUSY,
  too_many_open: BUSY,
  shutting_down: "The server is restarting.",
  model_unavailable: "The model is being reloaded.",
  worker_lost: "The model failed on this input. Try to change or to shorten it.",
  too_many_lines: "A line of your text has too many sentences. Put them on several lines.",
  too_much_to_inspect: "This sentence is too long to inspect.",
  file_too_large: "This file is too large for this server.",
  unknown_model: "The server no longer has this model. Reload the page.",
};

const megabytes = (bytes) => `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`;

// Return the message for a file of more than `most` bytes, or "".
export const tooLarge = (size, most) => (size > most ? `This file has ${megabytes(size)}. The limit is ${megabytes(most)}.` : "");

// Return the message of an error.
export function readable(error) {
  const message = error.message ?? "";
  const [, size, unit, limit] = /^file: has ([\d,.]+) (seconds|pixels), expected at most ([\d,.]+)/.exec(message) ?? [];
  if (size) return `This file has ${size} ${unit}. The limit is ${limit}.`;
  if (message.includes("one window; inspect parts")) return "This recording is too long to inspect. Choose one of at most 30 seconds.";
  if (error.code === "file_too_long") return "This file is too long for this model.";
  if (error.code === "invalid_file") return `This file cannot be read: ${message.replace(/^file: /, "")}.`;
  if (error.code === "text_too_long") {
    const [, found, most] = /found ([\d,]+) characters, expected at most ([\d,]+)/.exec(message) ?? [];
    if (found) return `A line of your text has ${found} characters. The limit is ${most}.`;
  }
  const [, tokens, most] = /has ([\d,]+) tokens, expected at most ([\d,]+)/.exec(message) ?? [];
  if (tokens && offers("classify")) return `This text is too long for this model (${tokens} tokens, at most ${most}).`;
  if (tokens) return `A sentence is too long for this model (${tokens} tokens, at most ${most}). Split it with a full stop or a new line.`;
  if (error.field?.startsWith?.("constraints")) return `A translation in your glossary cannot be used: ${message.replace(/^[^:]*: /, "")}.`;
  if (error.code === "quota_used_up" && error.until) return `This API key has used up its characters until ${time(error.until)}.`;
  if (MESSAGES[error.code]) return MESSAGES[error.code];
  if (error.status === 503) return BUSY;
  if (error.status === 413) return "This is too much for the server at once.";
  if (error.status >= 500) return "Something went wrong on the server. If it happens again, contact its operator.";
  return message;
}

// Whether the same request may succeed later.
export const isPassing = (error) => [0, 429, 500, 502, 503, 504].includes(error.status);

// What the model writes: what a recording or an image says need not be a translation.
export const writes = () => (offers("transcribe") ? "text" : "translation");

const WARNINGS = {
  truncated: (detail) => (detail.includes("target") ? `The ${writes()} was cut off at the length limit.${offers("transcribe") ? "" : " Shorter sentences help."}` : offers("transcribe") ? "The file was cut: its end was not read." : "The text was cut: its end is not translated."),
  split: () => "A sentence is too long for this model and was translated in parts. Shorter sentences help.",
  repetition: () => `The ${writes()} repeats itself. It is probably wrong.`,
  low_source_use: () => (offers("transcribe") ? "Little or nothing was recognised." : "The translation is much shorter than the text. Something may be missing."),
  placeholder_lost: (detail) => `Something that should be copied unchanged is missing: ${detail}`,
  constraint_unmet: (detail) => `A term of your glossary was not used: ${detail}`,
};

// Return a warning of a translation in words.
export const warned = ({ kind, detail }) => (WARNINGS[kind] ?? (() => `${kind.replaceAll("_", " ")}: ${detail}`))(detail ?? "");

const SCRIPTS = {
  zh: ["Han"], ja: ["Han", "Hiragana", "Katakana"], ko: ["Hangul", "Han"], ru: ["Cyrillic"], uk: ["Cyrillic"], bg: ["Cyrillic"],
  be: ["Cyrillic"], mk: ["Cyrillic"], sr: ["Cyrillic", "Latin"], kk: ["Cyrillic"], el: ["Greek"], ar: ["Arabic"], fa: ["Arabic"],
  ur: ["Arabic"], he: ["Hebrew"], yi: ["Hebrew"], hi: ["Devanagari"], mr: ["Devanagari"], ne: ["Devanagari"], bn: ["Bengali"],
  ta: ["Tamil"], te: ["Telugu"], th: ["Thai"], ka: ["Georgian"], hy: ["Armenian"], am: ["Ethiopic"], km: ["Khmer"], my: ["Myanmar"],
};
const KNOWN = [...new Set([...Object.values(SCRIPTS).flat(), "Latin"])];
const SAMPLE = 1000;  // Characters that say what script a text is written in.
const base = (code) => code.toLowerCase().split(/[-_]/)[0];
const letters = (text, script) => (text.match(new RegExp(`\\p{Script=${script}}`, "gu")) ?? []).length;

// Return whether most letters of a text are of a script that the language is not written in.
export function foreignScript(text, code) {
  if (!code || !/^[a-z]{2,3}$/.test(base(code))) return false;
  const own = SCRIPTS[base(code)] ?? ["Latin"], sample = text.slice(0, SAMPLE);
  const counts = KNOWN.map((script) => [script, letters(sample, script)]);
  const all = counts.reduce((sum, [, count]) => sum + count, 0);
  const mine = counts.filter(([script]) => own.includes(script)).reduce((sum, [, count]) => sum + count, 0);
  return all >= 2 && mine < all / 2;
}

export const sameLanguage = (one, other) => base(one) === base(other);

// The languages that the server translates from, in words.
export const known = () => new Intl.ListFormat("en").format(sources().map(named));
