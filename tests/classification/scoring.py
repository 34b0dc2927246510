"""Scores of a classifier on texts with labels."""

from collections.abc import Sequence

from translume import Classifier
from translume.evaluation.classification import ClassScores, measure_classification


def evaluate_classification(classifier: Classifier, texts: Sequence[str], references: Sequence[str]) -> ClassScores:
    """Classify `texts` and score the answers.  references: labels as in a training file."""
    gold = [set(classifier.labels.encode(text, f"label {line}")) for line, text in enumerate(references, start=1)]
    return measure_classification(classifier, list(classifier.classify_all(texts)), gold)
