"""Traces of recordings by an imported Whisper."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.whisper.conftest import POSITIONS, sound

import translume
from translume.errors import SettingsError, TranslationError
from translume.inspection import record_beam


def test_a_window_is_traced_with_the_prompt_of_its_language(whisper: SimpleNamespace) -> None:
    recording = sound(9000)
    best = whisper.translator.translate(recording, from_="de", max_length=9).hypotheses[0]
    settings = whisper.translator.config.decoding.model_copy(update={"from_": "de", "max_length": 9})
    found = translume.trace(whisper.translator, recording, settings=settings)
    assert [token.id for token in found.target_tokens] == list(best.ids)
    assert found.log_p == pytest.approx(best.log_prob, abs=1e-3)
    assert record_beam(whisper.translator, recording, settings=settings).finished[0].ids == best.ids
    assert len(found.source_tokens) == POSITIONS
    assert len(found.frames.levels) == found.source_tokens[-1].end <= 2 * POSITIONS
    assert found.frames.aligned_by == "attention"
    weights = np.array(found.attention.cross[1])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-4)


def test_the_silence_that_fills_a_window_is_not_drawn(whisper: SimpleNamespace) -> None:
    found = translume.trace(whisper.translator, sound(3200), "The dog", settings=named("de", whisper))
    assert 20 <= len(found.frames.levels) <= 23  # a fifth of a second, and the end of its last window
    assert found.source_tokens[-1].begin == found.source_tokens[-1].end == len(found.frames.levels)


def test_the_language_is_detected_as_by_translate(whisper: SimpleNamespace) -> None:
    recording = sound(9000)
    language = whisper.translator.translate(recording, max_length=5).language
    own = translume.trace(whisper.translator, recording, "The dog", show=())
    named_ = translume.trace(whisper.translator, recording, "The dog", show=(), settings=named(language, whisper))
    assert own.log_p == named_.log_p


def named(language: str, whisper: SimpleNamespace) -> object:
    return whisper.translator.config.decoding.model_copy(update={"from_": language})


def test_several_windows_times_and_silence_are_refused(whisper: SimpleNamespace) -> None:
    with pytest.raises(TranslationError) as error:
        translume.trace(whisper.translator, sound(30_000), "a")
    frames = 30_000 // 160
    assert str(error.value) == (
        f"source: <ndarray 30000>: {frames} frames, expected at most {2 * POSITIONS}, one window; inspect parts of it"
    )
    timed = whisper.translator.config.decoding.model_copy(update={"timestamps": True})
    with pytest.raises(SettingsError, match=r"inspection: found decoding.timestamps = true, expected false"):
        translume.trace(whisper.translator, sound(900), settings=timed)
    with pytest.raises(TranslationError, match="source: found digital silence, expected speech"):
        translume.trace(whisper.translator, np.zeros(9000, np.float32))
