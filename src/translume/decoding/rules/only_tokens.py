"""Tokens that may be said at all."""

from collections.abc import Iterable

import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules.rule import RuleContext


class OnlyTokens:
    """Allows the tokens `ids` and the end mark everywhere, and no other."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = tuple(sorted(set(ids)))
        self._bias: Bias | None = None

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if self._bias is None or self._bias.allowed is None or self._bias.allowed.device != prefix.device:
            allowed = torch.zeros(context.size, dtype=torch.bool, device=prefix.device)
            allowed[torch.tensor((*self.ids, context.eos), device=prefix.device)] = True
            self._bias = Bias.only(allowed)
        return self._bias
