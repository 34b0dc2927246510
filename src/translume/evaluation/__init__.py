"""How good translations are: metrics with signatures, and whether a difference means anything."""

from translume.evaluation.measure import evaluate, forced_scores, measure
from translume.evaluation.metric import Metric
from translume.evaluation.registry import METRICS, metric_from
from translume.evaluation.significance import compare
from translume.evaluation.values import Comparison, Interval, Score, Scores

__all__ = [
    "METRICS",
    "Comparison",
    "Interval",
    "Metric",
    "Score",
    "Scores",
    "compare",
    "evaluate",
    "forced_scores",
    "measure",
    "metric_from",
]
