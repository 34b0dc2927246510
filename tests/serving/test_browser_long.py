"""Long texts on the page at /: keys stay fast, tokens become elements in view, lines have their own direction."""

import json
from collections.abc import Callable
from typing import Any

import pytest

EVENTS = "text/event-stream"
LINE = "the village has a mill and a man. " * 14


def echo(route: Any) -> None:
    """Answer a request for translations with the texts themselves, two tokens for each word."""
    translations = []
    for text in route.request.post_data_json["text"]:
        tokens = [piece for word in text.split() for piece in ("▁" + word[:1], *word[1:].partition(".")) if piece]
        tokens = [each for token in tokens for each in (token, *(["</s>"] if token == "." else []))] + ["</s>"]
        text = " ".join(text.split())
        hypothesis = {"text": text, "tokens": tokens, "token_log_probs": [-0.3] * len(tokens)}
        translations.append({"text": text, "warnings": [], "hypotheses": [hypothesis]})
    body = json.dumps({"model": "en-de", "translations": translations})
    route.fulfill(body=f"event: done\ndata: {body}\n\n", content_type=EVENTS)


WATCH = """() => {
  window.tasks = [];
  const note = (list) => { for (const each of list.getEntries()) tasks.push(each.duration); };
  new PerformanceObserver(note).observe({ type: "longtask" });
}"""


def put(tab: Any, text: str) -> None:
    """Put in a text without scrolling to its end, and wait for its translation."""
    tab.page.evaluate("(text) => { document.getElementById('text').value = text; }", text)
    tab.page.dispatch_event("#text", "input")
    tab.shows(text)


@pytest.mark.parametrize("lines", [100, 10])
def test_a_key_in_a_long_text_does_not_block_the_page(open_tab: Callable[..., Any], live: Any, lines: int) -> None:
    info = live.get("/v1/info").json()
    info["limits"]["texts"] = 256
    tab = open_tab(live, instead={"**/v1/info": info})
    tab.page.route("**/v1/translate/stream", echo)
    text = "\n".join(f"{number} {LINE * 10}"[: 50_000 // lines].strip() for number in range(lines))
    put(tab, text)
    tab.page.evaluate(WATCH)
    tab.hurry()
    longest = []
    for key in "abcd":
        tab.page.evaluate("tasks.length = 0")
        tab.page.locator("#text").press(key)
        tab.page.wait_for_timeout(600)  # The translation, and the judgement of the resting text.
        longest.append(tab.page.evaluate("Math.max(0, ...tasks)"))
    # At most 50 ms where no other work takes the processor; it was 7.6 s.
    assert min(longest) <= 150
    assert tab.tokens().count() < 4000


def test_tokens_out_of_view_are_reached_by_keyboard_and_by_scrolling(open_tab: Callable[..., Any], live: Any) -> None:
    tab = open_tab(live)
    tab.page.route("**/v1/translate/stream", echo)
    text = "\n".join(f"{number} {LINE}".strip() for number in range(50))
    put(tab, text)
    assert tab.page.locator("#output [data-line='49']").count() == 0
    tab.page.locator("#output").get_by_text("0", exact=True).first.click()
    tab.page.keyboard.press("End")
    focused = "[document.activeElement.dataset.line, document.activeElement.textContent]"
    assert tab.page.evaluate(focused) == ["49", "."]
    tab.page.keyboard.press("ArrowLeft")
    assert tab.page.evaluate(focused) == ["49", "an"]
    tab.page.keyboard.press("Home")
    assert tab.page.evaluate(focused) == ["0", "0"]
    tab.page.locator("#output [data-line='0']").last.click()
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.evaluate(focused) == ["1", "1"]
    tab.page.keyboard.press("ArrowLeft")
    assert tab.page.evaluate(focused) == ["0", "."]
    tab.page.evaluate("document.querySelector('#output').children[25].scrollIntoView()")
    tab.page.wait_for_selector("#output [data-line='25']")
    tab.faults.clear()  # This server inspects no line of this length: the browser logs the 413.


def test_each_line_of_the_translation_has_its_own_direction(tab: Any) -> None:
    tab.page.route("**/v1/translate/stream", echo)
    tab.type("the village\nשלום עולם\n\n  a mill", "the village\nשלום עולם\n\n  a mill")
    directions = "[...document.getElementById('output').children].map((each) => getComputedStyle(each).direction)"
    assert tab.page.evaluate(directions) == ["ltr", "rtl", "ltr"]
    box = tab.page.locator("#output").bounding_box()
    left, right = (tab.page.locator(f"#output [data-line='{line}']").first.bounding_box() for line in (0, 1))
    assert left["x"] < box["x"] + box["width"] / 2 < right["x"]
