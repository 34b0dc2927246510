"""Linear layers packed for the kernels. Inputs and outputs are fp32.

Each row of int8 inputs has its own scale. A row's product is the same, bit for bit, for any other rows in the batch:
the kernels sum each output in an order that does not depend on them.
"""

import ctypes
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from translume.engine.network import Array
from translume.kernels import loading
from translume.kernels.loading import Kernels, NativeError, address, empty

Dtype = Literal["fp32", "bf16", "int8"]
INT8_MAX = 127
"""Largest magnitude of a quantised weight or activation."""
LANES = 16
"""Floats in the widest vector of the kernels. Widths must be multiples of it with every instruction set."""
FP32, QUANTIZED, BF16 = range(3)
"""`format` of linear.h."""
CHECKED_OUTPUTS = 256
"""Outputs of a layer that `checked_linear` compares: few, so that NumPy's product starts no threads."""
PART_ROWS = 1 << 12
"""Rows of a weight that are packed at once: a multiple of every panel."""
TINY = np.finfo(np.float32).tiny
TOLERANCES: dict[Dtype, float] = {"fp32": 1e-5, "bf16": 2e-2, "int8": 3e-2}
"""Largest accepted difference from the fp32 product, relative to the largest output."""


class PackedLinear:
    """x Wᵀ + b for a weight [N, K] in fp32, packed by panels of outputs.

    struct: what the kernels read.  bytes: of the packed weight.
    """

    format: ClassVar[int] = FP32
    multiple: ClassVar[int] = 1
    """Inputs are padded with zeros to a multiple of this."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """arrays: those of `pack`.  Raises NativeError if the kernels are not available."""
        self._kernels = loading.kernels()
        self.outputs, self.inputs = arrays["size"].tolist()
        self._missing = -self.inputs % self.multiple
        self._kept = (arrays["weight"], arrays.get("scale"), arrays["shift"])
        self.struct = loading.Linear(self.inputs + self._missing, self.outputs, self.format, *map(address, self._kept))
        self._address = ctypes.addressof(self.struct)
        self.bytes = arrays["weight"].nbytes

    @classmethod
    def pack(cls, weight: Array, bias: Array | None) -> dict[str, Array]:
        """Return what the kernels read of a weight [N, K] and a bias [N], and the size (N, K).

        Raises NativeError if the kernels are not available, or not for this format.
        """
        kernels = loading.kernels()
        panels = -(-len(weight) // kernels.panel)
        shift = empty([panels * kernels.panel])
        shift[...] = 0.0
        if bias is not None:
            shift[: len(bias)] = bias
        arrays = {"size": np.array(weight.shape), "shift": shift}
        for first in range(0, len(weight), PART_ROWS):  # without another copy of all of it
            part = weight[first : first + PART_ROWS]
            missing = -len(part) % kernels.panel, -part.shape[1] % cls.multiple
            packed, scales = cls._pack(np.pad(part, [(0, each) for each in missing]) if any(missing) else part, kernels)
            if not first:
                arrays["weight"] = empty([panels, *packed.shape[1:]], packed.dtype)
                if scales is not None:
                    arrays["scale"] = empty(shift.shape)
            place = first // kernels.panel
            arrays["weight"][place : place + len(packed)] = packed
            if scales is not None:
                arrays["scale"][first : first + len(scales)] = scales
        return arrays

    def __deepcopy__(self, memo: dict[int, object]) -> "PackedLinear":
        """Return itself: it holds addresses of arrays that are never written to."""
        return self

    @classmethod
    def _pack(cls, weight: Array, kernels: Kernels) -> tuple[Array, Array | None]:
        """Return a weight [panels·panel, K] in the layout of the kernel, perhaps not contiguous, and its scales."""
        return weight.reshape(-1, kernels.panel, weight.shape[1]).swapaxes(1, 2), None

    def __call__(self, x: Array) -> Array:
        """Map x [..., K] to [..., N]."""
        rows = x.reshape(-1, self.inputs)
        rows = np.pad(rows, ((0, 0), (0, self._missing))) if self._missing else np.ascontiguousarray(rows)
        count = len(rows)
        product, library = empty([count, self.outputs]), self._kernels.library
        memory = empty([library.translume_linear_workspace(count, rows.shape[1])], np.uint8)
        library.translume_linear(self._address, address(rows), count, address(product), address(memory))
        return product.reshape(*x.shape[:-1], self.outputs)


class Int8Linear(PackedLinear):
    """Weights in int8 with a scale per output, inputs in int8 with a scale per row (absmax / 127); sums are exact."""

    format = QUANTIZED
    multiple = LANES

    @classmethod
    def _pack(cls, weight: Array, kernels: Kernels) -> tuple[Array, Array | None]:
        if not kernels.int8:
            raise NativeError(f"the kernels have no int8 products with {kernels.instructions}")
        return quantized(weight, kernels.panel, kernels.group, kernels.offset)


def quantized(weight: Array, panel: int, group: int, offset: int) -> tuple[Array, Array]:
    """Return a weight [N, K] in int8 as [panels, K / group, panel, group], and the scale of each output.

    offset: added to the stored numbers, which are unsigned then.
    """
    scales = np.maximum(np.maximum(weight.max(1), -weight.min(1)), TINY) / np.float32(INT8_MAX)
    rounded = weight / scales[:, None]
    np.clip(np.rint(rounded, out=rounded), -INT8_MAX, INT8_MAX, out=rounded)
    rounded += offset
    with np.errstate(invalid="ignore"):  # of a row with a NaN, whose scale is one
        stored = rounded.astype(np.uint8 if offset else np.int8)
    return stored.reshape(-1, panel, weight.shape[1] // group, group).swapaxes(1, 2), scales


class Bfloat16Linear(PackedLinear):
    """Weights in bf16 and sums in fp32; inputs in bf16 if the processor multiplies bf16."""

    format = BF16
    multiple = LANES

    @classmethod
    def _pack(cls, weight: Array, kernels: Kernels) -> tuple[Array, Array | None]:
        bits = np.ascontiguousarray(weight).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
        return rounded.reshape(-1, kernels.panel, weight.shape[1] // 2, 2).swapaxes(1, 2), None


LINEAR: dict[Dtype, type[PackedLinear]] = {"fp32": PackedLinear, "bf16": Bfloat16Linear, "int8": Int8Linear}


def packed_to_check(dtype: Dtype, weight: Array, bias: Array | None) -> dict[str, Array]:
    """Return the arrays of a packed weight [N, K], and for `checked_linear` fp32 products and their bound."""
    first, rows = slice(0, CHECKED_OUTPUTS), _rows(weight.shape[1])
    expected = rows @ weight[first].T + (0.0 if bias is None else bias[first])
    bound = np.linalg.norm(rows, axis=1).max() * np.linalg.norm(
        np.nan_to_num(weight[first], posinf=0, neginf=0), axis=1
    ).max(initial=0)
    return {**LINEAR[dtype].pack(weight, bias), "expected": expected, "bound": np.array([bound], np.float32)}


def checked_linear(dtype: Dtype, arrays: Mapping[str, Array]) -> PackedLinear:
    """Return the layer of `packed_to_check`. Raises NativeError if its products are not within a dtype's tolerance."""
    packed, expected = LINEAR[dtype](arrays), arrays["expected"]
    known = np.isfinite(expected)  # others are reported where a search meets them
    error = np.abs(packed(_rows(packed.inputs))[:, : expected.shape[1]] - expected)[known].max(initial=0.0)
    error /= max(float(arrays["bound"][0]), np.abs(expected[known]).max(initial=0.0), TINY)
    if not error <= TOLERANCES[dtype]:
        raise NativeError(f"the kernels' products in {dtype} differ by {error:.2g} of their bound from those in fp32")
    return packed


def _rows(inputs: int) -> Array:
    """Return five rows [5, K] of different magnitudes, one of them zero."""
    # Irregular, without numpy.random.
    rows: Array = np.sin(np.arange(5.0 * inputs) ** 2).astype(np.float32).reshape(5, -1)
    return rows * np.array([1.0, 0.0, 1e-3, 50.0, 7.0], np.float32)[:, None]


def padded_heads(rows: Array, size: int) -> Array:
    """Return rows [H · size, …] of attention heads, each half filled up with zeros so that LANES divide its size."""
    halves = (-1, 1, size) if size % 2 else (-1, 2, size // 2)  # rotary positions pair components of both
    parts, missing = rows.reshape(*halves, *rows.shape[1:]), -size % LANES // halves[1]
    return np.pad(parts, [(0, 0), (0, 0), (0, missing), *[(0, 0)] * (rows.ndim - 1)]).reshape(-1, *rows.shape[1:])


def scaled_queries(linear: tuple[Array, Array | None], count: int, head_size: int) -> tuple[Array, Array | None]:
    """Return weight and bias of a layer whose first `count` outputs, the queries, are divided by √head_size."""
    weight, bias = linear
    factor = np.ones(len(weight), np.float32)
    factor[:count] = head_size**-0.5
    return weight * factor[:, None], None if bias is None else bias * factor
