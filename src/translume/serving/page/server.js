// Requests to the server, and its errors.

const LONGEST_WAIT = 10;

export class Refused extends Error {
  constructor(status, value, retryAfter) {
    super(value.error ?? `The server responded with status ${status}.`);
    this.status = status;
    this.code = value.code ?? "";
    this.field = value.field ?? "";
    this.retryAfter = retryAfter;
  }
}

const KEY = "translume.key";
let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? "";
} catch {
  // Without storage the key is lost when the page is closed.
}

export const hasKey = () => Boolean(key);

export function useKey(text) {
  key = text;
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    // As above.
  }
}

export function headers() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function refused(answer) {
  let value = {};
  try {
    value = await answer.json();
  } catch {
    // A proxy may respond with something other than JSON.
  }
  const wait = Number(answer.headers.get("Retry-After")) || 0;
  return new Refused(answer.status, value, Math.min(wait, LONGEST_WAIT));
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

export const get = async (path, signal) => (await request(path, { signal })).json();
export const post = async (path, value, signal) => (await request(path, { ...body(value), signal })).json();
export const postForText = async (path, value, signal) => (await request(path, { ...body(value), signal })).text();
export const postForm = async (path, form, signal) => (await request(path, { method: "POST", body: form, signal })).json();
export const postFormForText = async (path, form) => (await request(path, { method: "POST", body: form })).text();
export const drop = (path) => request(path, { method: "DELETE" });
export const getBlob = async (path, signal) => (await request(path, { signal })).blob();

// Yield server-sent events as [kind, value].
export async function* stream(path, value, signal) {
  const answer = await request(path, { ...body(value), signal });
  let rest = "";
  for await (const part of chunks(answer.body.pipeThrough(new TextDecoderStream()))) {
    const events = (rest + part).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const fields = fieldsOf(event);
      if (fields.data) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

// Not every browser supports iteration over a stream.
async function* chunks(readable) {
  const reader = readable.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    reader.releaseLock();
  }
}

function fieldsOf(event) {
  return Object.fromEntries(event.split("\n").map((line) => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon), line.slice(colon + 1).trimStart()];
  }));
}

// Repeat `work` while the server is busy; `waiting` is called with the seconds until the next attempt.
export async function patiently(work, waiting, signal) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      const busy = error instanceof Refused && (error.status === 429 || error.status === 503) && error.retryAfter;
      if (!busy) throw error;
      waiting(error.retryAfter, error);
      await pause(error.retryAfter * 1000, signal);
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
