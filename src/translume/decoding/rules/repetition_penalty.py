"""Tokens that were said are less likely to be said again."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules.rule import RuleContext


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Adds −ln `factor` to the log-probability of every token that the hypothesis has already, once each.

    So probabilities are divided by it. Keskar et al. (2019, section 4.1) divide logits instead, which means another
    thing for each sign and scale of them.
    """

    factor: float

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step == 0 or self.factor == 1.0:
            return None
        said = prefix[:, 1:].sort(1).values
        first = torch.ones_like(said, dtype=torch.bool)
        first[:, 1:] = said[:, 1:] != said[:, :-1]
        rows, places = first.nonzero(as_tuple=True)
        values = torch.full(rows.shape, -math.log(self.factor), device=prefix.device)
        return Bias(rows, said[rows, places], values)
