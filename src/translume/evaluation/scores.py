"""The metric interface, and scores that carry the definition they were computed by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from translume.errors import SettingsError, nearest
from translume.json_values import JsonValue, to_values
from translume.notebook import as_table

Counts = NDArray[np.float64]

Test = Literal["bootstrap", "randomisation"]
TESTS: dict[Test, str] = {"bootstrap": "bs", "randomisation": "ar"}
"""Significance tests, and their names in signatures, which are sacreBLEU's."""

References = Sequence[Sequence[str | None]]
"""One or more lists of n references; None where a text has fewer references than others."""


def known(references: Sequence[str | None]) -> list[str]:
    """Return the references of one text without the missing ones."""
    return [reference for reference in references if reference is not None]


def count_references(references: References) -> str:
    """Return the number of references of each text for a signature, or "var" if texts have different numbers."""
    numbers = {len(known(each)) for each in zip(*references, strict=True)}
    return str(numbers.pop()) if len(numbers) == 1 else "var"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(JsonValue):
    """One number and its definition.

    name: as in `[evaluation] metrics`.  title: as printed.  value: may be infinite, which is null in JSON.
    signature: the definition, in sacreBLEU's notation.  detail: the parts of
    the number, such as BLEU's precisions; may be empty.  digits: decimal places printed.
    """

    name: str
    title: str
    value: float
    signature: str
    detail: str = ""
    digits: int = 2

    def __str__(self) -> str:
        """Return the full line, as sacreBLEU prints it."""
        line = f"{self.title}|{self.signature} = {self.value:.{self.digits}f}"
        return f"{line} {self.detail}" if self.detail else line


class Scorer(Protocol):
    """What makes a score of statistics of sentences, as significance tests need it."""

    def score(self, total: Counts) -> Score:
        """Return the score of a set of sentences from the sum [m] of their statistics; call after `count`."""


class Metric(Scorer, Protocol):
    """A metric over a whole test set. Create a new one for each use: it remembers how many references it read."""

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return the statistics [n, m] of n texts. Raises SettingsError if the metric needs sources and has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """All scores of one set of translations, with the translations in the order of the sources."""

    scores: tuple[Score, ...]
    translations: tuple[str, ...]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    def __getitem__(self, name: str) -> Score:
        """Return the score of a metric; raise SettingsError if it was not measured."""
        for score in self.scores:
            if score.name == name:
                return score
        raise SettingsError(f"no score '{name}' was measured{nearest(name, [score.name for score in self.scores])}")

    def __str__(self) -> str:
        """Return one line per score."""
        return "\n".join(map(str, self.scores))

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [(each.title, f"{each.value:.{each.digits}f}", each.signature, each.detail) for each in self.scores]
        return as_table(("metric", "value", "definition", "parts"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON object, without the translations."""
        return {"sentences": len(self.translations), "scores": to_values(self.scores)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The mean of the resampled values, and the interval that holds 95 % of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(JsonValue):
    """Two systems compared by one metric on the same sentences.

    difference: `second` minus `first` over the resamples.  p_value: the probability that resampling alone gives a
    difference as large as the observed one; unreliable for fewer than 100 sentences.
    test: by which p was computed, with `samples`; the intervals are those of a bootstrap.
    """

    first: Score
    second: Score
    first_interval: Interval
    second_interval: Interval
    difference: Interval
    p_value: float
    samples: int
    seed: int
    sentences: int
    test: Test = "bootstrap"

    def __str__(self) -> str:
        """Return one line: both values with half their interval's width, the difference, p, samples and seed."""
        first, second = (
            f"{score.value:.2f} ± {(interval.high - interval.low) / 2:.2f}"
            for score, interval in ((self.first, self.first_interval), (self.second, self.second_interval))
        )
        return (
            f"{self.first.title}|{self.first.signature}|{TESTS[self.test]}:{self.samples}|seed:{self.seed}|"
            f"sentences:{self.sentences}: {first} against {second}, "
            f"difference {self.second.value - self.first.value:+.2f} "
            f"[{self.difference.low:+.2f}, {self.difference.high:+.2f}], p = {self.p_value:.4f}"
        )
