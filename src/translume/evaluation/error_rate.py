"""Error rates of tokens between blanks: words of speech, phones of a pronunciation."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation.metric import Counts, Metric
from translume.evaluation.values import Score


class ErrorRate:
    """Insertions, deletions and substitutions per token of the reference, in percent, over the whole set.

    Of several references the one that needs the fewest edits counts, of equal ones the longest.
    """

    higher_is_better = False

    def __init__(self, name: str, title: str, *, lowercase: bool) -> None:
        self._name, self._title, self._lowercase = name, title, lowercase
        self._references = 0

    def count(self, translations: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """[n, 2]: edits, and tokens of the reference."""
        self._references = len(references)
        return _counted(tuple(translations), tuple(map(tuple, references)), self._lowercase)

    def score(self, total: Counts) -> Score:
        """A percentage, which may exceed 100; infinite if there are edits and no reference has a token."""
        wrong, tokens = total.tolist()
        case = "lc" if self._lowercase else "mixed"
        return Score(
            name=self._name,
            title=self._title,
            value=100 * wrong / tokens if tokens else (float("inf") if wrong else 0.0),
            signature=f"nrefs:{self._references}|case:{case}|tok:blank|edits:levenshtein",
            detail=f"({wrong:.0f} edits, {tokens:.0f} tokens)",
        )


@lru_cache(maxsize=2)
def _counted(translations: tuple[str, ...], references: tuple[tuple[str, ...], ...], lowercase: bool) -> Counts:
    """[n, 2]: fewest edits, and tokens of that reference; kept for the other rate, which counts the same."""
    rows = []
    for translation, *wanted in zip(translations, *references, strict=True):
        found = _tokens(translation, lowercase)
        choices = [_tokens(text, lowercase) for text in wanted]
        fewest, length = min((edits(found, tokens), -len(tokens)) for tokens in choices)
        rows.append((fewest, -length))
    counts: Counts = np.array(rows, dtype=np.float64)
    counts.flags.writeable = False
    return counts


def _tokens(text: str, lowercase: bool) -> list[str]:
    return (text.lower() if lowercase else text).split()


def edits(found: Sequence[str], wanted: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions of one token that turn `found` into `wanted`."""
    row = list(range(len(wanted) + 1))
    for number, token in enumerate(found, start=1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(wanted, start=1):
            best = diagonal + (token != other)
            diagonal = row[place]
            row[place] = min(best, diagonal + 1, row[place - 1] + 1)
    return row[-1]


def word_error_rate(settings: EvaluationSettings) -> Metric:
    """WER: tokens are words."""
    return ErrorRate("wer", "WER", lowercase=settings.lowercase)


def phone_error_rate(settings: EvaluationSettings) -> Metric:
    """PER: the same count where tokens are phones."""
    return ErrorRate("per", "PER", lowercase=settings.lowercase)
