"""Classification metrics: accuracy, per-class F1, confusion matrix and calibration.

For a class with TP true positives, FP false positives and FN false negatives: precision = TP/(TP+FP), recall =
TP/(TP+FN), F1 = 2·TP/(2·TP+FP+FN); each is 0 if its denominator is 0. Macro-F1 is the mean F1 of the classes that occur
in the references or the predictions. Accuracy is the fraction of texts whose labels are exactly right.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from translume.errors import DataError
from translume.evaluation.calibration import Bins, Reliability
from translume.evaluation.scores import Score
from translume.json_values import to_values
from translume.lazy import torch
from translume.notebook import as_table
from translume.translator import Classification, Classifier
from translume.translator.classifier import LABEL_THRESHOLD

LabelSets = Sequence[AbstractSet[int]]
"""The class ids of each text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """The true positives (right), false positives (wrong) and false negatives (missed) of one class."""

    label: str
    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        """In percent; see the module's definitions."""
        return _share(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """In percent; see the module's definitions."""
        return _share(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """In percent; see the module's definitions."""
        return _f1(self.right, self.wrong, self.missed)

    @property
    def count(self) -> int:
        """Texts of this class."""
        return self.right + self.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScores:
    """All metrics of a classifier on some texts.

    names: of all C classes, in the order of the confusion matrix.
    confusion: [C, C], texts of the row's class predicted as the column's; None for multi-label classifiers.
    reliability: of the predicted label; for multi-label classifiers, of every yes-or-no decision.
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
        """Accuracy and macro-F1, in percent."""
        exact = "all labels" if self.confusion is None else "label"
        return (
            Score(name="accuracy", title="accuracy", value=self.accuracy, signature=f"right:{exact}|n:{self.texts}"),
            Score(name="macro_f1", title="macro-F1", value=self.macro_f1, signature=f"classes:seen|n:{self.texts}"),
        )

    @property
    def calibration(self) -> str:
        """One line with the calibration error and its definition."""
        what = ("labels", "max p") if self.confusion is not None else ("decisions", "max(p, 1-p)")
        return self.reliability.described(*what)

    def _repr_html_(self) -> str:
        """Return a table of the classes and the scores for notebooks."""
        rows = [(each.label, each.count, each.precision, each.recall, each.f1) for each in self.classes]
        header = ("class", "texts", "precision", "recall", "F1")
        return as_table(header, rows, notes=[*map(str, self.scores), self.calibration])

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON object."""
        names = ("label", "count", "precision", "recall", "f1")
        values: dict[str, Any] = to_values(
            {
                "sentences": self.texts,
                "scores": self.scores,
                "labels": self.names,
                "classes": [{name: getattr(each, name) for name in names} for each in self.classes],
                "confusion": self.confusion,
                "calibration": self.reliability,
            }
        )
        return values


def measure_classification(classifier: Classifier, answers: Sequence[Classification], gold: LabelSets) -> ClassScores:
    """Score existing answers; gold: the class ids of each text."""
    labels = classifier.labels
    if not answers:
        raise DataError("evaluate: found no texts, expected at least one")
    index = {name: place for place, name in enumerate(labels.names)}
    predictions = [{index[name] for name in answer.labels} for answer in answers]
    confusion = None
    if not labels.several:
        table = [[0] * len(labels) for _ in labels.names]
        for expected, predicted in zip(gold, predictions, strict=True):
            table[min(expected)][min(predicted)] += 1
        confusion = tuple(map(tuple, table))
    classes = tuple(
        ClassCount(label=labels.names[class_], right=right, wrong=wrong, missed=missed)
        for class_, (right, wrong, missed) in sorted(_counts(gold, predictions).items())
    )
    return ClassScores(
        texts=len(gold),
        names=labels.names,
        accuracy=accuracy_of(gold, predictions),
        macro_f1=_mean([each.f1 for each in classes]),
        classes=classes,
        confusion=confusion,
        reliability=_reliability(answers, gold, index),
    )


def accuracy_of(gold: LabelSets, predictions: LabelSets) -> float:
    """Return the percentage of texts whose predicted classes are exactly right."""
    return _share(sum(labels == predicted for labels, predicted in zip(gold, predictions, strict=True)), len(gold))


def macro_f1_of(gold: LabelSets, predictions: LabelSets) -> float:
    """Return the mean F1, in percent, of the classes that occur."""
    return _mean([_f1(*counts) for counts in _counts(gold, predictions).values()])


def _counts(gold: LabelSets, predictions: LabelSets) -> dict[int, tuple[int, int, int]]:
    """Return true positives, false positives and false negatives of each class that occurs."""
    counts: dict[int, list[int]] = {}
    for labels, predicted in zip(gold, predictions, strict=True):
        for place, classes in enumerate((labels & predicted, predicted - labels, labels - predicted)):
            for class_ in classes:
                counts.setdefault(class_, [0, 0, 0])[place] += 1
    return {class_: (right, wrong, missed) for class_, (right, wrong, missed) in counts.items()}


def _reliability(answers: Iterable[Classification], gold: LabelSets, index: dict[str, int]) -> Reliability:
    bins = Bins()
    for answer, labels in zip(answers, gold, strict=True):
        if answer.separator:
            rows = [
                (max(p, 1 - p), (p > LABEL_THRESHOLD) == (index[name] in labels)) for name, p in answer.probabilities
            ]
        else:
            name, p = answer.probabilities[0]
            rows = [(p, index[name] in labels)]
        confidence, right = zip(*rows, strict=True)
        bins.add(torch.tensor(confidence), torch.tensor(right))
    return bins.reliability()


def _f1(right: int, wrong: int, missed: int) -> float:
    return _share(2 * right, 2 * right + wrong + missed)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
