"""What must not get lost in the page: text typed while it loads, undone, in other tabs, in links, in broken answers."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from translume.translator import Translator


def whole(translator: Translator, *texts: str) -> list[str]:
    return [translator.translate(text).text for text in texts]


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
    ],
    ids=["503 with Retry-After", "503 and 502 of a proxy", "reset"],
)
def test_the_page_loads_by_itself_after_a_failure(
    tab: Any, translator: Translator, path: str, answers: list[Mapping[str, Any] | None]
) -> None:
    tab.page.fill("#text", "a man")
    tab.page.route(f"**/{path}", first(*answers))
    tab.page.reload()
    tab.shows(*whole(translator, "a man"))
    tab.page.wait_for_selector("#problem", state="hidden")
    tab.faults.clear()  # The browser logs the failures.


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(503, "shutting_down", "3600"), r"The server is restarting\. Trying again at \d\d:\d\d\."),
        (refusal(429, "too_many_requests", "3600"), r"Too many requests\. Wait a moment\. Trying again at \d\d:\d\d\."),
    ],
)
def test_a_user_can_try_again_before_the_page_does(tab: Any, answer: Mapping[str, Any], said: str) -> None:
    tab.page.route("**/v1/info", first(answer))
    tab.page.reload()
    tab.tell("#problem", re.compile(said))
    tab.page.click("#retry")
    tab.page.wait_for_selector("[data-ready]")
    tab.page.wait_for_selector("#problem", state="hidden")
    tab.faults.clear()  # The browser logs the failures.


def test_a_used_up_quota_is_not_asked_again_before_its_time(tab: Any, translator: Translator) -> None:
    asked: list[str] = []

    def used_up(route: Any) -> None:
        asked.append(route.request.post_data_json["text"][0])
        route.fulfill(**refusal(429, "quota_used_up", "3600"))

    tab.page.route("**/v1/translate/stream", used_up)
    tab.page.locator("#text").press_sequentially("a man and you", delay=150)
    tab.tell("#problem", re.compile(r"^This API key has used up its characters until (?:\d+ \w+ at )?\d\d:\d\d\.$"))
    tab.page.wait_for_timeout(1000)
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
