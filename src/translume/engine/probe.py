"""Which packing is fastest here for a shape: tried once, and remembered by whoever asks."""

import time
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from translume.engine.linear import PackedLinear, PlainLinear
from translume.engine.packing import packed_as

ROWS = (1, 64, 320)
"""Rows that a packing is timed with; the choice is by the sum of its shares of fp32's times, for any number of rows."""
ROUNDS = 5
INDEPENDENT = 1.2
"""How much slower than another a packing may be whose rows have the same numbers whatever stands beside them."""

Dtype = Literal["fp32", "bf16", "int8"]

CANDIDATES: dict[Dtype, tuple[str, ...]] = {
    "fp32": ("fp32", "native"),
    "bf16": ("fp32", "native", "bf16"),
    "int8": ("fp32", "native", "int8", "int8-onednn", "int8-native"),
}
"""What may be chosen for a dtype that was asked for, fp32 being always allowed."""

WAYS = ("torch", "native")
"""How the layers of a decoder may be read."""


@dataclass(slots=True)
class Choice:
    """How to pack linear maps of each shape.

    dtype: one of CANDIDATES.  kinds: by shape "K×N", what was chosen, or is to be chosen where it stands already.
    microseconds: by shape and kind, what the probe measured, for those who want to see.
    """

    dtype: Dtype = "fp32"
    kinds: dict[str, str] = field(default_factory=dict)
    microseconds: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)

    def pack(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """The weight [N, K] packed as was chosen for its shape, or as a probe finds now."""
        shape = f"{weight.size(1)}×{weight.size(0)}"
        if shape in self.kinds:
            chosen = packed_as(self.kinds[shape], weight, bias)
            return PlainLinear(weight, bias) if chosen is None else chosen
        packed = [packed_as(kind, weight, bias) for kind in CANDIDATES[self.dtype]]
        trusted = [each for each in packed if each is not None] or [PlainLinear(weight, bias)]
        if len(trusted) == 1:
            self.kinds[shape] = trusted[0].kind
            return trusted[0]
        times = _times(trusted, weight.size(1))
        self.microseconds[shape] = {each.kind: tuple(took) for each, took in zip(trusted, times, strict=True)}
        base = times[0]
        gains = [sum(took[place] / base[place] for place in range(len(ROWS))) for took in times]
        preferred = [
            gain / INDEPENDENT if each.independent else gain for each, gain in zip(trusted, gains, strict=True)
        ]
        best = trusted[preferred.index(min(preferred))]
        self.kinds[shape] = best.kind
        return best


@torch.inference_mode()
def _times(packed: list[PackedLinear], inputs: int) -> list[list[float]]:
    """For each packing the microseconds of a call with each number of ROWS, the best of some rounds taken by turns."""
    best = [[float("inf")] * len(ROWS) for _ in packed]
    for place, rows in enumerate(ROWS):
        x = torch.ones(rows, inputs)
        for _ in range(ROUNDS + 1):
            for number, each in enumerate(packed):
                start = time.perf_counter()
                for _ in range(3):
                    each(x)
                best[number][place] = min(best[number][place], (time.perf_counter() - start) / 3 * 1e6)
    return best
