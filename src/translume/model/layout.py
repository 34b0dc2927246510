"""Token layouts: packed without padding for linear maps, in a padded grid for attention."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

SHORTEST = 16
"""Minimum length of a grid for attention; below it torch's CPU softmax processes one element at a time."""


@dataclass(slots=True)
class Layout:
    """Indices that convert between n packed tokens and B padded rows of up to T positions.

    mask: [B, T], True where there is a token.
    tokens: [n], the flat index b·T + t of each token.
    places: [n], the position t of each token.
    grid: [B, G], the mask for attention, padded to at least SHORTEST positions.
    rank: [B, G], the index among the packed tokens; 0 at padding.
    """

    mask: Tensor
    tokens: Tensor
    places: Tensor
    grid: Tensor
    rank: Tensor
    full: bool
    """Whether `mask` is True everywhere."""
    _heads: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _places: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _bias: dict[torch.dtype, Tensor] = field(default_factory=dict)
    _starts: Tensor | None = None

    @classmethod
    def from_mask(cls, mask: Tensor, count: int | None = None) -> "Layout":
        """Build the layout of a mask [B, T].

        count: how many tokens there are, if the caller knows it; then nothing is read back from the mask's device.
        """
        if count is None:
            tokens = mask.flatten().nonzero()[:, 0]
        else:
            tokens = mask.flatten().byte().argsort(descending=True, stable=True)[:count]
        full = tokens.numel() == mask.numel()
        grid = F.pad(mask, (0, max(0, SHORTEST - mask.size(1))))
        flat = grid.flatten()
        rank = (flat.cumsum(0) - 1).mul_(flat).view(grid.shape)
        return cls(mask, tokens, tokens % mask.size(1), grid, rank, full)

    @property
    def starts(self) -> Tensor:
        """The index of the first token of each row, and n: [B + 1]."""
        if self._starts is None:
            self._starts = F.pad(self.mask.sum(1).cumsum(0), (1, 0))
        return self._starts

    def pack(self, grid: Tensor) -> Tensor:
        """Return the tokens [n, ...] of a padded grid [B, T, ...]."""
        return grid.flatten(0, 1).index_select(0, self.tokens) if not self.full else grid.flatten(0, 1)

    def unpack(self, packed: Tensor) -> Tensor:
        """Return a padded grid [B, T, ...] of tokens [n, ...], zero at padding."""
        shape = (*self.mask.shape, *packed.shape[1:])
        if self.full:
            return packed.view(shape)
        return packed.new_zeros(self.mask.numel(), *packed.shape[1:]).index_copy(0, self.tokens, packed).view(shape)

    def split(self, packed: Tensor, parts: int, heads: int) -> Tensor:
        """Return one grid per part and head, [parts, B, H, G, D/H], of tokens [n, parts·D]; padding is finite."""
        if not self.tokens.numel():
            return packed.new_zeros(
                parts, self.grid.size(0), heads, self.grid.size(1), packed.size(-1) // parts // heads
            )
        key = (parts, heads)
        if key not in self._heads:
            part = torch.arange(parts, device=packed.device).view(-1, 1, 1, 1)
            head = torch.arange(heads, device=packed.device).view(1, 1, -1, 1)
            self._heads[key] = ((self.rank[None, :, None] * parts + part) * heads + head).flatten()
        batch, length = self.grid.shape
        rows = packed.view(packed.size(0) * parts * heads, -1)
        return rows.index_select(0, self._heads[key]).view(parts, batch, heads, length, -1)

    def join(self, grids: Tensor) -> Tensor:
        """Return the tokens [n, parts·D] of grids [parts, B, H, G, D/H]: the inverse of `split`."""
        parts, batch, heads, length, width = grids.shape
        key = (parts, heads)
        if key not in self._places:
            part = torch.arange(parts, device=grids.device).view(1, -1, 1)
            head = torch.arange(heads, device=grids.device).view(1, 1, -1)
            row = (self.tokens // self.mask.size(1)).view(-1, 1, 1)
            self._places[key] = (((part * batch + row) * heads + head) * length + self.places.view(-1, 1, 1)).flatten()
        rows = grids.view(-1, width).index_select(0, self._places[key])
        return rows.view(self.tokens.numel(), parts * heads * width)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """Return [B, 1, 1, G]: −inf at padding, else 0; None without padding."""
        if self.tokens.numel() == self.grid.numel():
            return None
        if dtype not in self._bias:
            zeros = torch.zeros(self.grid.shape, dtype=dtype, device=self.grid.device)
            self._bias[dtype] = zeros.masked_fill_(~self.grid, -torch.inf)[:, None, None]
        return self._bias[dtype]
