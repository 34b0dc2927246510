"""Texts to measure, and a translator that needs no model."""

from collections.abc import Iterable, Iterator

import pytest

from translume.config import Config, DecodingSettings
from translume.translator import TargetScore, Translation


class Upper:
    """Translates by writing capitals; thinks that every word of a target costs one nat, and so does its end."""

    config = Config()

    def translate_all(self, texts: Iterable[str], *, settings: DecodingSettings | None = None) -> Iterator[Translation]:
        for text in texts:
            yield Translation(source=text, text=text.upper())

    def score_all(self, pairs: Iterable[tuple[str, str]]) -> Iterator[TargetScore]:
        for _, target in pairs:
            tokens = (*target.split(), "</s>")
            yield TargetScore(log_prob=-float(len(tokens)), tokens=tokens, token_log_probs=(-1.0,) * len(tokens))


@pytest.fixture
def upper() -> Upper:
    return Upper()
