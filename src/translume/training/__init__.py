"""Training: `train` trains a model into a folder, yields events, and resumes interrupted runs."""

from translume.training.dry_run import DryRun, dry_run
from translume.training.events import (
    Event,
    Finished,
    Interrupted,
    Preparing,
    Progress,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
)
from translume.training.tracking import MLflow, TensorBoard, WeightsAndBiases
from translume.training.train import train

__all__ = [
    "DryRun",
    "Event",
    "Finished",
    "Interrupted",
    "MLflow",
    "Preparing",
    "Progress",
    "Resumed",
    "Saved",
    "Started",
    "TensorBoard",
    "Validated",
    "Warned",
    "WeightsAndBiases",
    "dry_run",
    "train",
]
