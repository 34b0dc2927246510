"""Metrics computed by sacreBLEU (Post 2018): BLEU, chrF and TER."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from translume.config import EvaluationSettings
from translume.errors import SettingsError
from translume.evaluation.scores import Counts, Metric, References, Score

_CHARACTER_TOKENIZERS = ("zh", "char", "ja-mecab", "ko-mecab")
"""BLEU tokenizers for East Asian text, for which TER treats characters as words."""


class SacreBleuMetric:
    """Adapt a sacreBLEU metric to `Metric`; numbers, signature and printed line are sacreBLEU's own."""

    def __init__(self, name: str, metric: SacreMetric) -> None:
        self._name, self._metric = name, metric

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return the statistics that sacreBLEU resamples in its own significance tests."""
        streams = cast(Sequence[Sequence[str]], references)  # sacreBLEU skips None, although its annotation lacks it
        return np.array(self._metric._extract_corpus_statistics(texts, streams), dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return the score with its signature; the detail is what sacreBLEU prints after the number."""
        found = self._metric._compute_score_from_stats(total.tolist())
        return Score(
            name=self._name,
            title=found.name,
            value=float(found.score),
            signature=str(self._metric.get_signature()),
            detail=found._verbose,
        )


def bleu(settings: EvaluationSettings) -> Metric:
    """Return corpus BLEU (Papineni et al. 2002); SettingsError if the package of the tokenizer is not installed."""
    settings = settings.of_language("")  # resolve tokenize = "auto" when no language is known
    try:
        metric = BLEU(
            tokenize=settings.tokenize,
            lowercase=settings.lowercase,
            # Suppress sacreBLEU's warning about tokenized text, which tokenize = "none" declares.
            force=settings.tokenize == "none",
        )
    except (ImportError, RuntimeError):
        raise SettingsError(
            f"evaluation.tokenize: '{settings.tokenize}' needs a package that is not installed; "
            f"install sacrebleu[{settings.tokenize.split('-')[0]}]"
        ) from None
    return SacreBleuMetric("bleu", metric)


def chrf(settings: EvaluationSettings) -> Metric:
    """Return chrF2 (Popović 2015): character n-grams, no word n-grams."""
    return SacreBleuMetric("chrf", CHRF(lowercase=settings.lowercase))


def ter(settings: EvaluationSettings) -> Metric:
    """Return the translation edit rate (Snover et al. 2006). Words are characters with an East Asian BLEU tokenizer."""
    asian = settings.tokenize in _CHARACTER_TOKENIZERS
    metric = TER(normalized=asian, asian_support=asian, case_sensitive=not settings.lowercase)
    return SacreBleuMetric("ter", metric)
