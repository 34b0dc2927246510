"""Exact match: how many translations are a reference."""

from collections.abc import Sequence

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation.metric import Counts, Metric
from translume.evaluation.values import Score


class ExactMatch:
    """The percentage of sentences that equal one of their references, white space at both ends aside.

    100 minus it is what grapheme-to-phoneme work calls the word error rate.
    """

    higher_is_better = True

    def __init__(self, *, lowercase: bool) -> None:
        self._lowercase = lowercase
        self._references = 0

    def count(self, translations: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """[n, 2]: whether it matches, and 1."""
        self._references = len(references)
        rows = []
        for translation, *wanted in zip(translations, *references, strict=True):
            rows.append((self._plain(translation) in map(self._plain, wanted), 1))
        return np.array(rows, dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """A percentage."""
        right, sentences = total.tolist()
        case = "lc" if self._lowercase else "mixed"
        return Score(
            name="exact_match",
            title="exact match",
            value=100 * right / sentences,
            signature=f"nrefs:{self._references}|case:{case}",
            detail=f"({right:.0f} of {sentences:.0f})",
        )

    def _plain(self, text: str) -> str:
        return text.strip().lower() if self._lowercase else text.strip()


def exact_match(settings: EvaluationSettings) -> Metric:
    """Exact match, with or without case."""
    return ExactMatch(lowercase=settings.lowercase)
