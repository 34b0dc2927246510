"""Drafts from the source: what was written last is looked for in it, and goes on as there."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

LONGEST = 3
"""Last tokens that are looked for; what agrees in more of them is better."""


@dataclass(frozen=True, slots=True)
class SourceDrafts:
    """For each sentence the tokens after the best match of its target's end in its source.

    For vocabularies that source and target share, and for what is copied: names, numbers, corrections of a text.  The
    best match agrees in the most last tokens, up to three; of equal ones it is the first.

    source: [B, S], ids with bos first, which matches the beginning of the target; rows filled up with −1.
    """

    source: Tensor

    def propose(self, prefix: Tensor, sentences: Tensor, most: int) -> Tensor:
        source = self.source[sentences]
        so_far = torch.ones_like(source, dtype=torch.bool)
        agree = torch.zeros_like(source)  # how many of the last tokens stand at each place and before it
        for back in range(min(LONGEST, prefix.size(1))):
            shifted = functional.pad(source, (back, 0), value=-1)[:, : source.size(1)]
            so_far &= shifted == prefix[:, -1 - back, None]
            agree += so_far
        best, place = agree.max(1)
        places = place[:, None] + torch.arange(1, most + 1, device=source.device)
        inside = (places < source.size(1)) & (best > 0)[:, None]
        drafts = source.gather(1, places.clamp(max=source.size(1) - 1))
        return drafts.masked_fill(~inside, -1)
