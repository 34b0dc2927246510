"""The fast step: a model's weights packed for this machine, and attention that moves nothing."""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.engine.layer import Layer
from translume.engine.linear import PackedLinear
from translume.engine.mixing import Attention, Reading
from translume.engine.probe import Choice
from translume.engine.state import Buffers, EngineState
from translume.model import Transformer
from translume.model.attention import SelfAttention
from translume.model.layout import Layout
from translume.model.memory import keep_freed_memory
from translume.model.positions import rotation
from translume.model.state import GROWTH


class Engine:
    """A step over the weights of a model that it was made of, and a start; nothing of the model is changed.

    Beliefs are fp32 whatever the weights are packed in. States are written in place: only the newest may be used.
    """

    def __init__(self, model: Transformer, choice: Choice) -> None:
        """choice: how to pack each linear map."""
        keep_freed_memory()  # buffers of a batch are asked for again by the next one
        self.choice = choice
        self.dtype = choice.dtype
        self.model = _packed(model, choice)
        self.layers = [Layer(layer, choice) for layer in model.decoder.stack]
        plain = model.head.plain()
        self.head = choice.pack(plain["weight"], plain.get("bias")) if plain else None

    @torch.inference_mode()
    def start(self, source: Tensor, mask: Tensor) -> EngineState:
        """Encode source ids [B, S] where mask [B, S] is True; the state before the first target token."""
        encoder, decoder, head = self.model.encoder, self.model.decoder, self.model.head
        layout = Layout.of(mask)
        packed = encoder.packed(source, layout)
        memory = layout.unpack(packed)
        layers = list(decoder.stack)
        heads = layers[0].cross_attention.heads
        grid, width = layout.grid.shape, memory.size(2) // heads
        cross = memory.new_empty(2 * len(layers), grid[0], heads, grid[1], width)
        for number, layer in enumerate(layers):
            cross[2 * number : 2 * number + 2] = layout.split(layer.cross_attention.key_value(packed), 2, heads)
        past = memory.new_empty(2 * len(layers), grid[0], heads, GROWTH, 1, width)
        hidden = layout.bias(memory.dtype)
        return EngineState(Buffers(past, cross, hidden), position=0, context=head.begin(source, mask, memory))

    @torch.inference_mode()
    def step(self, prefix: Tensor, state: EngineState) -> tuple[NextToken, EngineState]:
        """The belief about the token after prefix [N, t]; reads only what the state has not read yet."""
        hidden, state = self._behind(prefix, state)
        if self.head is not None:
            return Logits(self.head(hidden[:, -1])), state
        return self.model.head.next_token(hidden[:, -1], state.context), state

    @torch.inference_mode()
    def steps(self, prefix: Tensor, state: EngineState, count: int) -> tuple[Iterator[NextToken], EngineState]:
        """The beliefs after each of the last `count` tokens of prefix [N, t], which the state has not read yet."""
        hidden, state = self._behind(prefix, state)
        hidden = hidden[:, -count:]
        if self.head is None:
            return self.model.head.next_tokens(hidden, state.context), state
        logits = self.head(hidden.transpose(0, 1).flatten(0, 1))
        return map(Logits, logits.view(hidden.size(1), hidden.size(0), -1).unbind()), state

    def _behind(self, prefix: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """The hidden states [N, t, D] of what the state has not read yet of a prefix, and the state that has."""
        if state.width == 1 and all(isinstance(layer.mix, Attention) for layer in self.layers):
            return self.read(prefix[:, state.position :], state)
        hidden = []
        for place in range(state.position, prefix.size(1)):
            one, state = self.read(prefix[:, place : place + 1], state)
            hidden.append(one)
        return torch.cat(hidden, 1), state

    def _turn(self, place: int, count: int, x: Tensor) -> Tensor | None:
        """How far rotary positions turn queries and keys at some places; None for other positions."""
        attention = next(iter(self.model.decoder.stack)).self_attention
        if not isinstance(attention, SelfAttention) or not attention.rotary:
            return None
        return rotation(torch.arange(place, place + count, device=x.device), x.size(-1) // attention.heads)

    def read(self, ids: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """Read t more target tokens a row, ids [N, t]: hidden states [N, t, D] and the state after them.

        t is 1 where there are several hypotheses a sentence, or cells instead of self-attention.
        """
        state.check()
        decoder, buffers, place, count = self.model.decoder, state.buffers, state.position, ids.size(1)
        rows = None if state.slots is None else _rows(state.slots, state.width)
        if rows is not None:
            ids = torch.empty_like(ids).index_copy_(0, rows, ids)
        places = torch.arange(place, place + count, device=ids.device).expand(ids.shape)
        x = decoder.embedding(ids, places).flatten(0, 1)
        buffers.grow(place + count - 1)
        reach = state.reach
        if state.width > 1:
            own = torch.arange(state.width, device=ids.device)[None, :, None].expand(state.sentences, -1, 1)
            reach = own if reach is None else torch.cat([reach, own], 2)
        reading = Reading(
            place=place,
            width=state.width,
            count=count,
            unread=_later(place, count, x) if reach is None else _unread(reach, state.width),
            origin=None if reach is None or place == 0 else reach[:, :, place - 1],
            hidden=buffers.hidden,
            turn=self._turn(place, count, x),
        )
        for number, layer in enumerate(self.layers):
            x = layer(x, buffers.past[2 * number : 2 * number + 2], buffers.cross[2 * number : 2 * number + 2], reading)
        x = decoder.norm(x).view(*ids.shape, -1)
        if rows is not None:
            x = x.index_select(0, rows)
        return x, state.advanced(count, reach)


def _later(place: int, count: int, x: Tensor) -> Tensor | None:
    """[t, place + t], −inf after the own place of each of t tokens from `place` on; None for one, which reads all."""
    if count == 1:
        return None
    return torch.full((count, place + count), -math.inf, dtype=x.dtype, device=x.device).triu_(place + 1)


def _unread(reach: Tensor, width: int) -> Tensor:
    """[B, 1, K, t·K], −inf where hypothesis k does not continue what hypothesis j wrote at a place, from [B, K, t]."""
    own = torch.arange(width, device=reach.device) == reach[..., None]  # [B, K, t, K]
    zeros = torch.zeros(own.shape, device=reach.device)
    return zeros.masked_fill_(~own, -math.inf).flatten(2)[:, None]


def _rows(slots: Tensor, width: int) -> Tensor:
    """[B·K], where each row stands in the buffers' order."""
    return (slots[:, None] * width + torch.arange(width, device=slots.device)).flatten()


def _packed(model: Transformer, choice: Choice) -> Transformer:
    """A copy of the model in evaluation mode whose linear maps are packed; other parameters are shared with it."""
    kept = {id(each): each for each in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, kept).eval()
    crossing = [layer.cross_attention for layer in twin.decoder.stack]
    for part in (twin.encoder, *crossing):
        for module in list(part.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    packed: PackedLinear = choice.pack(child.weight, child.bias)
                    setattr(module, name, packed)
    return twin
