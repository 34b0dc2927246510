// The web page: translates while the user types. Words have alternatives; probabilities are shown as details.
import * as choice from "./choice.js";
import { showExamples } from "./examples.js";
import { knowFiles, setUpFiles, showFormats } from "./files.js";
import { give, givenFile, readsFiles, setUpGiven, showGiven, showSegments, take, transcribe } from "./given.js";
import { phrasesIn, setUpGlossary, showGlossary } from "./glossary.js";
import { remember, setUpHistory } from "./history.js";
import { dropLink, keepText, keptText, linkTo, takeLinked } from "./keep.js";
import { foreignScript, isPassing, known, readable, sameLanguage, time, warned, writes } from "./messages.js";
import { closeOthers, setUpOthers } from "./others.js";
import * as output from "./output.js";
import { Line } from "./sentence.js";
import { Refused, get, hasKey, patiently, useKey, waitNoLonger } from "./server.js";
import { closeStep, moveInAlternatives, openInspection, reposition, setUpStep, showStep, takeNumber } from "./step.js";
import { doubt, element, line, one, percent } from "./steps.js";
import { store, stored } from "./storage.js";
import { setUpTheme } from "./theming.js";
import { classify, detect, translate } from "./translating.js";
import { Latest } from "./typing.js";
import { setUpVoice, showVoices } from "./voice.js";

const GAP = 250, GAP_WITH_KEY = 1000, PATIENCE = 1500;  // Milliseconds; a key has a number of requests.
const LONGEST_PAUSE = 10, LONG_WAIT = 60;  // Seconds.
const RESTING_DELAY = 700, DETECTION_DELAY = 600, HISTORY_DELAY = 1500, LONG = 320;
const LEAST_DETECTED = 20, SURE_DETECTED = 80, LONGEST_SPOKEN = 2000;  // Characters; confidence from 0 to 100.
const DETAILED = "translume.details", TAPPED = "translume.tapped";
const at = (id) => document.getElementById(id);
const state = { lines: [], gaps: [], model: "", typed: "", meanwhile: "", historyTimer: 0, noticeTimer: 0, limits: { texts: 32, width: 5 }, detects: false, foreign: null, known: null, missing: "", lost: "", swapped: null, resting: true, restTimer: 0 };
const runs = new Latest(go, { gap: GAP, patience: PATIENCE });

const whole = () => (state.gaps[0] ?? "") + state.lines.map((each, place) => each.text + (state.gaps[place + 1] ?? "")).join("");
// Have screen readers say a text.
const speak = (text) => { at("spoken").textContent = text.length > LONGEST_SPOKEN ? `${text.slice(0, LONGEST_SPOKEN)}…` : text; };
const say = (text) => { at("status").textContent = text; };
const sayMeanwhile = (text) => { state.meanwhile = text; say(text); };
const clear = () => problem("");

// Say how long the server admits no request.
function waiting(error) {
  const seconds = Math.ceil((error.until - Date.now()) / 1000), quota = error.code === "quota_used_up";
  if (seconds <= LONG_WAIT) sayMeanwhile(`${readable(error)} Trying again in ${seconds} s.`);
  else problem(quota ? readable(error) : `${readable(error)} Trying again at ${time(error.until)}.`, true);
}

// retry: whether the same request may succeed later.
function problem(message, retry = false) {
  at("problem").textContent = message;
  at("problem-row").hidden = !message;
  at("retry").hidden = !retry;
}

function fail(error) {
  if (error.name === "AbortError") return;
  say("");
  const locked = error instanceof Refused && (error.status === 401 || error.code === "no_key" || error.code === "unknown_key");
  at("key-form").hidden = !locked;
  problem(locked && !hasKey() ? "Enter an API key to translate." : readable(error), isPassing(error));
}

function draw() {
  output.draw(state.lines, state.gaps);
  const complete = state.lines.filter((each) => each instanceof Line), any = Boolean(whole().trim());
  document.body.classList.toggle("translated", complete.length > 0 && choice.explains());
  document.body.classList.toggle("long", Math.max(at("text").value.length, whole().length) > LONG);
  showNotes(complete);
  at("copy").disabled = at("speak-target").disabled = !any;
  at("more").disabled = !complete.some((each) => each.text.trim());
  at("inside").disabled = !complete.some((each) => each.parts.length) || !choice.offers("inspect");
  reposition();
}

// Warnings in words: about the language of the text, its translation, and words that the model is unsure about.
function showNotes(lines) {
  const notes = [...new Set(lines.flatMap((each) => each.warnings.map(warned)))];
  const source = choice.model()?.source, text = at("text").value;
  const rows = [];
  if (state.foreign && lines.length) rows.push(foreignNote(state.foreign, source));
  else if (lines.length && foreignScript(text, source)) rows.push([`This text does not look like ${choice.named(source)}. The translation is probably wrong.`]);
  const unsure = lines.filter((each) => each.text.trim() && each.confidence < output.UNSURE_LINE);
  if (!state.resting) {
    // A text that is being typed ends in a part of a word: do not judge it.
    rows.length = notes.length = 0;
  } else if (!rows.length && unsure.length) {
    rows.push([lines.length > 1 && unsure.length < lines.length ? "The model is unsure about the lines with underlined words. Check them." : `The model is unsure about this ${writes()}. Check the underlined words.`]);
  }
  if (state.missing && text.trim()) rows.unshift([`${state.missing} ${instead()}`]);
  if (state.resting && state.lost) rows.push([`The words that you chose in “${state.lost}” are gone with the line. Undo its change to get them back.`]);
  rows.push(...notes.map((each) => [each]));
  at("notes").replaceChildren(...rows.map((each) => element("li", {}, ...each)));
  at("notes").hidden = !rows.length;
}

function instead() {
  const { source, target, name } = choice.model() ?? {};
  return source && target ? `The text is translated from ${choice.named(source)} to ${choice.named(target)} instead.` : `The model ${name} is used instead.`;
}

function foreignNote(code, source) {
  const offered = choice.sources().find((each) => sameLanguage(each, code));
  if (!offered) return [`This looks like ${choice.named(code)}. The translation is probably wrong: this server translates from ${known()}.`];
  const instead = element("button", { type: "button", class: "link", onclick: () => choice.chooseSource(offered) }, `Translate from ${choice.named(offered)}`);
  return [`This looks like ${choice.named(code)}, not ${choice.named(source)}. `, instead];
}

// Detect the language of the text while it rests, and warn if it is not the chosen one.
function scheduleNotice(text) {
  clearTimeout(state.noticeTimer);
  const source = choice.model()?.source;
  if (!state.detects || choice.detecting() || !source || text.trim().length < LEAST_DETECTED) return;
  state.noticeTimer = setTimeout(async () => {
    try {
      const found = await detect(text.trim());
      if (state.typed !== text || source !== choice.model()?.source) return;
      state.foreign = found.confidence >= SURE_DETECTED && !sameLanguage(found.language, source) ? found.language : null;
      draw();
    } catch {
      // A warning less.
    }
  }, DETECTION_DELAY);
}

function count() {
  const characters = [...at("text").value].length;
  at("count").textContent = characters && !readsFiles() ? `${characters.toLocaleString("en")} character${characters === 1 ? "" : "s"}` : "";
  at("clear").disabled = at("share").disabled = at("speak-source").disabled = !characters;
  at("examples").hidden = Boolean(characters) || readsFiles() || at("examples").childElementCount < 2;
}

// Fit the height of the text box to the text, where the browser does not do it itself.
function grow() {
  if (CSS.supports("field-sizing", "content")) return;
  at("text").style.height = "auto";
  at("text").style.height = `${at("text").scrollHeight}px`;
}

// What depends on the chosen model.
function showModel() {
  const { source = "", target = "" } = choice.model(), classifies = choice.offers("classify"), reads = readsFiles();
  for (const id of ["output", "copy", "more", "details", "tap"]) at(id).hidden = classifies;
  at("share").hidden = classifies || reads;
  at("inside").hidden = !choice.offers("inspect");
  at("inside").textContent = `Inspect the ${reads ? "text" : "sentence"} ↗`;
  at("field").hidden = reads;
  at("labels").hidden = !classifies;
  at("pick").hidden = classifies;
  at("glossary").hidden = at("history").hidden = classifies || reads;
  at("pick").querySelector("span").textContent = reads ? "File" : "Document";
  at("legend-row").hidden = classifies || !document.body.classList.contains("detailed");
  at("h-text").firstElementChild.textContent = reads ? "File" : "Text";
  at("h-output").textContent = classifies ? "Labels" : reads ? "Text" : "Translation";
  at("lead").hidden = classifies || reads;
  at("output").lang = target;
  at("output").dataset.empty = reads ? "The text appears here" : target ? `The ${choice.named(target)} translation appears here` : "The translation appears here";
  at("text").lang = choice.detecting() ? "" : source;
  showVoices(source, classifies ? "" : target);
  if (reads !== document.body.classList.contains("reads") && !reads) showFormats();
  if (reads !== document.body.classList.contains("reads") || state.given !== choice.model().name) showGiven();
  state.given = choice.model().name;
  showExamples(at("examples"), source, (sentence) => setText(sentence));
  showGlossary();
  count();
}

const directions = new Map();

// Replace the text such that the browser's undo and redo bring it back, with its direction.
// before: the direction of the text that is replaced.
function replace(text, before = choice.direction()) {
  const box = at("text"), plain = text.replace(/\r\n?/g, "\n");
  directions.set(box.value, before).set(plain, choice.direction());
  box.focus({ preventScroll: true });
  if (plain !== box.value && document.activeElement === box) {
    state.typed = plain;  // The input events are of this change.
    box.select();
    document.execCommand(plain ? "insertText" : "delete", false, plain);
  }
  if (box.value !== plain) box.value = plain;
  typed();
  rest();
  runs.now();
}

// Set the text to one without languages of its own.
function setText(text) {
  state.missing = "";
  replace(text);
}

// Choose the languages or the model of a text, or say that they are missing.
function chooseFor({ from, to, model, ...more }) {
  const found = choice.choosePair({ from, to, model, ...more });
  const wanted = from && to ? `translate from ${choice.named(from)} to ${choice.named(to)}` : `have the model ${model}`;
  state.missing = found || !(from && to || model) ? "" : `This server does not ${wanted}.`;
}

// After each change of the text.
function typed() {
  state.typed = at("text").value;
  keepText(state.typed);
  if (!choice.detecting()) state.foreign = null;
  count();
  grow();
}

// The user has stopped typing: judge the translation, and have screen readers say it.
function rest() {
  clearTimeout(state.restTimer);
  state.resting = true;
  document.body.classList.add("resting");
  if (isComplete()) speak(whole());
  draw();
}

function restLater() {
  clearTimeout(state.restTimer);
  state.resting = false;
  document.body.classList.remove("resting");
  state.restTimer = setTimeout(rest, RESTING_DELAY);
}

// Translate the text as it is now.
async function go(signal) {
  clearTimeout(state.historyTimer);
  say("");
  try {
    await loaded();
    if (signal.aborted) return;
    const text = state.typed;
    if (choice.detecting() && text.trim() && !readsFiles()) await detectSource(text, signal);
    const model = choice.model().name, classifies = choice.offers("classify");
    const kept = model === state.model ? state.lines : [];
    if (model !== state.model) state.lost = "";
    state.model = model;
    showModel();
    closeOthers();
    at("output").setAttribute("aria-busy", "true");
    if (readsFiles()) await read(signal);
    else if (classifies) await label(text, model, signal);
    else await put(text, model, kept, signal);
    clear();
    // A reader may have copied the text before the server closed the answer: do not wipe what that said.
    if (at("status").textContent === state.meanwhile) say("");
    if (readsFiles()) return;
    scheduleHistory();
    scheduleNotice(text);
  } catch (error) {
    fail(error);
  } finally {
    if (!signal.aborted) at("output").removeAttribute("aria-busy");
  }
}

// Detect the language of a text, but not again of one that only got longer.
async function detectSource(text, signal) {
  const { known } = state;
  if (known && known.text.length >= LEAST_DETECTED && known.confidence >= SURE_DETECTED && text.startsWith(known.text)) return;
  const { language, confidence } = await detect(text.trim(), signal);
  state.known = { text, confidence };
  if (confidence) state.foreign = choice.detectedSource(language) ? null : language;
}

// Add the translation to the history after a while.
function scheduleHistory() {
  clearTimeout(state.historyTimer);
  const { from, to, model } = choice.direction();
  const entry = { source: state.typed, text: whole() || at("spoken").textContent, from, to, model };
  state.historyTimer = setTimeout(() => remember(entry), HISTORY_DELAY);
}

// The lines whose words the user chose, by model and source: they come back with their source.
const chosenLines = new Map();

// Note which of them are shown no more.
function noteLost(model, kept) {
  if (!state.typed.trim()) state.lost = "";
  for (const each of kept) if (each.isChosen) chosenLines.set(`${model}\n${each.source}`, each);
  for (const each of kept) if (each.isChosen && !state.lines.includes(each)) state.lost = each.source;
  if (state.lines.some((each) => each.isChosen && each.source === state.lost)) state.lost = "";
}

async function put(text, model, kept, signal) {
  let frame = 0;
  const chosen = [...chosenLines].filter(([key, each]) => key === `${model}\n${each.source}` && each.isChosen).map(([, each]) => each);
  const show = (lines, gaps) => {
    if (signal.aborted) return;
    // Keep the selected token if its line is still there.
    const chosen = output.current();
    if (chosen && lines[chosen.line] !== state.lines[chosen.line]) closeStep();
    Object.assign(state, { lines: [...lines], gaps });
    noteLost(model, kept);
    cancelAnimationFrame(frame);
    if (isComplete()) draw();
    else frame = requestAnimationFrame(draw);
  };
  try {
    await translate(text, { model, kept, chosen, most: state.limits.texts, phrasesFor: phrasesIn(), show, waiting, signal });
  } finally {
    cancelAnimationFrame(frame);
    if (!signal.aborted) draw();
  }
  if (state.resting) speak(whole());
}

// Show what a file says.
async function read(signal) {
  const file = givenFile();
  closeStep();
  const show = (lines) => {
    Object.assign(state, { lines, gaps: ["", ...lines.map(() => "")] });
    draw();
  };
  show([]);
  showSegments([]);
  clear();
  if (!file) return;
  sayMeanwhile("Reading…");
  const found = await transcribe({ waiting, signal });
  if (signal.aborted) return;
  show([Object.assign(new Line(file.name, found), { file })]);
  showSegments(found.segments ?? []);
  speak(whole());
}

async function label(text, model, signal) {
  closeStep();
  Object.assign(state, { lines: [], gaps: [] });
  draw();
  if (!text.trim()) {
    at("labels").replaceChildren();
    return;
  }
  const found = await classify(text, { model, waiting, signal });
  const rows = Object.entries(found.probabilities).map(([name, p]) =>
    one(line(name, p, p, "bar" + (found.labels.includes(name) ? " chosen" : ""), "div")));
  const labels = found.labels.length ? found.labels.join(", ") : "no label";
  at("labels").replaceChildren(element("p", {}, labels, element("span", { class: "hint" }, `  margin ${percent(found.margin)}`)), ...rows);
  at("spoken").textContent = labels;
}

async function copyText(text, said, otherwise) {
  try {
    await navigator.clipboard.writeText(text);
    say(said);
  } catch {
    otherwise();  // Browsers deny access to the clipboard over plain HTTP.
  }
}

// Whether the translation is all there, and that of this text.
const isComplete = () => state.lines.every((each) => each instanceof Line);

function copy() {
  const text = whole();
  if (!text.trim()) return;
  if (!isComplete()) {
    say("The translation is not complete yet.");
    return;
  }
  copyText(text, "Copied.", () => {
    getSelection().selectAllChildren(at("output"));
    say("Selected. Press Ctrl+C to copy.");
  });
}

function share() {
  const link = linkTo(at("text").value, choice.model());
  if (!link) {
    say("This text is too long for a link.");
    return;
  }
  copyText(link, "Link copied.", () => {
    history.replaceState(null, "", link);
    say("The link is in the address bar.");
  });
}

// Swap the languages, and the text with its translation. Swapping back brings the text back.
function swap() {
  const text = at("text").value, before = choice.direction(), focused = document.activeElement, last = state.swapped;
  if (!choice.swap()) return;
  const isBack = last?.shown === text && last.model === choice.model().name, translation = isComplete() ? whole().trim() : "";
  const shown = isBack ? last.text : translation || text;
  Object.assign(state, { swapped: { text, shown, model: before.model }, missing: "" });
  replace(shown, before);
  focused.focus({ preventScroll: true });
}

const isMac = /mac|iphone|ipad/i.test(navigator.userAgentData?.platform ?? navigator.platform);

// The letter of a shortcut: with Alt or, on a Mac, whose Alt types other characters, with Ctrl and Shift. A key that
// types a character is none. On other layouts than Latin ones, the letter is the one at that place.
function shortcut({ key, code, altKey, ctrlKey, metaKey, shiftKey }) {
  if (metaKey || (isMac ? altKey || !ctrlKey || !shiftKey : !altKey || ctrlKey)) return "";
  const isForeign = /^\p{L}$/u.test(key) && !/\p{Script=Latin}/u.test(key);
  return isForeign ? code.replace("Key", "").toLowerCase() : /^[a-z]$/i.test(key) ? key.toLowerCase() : "";
}

function keyboard(event) {
  if (event.isComposing || event.keyCode === 229) return;
  const { key } = event, inOutput = at("output").contains(document.activeElement);
  if ((event.ctrlKey || event.metaKey) && key === "Enter") {
    event.preventDefault();
    runs.now();
    return;
  }
  const action = {
    t: () => (readsFiles() ? at("pick") : at("text")).focus(), o: output.focusFirst, s: swap, c: copy, i: () => openInspection(),
  }[shortcut(event)];
  if (action) {
    event.preventDefault();
    action();
  }
  if (action || event.ctrlKey || event.metaKey || event.altKey) return;
  if (key === "Escape" && !at("step").hidden) {
    closeStep();
    output.focusFirst();
  } else if (/^[1-9]$/.test(key) && inOutput) takeNumber(Number(key));
  else if ((key === "ArrowDown" || key === "ArrowUp") && !event.shiftKey && !at("step").hidden) {
    const down = key === "ArrowDown";
    if (inOutput ? down && moveInAlternatives(0) : moveInAlternatives(down ? 1 : -1)) event.preventDefault();
  }
}

// Name the keys of a Mac, where they differ.
function showKeys() {
  if (!isMac) return;
  for (const each of document.querySelectorAll("[aria-keyshortcuts^=Alt]")) {
    for (const name of ["aria-keyshortcuts", "title"]) {
      if (each.hasAttribute(name)) each.setAttribute(name, each.getAttribute(name).replace("Alt+", "Control+Shift+"));
    }
  }
  for (const each of document.querySelectorAll(".keys kbd")) {
    if (each.textContent === "Alt") each.replaceWith(element("kbd", {}, "Ctrl"), "+", element("kbd", {}, "Shift"));
  }
}

// Details: colours by probability with their legend, numbers, the ends of sentences, and the inspection.
function setUpDetails() {
  const shares = [1, 0.5, 0.2, 0.05, 0.02].map((p) =>
    element("span", { class: "token", style: { "--share": doubt(Math.log(p)) } }, `${100 * p} %${p === 0.02 ? " or less" : ""}`));
  at("legend").replaceChildren("Probability: ", ...shares);
  const show = (detailed) => {
    document.body.classList.toggle("detailed", detailed);
    at("legend-row").hidden = !detailed || choice.offers("classify");
    at("details").setAttribute("aria-pressed", String(detailed));
    at("figures").textContent = detailed ? "Fewer details" : "Details";
    draw();
  };
  for (const id of ["details", "figures"]) at(id).addEventListener("click", () => {
    const detailed = !document.body.classList.contains("detailed");
    store(DETAILED, detailed ? "yes" : null);
    show(detailed);
  });
  show(stored(DETAILED) === "yes");
}

// Users who opened the alternatives of a word need no hint.
function tapped() {
  document.body.classList.add("knows-tap");
  store(TAPPED, "yes");
}

function restore(entry) {
  const before = choice.direction();
  chooseFor(entry);
  replace(entry.text, before);
}

function listen() {
  const edited = (event) => {
    const text = at("text").value;
    clearTimeout(composed);
    if (composing && !event.rested) {
      // Unfinished: n, ni, 你. Phones compose every word, and Korean each syllable: there the text is used once it rests.
      keepText(text);
      count();
      grow();
      if (matchMedia("(pointer: coarse)").matches || /\p{Script=Hangul}/u.test(event.data)) composed = setTimeout(edited, RESTING_DELAY, { rested: true });
      return;
    }
    // Chromium sends an event for each line of an inserted text, all after the change: translate once.
    if (text === state.typed) return;
    if (/^history/.test(event.inputType) && directions.has(text)) choice.choosePair(directions.get(text));
    typed();
    restLater();
    if (text.trim()) runs.soon();
    else runs.now();
  };
  let composed = 0, composing = false;
  at("text").addEventListener("input", edited);
  at("text").addEventListener("compositionstart", () => { composing = true; });
  at("text").addEventListener("compositionend", () => {
    composing = false;
    edited({});
  });
  // The space around the text is part of its box.
  at("field").parentElement.addEventListener("click", ({ target }) => {
    if (target.matches(".pane, .field, .tools, #examples")) at("text").focus();
  });
  at("clear").addEventListener("click", () => setText(""));
  at("swap").addEventListener("click", swap);
  at("copy").addEventListener("click", copy);
  at("share").addEventListener("click", share);
  at("inside").addEventListener("click", () => openInspection());
  at("retry").addEventListener("click", () => {
    waitNoLonger();
    runs.now();
  });
  // Requests of a page that the browser kept for the way back were cancelled.
  addEventListener("pageshow", ({ persisted }) => { if (persisted) runs.now(); });
  addEventListener("online", () => { if (!at("retry").hidden) runs.now(); });
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(at("key").value.trim());
    waitNoLonger();
    at("key-form").hidden = true;
    runs.now();
  });
  document.addEventListener("keydown", keyboard);
  showKeys();
  addEventListener("hashchange", () => {
    const linked = takeLinked();
    if (linked) restore(linked);
  });
  output.whenChosen((place) => (place ? showStep(place) : undefined));
  output.setUpTip(choice.explains);
  setUpFiles(loaded, waiting, take);
  setUpStep({ state, draw, fail, say, clear, scheduleHistory, tapped });
  setUpOthers({ state, fail, changed });
  setUpHistory((entry) => restore({ ...entry, text: entry.source }));
  setUpVoice({ translation: whole, changed: () => { typed(); restLater(); runs.soon(); }, failed: problem });
}

// After the translation was changed by the user.
function changed() {
  closeStep();
  speak(whole());
  draw();
  scheduleHistory();
}

const pair = () => {
  const { source, target, name } = choice.model();
  return source && target ? `${source}-${target}` : name;
};

// Read from the server what the page needs before it translates.
async function load() {
  const paths = ["v1/models", "v1/info", "frontend/settings"];
  const [models, info, settings] = await patiently(() => Promise.all(paths.map((path) => get(path))), waiting);
  Object.assign(state, { limits: info.limits, detects: info.detects });
  if (settings.keyRequired) runs.gap = GAP_WITH_KEY;
  const usable = models.models.filter((each) => ["translate", "classify", "transcribe"].some((what) => each.offers.includes(what)));
  if (!usable.length) throw new Error("This server has no model that translates or classifies. Programs can use its API.");
  const hasOwn = choice.setUpChoice(usable, info.detects, () => {
    Object.assign(state, { foreign: null, known: null, missing: "" });
    dropLink();
    waitNoLonger();  // What was refused may be this model.
    if (givenFile()) give(null);
    else runs.now();
  });
  setUpDetails();
  knowFiles(settings, info.limits);
  setUpGiven(info.limits, () => runs.now(), problem);
  setUpGlossary(pair, () => runs.now());
  at("key-form").hidden = !settings.keyRequired || hasKey();
  at("about").replaceChildren(info.version === "0" ? "" : `Translume ${info.version}, `, element("a", { href: "docs" }, "API"));
  if (linked) chooseFor(linked);
  else if (!hasOwn && at("text").value) state.missing = "This server no longer has the model of this text.";
  document.documentElement.dataset.ready = "yes";
}

let loading = null, attempts = 0;

// Resolve when the page is loaded. If that fails, it is tried again by itself after a while, and by each call.
function loaded() {
  loading ??= load().catch((error) => {
    loading = null;
    if (isPassing(error)) setTimeout(() => { if (!loading) runs.now(); }, Math.min(2 ** attempts++, LONGEST_PAUSE) * 1000);
    throw error;
  });
  return loading;
}

setUpTheme();
const linked = takeLinked();
// The browser has filled the box if the user typed before this script was loaded, or came back to the page.
at("text").value ||= linked?.text ?? keptText();
listen();
typed();
rest();
runs.now();
