"""How a layer of the engine knows of the target before a token: by self-attention, or by cells.

Both keep what they need of every place in buffers [2, B, H, capacity, K, d], and no place is ever moved: who continues
whom is in the step's `Reading`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from translume.engine.probe import Choice
from translume.model.attention import SelfAttention
from translume.model.layers import Ssru
from translume.model.positions import rotate

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What every layer needs to know of a step.

    place: of the tokens that are read, or of the first of them.  width: K.
    count: how many tokens of a hypothesis are read, t; 1 where K is not 1.
    unread: [B, 1, K, (place+1)·K], −inf where a hypothesis does not continue what stands there; [t, place+t], −inf
        after a token's own place; None where K and t are 1.
    origin: [B, K], which hypothesis of the place before each continues; None where K is 1, or at the first place.
    hidden: [B, 1, 1, S], −inf where no source token stands; None where all do.
    turn: of these places, for rotary positions.
    """

    place: int
    width: int
    count: int
    unread: Tensor | None
    origin: Tensor | None
    hidden: Tensor | None
    turn: Tensor | None


class Attention:
    """Self-attention: a sentence's K hypotheses read all that any of them wrote, but for what is not theirs."""

    def __init__(self, attention: SelfAttention, choice: Choice) -> None:
        self.heads = attention.heads
        width = attention.output.weight.size(1)
        self.query_key_value = scaled(attention.query_key_value, width // self.heads, width, choice)
        self.output = packed(attention.output, choice)

    def __call__(self, x: Tensor, past: Tensor, reading: Reading) -> Tensor:
        """x [B·K·t, D] to the same shape; its keys and values are written into the past."""
        place, count = reading.place, reading.count
        shape = (past.size(1), reading.width * count, 3, self.heads, past.size(5))
        parts = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4)
        query = parts[0]
        here = past[:, :, :, place] if count == 1 else past[:, :, :, place : place + count, 0]
        if reading.turn is None:
            here[:] = parts[1:]
        else:
            query = rotate(query, reading.turn)
            here[0] = rotate(parts[1], reading.turn)
            here[1] = parts[2]
        return self.output(attended(query, past[:, :, :, : place + count].flatten(3, 4), reading.unread))


class Cells:
    """The cells of an SSRU (Kim et al. 2019), fp32; they stand where attention has its keys."""

    def __init__(self, unit: Ssru, choice: Choice) -> None:
        self.forget, self.update = packed(unit.forget, choice), packed(unit.update, choice)

    def __call__(self, x: Tensor, past: Tensor, reading: Reading) -> Tensor:
        """x [B·K, D] to the same shape; its cells are written into the past."""
        batch, heads, _, width, size = past[0].shape
        gate, new = (part.view(batch, width, heads, size) for part in (self.forget(x).sigmoid_(), self.update(x)))
        if reading.place == 0:
            cells = new - new * gate
        else:
            before = past[0, :, :, reading.place - 1].transpose(1, 2)  # [B, K, H, d]
            if reading.origin is not None:
                before = before.gather(1, reading.origin[..., None, None].expand(-1, -1, heads, size))
            cells = torch.lerp(new, before, gate)
        past[0, :, :, reading.place] = cells.transpose(1, 2)
        return cells.view(batch * width, heads * size).relu()


def attended(query: Tensor, both: Tensor, hidden: Tensor | None) -> Tensor:
    """Softmax(Q Kᵀ) V, [B·K, D], of a scaled query [B, H, K, d] over keys and values [2, B, H, S, d].

    hidden: what is added to the scores, −inf where reading is not allowed.
    """
    keys, values = both.unbind()
    scores = torch.matmul(query, keys.mT)
    if hidden is not None:
        scores.add_(hidden)
    mixed = torch.matmul(scores.softmax(-1), values)
    batch, heads, width, size = query.shape
    if width == 1:
        return mixed.view(batch, heads * size)
    return mixed.transpose(1, 2).reshape(batch * width, heads * size)


def packed(linear: nn.Linear, choice: Choice) -> Map:
    """The map packed for this machine."""
    return choice.pack(linear.weight, linear.bias).forward


def scaled(linear: nn.Linear, size: int, rows: int, choice: Choice) -> Map:
    """The map packed, its first `rows` outputs, the queries, divided by √size as attention wants them."""
    factor = torch.ones(linear.weight.size(0))
    factor[:rows] = size**-0.5
    bias = None if linear.bias is None else linear.bias.detach().float() * factor
    return choice.pack(linear.weight.detach().float() * factor[:, None], bias).forward
