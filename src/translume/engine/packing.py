"""Every way to pack a linear map, and whether it can be trusted here."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.engine.linear import Bfloat16Linear, Int8Linear, Int8OneDnnLinear, PackedLinear, PlainLinear
from translume.engine.native_linear import NativeInt8Linear, NativeLinear

Make = Callable[[Tensor, Tensor | None], PackedLinear]

_EVERY: tuple[type[PackedLinear], ...] = (
    PlainLinear,
    NativeLinear,
    Bfloat16Linear,
    Int8Linear,
    Int8OneDnnLinear,
    NativeInt8Linear,
)
KINDS: dict[str, Make] = {each.kind: each for each in _EVERY}
"""Every way to pack, by name."""

TOLERANCES = {"fp32": 1e-5, "native": 1e-5, "bf16": 2e-2, "int8": 3e-2, "int8-onednn": 3e-2, "int8-native": 3e-2}
"""How far a result may be from fp32's, as a share of the largest one, for the kind to be trusted."""


def packed_as(kind: str, weight: Tensor, bias: Tensor | None) -> PackedLinear | None:
    """The weight [N, K] packed as `kind`; None where this torch or machine cannot, or gives other numbers."""
    try:
        packed = KINDS[kind](weight, bias)
        rows = _trial(weight)
        found = packed(rows)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        # What a build of torch without the kernel raises depends on the build.
        return None
    wanted = F.linear(rows, weight.detach().float(), None if bias is None else bias.detach().float())
    error = (found - wanted).abs().amax() / wanted.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)
    return packed if bool(error <= TOLERANCES[kind]) else None


def _trial(weight: Tensor) -> Tensor:
    """Five rows [5, K] as they come: of other sizes, one of them zero."""
    generator = torch.Generator().manual_seed(weight.size(1))
    rows = torch.randn(5, weight.size(1), generator=generator)
    return rows * torch.tensor([1.0, 0.0, 1e-3, 50.0, 7.0])[:, None]
