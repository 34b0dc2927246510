"""What a stream has said stands: every prefix begins what the last event gives, and that is the plain answer."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.translator import Translator

texts = st.lists(st.text("abc .\n\u200b\u3042", max_size=12), max_size=4)


def events(body: bytes) -> Iterator[tuple[str, Any]]:
    for part in body.decode().split("\n\n")[:-1]:
        kind, data = part.split("\n")
        yield kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def streamed(live: Any, **fields: Any) -> list[tuple[str, Any]]:
    answer = live.post("/v1/translate/stream", **fields)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (200, "text/event-stream")
    return list(events(answer.body))


def without_numbers(answer: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(each["text"], [one["text"] for one in each.get("hypotheses", ())]) for each in answer["translations"]]


@given(found=texts, nbest=st.integers(1, 2))
def test_prefixes_grow_and_the_last_event_is_the_plain_answer(live: Any, found: list[str], nbest: int) -> None:
    fields = {"text": found, "nbest": nbest, "max_length": 5}
    *begun, (kind, last) = streamed(live, **fields)
    assert kind == "done"
    assert without_numbers(last) == without_numbers(live.post("/v1/translate", fields).json())
    before = (0, "")
    for name, value in begun:
        assert name == "prefix"
        place, text = value["place"], value["text"]
        assert place > before[0] or (place == before[0] and text.startswith(before[1]))
        assert last["translations"][place]["text"].startswith(text)
        before = (place, text)


def test_there_is_a_prefix_for_each_line(live: Any, translator: Translator) -> None:
    *begun, _ = streamed(live, text="a b\n\nc")
    first, second = (translator.translate(text).text for text in ("a b", "c"))
    assert begun == [
        ("prefix", {"place": 0, "text": first}),
        ("prefix", {"place": 0, "text": f"{first}\n\n{second}"}),
    ]


def test_what_is_wrong_at_once_has_its_status_and_what_is_wrong_later_its_event(live: Any) -> None:
    assert live.post("/v1/translate/stream", text="a", beem=1).status == 422
    *_, last = streamed(live, text=["a", "b" * 50])
    assert last == (
        "error",
        {
            "error": 'text[1]: a sentence has 50 tokens, wanted at most 40; "max_length_action": "truncate" cuts it',
            "code": "text_too_long",
            "field": "text[1]",
        },
    )


def test_what_a_client_that_went_in_mid_stream_had_asked_for_is_forgotten(live: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    body = json.dumps({"text": ["a b c\nd e f\n" * 5] * 4})
    connection.request("POST", "/v1/translate/stream", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.read(6) == b"event:"
    connection.close()
    answer.close()
    assert live.post("/v1/translate", text="a").status == 200
    assert live.server.scheduler.waiting == 0


def test_an_empty_list_is_done_at_once(live: Any) -> None:
    assert streamed(live, text=[]) == [("done", {"model": "en-de", "translations": []})]


@pytest.mark.parametrize("body", [b"", b"[", b"\xff"])
def test_no_bytes_begin_a_stream_that_cannot_be(live: Any, body: bytes) -> None:
    assert live.ask("POST", "/v1/translate/stream", body, content_type="application/json").status == 400
