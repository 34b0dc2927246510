"""Tokens that are never said."""

from dataclasses import dataclass
from functools import lru_cache

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
        return _everywhere(self.ids, prefix.size(0), prefix.device)


@lru_cache(maxsize=64)
def _everywhere(ids: tuple[int, ...], rows: int, device: torch.device) -> Bias:
    """Forbids `ids` in every row; kept, since a search asks for the same again and again."""
    each = torch.arange(rows, device=device).repeat_interleave(len(ids))
    return Bias.forbid(each, torch.tensor(ids, device=device).repeat(rows), most=len(set(ids)))
