"""What goes between processes comes out as it went in, and whole."""

import math
import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.decoding import ScoreTerms
from translume.errors import SettingsError, TranslationError, TranslumeError
from translume.serving.api.errors import RequestError
from translume.serving.workers.channel import SIZES, Channel
from translume.serving.workers.plain import (
    SCORE,
    TRANSLATIONS,
    FailedElsewhereError,
    error_of,
    error_text,
    lines_of,
    lines_text,
    result,
    settings_of,
    settings_text,
)
from translume.translator import TargetScore, TextHypothesis, Translation
from translume.translator.alignment import Alignment
from translume.translator.plan import Line, LineError

texts = st.text(max_size=9)
numbers = st.floats(allow_nan=False)
hypotheses = st.builds(
    TextHypothesis,
    text=texts,
    tokens=st.lists(texts, max_size=3).map(tuple),
    ids=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    log_prob=numbers,
    score=numbers,
    finished_by=st.sampled_from(["eos", "length"]),
    token_log_probs=st.lists(numbers, max_size=3).map(tuple),
    terms=st.none() | st.builds(ScoreTerms, total=numbers, divisor=numbers),
    alignment=st.none()
    | st.builds(
        Alignment,
        source_tokens=st.just(("a", "b")),
        weights=st.just(((0.1, 0.9),)),
        links=st.just(((0, 1), (1, 1))),
    ),
)


@given(
    value=st.builds(
        Translation,
        source=texts,
        text=texts,
        hypotheses=st.lists(hypotheses, max_size=3).map(tuple),
        warnings=st.lists(texts, max_size=2).map(tuple),
        remarks=st.lists(texts, max_size=2).map(tuple),
    )
)
def test_translations_come_out_as_they_went_in(value: Translation) -> None:
    assert TRANSLATIONS.validate_json(result(TRANSLATIONS, [value, value])) == [value, value]


def test_numbers_that_json_has_not_come_out_too() -> None:
    score = TargetScore(log_prob=-math.inf, tokens=("a",), token_log_probs=(-math.inf,))
    assert SCORE.validate_json(result(SCORE, score)) == score


@pytest.mark.parametrize(
    "options",
    [{}, {"ban": ("@@x", "y")}, {"placeholders": ("number",)}, {"strategy": "sampling", "samples": 3, "top_p": 0.9}],
)
def test_settings_and_lines_come_out_as_they_went_in(options: dict[str, Any]) -> None:
    settings = DecodingSettings(**options)
    assert settings_of(settings_text(settings)) == settings
    lines = [Line(number=1, text="a\n"), Line(number=7, text="", constraints=("b", "c d"))]
    assert lines_of(lines_text(lines)) == lines


def test_errors_come_out_as_they_went_in_but_for_the_words_of_those_that_nobody_foresaw() -> None:
    known = [
        RequestError(422, "no", code="odd", field="text", retry_after=3),
        LineError(Line(number=4, text="secret"), "too long"),
        SettingsError("decoding.beam: no"),
        TranslationError("cannot"),
        TranslumeError("no"),
    ]
    for error in known:
        found = error_of(error_text(error, "places"))
        assert str(found) == str(error)
        assert isinstance(found, type(error))
    request, line = (error_of(error_text(each, "")) for each in known[:2])
    assert isinstance(request, RequestError)
    assert isinstance(line, LineError)
    assert (request.to_dict(), request.headers) == (known[0].to_dict(), known[0].headers)  # type: ignore[attr-defined]  # a RequestError too
    assert line.line.number == 4
    found = error_of(error_text(ValueError("secret"), "here"))
    assert isinstance(found, FailedElsewhereError)
    assert (found.kind, found.places, str(found)) == ("ValueError", "here", "ValueError")


def test_messages_of_many_threads_come_whole_and_those_of_one_in_order() -> None:
    one, other = (Channel(end) for end in socket.socketpair())

    def say(who: int) -> None:
        for number in range(50):
            one.send({"who": who, "number": number}, bytes([who]) * 10 * number)

    threads = [threading.Thread(target=say, args=(who,)) for who in range(3)]
    for each in threads:
        each.start()
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(150):
        message = other.receive()
        assert message is not None
        who, number = message.head["who"], message.head["number"]
        assert message.body == bytes([who]) * 10 * number
        heard[who].append(number)
    assert all(numbers == list(range(50)) for numbers in heard.values())
    one.end()
    assert other.receive() is None
    with pytest.raises(OSError, match=r"[Pp]ipe"):
        one.send({})
    for each in threads:
        each.join()
    one.close()
    other.close()


@pytest.mark.parametrize("begun", [b"", b"\0\0", SIZES.pack(5, 5) + b"{"])
def test_a_message_that_is_cut_off_is_none(begun: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall(begun)
    theirs.close()
    assert channel.receive() is None
    channel.close()
