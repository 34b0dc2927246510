"""Training: `train` yields events while it makes a model folder, and goes on wherever an earlier run was cut off."""

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
