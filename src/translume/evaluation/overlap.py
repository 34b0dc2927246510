"""Overlap of words with references: ROUGE for summaries, token F1 and exact match for answers to questions."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from translume.config import EvaluationSettings
from translume.errors import SettingsError
from translume.evaluation.scores import Counts, Metric, References, Score, count_references, known


class MeanOfBest:
    """The mean over the texts, in per cent, of the best value that a text has against one of its references."""

    def __init__(self, name: str, title: str, value: Callable[[str, str], float], signature: str) -> None:
        self._name, self._title, self._value, self._signature = name, title, value, signature
        self._references = ""

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2]: the best value of each text, from 0 to 1; and 1."""
        self._references = count_references(references)
        rows = []
        for text, *found in zip(texts, *references, strict=True):
            rows.append((max(self._value(text, reference) for reference in known(found)), 1))
        return np.array(rows, dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return a percentage."""
        best, texts = total.tolist()
        return Score(
            name=self._name,
            title=self._title,
            value=100 * best / texts,
            signature=f"nrefs:{self._references}|{self._signature}",
        )


def rouge(kind: str, settings: EvaluationSettings) -> Metric:
    """Return the F1 of ROUGE (Lin 2004), computed by the package rouge-score with the Porter stemmer.

    kind: "rouge1", "rouge2" or "rougeL". The package lowercases, and ignores what is not an ASCII letter or digit, so
    ROUGE is for English. Raises SettingsError if the package is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise SettingsError(
            f"evaluation.metrics: '{kind}' needs rouge-score; pip install 'translume[metrics]'"
        ) from None
    scorer: Any = RougeScorer([kind], use_stemmer=True)
    return MeanOfBest(
        kind,
        kind.replace("rouge", "ROUGE-"),
        lambda text, reference: float(scorer.score(reference, text)[kind].fmeasure),
        "case:lc|tok:ascii|stemmer:porter|best:f1",
    )


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_answer(text: str) -> list[str]:
    """Return the words of an answer as SQuAD compares them: lower case, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def token_f1(text: str, reference: str) -> float:
    """Return the F1 of the words of an answer, from 0 to 1; two empty answers are equal."""
    found, expected = normalised_answer(text), normalised_answer(reference)
    if not found or not expected:
        return float(found == expected)
    common = sum((Counter(found) & Counter(expected)).values())
    return 2 * common / (len(found) + len(expected))


def squad_f1(settings: EvaluationSettings) -> Metric:
    """Return the token F1 of SQuAD 1.1 (Rajpurkar et al. 2016)."""
    return MeanOfBest("squad_f1", "SQuAD F1", token_f1, "case:lc|punct:no|articles:no|best:f1")


def squad_exact(settings: EvaluationSettings) -> Metric:
    """Return the exact match of SQuAD 1.1, which ignores case, punctuation and English articles."""

    def equal(text: str, reference: str) -> float:
        return float(normalised_answer(text) == normalised_answer(reference))

    return MeanOfBest("squad_exact", "SQuAD exact match", equal, "case:lc|punct:no|articles:no")


rouge1, rouge2, rouge_l = (partial(rouge, kind) for kind in ("rouge1", "rouge2", "rougeL"))
