// Reading aloud and dictation, where the browser has them.
const at = (id) => document.getElementById(id);
const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
const base = (code) => code.toLowerCase().split(/[-_]/)[0];
const voiceFor = (code) => (code && window.speechSynthesis?.getVoices().find((each) => base(each.lang) === base(code))) || null;
let languages = { source: "", target: "" };

function pressed(id, is) {
  at(id).setAttribute("aria-pressed", String(is));
}

// Show the buttons that work for these languages.
export function showVoices(source, target) {
  languages = { source, target };
  at("speak-source").hidden = !voiceFor(source);
  at("speak-target").hidden = !voiceFor(target);
  at("dictate").hidden = !Recognition || !source;
}

function speak(id, text, code) {
  const speaking = at(id).getAttribute("aria-pressed") === "true";
  speechSynthesis.cancel();
  if (speaking || !text.trim()) return;
  const said = new SpeechSynthesisUtterance(text);
  Object.assign(said, { voice: voiceFor(code), lang: code });
  said.onend = said.onerror = () => pressed(id, false);
  pressed(id, true);
  speechSynthesis.speak(said);
}

let listening = null;

function dictate(changed, failed) {
  if (listening) {
    listening.stop();
    return;
  }
  listening = new Recognition();
  Object.assign(listening, { lang: languages.source, continuous: true, interimResults: true });
  let before, written = null, first = 0;
  listening.onresult = ({ results, resultIndex = 0 }) => {
    // What the user types meanwhile stays: what is said next follows it.
    if (at("text").value !== written) [before, first] = [at("text").value, written === null ? 0 : resultIndex];
    const gap = before && !/\s$/.test(before) ? " " : "";
    written = before + gap + [...results].slice(first).map((each) => each[0].transcript).join("");
    at("text").value = written;
    changed();
  };
  listening.onerror = ({ error }) => {
    if (error === "not-allowed" || error === "service-not-allowed") failed("The browser does not allow this page to use the microphone.");
    else if (error === "network") failed("The browser's dictation needs a network connection.");
    else if (error !== "aborted" && error !== "no-speech") failed("Dictation does not work in this browser.");
  };
  listening.onend = () => {
    listening = null;
    pressed("dictate", false);
  };
  pressed("dictate", true);
  listening.start();
}

// translation(): the text to read.  changed(): called when the text was dictated.  failed(message): when it was not.
export function setUpVoice({ translation, changed, failed }) {
  at("speak-source").addEventListener("click", () => speak("speak-source", at("text").value, languages.source));
  at("speak-target").addEventListener("click", () => speak("speak-target", translation(), languages.target));
  at("dictate").addEventListener("click", () => dictate(changed, failed));
  // Browsers load their voices late.
  window.speechSynthesis?.addEventListener?.("voiceschanged", () => showVoices(languages.source, languages.target));
}
