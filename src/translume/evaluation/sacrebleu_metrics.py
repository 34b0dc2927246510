"""Metrics computed by sacreBLEU (Post 2018): BLEU, chrF and TER; and SARI, with its tokenizer."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from translume.config import EvaluationSettings
from translume.errors import SettingsError
from translume.evaluation.scores import Counts, Metric, References, Score, count_references, known

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

_CHARACTER_TOKENIZERS = ("zh", "char", "ja-mecab", "ko-mecab")
"""BLEU tokenizers for East Asian text, for which TER treats characters as words."""
ORDERS = (1, 2, 3, 4)
"""Of the n-grams of SARI."""

NGrams = Counter[tuple[str, ...]]


class SacreBleuMetric:
    """Adapt a sacreBLEU metric to `Metric`; numbers, signature and printed line are sacreBLEU's own."""

    def __init__(self, name: str, metric: "SacreMetric") -> None:
        self._name, self._metric = name, metric

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return the statistics that sacreBLEU resamples in its own significance tests."""
        streams = cast(Sequence[Sequence[str]], references)  # sacreBLEU skips None, although its annotation lacks it
        return np.array(self._metric._extract_corpus_statistics(texts, streams), dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return the score with its signature; the detail is what sacreBLEU prints after the number."""
        score = self._metric._compute_score_from_stats(total.tolist())
        signature = str(self._metric.get_signature())
        return Score(
            name=self._name, title=score.name, value=float(score.score), signature=signature, detail=score._verbose
        )


def bleu(settings: EvaluationSettings) -> Metric:
    """Return corpus BLEU (Papineni et al. 2002); SettingsError if the package of the tokenizer is not installed."""
    from sacrebleu.metrics.bleu import BLEU

    tokenize = "13a" if settings.tokenize == "auto" else settings.tokenize
    try:
        # force: without sacreBLEU's warning about tokenized text, which advises this argument.
        metric = BLEU(tokenize=tokenize, lowercase=settings.lowercase, force=True)
    except (ImportError, RuntimeError):
        raise SettingsError(
            f"evaluation.tokenize: '{settings.tokenize}' needs a package that is not installed; "
            f"install sacrebleu[{settings.tokenize.split('-')[0]}]"
        ) from None
    return SacreBleuMetric("bleu", metric)


def chrf(settings: EvaluationSettings) -> Metric:
    """Return chrF2 (Popović 2015): character n-grams, no word n-grams."""
    from sacrebleu.metrics.chrf import CHRF

    return SacreBleuMetric("chrf", CHRF(lowercase=settings.lowercase))


def ter(settings: EvaluationSettings) -> Metric:
    """Return the translation edit rate (Snover et al. 2006). Words are characters with an East Asian BLEU tokenizer."""
    from sacrebleu.metrics.ter import TER

    asian = settings.tokenize in _CHARACTER_TOKENIZERS
    metric = TER(normalized=asian, asian_support=asian, case_sensitive=not settings.lowercase)
    return SacreBleuMetric("ter", metric)


class Sari:
    """SARI (Xu et al. 2016): what a simplification keeps, deletes and adds, compared with its source and references.

    It is the mean of the F1 of kept, deleted and added n-grams, of 1 to 4 lowercased tokens.

    Counts are summed over the set and deletion has an F1, as in EASSE (Alva-Manchego et al. 2019) and in the program
    behind most published figures; the paper's own script averages over sentences, which gives 1 to 4 less.
    """

    def __init__(self, settings: EvaluationSettings) -> None:
        """`evaluation.tokenize` "none" is for text whose words are separated by blanks, else 13a."""
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        self._tokenize = "none" if settings.tokenize == "none" else "13a"
        self._tokenizer = Tokenizer13a()  # type: ignore[no-untyped-call]  # sacreBLEU has no annotation
        self._references = ""

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 36]: the nine counts of `_count` for each order."""
        if not sources:
            raise SettingsError("evaluation.metrics: 'sari' compares with the sources; expected --source FILE")
        self._references = count_references(references)
        rows = []
        for text, source, *others in zip(texts, sources, *references, strict=True):
            old, new = self._words(source), self._words(text)
            expected = [self._words(reference) for reference in known(others)]
            rows.append([count for order in ORDERS for count in _count(order, old, new, expected)])
        return np.array(rows, dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return the mean of the three parts, in per cent."""
        parts = total.reshape(len(ORDERS), 3, 3).tolist()  # [order, part, counts]
        keep, delete, add = (
            100 * sum(_f1(*counts) for counts in each) / len(ORDERS) for each in zip(*parts, strict=True)
        )
        return Score(
            name="sari",
            title="SARI",
            value=(keep + delete + add) / 3,
            signature=f"nrefs:{self._references}|case:lc|tok:{self._tokenize}|mean:corpus|delete:f1",
            detail=f"(keep {keep:.1f}, delete {delete:.1f}, add {add:.1f})",
        )

    def _words(self, text: str) -> list[str]:
        return (text.lower() if self._tokenize == "none" else str(self._tokenizer(text.lower()))).split()


def _count(order: int, source: list[str], text: list[str], references: list[list[str]]) -> tuple[int, ...]:
    """Count the n-grams of one order that were correctly kept, kept, and to be kept; then deleted, then added ones.

    n-grams of the source and the text are repeated for each reference, and compared with all references together. So
    an n-gram has more weight if more references contain it.
    """
    old, new = (_ngrams(words, order, len(references)) for words in (source, text))
    expected: NGrams = Counter()
    for words in references:
        expected += _ngrams(words, order, 1)
    kept, keepable, deleted, deletable = old & new, old & expected, old - new, old - expected
    added, addable = set(new) - set(old), set(expected) - set(old)
    return (
        (kept & expected).total(),
        kept.total(),
        keepable.total(),
        (deleted & deletable).total(),
        deleted.total(),
        deletable.total(),
        len(added & addable),
        len(added),
        len(addable),
    )


def _ngrams(words: list[str], order: int, times: int) -> NGrams:
    counts = Counter(zip(*(words[start:] for start in range(order)), strict=False))
    return Counter({ngram: count * times for ngram, count in counts.items()})


def _f1(right: float, predicted: float, expected: float) -> float:
    """Return the F1 of a precision right / predicted and a recall right / expected, which is 0 if nothing is right."""
    return 2 * right / (predicted + expected) if right else 0.0
