"""No end before a hypothesis is long enough."""

from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules.rule import RuleContext


@dataclass(frozen=True, slots=True)
class MinimumLength:
    """Forbids eos until a hypothesis has `tokens` tokens before it; a smaller limit wins."""

    tokens: int

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self.tokens:
            return None
        rows = torch.arange(prefix.size(0), device=prefix.device)
        return Bias.forbid(rows, torch.full_like(rows, context.eos))
