"""What a measurement says, with the definition it was made by."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from translume.errors import SettingsError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number and how it came about.

    name: as in `[evaluation] metrics`.  title: as it is printed.  signature: its definition, as sacreBLEU writes it.
    detail: what the number is made of, such as BLEU's precisions; may be empty.
    """

    name: str
    title: str
    value: float
    signature: str
    detail: str = ""

    def __str__(self) -> str:
        """The full line, as sacreBLEU prints it."""
        line = f"{self.title}|{self.signature} = {self.value:.2f}"
        return f"{line} {self.detail}" if self.detail else line

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON knows it."""
        return {
            "name": self.name,
            "title": self.title,
            "value": self.value,
            "signature": self.signature,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """All measurements of one set of translations, which are kept beside them in the order of the sources."""

    scores: tuple[Score, ...]
    translations: tuple[str, ...]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    def __getitem__(self, name: str) -> Score:
        """The score of a metric; SettingsError if it was not measured."""
        for score in self.scores:
            if score.name == name:
                return score
        raise SettingsError(f"no score '{name}' was measured{nearest(name, [score.name for score in self.scores])}")

    def __str__(self) -> str:
        """A line a score."""
        return "\n".join(map(str, self.scores))

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON knows them, without the translations."""
        return {"sentences": len(self.translations), "scores": [score.to_dict() for score in self.scores]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where 95 % of the resampled values lie, and their mean."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two systems by one metric, on the same sentences.

    difference: of `second` minus `first` over the resamples.  p_value: how often resampling alone makes a difference
    as large as the one found.
    """

    first: Score
    second: Score
    first_interval: Interval
    second_interval: Interval
    difference: Interval
    p_value: float
    samples: int
    seed: int

    def __str__(self) -> str:
        """One line: both values with half the width of their intervals, the difference, p and how it was drawn."""
        one, other = (
            f"{score.value:.2f} ± {(interval.high - interval.low) / 2:.2f}"
            for score, interval in ((self.first, self.first_interval), (self.second, self.second_interval))
        )
        return (
            f"{self.first.title}|{self.first.signature}|bs:{self.samples}|seed:{self.seed}: {one} against {other}, "
            f"difference {self.second.value - self.first.value:+.2f} "
            f"[{self.difference.low:+.2f}, {self.difference.high:+.2f}], p = {self.p_value:.4f}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON knows it."""
        intervals = {
            name: {"mean": interval.mean, "low": interval.low, "high": interval.high}
            for name, interval in (
                ("first_interval", self.first_interval),
                ("second_interval", self.second_interval),
                ("difference", self.difference),
            )
        }
        return {
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            **intervals,
            "p_value": self.p_value,
            "samples": self.samples,
            "seed": self.seed,
        }
