"""Whether one system is better than another or only luckier: paired bootstrap resampling (Koehn 2004)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from translume.config import EvaluationSettings
from translume.errors import SettingsError
from translume.evaluation.measure import check_lengths
from translume.evaluation.metric import Counts, Metric
from translume.evaluation.registry import metric_from
from translume.evaluation.values import Comparison, Interval

SAMPLES = 1000
SEED = 12345
"""sacreBLEU's own, so that its figures are ours."""

Values = NDArray[np.float64]


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    settings: EvaluationSettings,
    *,
    other_references: Sequence[Sequence[str]] = (),
    samples: int = SAMPLES,
    seed: int = SEED,
) -> tuple[Comparison, ...]:
    """Two systems' translations of the same sentences, by each metric of `settings`.

    The p-value is that of sacreBLEU's paired bootstrap test: the share of resamples whose absolute difference, less the
    mean of these, is at least the difference found; 1 where both systems say the same.
    Raises DataError where the lists are not of one length.
    """
    if samples < 1:
        raise SettingsError(f"compare: found {samples} samples, wanted at least 1")
    for texts in (first, second):
        check_lengths({"translations": texts}, [references, *other_references])
    comparisons = []
    for name in settings.metrics:
        metric = metric_from(name, settings)
        counts = [metric.count(texts, [references, *other_references]) for texts in (first, second)]
        one, other = resample(metric, counts, samples, seed)
        scores = [metric.score(each.sum(0)) for each in counts]
        found = abs(scores[1].value - scores[0].value)
        differences = np.abs(other - one)
        # sacreBLEU asks for larger ones only, by which a system would differ from itself with p = 0.001.
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
    """For each system's counts [n, m] its values [samples] on n sentences drawn with replacement, the same for all."""
    generator = np.random.default_rng(seed)
    sentences = len(counts[0])
    values = np.empty((len(counts), samples))
    for sample in range(samples):
        drawn = generator.choice(sentences, size=sentences, replace=True)
        for system, found in enumerate(counts):
            values[system, sample] = metric.score(found[drawn].sum(0)).value
    return list(values)


def interval(values: Values) -> Interval:
    """The mean and, at both ends, the value that a fortieth of the values lie beyond."""
    ordered = np.sort(values)
    outside = len(ordered) // 40
    return Interval(mean=float(ordered.mean()), low=float(ordered[outside]), high=float(ordered[-1 - outside]))
