"""Significance tests between two systems: the paired bootstrap (Koehn 2004) and approximate randomisation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from translume.evaluation.scores import Comparison, Counts, Interval, Scorer, Test

SAMPLES, SHUFFLES = 1000, 10_000
"""Samples of a bootstrap, and of approximate randomisation; sacreBLEU's defaults."""
ROWS, TIE = 32, 1e-9
"""Exchanges drawn at once: 32 give sacreBLEU's random bits for any number of sentences. Differences that are none."""
SEED = 12345
"""sacreBLEU's default seed, so that both give the same figures."""
Values = NDArray[np.float64]


def compare_counts(
    metric: Scorer, counts: Sequence[Counts], *, samples: int | None = None, seed: int = SEED, test: Test = "bootstrap"
) -> Comparison:
    """Compare two systems by their counts [n, m], which the same metric made; see `translume.compare`."""
    resamples = samples if samples is not None and test == "bootstrap" else SAMPLES
    first_values, second_values = resample(metric, counts, resamples, seed)
    scores = [metric.score(each.sum(0)) for each in counts]
    observed = abs(scores[1].value - scores[0].value)
    differences = np.abs(second_values - first_values)
    # sacreBLEU uses > here, which gives p = 0.001 when a system is compared with itself.
    above = int((differences - differences.mean() >= observed).sum())
    shuffles = samples or SHUFFLES
    return Comparison(
        first=scores[0],
        second=scores[1],
        first_interval=interval(first_values),
        second_interval=interval(second_values),
        difference=interval(second_values - first_values),
        p_value=(above + 1) / (resamples + 1) if test == "bootstrap" else randomise(metric, counts, shuffles, seed),
        samples=resamples if test == "bootstrap" else shuffles,
        seed=seed,
        sentences=len(counts[0]),
        test=test,
    )


def randomise(metric: Scorer, counts: Sequence[Counts], samples: int, seed: int) -> float:
    """Return the p-value of paired approximate randomisation (Riezler and Maxwell 2005).

    It is the share of `samples` random exchanges of the two systems' translations, each sentence's with probability a
    half, after which the systems differ at least as much as they do. counts: [n, m] for each of the two.
    """
    generator, (first_counts, second_counts) = np.random.default_rng(seed), counts

    def difference(first: Counts) -> float:
        return abs(metric.score(first).value - metric.score(first_counts.sum(0) + second_counts.sum(0) - first).value)

    observed, above = difference(first_counts.sum(0)) - TIE, 0
    for start in range(0, samples, ROWS):
        kept = generator.integers(2, size=(min(ROWS, samples - start), len(first_counts)), dtype=bool)
        above += sum(difference(first) >= observed for first in kept @ first_counts + ~kept @ second_counts)
    return (above + 1) / (samples + 1)


def resample(metric: Scorer, counts: Sequence[Counts], samples: int, seed: int) -> list[Values]:
    """Return each system's values [samples] on n sentences drawn with replacement (the same for all systems).

    counts: [n, m] for each system.
    """
    generator = np.random.default_rng(seed)
    sentences = len(counts[0])
    values = np.empty((len(counts), samples))
    for sample in range(samples):
        drawn = generator.choice(sentences, size=sentences, replace=True)
        for system, rows in enumerate(counts):
            values[system, sample] = metric.score(rows[drawn].sum(0)).value
    return list(values)


def interval(values: Values) -> Interval:
    """Return the mean and the interval that leaves one fortieth of the values out at each end."""
    ordered = np.sort(values)
    outside = len(ordered) // 40
    return Interval(mean=float(ordered.mean()), low=float(ordered[outside]), high=float(ordered[-1 - outside]))
