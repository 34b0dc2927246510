"""Error rates over words, phones or characters, and exact match."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation.scores import Counts, Metric, References, Score, count_references, known

Unit = Literal["blank", "char"]


def edits(found: Sequence[str], reference: Sequence[str]) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions between two sequences.

    By the algorithm of Myers (1999), as Hyyrö (2003) writes it: bit n of an integer stands for token n of `found`, so
    that a column of the table is a few operations on integers.
    """
    if not found:
        return len(reference)
    places: dict[str, int] = {}
    for number, token in enumerate(found):
        places[token] = places.get(token, 0) | 1 << number
    whole, last = (1 << len(found)) - 1, 1 << len(found) - 1
    plus, minus, distance = whole, 0, len(found)  # where a cell is one more, or one less, than the cell before it
    for token in reference:
        equal = places.get(token, 0)
        vertical, diagonal = equal | minus, (((equal & plus) + plus) ^ plus) | equal
        up, down = minus | (whole & ~(diagonal | plus)), plus & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        plus, minus = (down | ~(vertical | up)) & whole, up & vertical & whole
    return distance


def _blank_separated(text: str) -> list[str]:
    return text.split()


def _characters(text: str) -> list[str]:
    return list(" ".join(text.split()))


@lru_cache(maxsize=2)  # WER and PER of the same texts share the counts
def _edit_counts(
    texts: tuple[str, ...], references: tuple[tuple[str | None, ...], ...], unit: Unit, lowercase: bool
) -> Counts:
    """Return [n, 2]: fewest edits to any reference, and the tokens of that reference."""
    split = _characters if unit == "char" else _blank_separated
    rows = []
    for text, *others in zip(texts, *references, strict=True):
        found = split(text.lower() if lowercase else text)
        choices = [split(other.lower() if lowercase else other) for other in known(others)]
        fewest, length = min((edits(found, tokens), -len(tokens)) for tokens in choices)
        rows.append((fewest, -length))
    counts: Counts = np.array(rows, dtype=np.float64)
    counts.flags.writeable = False
    return counts


class ErrorRate:
    """Insertions, deletions and substitutions per reference token, in percent, over the whole set.

    With several references, the one with the fewest edits counts; among equals, the longest.
    unit: "blank" for tokens separated by blanks; "char" for characters, a run of blanks being one.
    """

    def __init__(self, name: str, title: str, *, unit: Unit, lowercase: bool) -> None:
        self._name, self._title, self._unit, self._lowercase = name, title, unit, lowercase
        self._references = ""

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2]: edits, and tokens of the reference."""
        self._references = count_references(references)
        return _edit_counts(tuple(texts), tuple(map(tuple, references)), self._unit, self._lowercase)

    def score(self, total: Counts) -> Score:
        """Return a percentage, which may exceed 100; infinite if there are edits but no reference tokens."""
        wrong, tokens = total.tolist()
        case = "lc" if self._lowercase else "mixed"
        return Score(
            name=self._name,
            title=self._title,
            value=100 * wrong / tokens if tokens else (float("inf") if wrong else 0.0),
            signature=f"nrefs:{self._references}|case:{case}|tok:{self._unit}|edits:levenshtein",
            detail=f"({wrong:.0f} edits, {tokens:.0f} tokens)",
        )


class ExactMatch:
    """Percentage of sentences that equal one of their references, ignoring white space at both ends.

    In grapheme-to-phoneme work, 100 minus this number is called the word error rate; in dialogue state tracking, this
    number of whole states is called the joint goal accuracy.
    """

    def __init__(self, *, lowercase: bool) -> None:
        self._lowercase = lowercase
        self._references = ""

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2]: 1 for a match, else 0; and 1."""
        self._references = count_references(references)
        rows = []
        for text, *others in zip(texts, *references, strict=True):
            rows.append((self._normalise(text) in map(self._normalise, known(others)), 1))
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
    """Return the word error rate, for words separated by blanks."""
    return ErrorRate("wer", "WER", unit="blank", lowercase=settings.lowercase)


def phone_error_rate(settings: EvaluationSettings) -> Metric:
    """Return the phone error rate, for phones separated by blanks."""
    return ErrorRate("per", "PER", unit="blank", lowercase=settings.lowercase)


def character_error_rate(settings: EvaluationSettings) -> Metric:
    """Return the character error rate; blanks between words are characters."""
    return ErrorRate("cer", "CER", unit="char", lowercase=settings.lowercase)


def exact_match(settings: EvaluationSettings) -> Metric:
    """Return the exact match metric, with or without case."""
    return ExactMatch(lowercase=settings.lowercase)
