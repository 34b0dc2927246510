"""Metrics that compare strings: error rates, exact match, ROUGE for summaries, and SQuAD's for answers to questions."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation.scores import Counts, Metric, References, Score, count_references, known

Unit = Literal["blank", "char"]


def _tokens(text: str, unit: Unit, *, lowercase: bool) -> list[str]:
    """Return what an error rate counts: words, or characters, of which a run of blanks is one."""
    words = (text.lower() if lowercase else text).split()
    return list(" ".join(words)) if unit == "char" else words


class Percentage:
    """A sum over the texts, in percent of another sum.

    counts: returns both summands of a text, given its references.  detail: of the score, from both sums.
    """

    def __init__(
        self,
        name: str,
        title: str,
        counts: Callable[[str, list[str]], tuple[float, float]],
        signature: str,
        detail: str = "",
    ) -> None:
        self._name, self._title, self._counts = name, title, counts
        self._signature, self._detail = signature, detail
        self._references = ""

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2]: both summands of each text."""
        self._references = count_references(references)
        rows = zip(texts, *references, strict=True)
        return np.array([self._counts(text, known(others)) for text, *others in rows], dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return a percentage, which may exceed 100; infinite if only the second sum is zero."""
        part, whole = total.tolist()
        return Score(
            name=self._name,
            title=self._title,
            value=100 * part / whole if whole else (math.inf if part else 0.0),
            signature=f"nrefs:{self._references}|{self._signature}",
            detail=self._detail.format(part, whole),
        )


def best_of(value: Callable[[str, str], float]) -> Callable[[str, list[str]], tuple[float, float]]:
    """Return the counts of a mean over texts: the best value, from 0 to 1, against any reference; and 1."""
    return lambda text, references: (max(value(text, reference) for reference in references), 1.0)


def error_rate(name: str, unit: Unit, settings: EvaluationSettings) -> Metric:
    """Return insertions, deletions and substitutions per reference token, in percent, over the whole set.

    With several references, the one with the fewest edits counts; among equals, the longest.
    unit: "blank" for tokens separated by blanks; "char" for characters, a run of blanks being one.
    """
    from rapidfuzz.distance import Levenshtein

    split = partial(_tokens, unit=unit, lowercase=settings.lowercase)

    def counts(text: str, references: list[str]) -> tuple[float, float]:
        tokens = split(text)
        edits, length = min((Levenshtein.distance(tokens, other), -len(other)) for other in map(split, references))
        return edits, -length

    signature = f"case:{_case(settings)}|tok:{unit}|edits:levenshtein"
    return Percentage(name, name.upper(), counts, signature, "({:.0f} edits, {:.0f} tokens)")


wer, per, cer = (partial(error_rate, *each) for each in (("wer", "blank"), ("per", "blank"), ("cer", "char")))


def exact_match(settings: EvaluationSettings) -> Metric:
    """Return the percentage of texts that equal one of their references, ignoring white space at both ends.

    In grapheme-to-phoneme work, 100 minus this number is called the word error rate; in dialogue state tracking, this
    number of whole states is called the joint goal accuracy.
    """

    def equal(text: str, reference: str) -> float:
        stripped, expected = text.strip(), reference.strip()
        return float(stripped.lower() == expected.lower() if settings.lowercase else stripped == expected)

    signature = f"case:{_case(settings)}"
    return Percentage("exact_match", "exact match", best_of(equal), signature, "({:.0f} of {:.0f})")


def _case(settings: EvaluationSettings) -> str:
    return "lc" if settings.lowercase else "mixed"


def rouge(kind: str, settings: EvaluationSettings) -> Metric:
    """Return the F1 of ROUGE (Lin 2004), computed by the package rouge-score with the Porter stemmer.

    kind: "rouge1", "rouge2" or "rougeL". The package lowercases, and ignores what is not an ASCII letter or digit, so
    ROUGE is for English.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer: Any = RougeScorer([kind], use_stemmer=True)

    def fmeasure(text: str, reference: str) -> float:
        return float(scorer.score(reference, text)[kind].fmeasure)

    signature = "case:lc|tok:ascii|stemmer:porter|best:f1"
    return Percentage(kind, kind.replace("rouge", "ROUGE-"), best_of(fmeasure), signature)


rouge1, rouge2, rouge_l = (partial(rouge, kind) for kind in ("rouge1", "rouge2", "rougeL"))
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_answer(text: str) -> list[str]:
    """Return the words of an answer as SQuAD compares them: lower case, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def token_f1(text: str, reference: str) -> float:
    """Return the F1 of the words of an answer, from 0 to 1; two empty answers are equal."""
    words, expected = normalised_answer(text), normalised_answer(reference)
    if not words or not expected:
        return float(words == expected)
    return 2 * (Counter(words) & Counter(expected)).total() / (len(words) + len(expected))


def squad_f1(settings: EvaluationSettings) -> Metric:
    """Return the token F1 of SQuAD 1.1 (Rajpurkar et al. 2016)."""
    return Percentage("squad_f1", "SQuAD F1", best_of(token_f1), "case:lc|punct:no|articles:no|best:f1")


def squad_exact(settings: EvaluationSettings) -> Metric:
    """Return the exact match of SQuAD 1.1, which ignores case, punctuation and English articles."""

    def equal(text: str, reference: str) -> float:
        return float(normalised_answer(text) == normalised_answer(reference))

    return Percentage("squad_exact", "SQuAD exact match", best_of(equal), "case:lc|punct:no|articles:no")
