"""Linear layers packed for the kernels. Inputs and outputs are fp32.

Each row of int8 inputs has its own scale. A row's product is the same, bit for bit, for any other rows in the batch:
the kernels sum each output in an order that does not depend on them.
"""

import ctypes
from typing import ClassVar, Literal

import numpy as np

from translume.engine.network import Array
from translume.kernels import loading
from translume.kernels.loading import NativeError, address, empty

Dtype = Literal["fp32", "bf16", "int8"]
INT8_MAX = 127
"""Largest magnitude of a quantised weight or activation."""
LANES = 16
"""Floats in the widest vector of the kernels. Widths must be multiples of it with every instruction set."""
FP32, QUANTIZED, BF16 = range(3)
"""`format` of linear.h."""
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

    def __init__(self, weight: Array, bias: Array | None) -> None:
        """Raises NativeError if the kernels are not available, or not for this format."""
        self.outputs, self.inputs = weight.shape
        self._kernels = loading.kernels()
        panel, self._missing = self._kernels.panel, -self.inputs % self.multiple
        shift = empty([self.outputs + -self.outputs % panel])
        shift[...] = 0.0
        if bias is not None:
            shift[: self.outputs] = bias
        packed, scales = self._pack_in_parts(weight, panel)
        self._kept = (packed, scales, shift)
        self.struct = loading.Linear(self.inputs + self._missing, self.outputs, self.format, *map(address, self._kept))
        self._address = ctypes.addressof(self.struct)
        self.bytes = packed.nbytes

    def __deepcopy__(self, memo: dict[int, object]) -> "PackedLinear":
        """Return itself: it holds addresses of arrays that are never written to."""
        return self

    def _pack_in_parts(self, weight: Array, panel: int) -> tuple[Array, Array | None]:
        """Return the weight [N, K] in the layout of the kernel, and its scales, without another copy of all of it."""
        panels = -(-self.outputs // panel)
        whole: Array | None = None
        all_scales: Array | None = None
        for first in range(0, self.outputs, PART_ROWS):
            part = weight[first : first + PART_ROWS]
            missing = -len(part) % panel
            if self._missing or missing:
                part = np.pad(part, ((0, missing), (0, self._missing)))
            packed, scales = self._pack(part, panel)
            if whole is None:
                whole = empty([panels, *packed.shape[1:]], packed.dtype)
                all_scales = None if scales is None else empty([panels * panel])
            whole[first // panel : first // panel + len(packed)] = packed
            if all_scales is not None:
                all_scales[first : first + len(part)] = scales
        assert whole is not None
        return whole, all_scales

    def _pack(self, weight: Array, panel: int) -> tuple[Array, Array | None]:
        """Return a weight [panels·panel, K] in the layout of the kernel, perhaps not contiguous, and its scales."""
        return weight.reshape(-1, panel, weight.shape[1]).swapaxes(1, 2), None

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

    def _pack(self, weight: Array, panel: int) -> tuple[Array, Array | None]:
        kernels = self._kernels
        if not kernels.int8:
            raise NativeError(f"the kernels have no int8 products with {kernels.instructions}")
        return quantized(weight, panel, kernels.group, kernels.offset)


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

    def _pack(self, weight: Array, panel: int) -> tuple[Array, Array | None]:
        bits = np.ascontiguousarray(weight).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
        return rounded.reshape(-1, panel, weight.shape[1] // 2, 2).swapaxes(1, 2), None


LINEAR: dict[Dtype, type[PackedLinear]] = {"fp32": PackedLinear, "bf16": Bfloat16Linear, "int8": Int8Linear}


def checked_linear(dtype: Dtype, weight: Array, bias: Array | None) -> PackedLinear:
    """Pack a weight [N, K]. Raises NativeError if the kernels do not compute its product with the tolerance of a dtype.

    The first outputs are compared, for five rows of different magnitudes, one of them zero.
    """
    packed = LINEAR[dtype](weight, bias)
    rows = np.random.default_rng(0).standard_normal((5, weight.shape[1]), np.float32)
    rows *= np.array([1.0, 0.0, 1e-3, 50.0, 7.0], np.float32)[:, None]
    first = slice(0, PART_ROWS)
    expected = rows @ weight[first].T + (0.0 if bias is None else bias[first])
    known = np.isfinite(expected)  # others are reported where a search meets them
    error = np.abs(packed(rows)[:, first] - expected)[known].max(initial=0.0)
    error /= max(np.abs(expected[known]).max(initial=0.0), TINY)
    if not error <= TOLERANCES[dtype]:
        raise NativeError(f"the kernels' products in {dtype} differ by {error:.2g} of the largest from those in fp32")
    return packed


def scaled_queries(linear: tuple[Array, Array | None], count: int, head_size: int) -> tuple[Array, Array | None]:
    """Return weight and bias of a layer whose first `count` outputs, the queries, are divided by √head_size."""
    weight, bias = linear
    factor = np.ones(len(weight), np.float32)
    factor[:count] = head_size**-0.5
    return weight * factor[:, None], None if bias is None else bias * factor
