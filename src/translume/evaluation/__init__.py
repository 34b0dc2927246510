"""Evaluation: metrics with signatures, significance tests and calibration."""

from translume.evaluation.calibration import Calibration, fit_temperature, measure_calibration
from translume.evaluation.metrics import METRICS, evaluate, forced_scores, measure, metric_from
from translume.evaluation.scores import Comparison, Interval, Metric, Score, Scores
from translume.evaluation.significance import compare
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
