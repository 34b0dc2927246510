"""Choose a packing for each shape, and cache the choice so that the next run computes the same.

The kernels are chosen without measuring, unless several threads, which only torch's products use, make those much
faster. Without kernels each shape is measured. The cache is engine.json in the user's cache folder, by dtype and
machine.
"""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from translume.atomic import replace_file
from translume.checksums import sealed, unsealed
from translume.engine.packing import PackedLinear, PlainLinear, packed_as
from translume.kernels import loading
from translume.kernels.cpu import cache_folder, cpu_name, instruction_limits

ROWS = (1, 64, 320)
"""Numbers of rows that a packing is timed with; the choice is by the sum of times relative to the first candidate's."""
ROUNDS = 6
SECONDS = 0.03
"""No further round is measured after so many seconds for an alternative and a number of rows."""
PROBED_OUTPUTS = 1 << 13
"""Outputs of a layer that are timed. Those of a large vocabulary would take minutes, and memory for each packing."""
INDEPENDENCE_BONUS = 1.2
"""How much slower than another packing one with independent rows may be and still be preferred."""
THREADS_BONUS = 2.0
"""How much faster torch's products on several threads must be to be preferred to the kernels, which search, too."""
RULE = 3
"""Version of the rule by which the probe chooses; a new version ignores the cached choices of older ones."""

Dtype = Literal["fp32", "bf16", "int8"]

CANDIDATES: dict[Dtype, tuple[str, ...]] = {
    "fp32": ("fp32", "native"),
    "bf16": ("fp32", "native", "bf16", "bf16-native"),
    "int8": ("fp32", "native", "int8", "int8-onednn", "int8-native"),
}
"""The packings that may be chosen for a dtype."""

NATIVE: dict[Dtype, str] = {"fp32": "native", "bf16": "bf16-native", "int8": "int8-native"}
"""The packing of the kernels for a dtype."""

LAYER_BACKENDS = ("torch", "native")
"""How the layers of a decoder may be computed; chosen for shapes named "decoder …"."""


@dataclass(slots=True)
class Choice:
    """The packing chosen for each shape of linear layer.

    dtype: one of CANDIDATES.  kinds: the packing by shape "K×N"; a shape that is present is not probed.
    microseconds: what the probe measured, by shape and kind.
    measured: whether to measure where the kernels are preferred, too.
    kernels: whether the kernels are preferred; None until decided.
    """

    dtype: Dtype = "fp32"
    kinds: dict[str, str] = field(default_factory=dict)
    microseconds: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)
    measured: bool = False
    kernels: bool | None = None

    def prefers_kernels(self, weight: Tensor) -> bool:
        """Return whether to use the kernels without measuring every shape. Decided once, by one weight [N, K].

        On one thread they are preferred wherever they have the dtype. Several threads, which only torch uses, must make
        its product of this weight THREADS_BONUS times as fast as that of the kernels.
        """
        if self.measured:
            return False
        if self.kernels is None:
            found = loading.load_once()
            self.kernels = not isinstance(found, str) and (self.dtype != "int8" or found.int8)
            if self.kernels and torch.get_num_threads() > 1:
                self.kernels = self._wins_on_one_thread(weight)
        return self.kernels

    def _wins_on_one_thread(self, weight: Tensor) -> bool:
        packed = [packed_as(kind, weight, None) for kind in CANDIDATES[self.dtype]]
        candidates = [each for each in packed if each is not None]
        times = measure(
            lambda rows: [partial(each, torch.ones(rows, weight.size(1))) for each in candidates], repeats=1
        )
        ours = [row for each, row in zip(candidates, times, strict=True) if each.kind == NATIVE[self.dtype]]
        others = [row for each, row in zip(candidates, times, strict=True) if "native" not in each.kind]
        if not ours:
            return False
        shares = [time / min(row[number] for row in others) for number, time in enumerate(ours[0])]
        return sum(shares) <= THREADS_BONUS * len(ROWS)

    def pack(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Pack the weight [N, K] as chosen for its shape; probe the shape if there is no choice yet."""
        shape = f"{weight.size(1)}×{weight.size(0)}"
        if shape not in self.kinds and self.prefers_kernels(weight):
            preferred = packed_as(NATIVE[self.dtype], weight, bias)
            if preferred is not None:
                self.kinds[shape] = preferred.kind
                return preferred
        if shape not in self.kinds:
            few = weight.size(0) <= PROBED_OUTPUTS
            best = self._probe(shape, weight[:PROBED_OUTPUTS], None if bias is None else bias[:PROBED_OUTPUTS])
            self.kinds[shape] = best.kind
            if few:
                return best
        chosen = packed_as(self.kinds[shape], weight, bias)
        return PlainLinear(weight, bias) if chosen is None else chosen

    def _probe(self, shape: str, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Return the best packing of a weight."""
        packed = [packed_as(kind, weight, bias) for kind in CANDIDATES[self.dtype]]
        candidates = [each for each in packed if each is not None] or [PlainLinear(weight, bias)]
        if len(candidates) == 1:
            return candidates[0]
        times = measure(
            lambda rows: [partial(each, torch.ones(rows, weight.size(1))) for each in candidates], repeats=3
        )
        self.microseconds[shape] = {each.kind: row for each, row in zip(candidates, times, strict=True)}
        shares = [sum(time / base for time, base in zip(row, times[0], strict=True)) for row in times]
        # With int8, a packing with independent rows is always preferred, whatever its speed.
        bonus = float("inf") if self.dtype == "int8" else INDEPENDENCE_BONUS

        def cost(index: int) -> tuple[float, float]:
            share = shares[index]
            return (share / bonus if candidates[index].rows_are_independent() else share, share)

        return candidates[min(range(len(candidates)), key=cost)]


@torch.inference_mode()
def measure(calls_for: Callable[[int], Sequence[Callable[[], object]]], repeats: int) -> list[tuple[float, ...]]:
    """Return for each alternative the microseconds of a call for each number of ROWS: the best of ROUNDS, in turns.

    Long calls are measured in fewer rounds.
    calls_for: the alternatives for a number of rows.  repeats: calls in a row before the next alternative's turn.
    """
    by_rows = []
    for rows in ROWS:
        alternatives = calls_for(rows)
        best = [float("inf")] * len(alternatives)
        end = time.perf_counter() + SECONDS * len(alternatives)
        for number in range(ROUNDS):
            if number and time.perf_counter() > end:
                break
            for index, call in enumerate(alternatives):
                start = time.perf_counter()
                for _ in range(repeats):
                    call()
                best[index] = min(best[index], (time.perf_counter() - start) / repeats * 1e6)
        by_rows.append(best)
    return list(zip(*by_rows, strict=True))


def load_choice(dtype: Dtype) -> Choice:
    """Return the cached choice for a dtype on this machine with this torch; an empty one if nothing valid is cached."""
    kinds = _read_cache().get(_key(dtype))
    if not isinstance(kinds, dict):
        return Choice(dtype)
    return Choice(dtype, {shape: kind for shape, kind in kinds.items() if _is_valid(shape, kind, dtype)})


def save_choice(choice: Choice) -> bool:
    """Cache a choice. Returns False if the folder cannot be written; then the next run probes again."""
    path = cache_folder() / "engine.json"
    document = {**_read_cache(), _key(choice.dtype): choice.kinds}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, sealed(document, ensure_ascii=False).encode(), synced=False)
    except OSError:
        return False
    return True


def _is_valid(shape: str, kind: object, dtype: Dtype) -> bool:
    return kind in (LAYER_BACKENDS if shape.startswith("decoder ") else CANDIDATES[dtype])


def _read_cache() -> dict[str, object]:
    try:
        return unsealed((cache_folder() / "engine.json").read_bytes())[0]
    except (OSError, ValueError):
        return {}


def _key(dtype: Dtype) -> str:
    """Return a key of everything except shapes that a choice depends on."""
    machine = f"{platform.machine()} {cpu_name()} {instruction_limits()} {torch.__version__}"
    threads = f"threads={torch.get_num_threads()}"
    return f"{dtype} {machine} {threads} kernels={_instructions()} rule={RULE} of {' '.join(CANDIDATES[dtype])}"


def _instructions() -> str:
    """Return the instruction set of the kernels; "none" if there are none, for example because compiling failed."""
    found = loading.load_once()
    return "none" if isinstance(found, str) else found.instructions
