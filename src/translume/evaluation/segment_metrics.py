"""Metrics that rate each text by itself, so that they can also rank the hypotheses of a source."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from translume.errors import SettingsError, TranslumeError
from translume.evaluation.scores import Counts, References, Score, count_references, known

Row = tuple[str, str, str]
"""A source, a text and a reference; "" for what a metric does not read."""
AT_ONCE = 1024
"""Rows that are rated between two reports of progress."""
KEPT = 1 << 20
"""Ratings kept in memory, about 200 bytes each."""
_ratings: dict[bytes, tuple[float, bool]] = {}
"""Ratings of this process, by the digest of the metric's definition and the row, and `SegmentMetric.cut` of it."""


class SegmentMetric(ABC):
    """A metric whose score is the mean of a rating of each text, by the best of its references. Larger is better.

    name, title: of the score.  reads_sources, reads_references: what a text is rated with.
    progress: called with the number of rows that were rated, and that of all to rate, if it is set.
    cut: whether the model did not read a text to its end, for each row of the last `compute`; empty: it reads any.
    """

    name: str
    title: str
    reads_sources = False
    reads_references = True
    progress: Callable[[int, int], object] | None = None
    cut: Sequence[bool] = ()
    _references = "0"
    _truncated: frozenset[bytes] = frozenset()

    @abstractmethod
    def definition(self) -> str:
        """Return the signature without the number of references: all that a rating depends on besides the row.

        It loads the model, so that errors come before long work.
        """

    @abstractmethod
    def compute(self, rows: Sequence[Row]) -> list[float]:
        """Return the ratings of at most `AT_ONCE` different rows."""

    def rate(self, rows: Sequence[Row]) -> list[float]:
        """Return the rating of each row. Each different row is computed once in this process."""
        start = self.definition().encode()
        keys = [hashlib.blake2b(repr((start, *row)).encode(), digest_size=16).digest() for row in rows]
        ratings = {key: _ratings[key] for key in keys if key in _ratings}
        missing = [*({key: row for key, row in zip(keys, rows, strict=True) if key not in ratings}.items())]
        for begin in range(0, len(missing), AT_ONCE):
            part = missing[begin : begin + AT_ONCE]
            values = self.compute([row for _, row in part])
            for (key, (_, text, _)), value, cut in zip(part, values, self.cut or [False] * len(part), strict=True):
                if not math.isfinite(value):
                    raise TranslumeError(f"{self.name}: its model rates the text {text[:80]!r} with {value}")
                ratings[key] = _ratings[key] = value, cut
            if self.progress is not None:
                self.progress(begin + len(part), len(missing))
        self._truncated |= {key for key, (_, cut) in ratings.items() if cut}
        for key in [*islice(_ratings, max(0, len(_ratings) - KEPT))]:
            _ratings.pop(key, None)
        return [ratings[key][0] for key in keys]

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2]: the best rating of each text, and 1. Raises SettingsError for missing sources."""
        if self.reads_sources and not sources:
            raise SettingsError(f"evaluation.metrics: '{self.name}' compares with the sources; expected --source FILE")
        read, others = sources if self.reads_sources else [""] * len(texts), [[""]] * len(texts)
        if self.reads_references:
            self._references = count_references(references)
            others = [known(each) for each in zip(*references, strict=True)]
        rows = zip(read, texts, others, strict=True)
        ratings = iter(self.rate([(source, text, other) for source, text, own in rows for other in own]))
        return np.array([(max(islice(ratings, len(own))), 1) for own in others], dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return the mean."""
        value, texts = total.tolist()
        cut = f"|truncated:{len(self._truncated)}" if self._truncated else ""
        signature = f"nrefs:{self._references}|{self.definition()}{cut}"
        return Score(name=self.name, title=self.title, value=value / max(texts, 1), signature=signature)
