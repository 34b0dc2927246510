"""Encoder and decoder layers: SSRU, residual connections and norms."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model import compiled
from translume.model.attention import CrossAttention, Linear, MergedAttention, SelfAttention, initialise
from translume.model.dropout import Dropout, recomputed
from translume.model.feed_forward import MixtureOfExperts, feed_forward_of
from translume.model.layout import Layout
from translume.model.local_attention import LocalAttention, reads_blocks
from translume.model.positions import AttentionPositions
from translume.model.state import Cells, LayerPast
from translume.parts import find


class Ssru(nn.Module):
    """Simpler simple recurrent unit (Kim et al. 2019), which replaces the self-attention of a decoder layer.

    Output relu(c_t) with cells c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ W x_t, f_t = sigmoid(W_f x_t + b_f), c_{−1} = 0. Cells
    are fp32 (fp64 for fp64) regardless of the weights' dtype, because a forget gate near 1 adds small increments.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.forget = nn.Linear(settings.width, settings.width, settings.bias)
        self.update = nn.Linear(settings.width, settings.width, bias=False)
        initialise(self.forget)
        initialise(self.update)

    def packed(self, x: Tensor, layout: Layout, positions: AttentionPositions, *, causal: bool) -> Tensor:
        """Map the tokens x [n, D] of a layout to the same shape. `causal` must be True; `positions` are ignored."""
        assert causal
        forget, update = (layout.unpack(each) for each in self._gates(x))  # [B, T, D]
        cells = recurrence(forget, update, forget.new_zeros(forget.size(0), forget.size(2)))
        return layout.pack(cells).relu().to(x.dtype)

    def padded(self, x: Tensor, mask: Tensor | None, positions: AttentionPositions, *, causal: bool) -> Tensor:
        """Map x [B, T, D] to the same shape; padding must be at the end. The other arguments are ignored."""
        forget, update = self._gates(x)
        return recurrence(forget, update, forget.new_zeros(forget.size(0), forget.size(2))).relu().to(x.dtype)

    def begin(self, memory: Tensor) -> Cells:
        """Return the empty cache for the sentences of a memory [B, S, D]."""
        return Cells(memory.new_empty(memory.size(0), 0, memory.size(2), dtype=_cell_dtype(memory)))

    def cached(self, x: Tensor, past: LayerPast, place: int, positions: AttentionPositions) -> Tensor:
        """Map t tokens x [N, t, D] from position `place` on to the same shape; write their cells to `past`."""
        assert isinstance(past, Cells)
        cells = recurrence(*self._gates(x), past.read(place))
        past.write(cells, place)
        return cells.relu().to(x.dtype)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = _cell_dtype(x)
        return self.forget(x).to(wide).sigmoid(), self.update(x).to(wide)


def recurrence(forget: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """Return cells c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ u_t, [B, T, D]; gates f and updates u [B, T, D], c_{−1} [B, D]."""
    cells: Tensor = _Recurrence.apply(forget, update, start)  # type: ignore[no-untyped-call]  # torch's has no types
    return cells


class _Recurrence(torch.autograd.Function):
    """The recurrence and its gradient, one operation on [B, D] per position.

    A parallel scan does log T times the work: on a CPU it took ten times as long for 64 rows of 30 positions.
    """

    @staticmethod
    def forward(ctx: Any, forget: Tensor, update: Tensor, start: Tensor) -> Tensor:
        cells, last = torch.empty_like(update), start
        for gate, new, cell in zip(forget.unbind(1), update.unbind(1), cells.unbind(1), strict=True):
            last = torch.lerp(new, last, gate, out=cell)
        ctx.save_for_backward(forget, update, start, cells)
        return cells

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        forget, update, start, cells = ctx.saved_tensors
        total = gradients[0].clone(memory_format=torch.contiguous_format)  # of each cell, including through later cells
        for place in range(total.size(1) - 1, 0, -1):
            total[:, place - 1].addcmul_(total[:, place], forget[:, place])
        carried = total * forget
        before = update.neg()  # c_{t−1} − u_t
        before[:, 1:] += cells[:, :-1]
        before[:, :1] += start[:, None]
        return before.mul_(total), total - carried, carried[:, 0] if carried.size(1) else torch.zeros_like(start)


def _cell_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


SubLayer = Callable[[Tensor], Tensor]


def norm_of(settings: ModelSettings) -> nn.Module:
    """Return a new norm over D."""
    norm: nn.Module = find("norm", settings.normalization)(settings)
    return norm


def layer_norm(settings: ModelSettings) -> nn.Module:
    """Return a LayerNorm (Ba et al. 2016)."""
    return nn.LayerNorm(settings.width, eps=settings.norm_epsilon, bias=settings.bias)


def rms_norm(settings: ModelSettings) -> nn.Module:
    """Return an RMSNorm (Zhang and Sennrich 2019)."""
    return nn.RMSNorm(settings.width, eps=settings.norm_epsilon)


def final_norm_of(settings: ModelSettings) -> nn.Module:
    """Return the new norm after the layers of a stack, over D; the identity if it has none."""
    return norm_of(settings) if settings.ends_normed else nn.Identity()


class Transform(nn.Sequential):
    """norm(gelu(W norm(h) + b)), between the layers of a decoder and its head, as in BERT."""

    def __init__(self, settings: ModelSettings) -> None:
        map_ = Linear(settings.width, settings.width)
        initialise(map_)
        super().__init__(final_norm_of(settings), map_, nn.GELU(), norm_of(settings))

    @property
    def weight(self) -> nn.Parameter:
        """The gain [D] of the last norm."""
        gain = self[-1].weight
        assert isinstance(gain, nn.Parameter)
        return gain


class Residual(nn.Module):
    """x + drop(sublayer(norm(x))) with norm "pre", norm(x + drop(sublayer(x))) with "post", and with "both"
    x + drop(after(sublayer(norm(x))))."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.norm = norm_of(settings)
        self.drop = Dropout(settings.dropout)
        self.before = settings.norm != "post"
        self.after = norm_of(settings) if settings.norm == "both" else nn.Identity()

    def forward(self, x: Tensor, sublayer: SubLayer) -> Tensor:
        """Map x [..., D] to the same shape."""
        if self.before:
            result: Tensor = self.drop(self.after(sublayer(self._normed(x))), x)
        else:
            result = self._normed(sublayer(x), x)
        return result

    def _normed(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return norm(x), or norm(residual + dropout(x))."""
        norm = self.norm
        if isinstance(norm, nn.LayerNorm) and compiled.trains(x, residual, norm.weight, norm.bias):
            keep, scale = (None, 1.0) if residual is None else self.drop.mask(x)
            return compiled.norm(x, residual, keep, scale, norm.weight, norm.bias, norm.eps)
        result: Tensor = norm(x if residual is None else self.drop(x, residual))
        return result


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    recomputes = False
    """Whether the backward pass computes the layer again instead of keeping its activations."""

    def __init__(self, settings: ModelSettings, layer: int = 0) -> None:
        """layer: its number."""
        super().__init__()
        self.self_attention = (LocalAttention if reads_blocks(settings, layer) else SelfAttention)(settings, layer)
        self.feed_forward = feed_forward_of(settings, layer)
        self.around_attention, self.around_feed_forward = Residual(settings), Residual(settings)

    def forward(self, x: Tensor, attend: SubLayer, sources: Tensor | None = None) -> Tensor:
        """Map x [n, D] to the same shape.  attend: applies this layer's self-attention.

        sources: [n], the source of each token, for experts that read a limited number of a source's tokens.
        """
        if self.recomputes and torch.is_grad_enabled():
            return recomputed(self.compute, x, attend, sources)
        return self.compute(x, attend, sources)

    def compute(self, x: Tensor, attend: SubLayer, sources: Tensor | None = None) -> Tensor:
        """As `forward`, whatever the backward pass computes again; a training may compile it."""
        x, block = self.around_attention(x, attend), self.feed_forward
        feed = partial(block, sources=sources) if isinstance(block, MixtureOfExperts) else block
        result: Tensor = self.around_feed_forward(x, feed)
        return result


class DecoderLayer(nn.Module):
    """Self-attention over the target so far (or an SSRU), cross-attention over the memory, then feed-forward.

    The layers of a language model have no cross-attention (`crosses` is False), nor have those with merged attention.
    """

    cross_attention: CrossAttention
    around_cross: Residual
    recomputes = False
    """As `EncoderLayer.recomputes`."""

    def __init__(self, settings: ModelSettings, layer: int = 0, *, crosses: bool = True) -> None:
        """layer: its number.  crosses: whether it reads a memory."""
        super().__init__()
        merges = crosses and settings.decoder_mixing == "merged"
        self.crosses = crosses and not merges
        self.self_attention: SelfAttention | Ssru
        if settings.decoder_mixing == "ssru":
            self.self_attention = Ssru(settings)
        else:
            self.self_attention = (MergedAttention if merges else SelfAttention)(settings, layer)
        if self.crosses:
            self.cross_attention = CrossAttention(settings)
        self.feed_forward = feed_forward_of(settings, layer)
        self.around_self = Residual(settings)
        if self.crosses:
            self.around_cross = Residual(settings)
        self.around_feed_forward = Residual(settings)

    @property
    def merged(self) -> MergedAttention | None:
        """The attention that reads target and memory in one, if the layer has it."""
        return self.self_attention if isinstance(self.self_attention, MergedAttention) else None

    def forward(self, x: Tensor, attend: SubLayer, cross_attend: SubLayer | None) -> Tensor:
        """Map x [..., D] to the same shape.  attend, cross_attend: apply attention over the target and the memory.

        cross_attend: None for a layer without cross-attention.
        """
        if self.recomputes and torch.is_grad_enabled():
            return recomputed(self.compute, x, attend, cross_attend)
        return self.compute(x, attend, cross_attend)

    def compute(self, x: Tensor, attend: SubLayer, cross_attend: SubLayer | None) -> Tensor:
        """As `EncoderLayer.compute`."""
        x = self.around_self(x, attend)
        if cross_attend is not None:
            x = self.around_cross(x, cross_attend)
        result: Tensor = self.around_feed_forward(x, self.feed_forward)
        return result


def recompute_layers(network: nn.Module) -> None:
    """Keep only the inputs of layers in training; the backward pass computes the rest again."""
    for module in network.modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            module.recomputes = True
