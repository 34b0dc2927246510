"""The simpler simple recurrent unit (Kim et al. 2019, "From Research to Production and Back"), as Marian has it."""

from typing import Any

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.attention import initialise
from translume.model.layout import Layout
from translume.model.state import Cells, LayerPast


class Ssru(nn.Module):
    """relu(c_t) of cells c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ W x_t, f_t = sigmoid(W_f x_t + b_f), and none before t = 0.

    It stands in the place of a decoder's self-attention: a token knows of those before it by the cell alone. Cells are
    fp32 (fp64 for fp64) whatever the weights are, since a forget gate near 1 adds little at a time.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.forget = nn.Linear(settings.width, settings.width, settings.bias)
        self.update = nn.Linear(settings.width, settings.width, bias=False)
        initialise(self.forget)
        initialise(self.update)

    def packed(self, x: Tensor, layout: Layout, causal: bool) -> Tensor:
        """x [n, D], the tokens of a layout, to the same shape; causal: True, as there is no other way to read."""
        assert causal
        forget, update = (layout.unpack(each) for each in self._gates(x))  # [B, T, D]
        cells = recurrence(forget, update, forget.new_zeros(forget.size(0), forget.size(2)))
        return layout.pack(cells).relu().to(x.dtype)

    def begin(self, memory: Tensor) -> Cells:
        """What `cached` needs before the first token, for the sentences of a memory [B, S, D]."""
        return Cells(memory.new_empty(memory.size(0), 0, memory.size(2), dtype=_wide(memory)))

    def cached(self, x: Tensor, past: LayerPast, place: int) -> Tensor:
        """x [N, t, D] at places `place` … to the same shape; their cells are added to the past."""
        assert isinstance(past, Cells)
        cells = recurrence(*self._gates(x), past.read(place))
        past.write(cells, place)
        return cells.relu().to(x.dtype)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = _wide(x)
        return self.forget(x).to(wide).sigmoid(), self.update(x).to(wide)


def recurrence(forget: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """Cells c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ u_t, [B, T, D], of gates f and updates u [B, T, D] and c_{−1} [B, D]."""
    cells: Tensor = _Recurrence.apply(forget, update, start)  # type: ignore[no-untyped-call]  # torch's has no types
    return cells


class _Recurrence(torch.autograd.Function):
    """One pass over time forwards and one backwards, each an operation on [B, D] a place, written where it belongs.

    A parallel scan does log T times the work: on a CPU it took ten times as long for 64 rows of 30 places.
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
        grown = gradients[0].clone(memory_format=torch.contiguous_format)  # of each cell, what came after it included
        for place in range(grown.size(1) - 1, 0, -1):
            grown[:, place - 1].addcmul_(grown[:, place], forget[:, place])
        carried = grown * forget
        before = update.neg()  # c_{t−1} − u_t
        before[:, 1:] += cells[:, :-1]
        before[:, :1] += start[:, None]
        return before.mul_(grown), grown - carried, carried[:, 0] if carried.size(1) else torch.zeros_like(start)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
