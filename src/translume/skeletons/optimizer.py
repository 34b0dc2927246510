"""An optimiser: SGD with momentum."""

from typing import Any

import torch

from translume.config import TrainingSettings
from translume.parts import part


@part("optimizer", "my_part", interface=1)
def my_part(groups: list[dict[str, Any]], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return an optimiser of two groups of parameters, with weight decay and without.

    Its rate is set before each step. Everything in its state must be a tensor.
    """
    return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.beta1)
