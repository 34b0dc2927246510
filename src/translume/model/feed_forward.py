"""Feed-forward blocks: one for all tokens, or a mixture of experts, of which a router chooses some for each token."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.config.model import GATED
from translume.model import compiled
from translume.model.attention import Linear, initialise
from translume.model.dropout import Dropout
from translume.model.head import HeadLoss
from translume.parts import find


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, applied to each token separately; three maps if it is gated."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.activation = settings.activation
        parts = 2 if settings.activation in GATED else 1
        self.inner = Linear(settings.width, parts * settings.feed_forward, settings.bias)
        self.outer = Linear(settings.feed_forward, settings.width, settings.bias)
        self.drop = Dropout(settings.activation_dropout)
        initialise(self.inner, [settings.feed_forward] * parts)
        initialise(self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., D] to the same shape."""
        if self.activation == "relu":
            hidden = self._relu(x)
        elif self.activation == "gelu":
            hidden = F.gelu(self.inner(x))
        elif self.activation == "gelu_tanh":
            hidden = F.gelu(self.inner(x), approximate="tanh")
        elif self.activation == "swish":
            hidden = F.silu(self.inner(x))
        else:
            gate, value = self.inner(x).chunk(2, -1)
            hidden = (F.silu(gate) if self.activation == "swiglu" else F.gelu(gate, approximate="tanh")) * value
        result: Tensor = self.outer(self.drop(hidden))
        return result

    def _relu(self, x: Tensor) -> Tensor:
        inner = self.inner
        if type(inner) is Linear and compiled.trains(x, inner.weight, inner.bias):
            return compiled.linear(x, inner.weight, inner.bias, relu=True)
        return F.relu(inner(x), inplace=True)  # saves a tensor of n·F elements


class MixtureOfExperts(nn.Module):
    """Σ g_i · block_i(x) over the k experts i of E that a router chooses for a token (Shazeer et al. 2017).

    p = softmax(W x), in fp32 or wider. The gate g_i of one expert is p_i (Fedus et al. 2021, eq. 2), that of several is
    p_i divided by their sum. An expert over its capacity adds nothing to a token: in training it reads at most
    `expert_capacity_factor`·k·n / E of n tokens, first choices first, and at all times at most `expert_capacity` tokens
    of a source. Without a capacity no token depends on others.
    """

    def __init__(self, settings: ModelSettings, count: int) -> None:
        super().__init__()
        self.choices, self.factor = settings.experts_per_token, settings.expert_capacity_factor
        self.capacity, self.weight = settings.expert_capacity, settings.expert_balance
        self.router = Linear(settings.width, count, bias=False)
        self.experts = nn.ModuleList(_block_of(settings) for _ in range(count))
        initialise(self.router)

    def forward(self, x: Tensor, sources: Tensor | None = None) -> Tensor:
        """Map x [..., D] to the same shape.  sources: [...], the source of each token; None: no limit by source."""
        tokens, wide = x.flatten(0, -2), torch.promote_types(x.dtype, torch.float32)
        probabilities = F.linear(tokens.to(wide), self.router.weight.to(wide)).softmax(-1)
        gates, chosen = probabilities.topk(self.choices, -1)  # [n, k]
        if self.choices > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        kept = self._kept(chosen, sources)
        if self.training:
            self._report(probabilities, chosen, kept)
        result = torch.zeros_like(tokens)
        for number in torch.unique(chosen).tolist():
            places, choices = (kept & (chosen == number)).nonzero().unbind(1)
            read = self.experts[number](tokens[places]) * gates[places, choices, None].to(x.dtype)
            result.index_add_(0, places, read)
        return result.view_as(x)

    def _kept(self, chosen: Tensor, sources: Tensor | None) -> Tensor:
        """Return which choices [n, k] are within the capacities."""
        kept, count = torch.ones_like(chosen, dtype=torch.bool), len(self.experts)
        if self.training and self.factor:
            most = max(1, math.ceil(self.factor * chosen.numel() / count))
            kept &= _earlier(chosen) < most
        if self.capacity and sources is not None:
            kept &= _earlier(chosen + count * sources.flatten()[:, None]) < self.capacity
        return kept

    def _report(self, probabilities: Tensor, chosen: Tensor, kept: Tensor) -> None:
        """Add [weighted balance loss, balance loss, choices over the capacity, choices] to an enclosing `routings`.

        Balance loss: E Σ_i f_i P_i with the share f_i of choices of expert i and its mean probability P_i (Fedus et
        al. 2021, eq. 4 to 6), 1 if all experts are chosen equally.
        """
        count = len(self.experts)
        shares = chosen.flatten().bincount(minlength=count).to(probabilities.dtype) / max(1, chosen.numel())
        balance = count * (shares * probabilities.sum(0) / max(1, len(chosen))).sum()
        dropped, choices = (~kept).sum().to(balance.dtype), balance.new_tensor(kept.numel())
        if (routed := _routed.get()) is not None:
            routed.append(torch.stack([self.weight * balance, balance, dropped, choices]))


def feed_forward_of(settings: ModelSettings, layer: int) -> nn.Module:
    """Return the new feed-forward block of a layer, given its number, from x [..., D] to the same shape."""
    count = settings.experts_of(layer)
    return MixtureOfExperts(settings, count) if count else _block_of(settings)


def _block_of(settings: ModelSettings) -> nn.Module:
    block: nn.Module = find("feed_forward", settings.feed_forward_kind)(settings)
    return block


_routed: ContextVar[list[Tensor] | None] = ContextVar("routings", default=None)


@contextmanager
def routings() -> Iterator[list[Tensor]]:
    """Give a list to which every mixture that computes in the block, in training, adds its numbers.

    The backward pass, which may compute layers again, is outside the block, so nothing is counted twice.
    """
    routed: list[Tensor] = []
    token = _routed.set(routed)
    try:
        yield routed
    finally:
        _routed.reset(token)


def with_balance(loss: HeadLoss, routed: Sequence[Tensor]) -> HeadLoss:
    """Return a loss with the weighted balance losses of all mixtures in its objective, times its tokens."""
    if not routed:
        return loss
    weighted, balance, dropped, choices = torch.stack([*routed]).unbind(1)
    routing = torch.stack([loss.tokens * balance.mean(), dropped.sum(), choices.sum()]).detach()
    return replace(loss, objective=loss.objective + loss.tokens * weighted.sum(), routing=routing)


def _earlier(keys: Tensor) -> Tensor:
    """Return for each element of keys [n, k] how many equal ones are in columns before, or above it in its column."""
    flat = keys.T.flatten()
    order = flat.argsort(stable=True)
    ordered, places = flat[order], torch.arange(len(flat), device=flat.device)
    earlier = torch.empty_like(flat).index_copy_(0, order, places - torch.searchsorted(ordered, ordered))
    return earlier.view(keys.T.shape).T
