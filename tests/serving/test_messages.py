"""Messages between the server and its workers are decoded as they were encoded."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.decoding import ScoreTerms
from translume.errors import SettingsError, TranslationError, TranslumeError
from translume.processes import UnexpectedChildError
from translume.serving.api.errors import RequestError
from translume.serving.workers.messages import SCORE, decode_error, encode_error
from translume.sources import Frames
from translume.translator import TargetScore, TextHypothesis, Translation
from translume.translator.alignment import Alignment
from translume.translator.messages import (
    CHUNK,
    TRANSLATIONS,
    decode_lines,
    decode_settings,
    encode,
    encode_frames,
    encode_lines,
    encode_results,
    encode_settings,
)
from translume.translator.planning import Line, LineError

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
        quality_warnings=st.lists(texts, max_size=2).map(tuple),
    )
)
def test_translations_round_trip(value: Translation) -> None:
    assert TRANSLATIONS.validate_json(encode(TRANSLATIONS, [value, value])) == [value, value]


def test_infinities_round_trip() -> None:
    score = TargetScore(log_prob=-math.inf, tokens=("a",), token_log_probs=(-math.inf,))
    assert SCORE.validate_json(encode(SCORE, score)) == score


@pytest.mark.parametrize(
    "options",
    [{}, {"ban": ("@@x", "y")}, {"placeholders": ("number",)}, {"strategy": "sampling", "samples": 3, "top_p": 0.9}],
)
def test_settings_and_lines_round_trip(options: dict[str, Any]) -> None:
    settings = DecodingSettings(**options)
    assert decode_settings(encode_settings(settings)) == settings
    lines = [Line(number=1, text="a\n"), Line(number=7, text="", constraints=("b", "c d"))]
    assert decode_lines(encode_lines(lines)) == lines
    frames = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 3), np.float32), np.ones((1, 3), np.float32)]
    files = [Line(number=2, text="", given=Frames(values)) for values in frames]
    found = decode_lines(encode_lines([files[0], *lines, *files[1:]]), encode_frames(files))
    assert found[1:3] == lines
    for line, values in zip((found[0], *found[3:]), frames, strict=True):
        assert isinstance(line.given, Frames)
        np.testing.assert_array_equal(line.given.values, values)


def test_errors_round_trip_except_the_text_of_unexpected_ones() -> None:
    known = [
        RequestError(422, "no", code="odd", field="text", retry_after=3),
        LineError(Line(number=4, text="secret"), "too long"),
        SettingsError("decoding.beam: no"),
        TranslationError("cannot"),
        TranslumeError("no"),
    ]
    for error in known:
        found = decode_error(json.loads(json.dumps(encode_error(error))))
        assert str(found) == str(error)
        assert isinstance(found, type(error))
    request, line = (decode_error(encode_error(each)) for each in known[:2])
    assert isinstance(request, RequestError)
    assert isinstance(line, LineError)
    assert (request.to_dict(), request.headers) == (known[0].to_dict(), known[0].headers)  # type: ignore[attr-defined]  # a RequestError too
    assert line.line.number == 4
    found = decode_error(encode_error(ValueError("secret")))
    assert isinstance(found, UnexpectedChildError)
    assert (found.kind, str(found)) == ("ValueError", "ValueError")


def test_translations_before_an_error_are_sent_first() -> None:
    def translations() -> Iterator[Translation]:
        for number in range(2 * CHUNK + 3):
            yield Translation(source=str(number), text="")
        raise TranslationError("no more")

    chunks = []
    with pytest.raises(TranslationError, match=r"^no more$"):
        chunks.extend(encode_results(TRANSLATIONS, translations()))
    found = [TRANSLATIONS.validate_json(chunk) for chunk in chunks]
    assert [len(each) for each in found] == [CHUNK, CHUNK, 3]
    assert [each.source for chunk in found for each in chunk] == [str(number) for number in range(2 * CHUNK + 3)]
