"""Test whether one system is significantly better than another: paired bootstrap resampling (Koehn 2004)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from translume.config import EvaluationSettings
from translume.errors import SettingsError, suggest_keywords
from translume.evaluation.metrics import check_lengths, metric_from
from translume.evaluation.scores import Comparison, Counts, Interval, Metric, References

SAMPLES = 1000
SEED = 12345
"""sacreBLEU's default seed, so that both give the same figures."""

Values = NDArray[np.float64]


@suggest_keywords
def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str | None],
    settings: EvaluationSettings,
    *,
    other_references: References = (),
    sources: Sequence[str] = (),
    samples: int = SAMPLES,
    seed: int = SEED,
) -> tuple[Comparison, ...]:
    """Compare two systems' translations of the same sentences by each metric of `settings`.

    The p-value is that of sacreBLEU's paired bootstrap test: the fraction of resamples whose absolute difference, minus
    the mean of these differences, is at least the observed difference. It is 1 for identical translations.
    Raises DataError if the lists differ in length.
    """
    if samples < 1:
        raise SettingsError(f"compare: found {samples} samples, expected at least 1")
    for texts in (first, second):
        check_lengths(
            {"translations": texts, **({"sources": sources} if sources else {})}, [references, *other_references]
        )
    comparisons = []
    for name in settings.names:
        metric = metric_from(name, settings)
        counts = [metric.count(texts, [references, *other_references], sources) for texts in (first, second)]
        one, other = resample(metric, counts, samples, seed)
        scores = [metric.score(each.sum(0)) for each in counts]
        found = abs(scores[1].value - scores[0].value)
        differences = np.abs(other - one)
        # sacreBLEU uses > here, which gives p = 0.001 when a system is compared with itself.
        above = int((differences - differences.mean() >= found).sum())
        comparisons.append(
            Comparison(
                first=scores[0],
                second=scores[1],
                first_interval=interval(one),
                second_interval=interval(other),
                difference=interval(other - one),
                p_value=(above + 1) / (samples + 1),
                samples=samples,
                seed=seed,
            )
        )
    return tuple(comparisons)


def resample(metric: Metric, counts: Sequence[Counts], samples: int, seed: int) -> list[Values]:
    """Return each system's values [samples] on n sentences drawn with replacement (the same for all systems).

    counts: [n, m] for each system.
    """
    generator = np.random.default_rng(seed)
    sentences = len(counts[0])
    values = np.empty((len(counts), samples))
    for sample in range(samples):
        drawn = generator.choice(sentences, size=sentences, replace=True)
        for system, found in enumerate(counts):
            values[system, sample] = metric.score(found[drawn].sum(0)).value
    return list(values)


def interval(values: Values) -> Interval:
    """Return the mean and the interval that leaves one fortieth of the values out at each end."""
    ordered = np.sort(values)
    outside = len(ordered) // 40
    return Interval(mean=float(ordered.mean()), low=float(ordered[outside]), high=float(ordered[-1 - outside]))
