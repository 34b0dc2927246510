"""TER, the translation edit rate (Snover et al. 2006)."""

from sacrebleu.metrics.ter import TER

from translume.config import EvaluationSettings
from translume.evaluation.metric import Metric
from translume.evaluation.sacre import SacreScore

_WITHOUT_BLANKS = ("zh", "char", "ja-mecab", "ko-mecab")


def ter(settings: EvaluationSettings) -> Metric:
    """TER by sacreBLEU; where BLEU's tokenizer is one for East Asian text, characters of such scripts are words."""
    asian = settings.tokenize in _WITHOUT_BLANKS
    metric = TER(normalized=asian, asian_support=asian, case_sensitive=not settings.lowercase)
    return SacreScore("ter", metric, higher_is_better=False)
