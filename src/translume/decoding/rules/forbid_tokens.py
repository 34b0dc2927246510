"""Tokens that are never said."""

from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules.rule import RuleContext


@dataclass(frozen=True, slots=True)
class ForbidTokens:
    """Forbids the tokens `ids` everywhere: pad and bos always, unk if so wished."""

    ids: tuple[int, ...]

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if not self.ids:
            return None
        rows = torch.arange(prefix.size(0), device=prefix.device).repeat_interleave(len(self.ids))
        return Bias.forbid(rows, torch.tensor(self.ids, device=prefix.device).repeat(prefix.size(0)))
