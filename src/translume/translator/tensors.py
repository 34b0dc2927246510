"""Lists of ids as one padded tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [B, S] filled up with `pad`, and the mask [B, S] that is True at the rows' own ids."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(width)[None] < lengths[:, None]
    return ids.to(device), mask.to(device)
