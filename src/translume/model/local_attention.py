"""Self-attention of an encoder over windows, in blocks: memory grows linearly with the length of a source.

A token may also read the first tokens of the source, which read everything (Longformer, Beltagy et al. 2020), or sums
of blocks of tokens (LongT5, Guo et al. 2022).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.attention import (
    AttentionOptions,
    Linear,
    SelfAttention,
    by_head,
    initialise,
    merge_heads,
    mixed_values,
    rotate,
    weights_of,
)
from translume.model.layout import Layout
from translume.model.positions import AttentionPositions, distance_buckets, encoding_class
from translume.parts import find

SCORES = 1 << 23
"""Maximum number of attention scores that are computed at once, unless one block of the batch has more."""


def reads_blocks(settings: ModelSettings, layer: int) -> bool:
    """Return whether a layer of an encoder is a `LocalAttention`: it has a window, and positions that fit blocks."""
    encoding = encoding_class(settings.positions)
    return settings.window(layer) > 0 and (encoding.kernels or not encoding.in_attention)


class GlobalMaps(nn.Module):
    """The maps by which global tokens read all tokens."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.query = Linear(settings.width, settings.attention_width, settings.bias)
        self.key_value = Linear(settings.width, 2 * settings.attention_width, settings.bias)
        initialise(self.query)
        initialise(self.key_value, [settings.attention_width] * 2)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all tokens read beside their windows, E of them.

    keys, values: [B, H, E, d].  allowed: [B, E].  block: [B, S], of each token.
    bias: [H, E, E], the biases of tokens of each block for these sums; None if there are none.
    """

    keys: Tensor
    values: Tensor
    allowed: Tensor
    bias: Tensor | None
    block: Tensor


class _Piece(NamedTuple):
    """C blocks of t queries and what they read.  query: [B·C, H, t, d].  keys, values: [B·C, H, R + E, d].

    mask: as for `attend`.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor


class LocalAttention(SelfAttention):
    """Self-attention of an encoder in which a token reads those less than `window` away, and what all tokens read.

    global_maps: of the first tokens, with `global_tokens`.  block_norm: of the sums of blocks, with `global_block`.
    """

    def __init__(self, settings: ModelSettings, layer: int = 0) -> None:
        super().__init__(settings, layer)
        self.first, self.block = settings.global_tokens, settings.global_block
        self.global_maps = GlobalMaps(settings) if self.first else None
        self._reach = self.window - 1 + self._ahead
        self.block_norm: nn.Module | None = find("norm", settings.normalization)(settings) if self.block else None

    def packed(self, x: Tensor, layout: Layout, positions: AttentionPositions, *, causal: bool) -> Tensor:
        """As `SelfAttention.packed`; `causal` is ignored."""
        result: Tensor = self.output(layout.pack(self._mixed(layout.unpack(x), layout.mask, positions)))
        return result

    def padded(self, x: Tensor, mask: Tensor | None, positions: AttentionPositions, *, causal: bool = False) -> Tensor:
        """As `SelfAttention.padded`; `causal` is ignored, and only the padding in `mask` is read."""
        assert mask is not None
        first = mask[:, 0, 0]
        real = first if first.dtype == torch.bool else ~first.isneginf()
        result: Tensor = self.output(self._mixed(x, real, positions))
        return result

    def weights(self, x: Tensor, mask: Tensor, positions: AttentionPositions, *, causal: bool) -> Tensor:
        """As `SelfAttention.weights`; those of sums of blocks are left out."""
        query, keys, values = self._heads(x, self._placed(x, positions))
        shared = self._shared(x, mask, keys, values, positions)
        (piece,) = self._pieces((query, keys, values), mask, shared, positions, whole=True)
        allowed = piece.mask if piece.mask.dtype == torch.bool else ~piece.mask.isneginf()
        bias = None if piece.mask.dtype == torch.bool else piece.mask
        applied = weights_of(self.mix, piece.query, piece.keys, allowed, bias, self.cap)
        within, beyond = applied[..., : x.size(1)], applied[..., x.size(1) :]
        if self.global_maps is None:
            return within
        queries, all_keys, _ = self._global_heads(x, positions)
        rows = weights_of(self.mix, queries, all_keys, mask[:, None, None], cap=self.cap)
        within = within + F.pad(beyond, (0, within.size(-1) - beyond.size(-1)))
        return torch.cat([rows, within[:, :, rows.size(2) :]], 2)

    def _mixed(self, x: Tensor, real: Tensor, positions: AttentionPositions) -> Tensor:
        """Return what the output map reads, [B, S, H·d], of x [B, S, D].  real: [B, S], False at padding."""
        options = AttentionOptions(self.heads, self.dropout if self.training else 0.0, cap=self.cap, mix=self.mix)
        every = self._heads(x, self._placed(x, positions))
        shared = self._shared(x, real, *every[1:], positions)
        parts = [mixed_values(*piece, options) for piece in self._pieces(every, real, shared, positions)]
        blocks = torch.cat([torch.unflatten(each, 0, (len(x), -1)) for each in parts], 1)  # [B, blocks, H, t, d]
        mixed = blocks.transpose(1, 2).flatten(2, 3)[:, :, : x.size(1)]
        if self.global_maps is not None:
            rows = mixed_values(*self._global_heads(x, positions), real[:, None, None], options)
            mixed = torch.cat([rows, mixed[:, :, rows.size(2) :]], 2)
        return merge_heads(mixed)

    def _placed(self, x: Tensor, positions: AttentionPositions) -> AttentionPositions:
        """Return the rotation of this layer for the tokens of x."""
        rotation = positions.rotation if positions.local is None else positions.local
        return AttentionPositions(None if rotation is None else rotation[:, : x.size(1)])

    def _pieces(
        self, every: tuple[Tensor, Tensor, Tensor], real: Tensor, shared: _Shared, positions: AttentionPositions,
        *, whole: bool = False,
    ) -> Iterator[_Piece]:  # fmt: skip
        """Yield all queries in pieces of at most SCORES scores.  every: queries, keys and values [B, H, S, d].

        whole: as one block that reads everything within reach.
        """
        query, (batch, heads, length, _) = every[0], every[0].shape
        size = margin = max(1, self._reach)
        if whole or length <= 3 * size:  # one block costs no more
            size, margin = length, 0
        count = -(-length // size)
        span, last = size + 2 * margin, count * size - length
        queries = torch.unflatten(F.pad(query, (0, 0, 0, last)), 2, (count, size))
        around = [F.pad(each, (0, 0, margin, margin + last)).unfold(2, span, size).mT for each in every[1:]]
        read = real & (torch.arange(length, device=real.device) >= self.first)  # the others are among `shared`
        readable = F.pad(read, (margin, margin + last)).unfold(1, span, size)[:, :, None, None]  # [B, blocks, 1, 1, R]
        distances = (
            torch.arange(-margin, span - margin, device=query.device) - torch.arange(size, device=query.device)[:, None]
        )
        near = self._near(positions, distances, query.dtype)
        inside = (distances > -self.window) & (distances <= self._reach)
        own = distances == 0  # padding reads itself, so that it is finite
        others = shared.keys.size(2)
        step = max(1, SCORES // (batch * heads * size * (span + others)))
        rows = torch.unflatten(F.pad(shared.block, (0, last)), 1, (count, size))
        for start in range(0, count, step):
            some = slice(start, start + step)
            allowed = inside & (readable[:, some] | own)
            parts, blocks = [each[:, :, some].transpose(1, 2) for each in (queries, *around)], allowed.size(1)
            bias = None if near is None else near.expand(batch, blocks, -1, -1, -1)
            if others:
                allowed = torch.cat([allowed, shared.allowed[:, None, None, None].expand(-1, blocks, -1, size, -1)], -1)
                for place, each in enumerate((shared.keys, shared.values), 1):
                    parts[place] = torch.cat([parts[place], each[:, None].expand(-1, blocks, -1, -1, -1)], 3)
                if bias is not None and shared.bias is not None:
                    beyond = shared.bias[:, rows[:, some]].permute(1, 2, 0, 3, 4)  # [B, blocks, H, t, E]
                    bias = torch.cat([bias, beyond.to(bias.dtype)], -1)
            mask = allowed if bias is None else bias.masked_fill(~allowed, -torch.inf)
            yield _Piece(*(each.flatten(0, 1) for each in (*parts, mask)))

    def _near(self, positions: AttentionPositions, distances: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the biases [H, t, R] of keys at these distances [t, R]; any beyond the window."""
        reach = self._reach
        if self.biases is not None:
            every = torch.arange(-reach, reach + 1, device=distances.device)
            buckets = distance_buckets(every, len(self.biases), self._furthest, causal=False)
            near = F.embedding(buckets, self.biases).mT
        elif positions.near is not None:
            near = positions.near(reach + 1)
        else:
            return None
        return near.to(dtype)[:, distances.clamp(-reach, reach) + reach]

    def _shared(self, x: Tensor, real: Tensor, keys: Tensor, values: Tensor, positions: AttentionPositions) -> _Shared:
        """Return what all tokens of x [B, S, D] read.  keys, values: [B, H, S, d].  real: [B, S], False at padding."""
        if not self.block:
            first = slice(0, self.first)
            return _Shared(keys[:, :, first], values[:, :, first], real[:, first], None, torch.zeros_like(real).long())
        length, count = x.size(1), x.size(1) // self.block
        last = real.sum(1, keepdim=True) // self.block - 1  # [B, 1], the last whole block; −1: there is none
        whole = F.pad(x.masked_fill(~real[..., None], 0.0), (0, 0, 0, (count + 1) * self.block - length))
        sums = torch.unflatten(whole, 1, (count + 1, self.block)).sum(2)
        numbers = torch.arange(count, device=x.device)
        sums = sums[:, :-1] + sums[:, 1:] * (numbers == last)[..., None]  # with the tokens after it
        assert self.block_norm is not None
        projected = self.project(self.block_norm(sums)).chunk(3, -1)
        _, own_keys, own_values = (by_head(each, self.heads) for each in projected)
        bias = None if positions.blocks is None else positions.blocks[:, :count, :count]
        blocks = (torch.arange(length, device=x.device) // self.block).minimum(last).clamp(min=0)
        return _Shared(own_keys, own_values, numbers <= last, bias, blocks)

    def _global_heads(self, x: Tensor, positions: AttentionPositions) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries [B, H, E, d] of the global tokens of x [B, S, D], and keys and values [B, H, S, d]."""
        assert self.global_maps is not None
        query = by_head(self.global_maps.query(x[:, : self.first]), self.heads)
        keys, values = (by_head(each, self.heads) for each in self.global_maps.key_value(x).chunk(2, -1))
        rotation = self._placed(x, positions).rotation
        if rotation is not None:
            query, keys = rotate(query, rotation[:, : query.size(2)]), rotate(keys, rotation)
        return query, keys, values
