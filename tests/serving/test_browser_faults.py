"""What must not get lost in the page: text typed while it loads, undone, in other tabs, in links, in broken answers."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.serving.conftest import whole

from translume.serving.models import ServedModel
from translume.translator import Translator


def refusal(status: int, code: str = "", after: str = "") -> dict[str, Any]:
    """Return arguments of `Route.fulfill`: a refusal with Retry-After."""
    headers = {"Retry-After": after} if after else {}
    return {"status": status, "headers": headers, "json": {"error": "no", "code": code}}


def first(*answers: Mapping[str, Any] | None) -> Callable[[Any], None]:
    """Return a handler of routes that gives these answers first, None for a reset, and then lets requests pass."""
    turns = iter(answers)

    def handle(route: Any) -> None:
        answer = next(turns, {})
        if answer is None:
            route.abort("connectionreset")
        elif answer:
            route.fulfill(**answer)
        else:
            route.fallback()

    return handle


@pytest.mark.parametrize("kept", ["", "you "])
def test_text_typed_while_the_page_loads_is_kept_and_translated(tab: Any, translator: Translator, kept: str) -> None:
    if kept:
        tab.type(kept, f"{whole(translator, kept.strip())[0]} ")
    held: list[Any] = []
    tab.page.route("**/v1/info", lambda route: held.append(route))
    tab.page.reload()
    tab.page.wait_for_function("(kept) => document.getElementById('text').value === kept", arg=kept)
    tab.page.locator("#text").press_sequentially("a man")
    tab.page.wait_for_timeout(300)
    held[0].fallback()
    tab.shows(*whole(translator, tab.page.input_value("#text")))
    assert sorted(tab.page.input_value("#text").split()) == sorted(f"{kept}a man".split())


def test_a_file_dropped_while_the_page_loads_is_translated(tab: Any) -> None:
    held: list[Any] = []
    tab.page.route("**/v1/info", lambda route: held.append(route))
    tab.page.reload()
    tab.page.set_input_files("#file", {"name": "mine.txt", "mimeType": "text/plain", "buffer": b"a man"})
    tab.page.wait_for_timeout(100)
    held[0].fallback()
    tab.tell("#files a", "Save mine_de.txt")


@pytest.mark.parametrize(
    ("path", "answers"),
    [
        ("v1/info", [refusal(503, "shutting_down", "1")]),
        ("v1/info", [refusal(503), refusal(502)]),
        ("v1/models", [None]),
        ("frontend/settings", [{"body": "<p>Log in to this network</p>", "content_type": "text/html"}]),
    ],
    ids=["503 with Retry-After", "503 and 502 of a proxy", "reset", "portal"],
)
def test_the_page_loads_by_itself_after_a_failure(
    tab: Any, translator: Translator, path: str, answers: list[Mapping[str, Any] | None]
) -> None:
    tab.hurry()
    tab.page.fill("#text", "a man")
    tab.page.route(f"**/{path}", first(*answers))
    tab.page.reload()
    tab.shows(*whole(translator, "a man"))
    tab.page.wait_for_selector("#problem", state="hidden")
    tab.faults.clear()  # The browser logs the failures.


@pytest.mark.parametrize(("path", "part"), [("/", "page.js"), ("/", "sentence.js"), ("/docs", "shape.js")])
def test_a_part_of_the_page_that_does_not_arrive_is_said(tab: Any, path: str, part: str) -> None:
    tab.page.route(f"**/page/{part}", first(refusal(503)))
    tab.page.goto(tab.url + path)
    tab.tell("#problem", "A part of this page could not be loaded. Reload the page.")
    assert tab.page.is_visible("#problem")
    tab.faults.clear()  # The browser logs the 503.
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]" if path == "/" else "#groups details")


@pytest.mark.parametrize("leave", ["a man", "you"])
def test_the_text_is_there_on_the_way_back(tab: Any, translator: Translator, leave: str) -> None:
    tab.type("a man", *whole(translator, "a man"))
    if leave == "you":
        tab.page.fill("#text", "you")  # Left before its translation.
    tab.page.goto(f"{tab.url}/docs")
    tab.page.go_back()
    tab.shows(*whole(translator, leave))
    assert tab.page.input_value("#text") == leave


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(503, "shutting_down", "3600"), r"The server is restarting\. "),
        (refusal(429, "too_many_requests", "3600"), r"Too many requests\. Wait a moment\. "),
    ],
)
def test_a_user_can_try_again_before_the_page_does(tab: Any, answer: Mapping[str, Any], said: str) -> None:
    tab.page.route("**/v1/info", first(answer))
    tab.page.reload()
    tab.tell("#problem", re.compile(said + r"Trying again at (\d+ \w+ at )?\d\d:\d\d\."))  # tomorrow with its day
    tab.page.click("#retry")
    tab.page.wait_for_selector("[data-ready]")
    tab.page.wait_for_selector("#problem", state="hidden")
    tab.faults.clear()  # The browser logs the failures.


def test_a_used_up_quota_is_not_asked_again_before_its_time(tab: Any, translator: Translator) -> None:
    tab.hurry()
    asked: list[str] = []

    def used_up(route: Any) -> None:
        asked.append(route.request.post_data_json["text"][0])
        route.fulfill(**refusal(429, "quota_used_up", "3600"))

    tab.page.route("**/v1/translate/stream", used_up)
    tab.page.locator("#text").press_sequentially("a man and you", delay=30)
    tab.tell("#problem", re.compile(r"^This API key has used up its characters until (?:\d+ \w+ at )?\d\d:\d\d\.$"))
    tab.page.wait_for_timeout(300)
    assert len(asked) == 1
    tab.page.unroute("**/v1/translate/stream")
    tab.page.click("#retry")  # Its operator may have raised it.
    tab.shows(*whole(translator, "a man and you"))
    tab.page.wait_for_selector("#problem", state="hidden")
    tab.faults.clear()  # The browser logs the 429.


def test_a_date_in_retry_after_is_understood(tab: Any, translator: Translator) -> None:
    date = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    tab.page.route("**/v1/translate/stream", first(refusal(503, after=date)))
    tab.type("a man", *whole(translator, "a man"))
    tab.faults.clear()  # The browser logs the 503.


PREFIX = 'event: prefix\ndata: {"place": 0, "text": "ein"}\n\n'
DONE = "event: done\ndata: "
EVENTS = "text/event-stream"


@pytest.fixture
def broken_off() -> Iterator[int]:
    """Return the port of a server whose streams break off after a prefix."""
    with socket.create_server(("127.0.0.1", 0)) as bound:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = bound.accept()
                    connection.recv(65_536)
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: {EVENTS}\r\nContent-Length: 9999\r\n\r\n{PREFIX}"
                    connection.sendall(head.encode())
                    time.sleep(0.1)  # The page reads the prefix before the connection ends.
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield bound.getsockname()[1]
        bound.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "body",
    [None, PREFIX, PREFIX + "event: prefix\ndata: {", PREFIX + DONE + '{"translations": []}\n\n', "<p>Log in</p>"],
    ids=["socket breaks", "no done", "half an event", "done without a translation", "portal"],
)
def test_a_broken_answer_is_repeated_and_then_marked(
    tab: Any, translator: Translator, broken_off: int, body: str | None
) -> None:
    tab.hurry()
    (before,) = whole(translator, "hello you")
    tab.type("hello you", before)
    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        if body is None:
            route.continue_(url=f"http://127.0.0.1:{broken_off}/")
        else:
            route.fulfill(body=body, content_type="text/html" if body.startswith("<") else EVENTS)

    tab.page.route("**/v1/translate/stream", answer)
    tab.page.fill("#text", "a man and you")
    tab.tell("#problem", "The answer of the server broke off, or came from something else in your network.")
    assert len(asked) == 3
    shown = tab.page.inner_text("#output")
    if body == "<p>Log in</p>":
        assert shown == before.strip()  # The last translation, as stale text.
        assert tab.page.locator("#output .stale").count() == 1
    else:
        # Nothing of the old translation is below the beginning of the new one.
        assert tab.page.locator("#output .broken").all_inner_texts() == [shown] == ["ein"]
    tab.page.click("#copy")
    tab.tell("#status", "The translation is not complete yet.")
    tab.page.unroute("**/v1/translate/stream")
    tab.page.click("#retry")
    tab.shows(*whole(translator, "a man and you"))
    tab.page.wait_for_selector("#problem", state="hidden")
    tab.faults.clear()  # The browser logs the failures.


def test_a_stream_that_breaks_once_needs_no_user(tab: Any, translator: Translator) -> None:
    tab.hurry()
    tab.page.route("**/v1/translate/stream", first({"body": PREFIX, "content_type": EVENTS}))
    tab.type("a man", *whole(translator, "a man"))
    assert tab.page.is_hidden("#problem")


@pytest.mark.parametrize(
    "answer",
    [
        {"body": "<p>Log in</p>", "content_type": "text/html"},
        {"body": '{"translations": [', "content_type": "application/json"},
    ],
)
def test_answers_that_are_no_json_are_explained_in_words(
    tab: Any, translator: Translator, answer: dict[str, Any]
) -> None:
    tab.type("a man", *whole(translator, "a man"))
    tab.page.route("**/v1/inspect", lambda route: route.fulfill(**answer))
    tab.tokens().first.click()
    tab.tell("#problem", "The answer of the server broke off, or came from something else in your network.")


@pytest.fixture(scope="module")
def both(start: Callable[..., Any], make: Callable[..., Translator]) -> tuple[Any, Translator, Translator]:
    """Return a server with a model for each direction, and its models."""
    there = make("decoding.beam=3")
    back = make("data.source_language=de", "data.target_language=en", seed=5)
    return start(ServedModel.from_model("there", there), ServedModel.from_model("back", back)), there, back


Both = tuple[Any, Translator, Translator]


def test_undo_brings_back_what_clear_and_an_example_replaced(tab: Any, translator: Translator) -> None:
    (wanted,) = whole(translator, "a man")
    text = tab.page.locator("#text")
    text.press_sequentially("a man")
    tab.shows(wanted)
    tab.page.click("#clear")
    tab.shows("")
    text.press("Control+z")
    tab.shows(wanted)
    assert text.input_value() == "a man"
    text.press("Control+Shift+z")
    tab.shows("")
    example = tab.page.locator("#examples button").first
    shown = example.inner_text()
    example.click()
    assert text.input_value() == shown
    text.press("Control+z")
    assert text.input_value() == ""
    text.press("Control+z")
    assert text.input_value() == "a man"
    tab.shows(wanted)


@pytest.mark.parametrize("how", ["undo", "swap again"])
def test_a_swap_can_be_taken_back_with_its_direction(both: Both, open_tab: Callable[..., Any], how: str) -> None:
    live, there, back = both
    tab = open_tab(live)
    text = tab.page.locator("#text")
    text.press_sequentially("a man\nyou")
    wanted = "\n".join(whole(there, "a man", "you"))
    tab.shows(wanted)
    tab.page.click("#swap")
    assert tab.page.evaluate("document.activeElement.id") == "swap"
    swapped = "\n".join(each.strip() for each in wanted.strip().split("\n"))
    tab.shows("\n".join(whole(back, *swapped.split("\n"))))
    assert tab.page.input_value("#source") == "de"
    if how == "undo":
        text.press("Control+z")
    else:
        tab.page.click("#swap")
    tab.shows(wanted)
    assert (text.input_value(), tab.page.input_value("#source")) == ("a man\nyou", "en")
    if how == "undo":
        text.press("Control+Shift+z")
        tab.shows("\n".join(whole(back, *swapped.split("\n"))))
        assert tab.page.input_value("#source") == "de"


def test_swapping_before_the_translation_is_complete_keeps_the_text(both: Both, open_tab: Callable[..., Any]) -> None:
    live, _, back = both
    tab = open_tab(live)
    tab.page.route("**/v1/translate/stream", lambda route: None, times=1)
    with tab.page.expect_request("**/v1/translate/stream"):
        tab.page.fill("#text", "a man")
    tab.page.click("#swap")
    tab.shows(*whole(back, "a man"))
    assert tab.page.input_value("#text") == "a man"


def test_a_text_restored_from_the_history_can_be_undone(both: Both, open_tab: Callable[..., Any]) -> None:
    live, there, back = both
    tab = open_tab(live)
    tab.page.select_option("#source", "de")
    tab.type("du", *whole(back, "du"))
    tab.page.wait_for_selector("#entries li", state="attached")
    tab.page.select_option("#source", "en")
    tab.type("a man", *whole(there, "a man"))
    tab.page.click("#history summary")
    tab.page.get_by_role("button", name="du").click()
    tab.shows(*whole(back, "du"))
    tab.page.locator("#text").press("Control+z")
    tab.shows(*whole(there, "a man"))
    assert tab.page.input_value("#source") == "en"


def test_each_tab_keeps_its_direction_with_its_text(both: Both, open_tab: Callable[..., Any]) -> None:
    live, there, _ = both
    tab = open_tab(live)
    tab.type("a man", *whole(there, "a man"))
    other = tab.context.new_page()
    other.goto(live.url + "/")
    other.wait_for_selector("[data-ready]")
    other.select_option("#source", "de")
    other.wait_for_timeout(100)
    tab.page.reload()
    tab.shows(*whole(there, "a man"))
    assert tab.page.input_value("#source") == "en"
    assert other.input_value("#source") == "de"


def test_a_link_to_a_direction_that_the_server_lacks_is_explained(tab: Any, translator: Translator) -> None:
    tab.hurry()
    instead = "The text is translated from English to German instead."
    cases = {
        "from=fr&to=en": f"This server does not translate from French to English. {instead}",
        "model=topics": f"This server does not have the model topics. {instead}",
        "from=en&to=de": None,
        "from=de&to=en": f"This server does not translate from German to English. {instead}",
    }
    for number, (direction, said) in enumerate(cases.items()):
        if number % 2:
            tab.page.goto(f"{tab.url}/#{direction}&text=a+man")  # Another fragment of the open page.
        else:
            tab.page.goto("about:blank")
            tab.page.goto(f"{tab.url}/#{direction}&text=a+man")
        tab.shows(*whole(translator, "a man"))
        tab.page.wait_for_selector(".resting")
        notes = tab.page.locator("#notes li").all_inner_texts()
        assert [each for each in notes if "This server" in each] == ([said] if said else [])
    tab.page.click("#clear")
    tab.type("a man", *whole(translator, "a man"))
    tab.page.wait_for_selector(".resting")
    assert "This server" not in tab.page.inner_text("#notes")


def test_a_text_whose_model_is_gone_is_not_translated_by_another_one_silently(tab: Any, translator: Translator) -> None:
    tab.type("a man", *whole(translator, "a man"))
    tab.page.evaluate("sessionStorage.setItem('translume.model', 'fr-en')")
    tab.page.reload()
    tab.tell(
        "#notes li >> nth=0",
        "This server no longer has the model of this text. The text is translated from English to German instead.",
    )


def test_what_was_typed_after_sharing_over_plain_http_survives_a_reload(tab: Any, translator: Translator) -> None:
    tab.type("a man", *whole(translator, "a man"))
    tab.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    tab.page.click("#share")
    tab.tell("#status", "The link is in the address bar.")
    assert tab.page.url.endswith("text=a+man")
    tab.page.reload()
    tab.shows(*whole(translator, "a man"))
    tab.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    tab.page.click("#share")
    tab.tell("#status", "The link is in the address bar.")
    tab.type("you", *whole(translator, "you"))
    assert tab.page.url == f"{tab.url}/"
    tab.page.reload()
    tab.shows(*whole(translator, "you"))


def test_chosen_words_come_back_with_their_line_and_their_loss_is_said(tab: Any, translator: Translator) -> None:
    tab.hurry()
    tab.type("a man\nyou", "\n".join(whole(translator, "a man", "you")))
    tab.tokens().nth(1).click()
    tab.page.wait_for_selector("#step:not([hidden])")
    tab.page.locator("#bars button.bar:enabled:not(.chosen)").first.click()
    tab.page.wait_for_selector("#output .bound")
    chosen = tab.page.inner_text("#output").split("\n")[0]
    text = tab.page.locator("#text")
    text.press("Control+Home")
    text.press_sequentially("b")
    tab.shows("\n".join(whole(translator, "ba man", "you")))
    said = "The words that you chose in “a man” are gone with the line. Undo its change to get them back."
    tab.page.get_by_text(said, exact=True).wait_for()
    text.press("Control+z")
    tab.page.wait_for_selector("#output .bound")
    assert tab.page.inner_text("#output").split("\n")[0] == chosen
    tab.page.wait_for_selector(".resting")
    assert "that you chose" not in tab.page.inner_text("#notes")
    # Words chosen for a line that is still there stay, without a note.
    text.press("Control+End")
    text.press_sequentially("\nhello")
    tab.page.wait_for_selector("#output [data-line='2']")
    assert tab.page.inner_text("#output").split("\n")[0] == chosen
    assert "that you chose" not in tab.page.inner_text("#notes")


def test_a_history_that_is_switched_off_is_deleted_in_all_tabs(tab: Any, translator: Translator) -> None:
    tab.hurry()
    tab.type("a man", *whole(translator, "a man"))
    tab.page.wait_for_selector("#entries li", state="attached")
    other = tab.context.new_page()
    other.goto(tab.url + "/")
    other.wait_for_selector("#entries li", state="attached")
    tab.page.click("#history summary")
    tab.page.uncheck("#keep")
    assert tab.page.locator("#entries li").count() == 0
    assert tab.page.evaluate("localStorage.getItem('translume.history')") is None
    other.wait_for_selector("#entries li", state="detached")
    assert not other.is_checked("#keep")


def term(pair: str, term: str, translation: str, **more: bool) -> dict[str, Any]:
    return {"pair": pair, "term": term, "translation": translation, **more}


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([("horse", "a", False), ("Horse", "b", False)], {"A Horse and a horse": ["b"]}),
        ([("horse", "a", False), ("Horse", "b", True)], {"a horse": [], "a Horse": ["b"]}),
        ([("Polish", "a", True), ("polish", "b", True)], {"Polish polish": ["a", "b"], "polish": ["b"], "POLISH": []}),
        ([("cafe\u0301", "a", False), ("café", "b", False)], {"the CAFE\u0301": ["b"], "cafés": []}),
        ([("York", "a", False), ("New  York", "b", False)], {"in new\u00a0york": ["b"], "New York, York": ["b", "a"]}),
    ],
    ids=["letter case", "one with case", "both with case", "accents", "within a longer one"],
)
def test_a_glossary_has_one_entry_for_a_term(
    tab: Any, entries: list[tuple[str, str, bool]], found: dict[str, list[str]]
) -> None:
    tab.page.click("#glossary summary")
    for source, translation, cased in entries:
        tab.page.fill("#term", source)
        tab.page.fill("#translated-term", translation)
        tab.page.set_checked("#cased", cased)
        tab.page.keyboard.press("Enter")
    wanted = """async (texts) => {
      const { phrasesIn } = await import("/page/glossary.js");
      return texts.map((text) => phrasesIn()(text).map((each) => each.translation));
    }"""
    assert tab.page.evaluate(wanted, list(found)) == list(found.values())
    rows = tab.page.locator("#terms li")
    assert rows.count() == len({each for texts in found.values() for each in texts})
    assert rows.get_by_text("(match case)").count() == sum(cased for *_, cased in entries[-rows.count() :])


def test_entries_that_older_pages_stored_twice_count_once(tab: Any, translator: Translator) -> None:
    stored = [term("en-de", "horse", "pferd"), term("en-de", "Horse", "ross"), term("de-en", "Horse", "horse")]
    tab.page.evaluate("(terms) => localStorage.setItem('translume.glossary', JSON.stringify(terms))", stored)
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    with tab.page.expect_request("**/v1/translate/stream") as asked:
        tab.page.fill("#text", "a horse")
    assert asked.value.post_data_json["constraints"] == [["ross"]]


DROP = """([name, size]) => {
  const data = new DataTransfer(), options = { bubbles: true, cancelable: true, dataTransfer: data };
  data.items.add(new File([new Uint8Array(size)], name));
  const event = new DragEvent("drop", options);
  document.body.dispatchEvent(event);
  return event.defaultPrevented;
}"""


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("mine.txt", 100_000_000, r"This file has 100 MB\. The limit is 5 MB\."),
        ("mine.png", 10, r"Files ending in \.png cannot be translated\. Possible are \.txt, .*\."),
        ("mine.PNG", 10, r"Files ending in \.png cannot be translated\. Possible are \.txt, .*\."),
        ("mine", 10, r"Folders, and files without an ending, cannot be translated\. Possible are \.txt, .*\."),
    ],
)
def test_files_that_the_server_refuses_are_explained_before_they_are_sent(
    tab: Any, name: str, size: int, said: str
) -> None:
    assert tab.page.evaluate(DROP, [name, size])
    tab.tell("#files .problem", re.compile(f"^{said}$"))
    assert not [url for url in tab.asked if "/v1/files" in url]


JOB, RESULT = r"/v1/files/[^/]+$", r"/v1/files/[^/]+/result$"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (JOB, None),
        (JOB, refusal(503, after="1")),
        (JOB, {"body": '{"id"', "content_type": "text/html"}),
        (RESULT, None),
        (RESULT, refusal(503, after="1")),
    ],
)
def test_a_lost_request_about_a_file_is_repeated(tab: Any, path: str, answer: dict[str, Any] | None) -> None:
    tab.hurry()
    tab.page.route(re.compile(path), first(answer))
    tab.page.set_input_files("#file", {"name": "mine.txt", "mimeType": "text/plain", "buffer": b"a man"})
    tab.tell("#files a", "Save mine_de.txt")
    tab.faults.clear()  # The browser logs the failure.


def test_a_file_dropped_on_a_page_that_takes_none_does_not_leave_it(
    start: Callable[..., Any], make_classifier: Callable[..., Any], open_tab: Callable[..., Any]
) -> None:
    tab = open_tab(start(ServedModel.from_model("topics", make_classifier())))
    assert tab.page.evaluate(DROP, ["mine.txt", 10])
    assert tab.page.locator("#files li").count() == 0
