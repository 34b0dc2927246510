"""Averages of weights: of the last saved ones, and a moving one that training never reads."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Weights = dict[str, Tensor]
"""fp32 tensors by the name of their parameter; a tied one stands once."""


def snapshot(values: Mapping[str, Tensor]) -> Weights:
    """A copy on the CPU that later updates do not change."""
    return {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in values.items()}


def mean(members: Iterable[Mapping[str, Tensor]]) -> Weights:
    """The plain mean of the members, summed in fp64 in their order; each is let go before the next is read."""
    total: dict[str, Tensor] = {}
    count = 0
    for member in members:
        count += 1
        for name, value in member.items():
            if name in total:
                total[name] += value.to("cpu")
            else:
                total[name] = value.to("cpu", torch.float64, copy=True)
    return {name: (value / count).float() for name, value in total.items()}


class MovingAverage:
    """w̄ ← d w̄ + (1 − d) w after every update, d = min(decay, (1 + u) / (10 + u)), so that early weights fade fast.

    The moving mean of Polyak and Juditsky (1992) with exponential weights and TensorFlow's warm start. Kept in fp32
    beside the weights: training goes on from the raw ones.
    """

    def __init__(self, decay: float, values: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.values: Weights = {name: value.detach().float().clone() for name, value in values.items()}

    def add(self, values: Mapping[str, Tensor], update: int) -> None:
        """Take in the weights after `update`, counted from 1."""
        decay = min(self.decay, (1 + update) / (10 + update))
        with torch.no_grad():
            for name, mine in self.values.items():
                mine.lerp_(values[name].detach(), 1.0 - decay)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Go on from an average that was saved."""
        for name, value in values.items():
            self.values[name].copy_(value)
