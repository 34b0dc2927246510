"""The page at / as its users see it: first sight, typing, warnings, errors, links, glossary, voices, other wordings."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.serving.conftest import whole

from translume.inspection.pages import asset
from translume.serving.models import ServedModel
from translume.translator import Translator

EVENTS = "text/event-stream"


def answer(text: str, tokens: Sequence[str], logs: Sequence[float], **more: Any) -> dict[str, Any]:
    """Return a response of /v1/translate/stream with one translation, as arguments of `Route.fulfill`."""
    hypothesis = {"text": text, "tokens": list(tokens), "token_log_probs": list(logs)}
    body = {"model": "en-de", "translations": [{"text": text, "warnings": [], "hypotheses": [hypothesis], **more}]}
    return {"body": f"event: done\ndata: {json.dumps(body)}\n\n", "content_type": EVENTS}


def test_an_empty_page_says_what_it_is_and_offers_sentences_to_try(tab: Any) -> None:
    assert "tap any word" in tab.page.inner_text("#lead")
    assert tab.page.get_attribute("#output", "data-empty") == "The German translation appears here"
    assert tab.page.locator("#examples button").count() == 3
    assert tab.page.is_disabled("#copy")
    tab.page.get_by_role("button", name="The museum had").click()
    tab.page.wait_for_selector("#output .token")
    assert tab.page.input_value("#text") == "The museum had 17,705 visitors in June."
    assert tab.page.locator("#examples").is_hidden()
    tab.page.click("#clear")
    tab.shows("")
    assert tab.page.locator("#examples").is_visible()


def test_the_hint_about_alternatives_is_at_the_pointer(tab: Any, translator: Translator) -> None:
    tab.type("a man", *whole(translator, "a man"))
    assert tab.page.inner_text("#tap") == "Tap a word for alternatives"
    tab.tokens().nth(2).hover()
    tab.tell("#tip", "Click for alternatives")
    token, tip = tab.tokens().nth(2).bounding_box(), tab.page.locator("#tip").bounding_box()
    assert abs(token["x"] + token["width"] / 2 - tip["x"] - tip["width"] / 2) < 100
    assert abs(token["y"] - tip["y"]) < 60
    tab.tokens().nth(2).click()
    tab.page.wait_for_selector("#step:not([hidden])")
    box = tab.page.locator("#step").bounding_box()
    assert box["x"] <= token["x"] <= box["x"] + box["width"]
    assert 0 < box["y"] - token["y"] < 80
    assert tab.page.locator("#tap").is_hidden()
    tab.page.mouse.click(5, 5)
    assert tab.page.locator("#step").is_hidden()


def test_translations_appear_while_a_user_types_without_a_pause(tab: Any, translator: Translator) -> None:
    text = "the village has a mill and a man"
    tab.page.locator("#text").press_sequentially(text, delay=60)
    # Nothing waits for the end of typing: earlier texts were translated, and fewer than one request per key was sent.
    asked = [url for url in tab.asked if url.endswith("/v1/translate/stream")]
    assert 3 <= len(asked) < len(text)
    assert tab.page.inner_text("#output") != ""
    tab.shows(*whole(translator, text))


def test_a_request_for_an_older_text_is_cancelled_when_it_takes_long(tab: Any) -> None:
    held: list[Any] = []
    tab.page.route("**/v1/translate/stream", lambda route: held.append(route))
    stopped: list[str] = []
    tab.page.on("requestfailed", lambda request: stopped.append(request.failure))
    tab.page.locator("#text").press_sequentially("a man and you", delay=250)
    tab.page.wait_for_timeout(1500)
    assert 2 <= len(held) <= 4
    assert stopped.count("net::ERR_ABORTED") == len(held) - 1
    assert held[-1].request.post_data_json["text"] == ["a man and you"]
    held[-1].fulfill(**answer("ein", ["▁ein", "</s>"], [-0.1, -0.1]))
    tab.shows("ein")


def test_text_copied_from_the_page_has_only_the_translation(tab: Any, translator: Translator) -> None:
    wanted = "\n".join(whole(translator, "a man", "you"))
    tab.type("a man\nyou", wanted)
    for _ in range(2):  # Without and with details.
        selected = "getSelection().selectAllChildren(document.getElementById('output')), getSelection().toString()"
        assert tab.page.evaluate(selected) == wanted
        tab.details()


def test_the_text_survives_a_reload_and_is_kept_for_the_tab_only(tab: Any, translator: Translator) -> None:
    (wanted,) = whole(translator, "a man")
    tab.type("a man", wanted)
    tab.page.reload()
    tab.shows(wanted)
    assert tab.page.input_value("#text") == "a man"
    other = tab.context.new_page()
    other.goto(tab.url + "/")
    other.wait_for_selector("[data-ready]")
    assert other.input_value("#text") == ""


def test_a_link_shares_the_text_and_the_languages_without_sending_them_in_the_address(
    start: Callable[..., Any], make: Callable[..., Translator], open_tab: Callable[..., Any]
) -> None:
    there = make("decoding.beam=3")
    back = make("data.source_language=de", "data.target_language=en", seed=5)
    live = start(ServedModel.from_model("there", there), ServedModel.from_model("back", back))
    tab = open_tab(live, permissions=["clipboard-read", "clipboard-write"])
    tab.page.select_option("#source", "de")
    text = "a man & you\nhello"
    tab.type(text, "\n".join(whole(back, "a man & you", "hello")))
    tab.page.click("#share")
    tab.tell("#status", "Link copied.")
    link = tab.page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{live.url}/#from=de&to=en&text=")
    other = open_tab(live)
    other.page.goto(link)  # Another fragment of the open page.
    other.shows("\n".join(whole(back, "a man & you", "hello")))
    assert other.page.input_value("#source") == "de"
    assert other.page.url == f"{live.url}/"
    assert not [url for url in other.asked if "man" in url]


def test_swap_looks_disabled_when_there_is_no_model_for_the_other_direction(tab: Any) -> None:
    assert tab.page.is_disabled("#swap")
    assert float(tab.page.evaluate("getComputedStyle(document.getElementById('swap')).opacity")) < 0.5
    assert tab.page.get_attribute("#swap", "title") == "This server has no model from German to English"


def test_panes_grow_with_the_text(tab: Any) -> None:
    height = "document.getElementById('text').getBoundingClientRect().height"
    for supported in (True, False):
        if not supported:  # As in browsers without `field-sizing`.
            tab.page.add_init_script("CSS.supports = () => false")
            tab.page.add_init_script(
                "addEventListener('DOMContentLoaded', () => {"
                " document.getElementById('text').style.setProperty('field-sizing', 'fixed'); })"
            )
            tab.page.evaluate("sessionStorage.clear()")
            tab.page.reload()
            tab.page.wait_for_selector("[data-ready]")
        tab.page.fill("#text", "")
        before = tab.page.evaluate(height)
        tab.page.fill("#text", "\n".join("a" for _ in range(20)))
        assert tab.page.evaluate(height) > before + 200
        assert tab.page.evaluate("((box) => box.scrollHeight <= box.clientHeight)(document.getElementById('text'))")


def test_the_user_is_warned_in_words(tab: Any) -> None:
    tab.hurry()
    cases = [
        ("hello", {}, [-0.1], None),
        ("hello", {}, [-2.0], "The model is unsure about this translation. Check the underlined words."),
        ("привет", {}, [-0.1], "This text does not look like English. The translation is probably wrong."),
        (
            "hello",
            {"warnings": [{"kind": "repetition", "detail": "4 times"}]},
            [-0.1],
            "The translation repeats itself. It is probably wrong.",
        ),
        (
            "hello",
            {"warnings": [{"kind": "truncated", "detail": "the target reached its limit of tokens"}]},
            [-0.1],
            "The translation was cut off at the length limit. Shorter sentences help.",
        ),
        ("hello", {"warnings": [{"kind": "new_kind", "detail": "words"}]}, [-0.1], "new kind: words"),
    ]
    for text, more, logs, note in cases:
        tab.page.route(
            "**/v1/translate/stream",
            lambda route, _, m=more, s=logs: route.fulfill(**answer("hallo", ["▁hallo"], s, **m)),
        )
        tab.page.fill("#text", "")
        tab.shows("")
        tab.type(text, "hallo")
        tab.page.wait_for_selector(".resting")
        assert tab.page.locator("#notes li").all_inner_texts() == ([note] if note else [])
        assert tab.page.locator("#output .doubtful").count() == int(logs[0] < -1)


@pytest.mark.parametrize(
    ("status", "body", "said", "again"),
    [
        (0, {}, "There is no connection to the server. Check your network.", True),
        (500, {"error": "KeyError: 'x'", "code": "internal"}, "Something went wrong on the server.", True),
        (504, {"error": "deadline", "code": "deadline_exceeded"}, "This took too long. Try a shorter text.", True),
        (403, {"error": "over", "code": "over_quota"}, "This API key has used up its characters for today.", False),
    ],
)
def test_errors_are_in_words_and_keep_the_last_translation(
    tab: Any, translator: Translator, status: int, body: dict[str, str], said: str, again: bool
) -> None:
    (before,) = whole(translator, "a man")
    tab.type("a man", before)
    reply = {"status": status, "json": body}
    tab.page.route("**/v1/translate/stream", lambda route: route.fulfill(**reply) if status else route.abort())
    tab.page.fill("#text", "a man!")
    tab.tell("#problem", re.compile(f"^{re.escape(said)}"))
    assert tab.page.inner_text("#output") == before.strip()
    assert tab.page.locator("#retry").is_visible() == again
    tab.faults.clear()  # The browser logs the failure.
    tab.page.unroute("**/v1/translate/stream")
    if again:
        tab.page.click("#retry")
        tab.shows(*whole(translator, "a man!"))
        tab.page.wait_for_selector("#problem", state="hidden")


def test_other_wordings_of_a_line_can_be_chosen(tab: Any, translator: Translator) -> None:
    (before,) = whole(translator, "a man")
    tab.type("a man\nyou", "\n".join(whole(translator, "a man", "you")))
    tab.page.click("#more")
    tab.page.wait_for_selector("#wordings button")
    found = translator.translate("a man", strategy="beam", beam=5, nbest=5).hypotheses
    wanted = [each.text for each in found if each.text.strip() and each.text != before]
    shown = tab.page.locator("#wordings button")
    assert shown.all_text_contents() == list(dict.fromkeys(wanted))
    assert tab.page.inner_text("#h-others") == "Other wordings of “a man”"
    shown.first.click()
    tab.shows(f"{wanted[0]}\n{whole(translator, 'you')[0]}")
    # The first translation is one of the other wordings now.
    assert before in shown.all_text_contents()


def test_an_input_event_that_changes_nothing_neither_translates_again_nor_closes_other_wordings(
    tab: Any, translator: Translator
) -> None:
    tab.type("a man", whole(translator, "a man")[0])
    tab.page.click("#more")
    tab.page.wait_for_selector("#wordings button")
    asked = len(tab.asked)
    tab.page.dispatch_event("#text", "input")
    tab.page.wait_for_timeout(500)  # A translation starts at most 250 ms after an event.
    assert tab.page.is_visible("#wordings button")
    assert tab.asked[asked:] == []


def test_a_glossary_constrains_the_translation_of_lines_with_its_terms(tab: Any, translator: Translator) -> None:
    tab.type("a man\na mane", "\n".join(whole(translator, "a man", "a mane")))
    tab.page.click("#glossary summary")
    tab.page.fill("#term", "Man")
    tab.page.fill("#translated-term", "kerl")
    with tab.page.expect_request("**/v1/translate/stream") as asked:
        tab.page.keyboard.press("Enter")
    assert asked.value.post_data_json["text"] == ["a man"]  # The other line does not have the word.
    assert asked.value.post_data_json["constraints"] == [["kerl"]]
    (wanted,) = [each.text for each in [translator.translate("a man", constraints=["kerl"])]]
    assert "kerl" in wanted
    tab.shows(f"{wanted}\n{whole(translator, 'a mane')[0]}")
    tab.page.reload()
    tab.shows(f"{wanted}\n{whole(translator, 'a mane')[0]}")
    tab.page.click("#glossary summary")
    tab.page.click("#terms button")
    tab.shows("\n".join(whole(translator, "a man", "a mane")))


def test_a_term_is_used_in_the_sentence_that_contains_it(tab: Any, translator: Translator) -> None:
    entry = {"pair": "en-de", "term": "man", "translation": "kerl"}
    tab.page.evaluate("(terms) => localStorage.setItem('translume.glossary', JSON.stringify(terms))", [entry])
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    with tab.page.expect_request("**/v1/translate/stream") as asked:
        tab.page.fill("#text", "You did. A man.")
    assert asked.value.post_data_json["text"] == ["You did.", "A man."]
    assert asked.value.post_data_json["constraints"] == [[], ["kerl"]]
    second = translator.translate("A man.", constraints=["kerl"]).text
    tab.shows(f"{whole(translator, 'You did.')[0]} {second}")


class Words:
    """A detector of languages that looks for one word."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        return [("de", 0.99)] if "hund" in text else [("en", 0.99)]


@pytest.fixture(scope="module")
def both(start: Callable[..., Any], make: Callable[..., Translator]) -> tuple[Any, Translator, Translator]:
    """Return a server that detects languages, with a model for each direction."""
    there = make("decoding.beam=3")
    back = make("data.source_language=de", "data.target_language=en", seed=5)
    return (
        start(ServedModel.from_model("there", there), ServedModel.from_model("back", back), detector=Words()),
        there,
        back,
    )


def test_the_source_language_can_be_detected(
    both: tuple[Any, Translator, Translator], open_tab: Callable[..., Any]
) -> None:
    live, there, back = both
    tab = open_tab(live)
    options = tab.page.locator("#source option")
    assert options.all_inner_texts() == ["Detect language", "English", "German"]
    tab.page.select_option("#source", "auto")
    tab.type("ein hund", *whole(back, "ein hund"))
    assert options.first.inner_text() == "Detected: German"
    assert tab.page.input_value("#target") == "en"
    asked = len([url for url in tab.asked if url.endswith("/detect")])
    tab.type("ein hund geht nach hause", *whole(back, "ein hund geht nach hause"))
    tab.type("ein hund geht nach hause mit man", *whole(back, "ein hund geht nach hause mit man"))
    assert len([url for url in tab.asked if url.endswith("/detect")]) == asked + 1  # It only got longer.
    tab.type("a dog", *whole(there, "a dog"))
    assert options.first.inner_text() == "Detected: English"
    tab.page.reload()
    tab.shows(*whole(there, "a dog"))
    assert tab.page.input_value("#source") == "auto"


def test_a_text_in_another_language_is_pointed_out(
    both: tuple[Any, Translator, Translator], open_tab: Callable[..., Any]
) -> None:
    live, there, back = both
    tab = open_tab(live)
    text = "ein hund geht nach hause"
    tab.type(text, *whole(there, text))
    tab.tell("#notes li >> nth=0", "This looks like German, not English. Translate from German")
    tab.page.click("#notes button")
    tab.shows(*whole(back, text))
    assert tab.page.input_value("#source") == "de"
    assert "looks like" not in tab.page.inner_text("#notes")


def test_a_server_without_a_detector_offers_no_detection(tab: Any) -> None:
    assert tab.page.locator("#source option").all_inner_texts() == ["English"]


VOICES = """
const spoken = [];
const voices = [{ lang: "de-DE", name: "Anna" }];
class Utterance { constructor(text) { this.text = text; } }
const speechSynthesis = {
  getVoices: () => voices, cancel() {}, addEventListener() {}, speak(said) { spoken.push([said.text, said.lang]); },
};
class Recognition {
  start() { setTimeout(() => { this.onresult({ results: [[{ transcript: "a man" }]] }); this.onend(); }, 50); }
  stop() {}
}
const replaced = { speechSynthesis, SpeechSynthesisUtterance: Utterance, SpeechRecognition: Recognition, spoken };
for (const [name, value] of Object.entries(replaced)) {
  Object.defineProperty(window, name, { value, configurable: true });
}
"""


def test_text_is_dictated_and_translations_are_read_aloud_where_the_browser_can(
    tab: Any, translator: Translator
) -> None:
    assert tab.page.locator("#speak-source").is_hidden()  # This browser has no voices.
    tab.page.add_init_script(VOICES)
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    assert tab.page.locator("#speak-source").is_hidden()  # The voice is German.
    tab.page.click("#dictate")
    (wanted,) = whole(translator, "a man")
    tab.shows(wanted)
    assert tab.page.get_attribute("#dictate", "aria-pressed") == "false"
    tab.page.click("#speak-target")
    assert tab.page.evaluate("spoken") == [[wanted, "de"]]
    tab.page.add_init_script("for (const name of ['SpeechRecognition', 'webkitSpeechRecognition']) delete window[name]")
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    assert tab.page.locator("#dictate").is_hidden()


LISTENS = """
window.SpeechRecognition = class {
  constructor() { window.listener = this; }
  start() {}
  stop() {}
};
window.hear = (index, ...said) => listener.onresult({
  resultIndex: index, results: said.map((transcript) => [{ transcript }]),
});
"""


def test_what_is_typed_while_dictating_stays(tab: Any) -> None:
    tab.page.add_init_script(LISTENS)
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    tab.page.click("#dictate")
    tab.page.evaluate("hear(0, 'a man')")
    text = tab.page.locator("#text")
    text.press("End")
    text.press_sequentially(" and")
    tab.page.evaluate("hear(1, 'a man', 'you')")
    tab.page.evaluate("hear(1, 'a man', 'you did')")
    assert text.input_value() == "a man and you did"


def test_a_document_can_be_dropped_anywhere_on_the_page(tab: Any, translator: Translator) -> None:
    drop = """(kind) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File(["a man"], "mine.txt", { type: "text/plain" }));
      const options = { bubbles: true, cancelable: true, dataTransfer: transfer };
      document.querySelector("footer").dispatchEvent(new DragEvent(kind, options));
    }"""
    tab.page.evaluate(drop, "dragenter")
    assert "dropping" in tab.page.get_attribute("body", "class").split()
    tab.page.evaluate(drop, "drop")
    with tab.page.expect_download() as saved:
        tab.page.click("#files a")
    assert Path(saved.value.path()).read_text(encoding="utf-8") == whole(translator, "a man")[0]
    assert "dropping" not in tab.page.get_attribute("body", "class").split()


def test_the_themes_have_the_same_names_on_all_pages(live: Any) -> None:
    options = re.compile(r'<option value="(auto|light|dark)">(\w+)</option>')
    wanted = [("auto", "System"), ("light", "Light"), ("dark", "Dark")]
    for html in (live.get("/").body.decode(), live.get("/docs").body.decode(), asset("page.html")):
        assert options.findall(html) == wanted


SHIFTS = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def test_nothing_moves_while_the_page_loads_and_a_user_types(tab: Any, translator: Translator) -> None:
    tab.page.add_init_script(SHIFTS)
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    tab.page.locator("#text").press_sequentially("a man", delay=60)
    tab.shows(*whole(translator, "a man"))
    assert tab.page.evaluate("shift") < 0.01
    tab.page.wait_for_selector(".resting")
    before = tab.page.locator("#copy").bounding_box()
    tab.page.click("#more")
    tab.page.wait_for_selector("#others:not([hidden])")
    tab.details()
    assert tab.page.locator("#copy").bounding_box() == before


def test_models_that_neither_translate_nor_classify_are_not_offered(tab: Any, live: Any) -> None:
    listed = live.get("/v1/models").json()
    other = {**listed["models"][0], "name": "writer", "source": "", "target": "", "offers": ["generate"]}
    tab.page.route("**/v1/models", lambda route: route.fulfill(json={"models": [other, *listed["models"]]}))
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    assert tab.page.locator("#source option").all_inner_texts() == ["English"]
    assert tab.page.locator("#model option").all_inner_texts() == ["en-de"]
