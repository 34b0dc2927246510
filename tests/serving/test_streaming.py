"""Streaming: every prefix begins the final text, and the last event equals the response without streaming."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from translume.serving.models import ServedModel
from translume.translator import Translator

texts = st.lists(st.text("abc .\n\u200b\u3042", max_size=12), max_size=4)
knobs = st.sampled_from(
    [
        {},
        {"beam": 4, "nbest": 2},
        {"strategy": "greedy"},
        {"strategy": "greedy", "prefix": "ab"},
        {"utility": "chrf"},
        {"strategy": "sampling", "samples": 3, "nbest": 2},
        {"strategy": "diverse", "beam": 4, "groups": 2},
        {"placeholders": ["number"], "length_penalty": 0},
    ]
)


class Stepwise:
    """A translator whose search waits for a permit after each prefix that it reports."""

    def __init__(self, translator: Translator) -> None:
        self.steps = threading.Semaphore(0)
        self._translator = translator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._translator, name)

    def translate_lines(
        self, lines: Any, settings: Any, on_progress: Mapping[int, Callable[[str], None]], check_cancelled: Any
    ) -> Iterator[Any]:
        def waiting(say: Callable[[str], None]) -> Callable[[str], None]:
            def report_and_wait(text: str) -> None:
                say(text)
                assert self.steps.acquire(timeout=120)

            return report_and_wait

        held = {number: waiting(say) for number, say in on_progress.items()}
        return self._translator.translate_lines(lines, settings, held, check_cancelled)


def events(body: bytes) -> Iterator[tuple[str, Any]]:
    for part in body.decode().split("\n\n")[:-1]:
        kind, data = part.split("\n")
        yield kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def streamed(live: Any, **fields: Any) -> list[tuple[str, Any]]:
    answer = live.post("/v1/translate/stream", **fields)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (200, "text/event-stream")
    return list(events(answer.body))


@contextmanager
def reading(live: Any, **fields: Any) -> Iterator[Iterator[Any]]:
    """Yield the values of the events of a stream as they arrive."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=120)
    connection.request("POST", "/v1/translate/stream", json.dumps(fields), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    try:
        yield (json.loads(line[6:]) for line in iter(answer.readline, b"") if line.startswith(b"data: "))
    finally:
        answer.close()
        connection.close()


def without_numbers(answer: dict[str, Any]) -> list[tuple[str, list[str], list[Any]]]:
    return [
        (each["text"], [one["text"] for one in each.get("hypotheses", ())], each["warnings"])
        for each in answer["translations"]
    ]


@given(found=texts, options=knobs)
def test_prefixes_grow_and_the_last_event_equals_the_plain_response(
    live: Any, found: list[str], options: dict[str, Any]
) -> None:
    fields = {"text": found, "max_length": 7, **options}
    *begun, (kind, last) = streamed(live, **fields)
    assert kind == "done"
    assert without_numbers(last) == without_numbers(live.post("/v1/translate", fields).json())
    before: dict[int, str] = {}
    for name, value in begun:
        assert name == "prefix"
        place, text = value["place"], value["text"]
        assert text.startswith(before.get(place, ""))
        assert len(text) > len(before.get(place, ""))
        assert last["translations"][place]["text"].startswith(text)
        before[place] = text
    if "utility" not in options:
        assert before == {
            place: each["text"].rstrip() for place, each in enumerate(last["translations"]) if each["text"].rstrip()
        }


def test_the_last_prefix_of_a_text_contains_all_its_lines(live: Any, translator: Translator) -> None:
    *begun, _ = streamed(live, text=["a b\n\nc", "d"])
    first, second, third = (translator.translate(text).text for text in ("a b", "c", "d"))
    last = {value["place"]: value["text"] for _, value in begun}
    assert last == {0: f"{first}\n\n{second}".rstrip(), 1: third.rstrip()}


def test_prefixes_are_sent_while_the_search_is_running(start: Any, translator: Translator) -> None:
    stepwise = Stepwise(translator)
    live = start(ServedModel.from_model("en-de", stepwise))
    wanted = translator.translate("abc de", strategy="greedy").text
    assert len(wanted) > 5
    with reading(live, text="abc de", strategy="greedy") as values:
        for count in range(1, 5):
            if not wanted[:count][-1].isspace():
                assert next(values) == {"place": 0, "text": wanted[:count]}
                stepwise.steps.release()
        stepwise.steps.release(99)
        *_, last = values
    assert last["translations"][0]["text"] == wanted


def test_early_errors_have_an_http_status_and_later_ones_an_event(live: Any) -> None:
    assert live.post("/v1/translate/stream", text="a", beem=1).status == 422
    *_, last = streamed(live, text=["a", "b" * 50])
    assert last == (
        "error",
        {
            "error": 'text[1]: a sentence has 50 tokens, expected at most 40; "max_length_action": "truncate" cuts it',
            "code": "text_too_long",
            "field": "text[1]",
        },
    )


def test_an_empty_list_is_done_immediately(live: Any) -> None:
    assert streamed(live, text=[]) == [("done", {"model": "en-de", "translations": []})]
