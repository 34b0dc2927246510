"""Which packing is fastest here for a shape: tried once, and remembered by whoever asks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from translume.engine.linear import PackedLinear, PlainLinear
from translume.engine.packing import packed_as

ROWS = (1, 64, 320)
"""Numbers of rows that a packing is timed with; the choice is by the sum of times relative to the first candidate's."""
ROUNDS = 6
INDEPENDENT = 1.2
"""How much slower than another packing one with independent rows may be and still be preferred."""

Dtype = Literal["fp32", "bf16", "int8"]

CANDIDATES: dict[Dtype, tuple[str, ...]] = {
    "fp32": ("fp32", "native"),
    "bf16": ("fp32", "native", "bf16"),
    "int8": ("fp32", "native", "int8", "int8-onednn", "int8-native"),
}
"""What may be chosen for a dtype that was asked for, fp32 being always allowed."""

WAYS = ("torch", "native")
"""How the layers of a decoder may be read; they are chosen for a shape that is called "decoder …"."""


def known(shape: str, kind: object, dtype: Dtype) -> bool:
    """Whether something of this shape may be packed, or read, as `kind` where `dtype` was asked for."""
    return kind in (WAYS if shape.startswith("decoder ") else CANDIDATES[dtype])


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
        found = times(lambda rows: [partial(each, torch.ones(rows, weight.size(1))) for each in trusted], calls=3)
        self.microseconds[shape] = {each.kind: took for each, took in zip(trusted, found, strict=True)}
        shares = [sum(ours / base for ours, base in zip(took, found[0], strict=True)) for took in found]
        # With int8, no speed outweighs equal numbers alone and in a batch, wherever a packing gives them.
        advantage = float("inf") if self.dtype == "int8" else INDEPENDENT

        def cost(place: int) -> tuple[float, float]:
            share = shares[place]
            return (share / advantage if trusted[place].rows_are_independent() else share, share)

        best = trusted[min(range(len(trusted)), key=cost)]
        self.kinds[shape] = best.kind
        return best


@torch.inference_mode()
def times(ways: Callable[[int], Sequence[Callable[[], object]]], calls: int) -> list[tuple[float, ...]]:
    """For each way the microseconds of a call with each number of ROWS, the best of some rounds taken by turns.

    ways: of so many rows.  calls: of a way before it is another's turn.
    """
    by_rows = []
    for rows in ROWS:
        tried = ways(rows)
        best = [float("inf")] * len(tried)
        for _ in range(ROUNDS):
            for number, way in enumerate(tried):
                start = time.perf_counter()
                for _ in range(calls):
                    way()
                best[number] = min(best[number], (time.perf_counter() - start) / calls * 1e6)
        by_rows.append(best)
    return list(zip(*by_rows, strict=True))
