"""What a model learns from another one's beliefs (Hinton et al. 2015)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from translume.belief import NextToken

Believe = Callable[[Tensor], NextToken]
"""The belief about some of the labels of a batch, given their numbers [m]."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a teacher believes about the labels of a batch; worked out when it is asked, and never differentiated."""

    believe: Believe

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """[m, V], fp32: log-probabilities in the place of some labels, given their numbers [m]."""
        return self.believe(rows).log_probs()


class Knowing(Protocol):
    """A network that can teach."""

    def lesson(self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor) -> Lesson:
        """What it believes about the labels of a batch, as its `loss` is given them."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model, in evaluation mode, and the share of the loss that is the distance to its beliefs."""

    network: Knowing
    share: float
