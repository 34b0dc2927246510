"""Training: `train` trains a model into a folder, yields events, and resumes interrupted runs."""

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
from translume.training.tensorboard import TensorBoard
from translume.training.train import train

__all__ = [
    "Event",
    "Finished",
    "Interrupted",
    "Preparing",
    "Progress",
    "Resumed",
    "Saved",
    "Started",
    "TensorBoard",
    "Validated",
    "Warned",
    "train",
]
