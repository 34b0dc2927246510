"""Learning rates by update; one function a schedule, update counted from 1."""

import math
from collections.abc import Callable

from translume.config import TrainingSettings


def inverse_sqrt(update: int, settings: TrainingSettings, width: int) -> float:
    """rate · min(u / w, √(w / u)): linear warm-up, then 1/√u (Vaswani et al. 2017, equation 3, by its peak)."""
    warmup = max(1, settings.warmup_updates)
    return settings.learning_rate * min(update / warmup, math.sqrt(warmup / update))


def noam(update: int, settings: TrainingSettings, width: int) -> float:
    """rate · D^-½ · min(u^-½, u · w^-1.5) (Vaswani et al. 2017, equation 3, with `learning_rate` as a factor)."""
    warmup = max(1, settings.warmup_updates)
    return settings.learning_rate / math.sqrt(width) * min(1 / math.sqrt(update), update / math.pow(warmup, 1.5))


def cosine(update: int, settings: TrainingSettings, width: int) -> float:
    """Linear warm-up, then rate · ½ (1 + cos(π (u − w) / (U − w))) (Loshchilov and Hutter 2017, equation 5)."""
    warmup = settings.warmup_updates
    if update <= warmup:
        return settings.learning_rate * update / warmup
    share = min(1.0, (update - warmup) / max(1, settings.updates - warmup))
    return settings.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))


def constant(update: int, settings: TrainingSettings, width: int) -> float:
    """Linear warm-up to rate, which then stays."""
    return settings.learning_rate * min(1.0, update / max(1, settings.warmup_updates))


SCHEDULES: dict[str, Callable[[int, TrainingSettings, int], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "noam": noam,
    "cosine": cosine,
    "constant": constant,
}


def learning_rate(update: int, settings: TrainingSettings, width: int) -> float:
    """The rate of the update-th step of the optimiser, counted from 1, in a model of `width` D."""
    return SCHEDULES[settings.schedule](update, settings, width)
