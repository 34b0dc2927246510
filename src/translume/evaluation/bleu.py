"""BLEU (Papineni et al. 2002)."""

from sacrebleu.metrics.bleu import BLEU

from translume.config import EvaluationSettings
from translume.errors import SettingsError
from translume.evaluation.metric import Metric
from translume.evaluation.sacre import SacreScore


def bleu(settings: EvaluationSettings) -> Metric:
    """Corpus BLEU by sacreBLEU; SettingsError if the tokenizer's own package is not installed."""
    settings = settings.of_language("")  # texts alone have no language
    try:
        metric = BLEU(
            tokenize=settings.tokenize,
            lowercase=settings.lowercase,
            # Text that is said to be tokenized needs no warning that it looks tokenized.
            force=settings.tokenize == "none",
        )
    except (ImportError, RuntimeError):
        raise SettingsError(
            f"evaluation.tokenize: '{settings.tokenize}' needs a package that is not installed; "
            f"install sacrebleu[{settings.tokenize.split('-')[0]}]"
        ) from None
    return SacreScore("bleu", metric, higher_is_better=True)
