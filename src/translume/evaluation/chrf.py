"""chrF (Popović 2015)."""

from sacrebleu.metrics.chrf import CHRF

from translume.config import EvaluationSettings
from translume.evaluation.metric import Metric
from translume.evaluation.sacre import SacreScore


def chrf(settings: EvaluationSettings) -> Metric:
    """chrF2 over characters, no words, by sacreBLEU."""
    return SacreScore("chrf", CHRF(lowercase=settings.lowercase), higher_is_better=True)
