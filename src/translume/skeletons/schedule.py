"""A schedule: linear warm-up, then linearly to zero at the last update."""

from translume.config import TrainingSettings
from translume.parts import part


@part("schedule", "my_part", interface=1)
def my_part(update: int, settings: TrainingSettings, width: int) -> float:
    """Return the learning rate of an update, counted from 1."""
    warmup = max(1, settings.warmup_updates)
    left = (settings.updates - update) / max(1, settings.updates - warmup)
    return settings.learning_rate * max(0.0, min(update / warmup, left))
