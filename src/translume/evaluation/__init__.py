"""Evaluation: metrics with signatures, significance tests and calibration."""

from translume.evaluation.calibration import Bin as Bin
from translume.evaluation.calibration import Calibration as Calibration
from translume.evaluation.calibration import Reliability as Reliability
from translume.evaluation.calibration import fit_temperature as fit_temperature
from translume.evaluation.calibration import measure_calibration as measure_calibration
from translume.evaluation.metrics import compare as compare
from translume.evaluation.metrics import evaluate as evaluate
from translume.evaluation.metrics import measure as measure
from translume.evaluation.metrics import metric_from as metric_from
from translume.evaluation.scores import Comparison as Comparison
from translume.evaluation.scores import Metric as Metric
from translume.evaluation.scores import Score as Score
from translume.evaluation.scores import Scores as Scores
from translume.evaluation.segment_metrics import SegmentMetric as SegmentMetric
