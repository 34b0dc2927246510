// Requests to the server, and its errors.
import { store, stored } from "./storage.js";

export class Refused extends Error {
  // value: the server's error as JSON.  seconds: time after which the server admits another attempt, or 0.
  constructor(status, value, seconds = 0) {
    super(value.error ?? `The server responded with status ${status}.`);
    this.status = status;
    this.code = value.code ?? "";
    this.field = value.field ?? "";
    this.until = seconds && Date.now() + seconds * 1000;
  }
}

const REPEATS = 2;
const KEY = "translume.key";
let key = stored(KEY, "sessionStorage") ?? "";  // Without storage the key is lost when the page is closed.

export const hasKey = () => Boolean(key);

export function useKey(text) {
  key = text;
  store(KEY, text, "sessionStorage");
}

export function headers() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// Retry-After is a number of seconds or a date.
const seconds = (after) => Number(after) || Math.max(0, Math.ceil((Date.parse(after) - Date.now()) / 1000)) || 0;

async function refused(answer) {
  let value = {};
  try {
    value = await answer.json();
  } catch {
    // A proxy may respond with something other than JSON.
  }
  return new Refused(answer.status, value, seconds(answer.headers.get("Retry-After") ?? ""));
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...options.headers, ...headers() } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "The server is unreachable.", code: "unreachable" }, 0);
  }
  if (!answer.ok) throw await refused(answer);
  return answer;
}

const body = (value) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

// An answer that breaks off, or is not Translume's: a network that wants a login answers as well.
export const broken = () => new Refused(0, { error: "The answer of the server is incomplete.", code: "broken_answer" });

// What `read` reads from an answer to a request.
async function read(path, options, how) {
  const answer = await request(path, options);
  try {
    return await how(answer);
  } catch (error) {
    throw error.name === "AbortError" ? error : broken();
  }
}

const json = (answer) => answer.json(), text = (answer) => answer.text();
export const get = (path, signal) => read(path, { signal }, json);
export const post = (path, value, signal) => read(path, { ...body(value), signal }, json);
export const postForText = (path, value, signal) => read(path, { ...body(value), signal }, text);
export const postForm = (path, form, signal) => read(path, { method: "POST", body: form, signal }, json);
export const postFormForText = (path, form) => read(path, { method: "POST", body: form }, text);
export const drop = (path) => request(path, { method: "DELETE" });
export const getBlob = (path, signal) => read(path, { signal }, (answer) => answer.blob());

// Yield server-sent events as [kind, value], up to the last one: `done` or `error`.
export async function* stream(path, value, signal) {
  const answer = await request(path, { ...body(value), signal });
  let rest = "";
  try {
    for await (const part of chunks(answer.body.pipeThrough(new TextDecoderStream()))) {
      const events = (rest + part).split("\n\n");
      rest = events.pop();
      for (const { event, data } of events.map(fieldsOf)) {
        if (data) yield [event, JSON.parse(data)];
        if (event === "done" || event === "error") return;
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : broken();
  }
  throw broken();
}

// Not every browser supports iteration over a stream.
async function* chunks(readable) {
  const reader = readable.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

function fieldsOf(event) {
  return Object.fromEntries(event.split("\n").map((line) => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
  }));
}

// The refusal that says until when the server admits no request.
let closed = null;

// Do not wait any longer before the next attempt.
export const waitNoLonger = () => { closed = null; };

// Repeat `work` while the server is busy, and a few times if its answer is broken. It begins when the server admits
// requests again; until then waiting(refusal) is called once for each refusal.
export async function patiently(work, waiting, signal) {
  for (let repeated = 0; ;) {
    for (let told = null; closed && closed.until > Date.now(); told = closed) {
      if (told !== closed) waiting(closed);
      await pause(Math.min(closed.until - Date.now(), 1000), signal);
    }
    try {
      return await work();
    } catch (error) {
      if (error.code === "broken_answer" && repeated < REPEATS) await pause(++repeated * 1000, signal);
      else if (error instanceof Refused && (error.status === 429 || error.status === 503) && error.until) closed = error;
      else throw error;
    }
  }
}

export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("cancelled", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
