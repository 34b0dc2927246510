"""Low-rank adapters of linear maps (LoRA, Hu et al. 2021), and merging them into the weights."""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.errors import SettingsError
from translume.model.attention import CrossAttention, MergedAttention, SelfAttention
from translume.model.dropout import Dropout
from translume.model.feed_forward import FeedForward
from translume.model.layers import Ssru
from translume.model.local_attention import GlobalMaps, LocalAttention

_ATTENTION: Mapping[str, Sequence[str]] = {"query_key_value": ("query", "key", "value"), "output": ("output",)}
_MAPS: Mapping[type[nn.Module], Mapping[str, Sequence[str]]] = {
    SelfAttention: _ATTENTION,
    LocalAttention: _ATTENTION,
    MergedAttention: _ATTENTION,
    GlobalMaps: {"query": ("query",), "key_value": ("key", "value")},
    CrossAttention: {"query": ("query",), "key_value": ("key", "value"), "output": ("output",)},
    FeedForward: {"inner": ("feed_forward",), "outer": ("feed_forward",)},
    Ssru: {"forget": ("recurrence",), "update": ("recurrence",)},
}
"""The linear maps of a module by attribute: the names in `lora_targets` of the maps stacked in each."""


class LowRankLinear(nn.Linear):
    """W x + b + (α/r) U_p D_p dropout(x) for each adapted part p of the maps stacked in W; other parts are W x + b.

    weight, bias: those of the adapted map, frozen.  down: [P·r, in], D of each of P adapted parts, initialised like
    the layers of torch.  up: [P, out / parts, r], U, initialised to zero, so that the first output is W x + b.
    """

    def __init__(self, linear: nn.Linear, parts: Sequence[bool], rank: int, alpha: float, dropout: float) -> None:
        """linear: the map to adapt, whose tensors are shared.  parts: for each map stacked in it, whether to adapt."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.parts, self.scale, self.drop = tuple(parts), alpha / rank, Dropout(dropout)
        self.down = nn.Parameter(linear.weight.new_empty(sum(parts) * rank, linear.in_features))
        self.up = nn.Parameter(linear.weight.new_zeros(sum(parts), linear.out_features // len(parts), rank))
        for each in self.down.data.chunk(sum(parts)):
            nn.init.kaiming_uniform_(each, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out]."""
        result = F.linear(x, self.weight, self.bias)
        size = result.size(-1) // len(self.parts)
        low = (F.linear(self.drop(x), self.down) * self.scale).chunk(len(self.up), -1)
        for place, narrow, up in zip(self._adapted(), low, self.up, strict=True):
            result.narrow(-1, place * size, size).add_(F.linear(narrow, up))
        return result

    @torch.no_grad()
    def merged(self, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """Return the one matrix [out, in] that has the effect of a weight and its adapters."""
        result = weight.detach().clone()
        rows, downs = result.chunk(len(self.parts)), down.to(weight).chunk(len(up))
        for place, narrow, wide in zip(self._adapted(), downs, up.to(weight), strict=True):
            rows[place].addmm_(wide, narrow, alpha=self.scale)
        return result

    def _adapted(self) -> list[int]:
        return [place for place, adapted in enumerate(self.parts) if adapted]


def adapt(network: nn.Module, settings: TrainingSettings) -> None:
    """Freeze the weights of a network, and give the maps named in `lora_targets` adapters of rank `lora_rank`.

    With `lora_norms` the gains and biases of norms are trained too. Raises SettingsError if the network has none of
    the maps, or if the rank exceeds the size of one.
    """
    network.requires_grad_(requires_grad=False)
    adapted = [
        (module, name, [part in settings.lora_targets for part in parts])
        for module in network.modules()
        for name, parts in _MAPS.get(type(module), {}).items()
        if not set(parts).isdisjoint(settings.lora_targets)
    ]
    if not adapted:
        raise SettingsError(f"training.lora_targets: the model has no maps named {', '.join(settings.lora_targets)}")
    for module, name, parts in adapted:
        linear = getattr(module, name)
        largest = min(linear.in_features, linear.out_features // len(parts))
        if settings.lora_rank > largest:
            raise SettingsError(
                f"training.lora_rank: found {settings.lora_rank}, expected at most {largest}, "
                f"the size of the smallest adapted map"
            )
        setattr(
            module, name, LowRankLinear(linear, parts, settings.lora_rank, settings.lora_alpha, settings.lora_dropout)
        )
    if settings.lora_norms:
        for module in network.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.requires_grad_()


def merge(network: nn.Module, frozen: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights, by their names without adapters, that trained values of an adapted network change.

    frozen, trained: the weights of the network by name, as `Updater` holds them; other values of the trained ones may
    be given. The results have the dtype and device of the frozen weights.
    """
    changed, rest = {}, dict(trained)
    for name, module in network.named_modules():
        if isinstance(module, LowRankLinear):
            down, up = rest.pop(f"{name}.down"), rest.pop(f"{name}.up")
            changed[f"{name}.weight"] = module.merged(frozen[f"{name}.weight"], down, up)
    return rest | changed
