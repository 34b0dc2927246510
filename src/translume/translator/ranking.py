"""Minimum Bayes risk: rank hypotheses by mean similarity to all (Kumar and Byrne 2004; Eikema and Aziz 2022).

Utilities are sentence BLEU and chrF as sacreBLEU defines them. Texts are cut into n-grams once each, not once a pair:
with a column for the r-th occurrence of each n-gram, the matches of all pairs are one product of 0-1 matrices.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from translume.config import DecodingSettings, EvaluationSettings
from translume.errors import SettingsError, needed_by
from translume.parts import find
from translume.translator.results import TextHypothesis

Utilities = NDArray[np.float64]
CHARACTERS, WORDS = 6, 4
"""Longest n-grams of chrF and BLEU."""
BETA = 2.0
"""Weight of recall against precision in chrF."""
COLUMNS = 1 << 14
"""Columns of a 0-1 matrix in memory at a time."""


class SegmentRating(Protocol):
    """A metric that rates each text by itself, as `translume.evaluation.SegmentMetric`."""

    reads_sources: bool
    reads_references: bool

    def rate(self, rows: Sequence[tuple[str, str, str]]) -> list[float]:
        """Return the rating of each source, text and reference; larger is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overlap:
    """Counts of n-grams of the orders 1 to m in n texts.  totals: [m, n].  matches: [m, n, n], of each pair."""

    totals: Utilities
    matches: Utilities


def minimum_bayes_risk(hypotheses: Sequence[TextHypothesis], utility: str, nbest: int) -> list[TextHypothesis]:
    """The `nbest` hypotheses with the highest mean utility against all of `hypotheses`, 0 to 100, as their new score.

    utility: a name in `MEASURES`.  Hypotheses with equal texts count as often as they were found; the first of them is
    returned. Ties keep their order. `terms`, which explained the old score, become None.
    """
    return _ranked(hypotheses, MEASURES[utility](list(Counter(each.text for each in hypotheses))), nbest)


def rank_by_metric(
    candidates: Sequence[Sequence[TextHypothesis]], sources: Sequence[str], metric: SegmentRating, nbest: int
) -> list[list[TextHypothesis]]:
    """The `nbest` best hypotheses of each source: by mean rating against all of them, as `minimum_bayes_risk`.

    If the metric reads no references, by their rating. All pairs of all sources are rated in one call.
    """
    texts = [list(dict.fromkeys(each.text for each in own)) for own in candidates]
    others = texts if metric.reads_references else [[""]] * len(texts)
    pairs = zip(sources, texts, others, strict=True)
    rows = [(source, text, other) for source, own, against in pairs for text in own for other in against]
    ratings = iter(metric.rate(rows))
    ranked = []
    for hypotheses, own, against in zip(candidates, texts, others, strict=True):
        table = np.array([[next(ratings) for _ in against] for _ in own])
        ranked.append(_ranked(hypotheses, np.broadcast_to(table, (len(own), len(own))), nbest))
    return ranked


def _ranked(hypotheses: Sequence[TextHypothesis], utilities: Utilities, nbest: int) -> list[TextHypothesis]:
    """The best hypotheses by mean utility.  utilities: [n, n], of each different text against each."""
    counts = Counter(hypothesis.text for hypothesis in hypotheses)
    texts = list(counts)
    weights = np.array([counts[text] for text in texts], dtype=np.float64)
    means = utilities @ weights / weights.sum()
    score = dict(zip(texts, means.tolist(), strict=True))
    first = {hypothesis.text: hypothesis for hypothesis in reversed(hypotheses)}
    ranked = sorted(texts, key=lambda text: -score[text])[:nbest]
    return [replace(first[text], score=score[text], terms=None) for text in ranked]


def utility_metric(settings: DecodingSettings, evaluation: EvaluationSettings) -> SegmentRating | None:
    """The metric of `decoding.utility`; None for "none" and for those in `MEASURES`.

    Raises SettingsError for a metric that is not computed text by text, or whose model is not there.
    """
    name = settings.utility
    evaluation = evaluation.with_model(name, settings.utility_model)
    if name == "none" or name in MEASURES:
        return None
    metric: SegmentRating = find("metric", name)(evaluation)
    if not hasattr(metric, "rate"):
        raise SettingsError(f"decoding.utility: '{name}' does not rate single texts, expected a SegmentMetric")
    return metric


def pairwise_chrf(texts: Sequence[str]) -> Utilities:
    """[n, n]: chrF2, 0 to 100, of each text (row) with each as its reference (column) (Popović 2015)."""
    overlap = _overlap(["".join(text.split()) for text in texts], CHARACTERS)
    hypotheses, references = overlap.totals[:, :, None], overlap.totals[:, None, :]
    both = (hypotheses > 0) & (references > 0)  # without the orders that are longer than a text
    orders = np.maximum(both.sum(0), 1)
    precision = (overlap.matches / np.maximum(hypotheses, 1)).sum(0, where=both) / orders
    recall = (overlap.matches / np.maximum(references, 1)).sum(0, where=both) / orders
    none = precision + recall == 0
    scores: Utilities = precision * recall / np.where(none, 1, BETA**2 * precision + recall)
    return 100 * (1 + BETA**2) * scores


def pairwise_bleu(texts: Sequence[str]) -> Utilities:
    """[n, n]: sentence BLEU, 0 to 100, of each text (row) with each as its reference (column).

    As sacreBLEU's sentence score: tokenizer 13a, exponential smoothing, at most as many orders as the text has words.
    """
    with needed_by("decoding.utility: 'bleu'"):
        from sacrebleu.metrics.bleu import BLEU

    tokenizer = BLEU(tokenize="13a").tokenizer
    words = [tuple(tokenizer(text.rstrip()).split()) for text in texts]
    overlap = _overlap(words, WORDS)
    matches = overlap.matches
    totals = np.maximum(overlap.totals, 1)[:, :, None]
    has = np.broadcast_to((overlap.totals > 0)[:, :, None], matches.shape)
    # The first order without a match counts as 1/2 match, the second as 1/4, … (Chen and Cherry 2014, method 3).
    halvings = np.cumsum(has & (matches == 0), 0)
    logs = np.log(np.where(matches > 0, matches, 0.5**halvings) / totals)
    means = logs.sum(0, where=has) / np.maximum(has.sum(0), 1)
    lengths = np.array([len(each) for each in words], dtype=np.float64)
    brevity = np.exp(np.minimum(0.0, 1 - lengths[None, :] / np.maximum(lengths, 1)[:, None]))
    return np.where(matches.any(0), 100 * brevity * np.exp(means), 0.0)


MEASURES: dict[str, Callable[[Sequence[str]], Utilities]] = {"chrf": pairwise_chrf, "bleu": pairwise_bleu}
"""Utilities of all pairs of texts."""


def _overlap(sequences: Sequence[Sequence[str]], longest: int) -> _Overlap:
    """Common n-grams of sequences of characters (str) or words (tuples); each n-gram matches at most once."""
    totals = [[max(len(each) - order + 1, 0) for each in sequences] for order in range(1, longest + 1)]
    matches = [_matches(sequences, order) for order in range(1, longest + 1)]
    return _Overlap(totals=np.array(totals, dtype=np.float64), matches=np.array(matches))


def _matches(sequences: Sequence[Sequence[str]], order: int) -> Utilities:
    """[n, n]: the number of common n-grams of one order of each two sequences."""
    column_of: dict[tuple[Sequence[str], int], int] = {}
    rows, columns = [], []
    for row, sequence in enumerate(sequences):
        seen: Counter[Sequence[str]] = Counter()
        for start in range(len(sequence) - order + 1):
            gram = sequence[start : start + order]
            seen[gram] += 1
            rows.append(row)
            columns.append(column_of.setdefault((gram, seen[gram]), len(column_of)))
    places, column = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
    matches = np.zeros((len(sequences), len(sequences)))
    for start in range(0, len(column_of), COLUMNS):
        here = (column >= start) & (column < start + COLUMNS)
        part = np.zeros((len(sequences), min(COLUMNS, len(column_of) - start)), dtype=np.float32)
        part[places[here], column[here] - start] = 1.0
        matches += part @ part.T  # integers, exact in fp32 up to 2²⁴
    return matches
