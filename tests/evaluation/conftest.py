"""Texts to score, and a translator without a model."""

from collections.abc import Iterable, Iterator

import pytest

from translume.config import Config, DecodingSettings, Direction
from translume.translator import TargetScore, Translation


class Upper:
    """A translator that returns upper case. Its log-probability is −1 nat per target word and −1 for EOS."""

    config = Config()

    def translate_all(
        self, texts: Iterable[str], *, settings: DecodingSettings | None = None, documents: object = None
    ) -> Iterator[Translation]:
        for text in texts:
            yield Translation(source=text, text=text.upper())

    def direction(self, *, to: str = "", from_: str = "") -> Direction:
        return Direction(source=from_, target=to or self.config.data.target_language)

    def score_all(self, pairs: Iterable[tuple[str, str]], **_direction: str | None) -> Iterator[TargetScore]:
        for _, target in pairs:
            tokens = (*target.split(), "</s>")
            yield TargetScore(log_prob=-float(len(tokens)), tokens=tokens, token_log_probs=(-1.0,) * len(tokens))


@pytest.fixture
def upper() -> Upper:
    return Upper()
