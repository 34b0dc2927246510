"""Metrics that sacreBLEU computes (Post 2018)."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.base import Metric as SacreMetric

from translume.evaluation.metric import Counts
from translume.evaluation.values import Score


class SacreScore:
    """A metric of sacreBLEU as ours; numbers, signature and printed line are sacreBLEU's own."""

    def __init__(self, name: str, metric: SacreMetric, *, higher_is_better: bool) -> None:
        self.higher_is_better = higher_is_better
        self._name, self._metric = name, metric

    def count(self, translations: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """What sacreBLEU resamples in its own significance tests."""
        return np.array(self._metric._extract_corpus_statistics(translations, references), dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """The score with its signature; the detail is what sacreBLEU prints after the number."""
        found = self._metric._compute_score_from_stats(total.tolist())
        return Score(
            name=self._name,
            title=found.name,
            value=float(found.score),
            signature=str(self._metric.get_signature()),
            detail=found._verbose,
        )
