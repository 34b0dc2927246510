"""All metrics by the names that settings use."""

from collections.abc import Callable, Mapping

from translume.config import EvaluationSettings
from translume.errors import SettingsError, nearest
from translume.evaluation.bleu import bleu
from translume.evaluation.chrf import chrf
from translume.evaluation.error_rate import phone_error_rate, word_error_rate
from translume.evaluation.exact_match import exact_match
from translume.evaluation.metric import Metric
from translume.evaluation.ter import ter

METRICS: Mapping[str, Callable[[EvaluationSettings], Metric]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    "exact_match": exact_match,
    "wer": word_error_rate,
    "per": phone_error_rate,
}
"""A new metric is a file of its own and a line here."""


def metric_from(name: str, settings: EvaluationSettings) -> Metric:
    """A new metric; SettingsError with the nearest known name if there is none of that name."""
    if name not in METRICS:
        raise SettingsError(f"evaluation.metrics: found '{name}'{nearest(name, METRICS)}")
    return METRICS[name](settings)
