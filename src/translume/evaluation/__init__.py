"""How good translations are: metrics with signatures, and whether a difference means anything."""

from translume.evaluation.calibration import Calibration, fit_temperature, measure_calibration
from translume.evaluation.measure import evaluate, forced_scores, measure
from translume.evaluation.metric import Metric
from translume.evaluation.registry import METRICS, metric_from
from translume.evaluation.significance import compare
from translume.evaluation.values import Comparison, Interval, Score, Scores
from translume.reliability import Bin, Reliability

__all__ = [
    "METRICS",
    "Bin",
    "Calibration",
    "Comparison",
    "Interval",
    "Metric",
    "Reliability",
    "Score",
    "Scores",
    "compare",
    "evaluate",
    "fit_temperature",
    "forced_scores",
    "measure",
    "measure_calibration",
    "metric_from",
]
