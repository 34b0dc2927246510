"""Error rates over whitespace-separated tokens (words of speech, phones of a pronunciation), and exact match."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation.scores import Counts, Metric, Score


def edits(found: Sequence[str], reference: Sequence[str]) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions between two sequences."""
    row = list(range(len(reference) + 1))
    for number, token in enumerate(found, start=1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(reference, start=1):
            best = diagonal + (token != other)
            diagonal = row[place]
            row[place] = min(best, diagonal + 1, row[place - 1] + 1)
    return row[-1]


def _tokens(text: str, lowercase: bool) -> list[str]:
    return (text.lower() if lowercase else text).split()


@lru_cache(maxsize=2)  # WER and PER of the same texts share the counts
def _edit_counts(translations: tuple[str, ...], references: tuple[tuple[str, ...], ...], lowercase: bool) -> Counts:
    """Return [n, 2]: fewest edits to any reference, and the tokens of that reference."""
    rows = []
    for translation, *texts in zip(translations, *references, strict=True):
        found = _tokens(translation, lowercase)
        choices = [_tokens(text, lowercase) for text in texts]
        fewest, length = min((edits(found, tokens), -len(tokens)) for tokens in choices)
        rows.append((fewest, -length))
    counts: Counts = np.array(rows, dtype=np.float64)
    counts.flags.writeable = False
    return counts


class ErrorRate:
    """Insertions, deletions and substitutions per reference token, in percent, over the whole set.

    With several references, the one with the fewest edits counts; among equals, the longest.
    """

    higher_is_better = False

    def __init__(self, name: str, title: str, *, lowercase: bool) -> None:
        self._name, self._title, self._lowercase = name, title, lowercase
        self._references = 0

    def count(self, translations: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """Return [n, 2]: edits, and tokens of the reference."""
        self._references = len(references)
        return _edit_counts(tuple(translations), tuple(map(tuple, references)), self._lowercase)

    def score(self, total: Counts) -> Score:
        """Return a percentage, which may exceed 100; infinite if there are edits but no reference tokens."""
        wrong, tokens = total.tolist()
        case = "lc" if self._lowercase else "mixed"
        return Score(
            name=self._name,
            title=self._title,
            value=100 * wrong / tokens if tokens else (float("inf") if wrong else 0.0),
            signature=f"nrefs:{self._references}|case:{case}|tok:blank|edits:levenshtein",
            detail=f"({wrong:.0f} edits, {tokens:.0f} tokens)",
        )


class ExactMatch:
    """Percentage of sentences that equal one of their references, ignoring white space at both ends.

    In grapheme-to-phoneme work, 100 minus this number is called the word error rate.
    """

    higher_is_better = True

    def __init__(self, *, lowercase: bool) -> None:
        self._lowercase = lowercase
        self._references = 0

    def count(self, translations: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """Return [n, 2]: 1 for a match, else 0; and 1."""
        self._references = len(references)
        rows = []
        for translation, *texts in zip(translations, *references, strict=True):
            rows.append((self._normalise(translation) in map(self._normalise, texts), 1))
        return np.array(rows, dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return a percentage."""
        right, sentences = total.tolist()
        case = "lc" if self._lowercase else "mixed"
        return Score(
            name="exact_match",
            title="exact match",
            value=100 * right / sentences,
            signature=f"nrefs:{self._references}|case:{case}",
            detail=f"({right:.0f} of {sentences:.0f})",
        )

    def _normalise(self, text: str) -> str:
        return text.strip().lower() if self._lowercase else text.strip()


def word_error_rate(settings: EvaluationSettings) -> Metric:
    """Return the word error rate: tokens are words."""
    return ErrorRate("wer", "WER", lowercase=settings.lowercase)


def phone_error_rate(settings: EvaluationSettings) -> Metric:
    """Return the phone error rate: tokens are phones."""
    return ErrorRate("per", "PER", lowercase=settings.lowercase)


def exact_match(settings: EvaluationSettings) -> Metric:
    """Return the exact match metric, with or without case."""
    return ExactMatch(lowercase=settings.lowercase)
