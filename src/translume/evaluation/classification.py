"""How good a classifier is: accuracy, F1 of each class, who is taken for whom, and calibration.

Of a class, with TP texts rightly given it, FP wrongly given it and FN wrongly denied it: precision = TP/(TP+FP), recall
= TP/(TP+FN), F1 = 2·TP/(2·TP+FP+FN), each 0 where its denominator is. Macro-F1 is the mean of F1 over the classes that
stand in the references or in the answers. Accuracy is the share of texts whose labels are exactly right.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from translume.errors import DataError
from translume.evaluation.values import Score
from translume.reliability import BINS, Bins, Reliability
from translume.translator import Classification, Classifier
from translume.translator.classifier import SURE

Answers = Sequence[AbstractSet[int]]
"""The classes of each text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """One class.  right, wrong, missed: texts rightly given it, wrongly given it, wrongly denied it."""

    label: str
    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        """In per cent."""
        return _share(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """In per cent."""
        return _share(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """In per cent."""
        return _f1(self.right, self.wrong, self.missed)

    @property
    def count(self) -> int:
        """Texts that have it."""
        return self.right + self.missed

    def to_dict(self) -> dict[str, Any]:
        """The class as JSON knows it."""
        return {
            "label": self.label,
            "count": self.count,
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScores:
    """All that was measured of a classifier on some texts.

    names: of all C classes, in the order of the table.
    confusion: [C, C], texts of the row's class that were given the column's; None where texts have several labels.
    reliability: of the label that is given; with several, of each single decision.
    """

    texts: int
    names: tuple[str, ...]
    accuracy: float
    macro_f1: float
    classes: tuple[ClassCount, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    reliability: Reliability

    @property
    def scores(self) -> tuple[Score, ...]:
        """Accuracy and macro-F1 in per cent, and the expected calibration error from 0 to 1."""
        several = self.confusion is None
        exact = "all labels" if several else "label"
        return (
            Score(name="accuracy", title="accuracy", value=self.accuracy, signature=f"right:{exact}|n:{self.texts}"),
            Score(name="macro_f1", title="macro-F1", value=self.macro_f1, signature=f"classes:seen|n:{self.texts}"),
        )

    @property
    def calibration(self) -> str:
        """A line with the calibration error and its definition."""
        what, confidence = ("labels", "max p") if self.confusion is not None else ("decisions", "max(p, 1-p)")
        found = self.reliability
        return (
            f"ECE|of:{what}|confidence:{confidence}|bins:{BINS} = {found.ece:.4f} "
            f"(confidence {found.confidence:.4f}, right {found.accuracy:.4f} of {found.count})"
        )

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON knows them."""
        return {
            "sentences": self.texts,
            "scores": [score.to_dict() for score in self.scores],
            "labels": list(self.names),
            "classes": [each.to_dict() for each in self.classes],
            "confusion": None if self.confusion is None else [list(row) for row in self.confusion],
            "calibration": self.reliability.to_dict(),
        }


def judge(classifier: Classifier, texts: Sequence[str], references: Sequence[str]) -> ClassScores:
    """How good a classifier is on texts with their labels, as they stand in a file.

    Raises DataError for a label that the classifier does not know, and where there is nothing to measure.
    """
    if len(texts) != len(references):
        raise DataError(f"judge: {len(texts):,} texts but {len(references):,} labels, wanted equally many")
    gold = [set(classifier.labels.encode(text, f"label {line}")) for line, text in enumerate(references, start=1)]
    return judged(classifier, list(classifier.classify_all(texts)), gold)


def judged(classifier: Classifier, answers: Sequence[Classification], gold: Answers) -> ClassScores:
    """How good answers are that stand already; gold: the classes of each text."""
    labels = classifier.labels
    if not answers:
        raise DataError("judge: found no texts, wanted at least one")
    index = {name: place for place, name in enumerate(labels.names)}
    found = [{index[name] for name in answer.labels} for answer in answers]
    confusion = None
    if not labels.several:
        table = [[0] * len(labels) for _ in labels.names]
        for wanted, given in zip(gold, found, strict=True):
            table[min(wanted)][min(given)] += 1
        confusion = tuple(map(tuple, table))
    classes = tuple(
        ClassCount(label=labels.names[class_], right=right, wrong=wrong, missed=missed)
        for class_, (right, wrong, missed) in sorted(_counts(gold, found).items())
    )
    return ClassScores(
        texts=len(gold),
        names=labels.names,
        accuracy=accuracy_of(gold, found),
        macro_f1=_mean([each.f1 for each in classes]),
        classes=classes,
        confusion=confusion,
        reliability=_reliability(answers, gold, index),
    )


def accuracy_of(gold: Answers, found: Answers) -> float:
    """Per cent of texts whose classes are exactly right."""
    return _share(sum(one == other for one, other in zip(gold, found, strict=True)), len(gold))


def macro_f1_of(gold: Answers, found: Answers) -> float:
    """The mean F1, in per cent, of the classes that occur."""
    return _mean([_f1(*counts) for counts in _counts(gold, found).values()])


def _counts(gold: Answers, found: Answers) -> dict[int, tuple[int, int, int]]:
    """Of each class that occurs: texts rightly given it, wrongly given it, wrongly denied it."""
    counts: dict[int, list[int]] = {}
    for wanted, given in zip(gold, found, strict=True):
        for place, classes in enumerate((wanted & given, given - wanted, wanted - given)):
            for class_ in classes:
                counts.setdefault(class_, [0, 0, 0])[place] += 1
    return {class_: (right, wrong, missed) for class_, (right, wrong, missed) in counts.items()}


def _reliability(answers: Iterable[Classification], gold: Answers, index: dict[str, int]) -> Reliability:
    bins = Bins()
    for answer, wanted in zip(answers, gold, strict=True):
        if answer.separator:
            rows = [(max(p, 1 - p), (p > SURE) == (index[name] in wanted)) for name, p in answer.probabilities]
        else:
            name, p = answer.probabilities[0]
            rows = [(p, index[name] in wanted)]
        confidence, right = zip(*rows, strict=True)
        bins.add(torch.tensor(confidence), torch.tensor(right))
    return bins.reliability()


def _f1(right: int, wrong: int, missed: int) -> float:
    return _share(2 * right, 2 * right + wrong + missed)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
