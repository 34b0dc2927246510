"""The page at / in a real browser, by mouse and keyboard: translation, tokens, alternatives, files, history."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving.conftest import whole

from translume.inspection import force_token, trace
from translume.serving.models import ServedModel
from translume.translator import Translator

LISTED = 7


def test_typed_text_is_translated_line_by_line_and_partial_output_is_a_prefix(tab: Any, translator: Translator) -> None:
    first, second = whole(translator, "a man", "hello you")
    tab.type("a man\n\n  hello you", f"{first}\n\n  {second}")
    assert f"{tab.url}/v1/translate/stream" in tab.asked
    # Every partial output shown was a prefix of the final one.
    seen = {text for step in tab.page.evaluate("window.seen") for text in step if text}
    assert seen
    assert all(first.startswith(text) or second.startswith(text) for text in seen)
    # Only new lines are requested.
    with tab.page.expect_request("**/v1/translate/stream") as asked:
        tab.page.fill("#text", "a man\n\n  hello me")
    assert asked.value.post_data_json["text"] == ["hello me"]
    tab.shows(f"{first}\n\n  {whole(translator, 'hello me')[0]}")


def test_details_show_the_probability_of_each_token_and_the_end_of_sentences(tab: Any, translator: Translator) -> None:
    tab.type("a man", *whole(translator, "a man"))
    background = "(token) => getComputedStyle(token).backgroundColor"
    assert tab.tokens().nth(1).evaluate(background) == "rgba(0, 0, 0, 0)"
    assert tab.page.locator("#output .end, #output [aria-label]").count() == 0
    tab.details()
    assert tab.tokens().nth(1).evaluate(background) != "rgba(0, 0, 0, 0)"
    best = translator.translate("a man").hypotheses[0]
    spelt = [
        (token.replace("▁", ""), log_prob)
        for token, log_prob in zip(best.tokens, best.token_log_probs, strict=True)
        if token not in ("</s>", "▁")
    ]
    shown = [each for each in tab.tokens().all() if "end" not in each.get_attribute("class").split()]
    assert [each.inner_text() for each in shown] == [text for text, _ in spelt]
    for each, (_, log_prob) in zip(shown, spelt, strict=True):
        share = float(each.evaluate("(token) => token.style.getPropertyValue('--share')"))
        assert share == pytest.approx(min(1, -log_prob / 4) * 0.85, abs=2e-3)
        shown = float(re.search(r"([\d.]+) %", each.get_attribute("aria-label"))[1])
        assert shown == pytest.approx(100 * math.exp(log_prob), abs=0.1)


def test_clicking_a_token_shows_its_alternatives_and_the_remaining_probability(
    tab: Any, translator: Translator
) -> None:
    tab.type("a man", *whole(translator, "a man"))
    tab.tokens().nth(1).click()
    tab.page.wait_for_selector("#step:not([hidden])")
    place = int(tab.tokens().nth(1).get_attribute("data-token"))
    step = trace(translator, "a man", k=LISTED, show=()).steps[place]
    bars = tab.page.locator("#bars .bar")
    names = [each.text for each in step.top_model.candidates]
    assert [each.get_attribute("data-token") for each in bars.all()][: len(names)] == names
    spelt = [name.replace("▁", "") or "space" for name in names if name != "</s>"]
    shown = bars.locator(".name").all_inner_texts()
    assert all(any(name.endswith(each) for name in shown) for each in spelt)
    # Words and bars at first sight; numbers are details.
    assert bars.last.is_hidden()
    assert tab.page.locator("#facts").is_hidden()
    tab.page.click("#figures")
    assert bars.last.locator(".name").inner_text() == "all others"
    for name in ("p", "log p", "rank", "entropy"):
        assert tab.page.locator("#facts dt").get_by_text(name, exact=True).is_visible()
    shares = [float(each.get_attribute("data-model")) for each in bars.all()]
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)
    assert shares[0] == pytest.approx(step.top_model.candidates[0].p_model, abs=1e-5)


def test_alternatives_are_inspected_and_chosen_for_each_sentence_of_a_line(
    start: Callable[..., Any], make: Callable[..., Translator], open_tab: Callable[..., Any]
) -> None:
    translator = make("decoding.beam=3", seed=9)
    # With random weights, hypotheses seldom end before the length limit.
    translator.checkpoint.model.head.bias.data[translator.checkpoint.target_tokenizer.specials.eos] += 4.0
    tab = open_tab(start(ServedModel.from_model("en-de", translator)))
    before, behind = whole(translator, "A man.", "You did.")
    tab.type("A man. You did.", f"{before} {behind}")
    tab.details()
    assert tab.page.locator("#output .end").count() == 2
    token = tab.page.locator("#output [data-part='1']").nth(1)
    place = int(token.get_attribute("data-token"))
    other = other_at(translator, "You did.", place)
    token.click()
    tab.page.click(f"#bars [data-id='{other.id}']")
    after = force_token(translator, "You did.", place, other.id).after.text
    assert after != behind
    tab.shows(f"{before} {after}")
    tab.page.click("#undo")
    tab.shows(f"{before} {behind}")


@pytest.mark.parametrize("texts", [("Ab.", "Cd."), ("A man.", "You did.")], ids=["short", "longer than one may be"])
def test_sentences_that_cannot_be_separated_cannot_be_inspected(
    tab: Any, translator: Translator, texts: tuple[str, str]
) -> None:
    assert {translator.translate(text).hypotheses[0].finished_by for text in texts} == {"length"}
    tab.type(" ".join(texts), " ".join(whole(translator, *texts)))
    tab.tokens().first.click()
    tab.tell("#problem", "A sentence of this line was cut off. Put it on a line of its own to see its alternatives.")
    tab.faults.clear()  # The browser logs the 422.


def other_at(translator: Translator, text: str, place: int) -> Any:
    found = trace(translator, text, k=LISTED, show=())
    mine = found.target_tokens[place].id
    return next(each for each in found.steps[place].top_model.candidates if each.id != mine and each.p_used)


def test_choosing_another_token_retranslates_from_there_and_can_be_undone(tab: Any, translator: Translator) -> None:
    (before,) = whole(translator, "a man")
    tab.type("a man", before)
    tab.tokens().nth(1).click()
    place = int(tab.tokens().nth(1).get_attribute("data-token"))
    other = other_at(translator, "a man", place)
    after = force_token(translator, "a man", place, other.id).after.text
    tab.page.click(f"#bars [data-id='{other.id}']")
    tab.shows(after)
    assert tab.page.locator("#output .bound").count() > 0
    # The choice is kept while another line is typed.
    more = whole(translator, "you")[0]
    tab.type("a man\nyou", f"{after}\n{more}")
    tab.tokens().nth(1).click()
    tab.page.click("#undo")
    tab.page.wait_for_selector("#undo[disabled]", state="attached")
    tab.shows(f"{before}\n{more}")
    assert tab.page.locator("#output .bound").count() == 0


def test_tokens_and_alternatives_can_be_chosen_with_the_keyboard(tab: Any, translator: Translator) -> None:
    tab.type("a man", *whole(translator, "a man"))
    tab.page.keyboard.press("Alt+o")
    tab.page.keyboard.press("ArrowRight")
    tab.page.wait_for_selector("#step:not([hidden])")
    focused = "[...document.querySelectorAll('#output .token')].indexOf(document.activeElement)"
    assert tab.page.evaluate(focused) == 1
    tab.page.keyboard.press("End")
    assert tab.tokens().last.get_attribute("aria-selected") == "true"
    tab.page.keyboard.press("Home")
    assert tab.page.evaluate(focused) == 0
    place = int(tab.tokens().first.get_attribute("data-token"))
    tab.tell("#facts dd >> nth=1", re.compile(rf"^{place} of 0 to "))
    bars = tab.page.locator("#bars button.bar")
    free = [i for i in range(bars.count()) if bars.nth(i).is_enabled()]
    number = next(i for i in free if "chosen" not in bars.nth(i).get_attribute("class").split())
    wanted = force_token(translator, "a man", place, int(bars.nth(number).get_attribute("data-id"))).after.text
    tab.page.keyboard.press(str(number + 1))
    tab.shows(wanted)
    tab.page.wait_for_selector("#undo:enabled")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    focused_bar = "[...document.querySelectorAll('#bars button:enabled')].indexOf(document.activeElement)"
    assert tab.page.evaluate(focused_bar) == 1
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("ArrowUp")
    assert tab.page.evaluate(focused) == 0
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("#step").is_hidden()
    tab.page.keyboard.press("Alt+t")
    assert tab.page.evaluate("document.activeElement.id") == "text"


def test_the_inspection_of_a_sentence_opens_in_its_own_tab(tab: Any, translator: Translator) -> None:
    tab.type("a man\nyou", "\n".join(whole(translator, "a man", "you")))
    tab.details()
    tab.page.locator("#output .token[data-line='1']").first.click()
    tab.page.wait_for_selector("#step:not([hidden])")
    with tab.context.expect_page() as opened:
        tab.page.keyboard.press("Alt+i")
    inside = opened.value
    inside.wait_for_selector("#bars .bar")
    assert inside.title() == "Translume: Inside a translation"
    data = json.loads(inside.text_content("#data"))
    assert data["trace"]["given"] == "you"
    assert data["beam"]["finished"][0]["text"] == translator.translate("you").text
    assert inside.locator("#attention svg line").count() > 0


def test_files_are_translated_with_progress_and_saved(tab: Any, translator: Translator, tmp_path: Path) -> None:
    lines = [f"a {letter}" for letter in "abcdefghijkl"]
    path = tmp_path / "mine.txt"
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    with tab.page.expect_file_chooser() as chooser:
        tab.page.click("#pick")
    chooser.value.set_files(path)
    with tab.page.expect_download() as saved:
        tab.page.click("#files a")
    assert saved.value.suggested_filename == "mine_de.txt"
    assert Path(saved.value.path()).read_text(encoding="utf-8") == "\n\n".join(whole(translator, *lines)) + "\n"
    # The result is fetched once and then deleted from the server.
    (job,) = {url.rpartition("/")[2] for url in tab.asked if re.search("/v1/files/[^/]+$", url)}
    assert f"{tab.url}/v1/files/{job}/result" in tab.asked
    page = tmp_path / "page.html"
    page.write_text("<p>a <b>man</b></p>", encoding="utf-8")
    tab.page.set_input_files("#file", page)
    with tab.page.expect_download() as saved:
        tab.page.click("#files li:first-child a")
    assert Path(saved.value.path()).read_text(encoding="utf-8").startswith("<p>")


def test_a_file_that_cannot_be_translated_shows_the_reason(tab: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.docx"
    path.write_bytes(b"%PNG")
    tab.page.set_input_files("#file", path)
    tab.tell("#files .problem", re.compile(r"^This file cannot be read: "))
    tab.faults.clear()  # The browser logs the 422.


def test_plain_text_files_are_translated_line_by_line_when_the_file_api_is_off(
    open_tab: Callable[..., Any], live: Any, translator: Translator, tmp_path: Path
) -> None:
    none = {"**/frontend/settings": {"filesTranslation": False}}
    tab = open_tab(live, instead=none)
    lines = [f"a {letter}" for letter in "abcdefghijkl"]
    path = tmp_path / "mine.txt"
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    tab.page.set_input_files("#file", path)
    with tab.page.expect_download() as saved:
        tab.page.click("#files a")
    assert saved.value.suggested_filename == "mine_de.txt"
    assert Path(saved.value.path()).read_text(encoding="utf-8") == "\n\n".join(whole(translator, *lines)) + "\n"
    path.write_bytes(b"\xff\xfe")
    tab.page.set_input_files("#file", path)
    tab.tell("#files .problem", "The file is not UTF-8 text.")


def test_history_is_kept_only_in_the_browser_and_can_be_cleared(tab: Any, translator: Translator) -> None:
    tab.hurry()
    first, second = whole(translator, "a man", "you")
    tab.type("a man", first)
    tab.page.wait_for_selector("#entries li", state="attached")
    tab.type("you", second)
    tab.page.wait_for_selector("#entries li >> nth=1", state="attached")
    tab.page.reload()
    tab.page.click("#history summary")
    assert tab.page.locator("#entries .entry").all_inner_texts() == [f"you\n{second}", f"a man\n{first}"]
    tab.page.click("#entries .entry >> nth=1")
    tab.shows(first)
    assert tab.page.input_value("#text") == "a man"
    tab.page.click("#forget")
    assert tab.page.locator("#entries li").count() == 0
    assert tab.page.evaluate("localStorage.getItem('translume.history')") is None
    tab.page.uncheck("#keep")
    tab.type("you", second)
    tab.page.wait_for_timeout(400)
    assert tab.page.locator("#entries li").count() == 0
    assert not [url for url in tab.asked if "man" in url or "you" in url]
    assert tab.page.evaluate("localStorage.getItem('translume.history')") is None


def test_languages_can_be_chosen_and_swapped(
    start: Callable[..., Any], make: Callable[..., Translator], open_tab: Callable[..., Any]
) -> None:
    there = make("decoding.beam=3")
    back = make("data.source_language=de", "data.target_language=en", seed=5)
    tab = open_tab(start(ServedModel.from_model("there", there), ServedModel.from_model("back", back)))
    assert tab.page.locator("#source option").all_inner_texts() == ["English", "German"]
    (text,) = whole(there, "a man")
    tab.type("a man", text)
    assert tab.page.get_attribute("#output", "lang") == "de"
    tab.page.keyboard.press("Alt+s")
    tab.shows(back.translate(text.strip()).text)
    assert (tab.page.input_value("#text"), tab.page.input_value("#source")) == (text.strip(), "de")


def test_labels_of_a_classifier_are_shown_as_bars(
    start: Callable[..., Any], make_classifier: Callable[..., Any], open_tab: Callable[..., Any]
) -> None:
    classifier = make_classifier()
    tab = open_tab(start(ServedModel.from_model("topics", classifier)))
    tab.page.fill("#text", "a cab")
    tab.page.wait_for_selector("#labels .bar")
    wanted = classifier.classify("a cab")
    assert tab.page.locator("#labels .bar .name").all_inner_texts() == [name for name, _ in wanted.probabilities]
    assert tab.page.locator("#labels .chosen .name").all_inner_texts() == [wanted.label]
    assert tab.page.locator("#output").is_hidden()


def test_the_translation_can_be_copied(open_tab: Callable[..., Any], live: Any, translator: Translator) -> None:
    tab = open_tab(live, permissions=["clipboard-read", "clipboard-write"])
    tab.type("a man\nyou", "\n".join(whole(translator, "a man", "you")))
    tab.page.click("#copy")
    tab.tell("#status", "Copied.")
    assert tab.page.evaluate("navigator.clipboard.readText()") == "\n".join(whole(translator, "a man", "you"))


def test_characters_of_several_tokens_and_combining_marks_are_placed_correctly(tab: Any) -> None:
    cases = {
        "ein Haus.": (["▁ein", "▁Haus", ".", "</s>"], ["ein", "Haus", ".", ""]),
        "日本 €5": (
            ["▁", "<0xE6>", "<0x97>", "<0xA5>", "本", "▁€", "5", "</s>"],
            ["", "日", "", "", "本", "€", "5", ""],
        ),
        "a ▁ b": (["▁a", "▁▁▁", "▁b"], ["a", "▁", "b"]),
        "eins. zwei.": (["▁eins", ".", "</s>", "▁zwei", ".", "</s>"], ["eins", ".", "", "zwei", ".", ""]),
        "": (["</s>"], [""]),
        "x y": (["▁q", "▁y"], ["x", "y"]),
    }
    script = "async ([tokens, text]) => (await import('/page/lines.js')).placed(tokens, text)"
    for text, (tokens, wanted) in cases.items():
        places = tab.page.evaluate(script, [tokens, text])
        assert [text[begin:end] for begin, end in places] == wanted
