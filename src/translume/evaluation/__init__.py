"""Evaluation: metrics with signatures, significance tests and calibration."""

from translume.evaluation.calibration import Bin, Calibration, Reliability, fit_temperature, measure_calibration
from translume.evaluation.metrics import METRICS, compare, evaluate, forced_scores, measure, metric_from
from translume.evaluation.scores import Comparison, Interval, Metric, Score, Scores

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
