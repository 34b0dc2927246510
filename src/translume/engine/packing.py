"""Linear layers packed once for one machine, in the number format that is fastest there, and the checks of a packing.

Inputs and outputs are fp32. Each row has its own quantisation scale. `PackedLinear.rows_are_independent` states whether
the product of a row also has the same rounding in every batch.
"""

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.kernels import loading
from translume.kernels.cpu import has_amx
from translume.kernels.loading import NativeError, address

INT8_MAX = 127
"""Largest magnitude of a quantised weight or activation."""
ZERO_POINT = 128
"""Unsigned byte that stands for 0."""
LANES = 16
"""Floats in the widest vector of the kernels. Widths must be multiples of it with every instruction set."""
FP32, QUANTIZED, BF16 = range(3)
"""`format` of linear.h."""
INDEPENDENCE_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65)
"""Batch sizes whose products are compared to decide whether rows are independent."""
PART_ROWS = 1 << 12
"""Rows of a weight that are packed at once: a multiple of every panel."""
TINY = torch.finfo(torch.float32).tiny


class PackedLinear(nn.Module):
    """x Wᵀ + b for a packed weight [N, K]; `kind` names the packing."""

    kind: str

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.inputs, self.outputs = weight.size(1), weight.size(0)
        self.bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K], fp32, to [..., N], fp32."""
        raise NotImplementedError

    def rows_are_independent(self) -> bool:
        """Return whether a row's product is the same, bit for bit, for any other rows in the batch."""
        return False


class PlainLinear(PackedLinear):
    """torch's own product, in fp32."""

    kind = "fp32"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight = weight.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Bfloat16Linear(PackedLinear):
    """Weight and input in bf16, sums in fp32; packed by oneDNN."""

    kind = "bf16"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        # A private operator of torch (its compiler uses it): `packed_as` checks it before it is used.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16().contiguous(), 64)
        self.multiply = _overload_call(torch.ops.mkldnn._linear_pointwise.default)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.multiply(x.bfloat16(), self.packed, None, "none", [], "")
        return product.float() if self.bias is None else product + self.bias


class _QuantizedLinear(PackedLinear):
    """Weights in int8 with a scale per output, inputs in uint8 with a scale per row (absmax / 127); sums are exact."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight = weight.detach().float()
        self.scales = weight.abs().amax(1).clamp_min_(TINY) / INT8_MAX
        self.pack((weight / self.scales[:, None]).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8))

    def pack(self, weight: Tensor) -> None:
        """Store the quantised weight [N, K] in the layout of the kernel."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """Multiply rows x [n, K], scaled to a largest magnitude of 1, with the dequantised weight: [n, N]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.size(-1))
        scaled = rows.abs()
        peaks = scaled.amax(-1, keepdim=True).clamp_min_(TINY)
        product = self.product(torch.div(rows, peaks, out=scaled))
        if self.bias is None:
            product.mul_(peaks)
        else:
            torch.addcmul(self.bias, product, peaks, out=product)
        return product if x.dim() == 2 else product.view(*x.shape[:-1], self.outputs)

    @torch.inference_mode()
    def rows_are_independent(self) -> bool:
        """Multiply the same rows in batches of several sizes and compare the products bit for bit.

        Sums of bytes are exact, but a library may round differently in the kernels that it uses for few and many rows.
        """
        generator = torch.Generator().manual_seed(self.inputs)
        rows = torch.randn(INDEPENDENCE_ROWS[-1], self.inputs, generator=generator)
        product = self(rows)
        return all(
            torch.equal(self(rows[start : start + count]), product[start : start + count])
            for count in INDEPENDENCE_ROWS
            for start in {0, len(rows) - count}
        )


class Int8Linear(_QuantizedLinear):
    """int8 by FBGEMM, which quantises the input itself; best for few rows."""

    kind = "int8"

    def pack(self, weight: Tensor) -> None:
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # torch deprecates these operators; `packed_as` checks them
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch._make_per_channel_quantized_tensor(weight, self.scales.double(), zeros, 0)
            self.packed: Any = torch.ops.quantized.linear_prepack(quantized, None)
        self.multiply = _overload_call(torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default)

    def product(self, x: Tensor) -> Tensor:
        product: Tensor = self.multiply(x, 1 / INT8_MAX, ZERO_POINT, self.packed)
        return product


class Int8OneDnnLinear(_QuantizedLinear):
    """int8 by oneDNN; best for many rows and wide outputs.

    With AMX its kernels for few and many rows round differently, so independence is not claimed on those processors.
    """

    kind = "int8-onednn"

    def pack(self, weight: Tensor) -> None:
        self.packed = torch.ops.onednn.qlinear_prepack(weight.contiguous(), [64, weight.size(1)])
        self.zeros = torch.zeros(len(weight), dtype=torch.long)
        self.multiply = _overload_call(torch.ops.onednn.qlinear_pointwise.default)

    def product(self, x: Tensor) -> Tensor:
        inputs = x.mul_(INT8_MAX).add_(ZERO_POINT + 0.5).to(torch.uint8)  # all are positive, so truncation rounds
        product: Tensor = self.multiply(
            inputs,
            1.0 / INT8_MAX,
            ZERO_POINT,
            self.packed,
            self.scales,
            self.zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return product

    def rows_are_independent(self) -> bool:
        return not has_amx() and super().rows_are_independent()


class NativeLinear(PackedLinear):
    """fp32 by our kernels, packed by panels of outputs."""

    kind = "native"
    format = FP32
    multiple = 1
    """Inputs are padded with zeros to a multiple of this."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Raises NativeError if the kernels are not available, or not for this format."""
        super().__init__(weight, bias)
        self._kernels = loading.kernels()
        panel = self._kernels.panel
        padding, self._missing = -self.outputs % panel, -self.inputs % self.multiple
        shift = torch.zeros(self.outputs + padding) if self.bias is None else F.pad(self.bias, (0, padding))
        packed, scales = self._pack_in_parts(weight.detach(), panel)
        self._kept = (packed, scales, shift.contiguous())
        self.struct = loading.Linear(self.inputs + self._missing, self.outputs, self.format, *map(address, self._kept))
        self._address = ctypes.addressof(self.struct)
        self.bytes = packed.numel() * packed.element_size()

    def __deepcopy__(self, memo: dict[int, object]) -> "NativeLinear":
        """Return itself: it holds addresses of tensors that are never written to."""
        return self

    def _pack_in_parts(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        """Return the weight [N, K] in the layout of the kernel, and its scales, without another copy of all of it."""
        packed, scales = self._pack_rows(weight[:PART_ROWS], panel)
        panels = -(-self.outputs // panel)
        if len(packed) == panels:
            return packed.contiguous(), scales
        whole = packed.new_empty(panels, *packed.shape[1:])
        all_scales = None if scales is None else scales.new_empty(panels * panel)
        for first in range(0, self.outputs, PART_ROWS):
            packed, scales = self._pack_rows(weight[first : first + PART_ROWS], panel)
            whole[first // panel : first // panel + len(packed)] = packed
            if all_scales is not None and scales is not None:
                all_scales[first : first + len(scales)] = scales
        return whole, all_scales

    def _pack_rows(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        """Pad rows of the weight to whole panels and pack them."""
        missing = -len(weight) % panel
        padded = F.pad(weight.float(), (0, self._missing, 0, missing)) if self._missing or missing else weight.float()
        return self._pack(padded, panel)

    def _pack(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        """Return the weight [panels·panel, K] in the layout of the kernel, perhaps not contiguous, and its scales."""
        return weight.view(-1, panel, weight.size(1)).transpose(1, 2), None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.inputs).contiguous()
        if self._missing:
            rows = F.pad(rows, (0, self._missing))
        count = rows.size(0)
        product = rows.new_empty(count, self.outputs)
        library = self._kernels.library
        memory = torch.empty(library.translume_linear_workspace(count, rows.size(1)), dtype=torch.uint8)
        library.translume_linear(self._address, rows.data_ptr(), count, product.data_ptr(), memory.data_ptr())
        return product if x.dim() == 2 else product.view(*x.shape[:-1], self.outputs)

    def rows_are_independent(self) -> bool:
        """Return True: the kernel sums each output in an order that does not depend on the number of rows."""
        return True


class NativeInt8Linear(NativeLinear):
    """int8 by our kernels: a scale per output, inputs in int8 with a scale per row (absmax / 127); sums are exact."""

    kind = "int8-native"
    format = QUANTIZED
    multiple = LANES

    def _pack(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        kernels = self._kernels
        if not kernels.int8:
            raise NativeError(f"the kernels have no int8 products with {kernels.instructions}")
        least, largest = weight.aminmax(dim=1)
        scales = torch.maximum(largest, -least).clamp_min_(TINY) / INT8_MAX
        rounded = (weight / scales[:, None]).round_().clamp_(-INT8_MAX, INT8_MAX)
        stored = rounded.add_(kernels.offset).to(torch.uint8 if kernels.offset else torch.int8)
        groups = stored.view(-1, panel, weight.size(1) // kernels.group, kernels.group)
        return groups.transpose(1, 2).contiguous(), scales


class NativeBfloat16Linear(NativeLinear):
    """Weights in bf16 and sums in fp32 by our kernels; inputs in bf16 if the processor multiplies bf16."""

    kind = "bf16-native"
    format = BF16
    multiple = LANES

    def _pack(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        pairs = weight.bfloat16().view(-1, panel, weight.size(1) // 2, 2)
        return pairs.transpose(1, 2).contiguous(), None


_ALL: tuple[type[PackedLinear], ...] = (
    PlainLinear,
    NativeLinear,
    Bfloat16Linear,
    NativeBfloat16Linear,
    Int8Linear,
    Int8OneDnnLinear,
    NativeInt8Linear,
)
KINDS: dict[str, Callable[[Tensor, Tensor | None], PackedLinear]] = {each.kind: each for each in _ALL}
"""All packings by name."""

TOLERANCES = {
    **dict.fromkeys(("fp32", "native"), 1e-5),
    **dict.fromkeys(("bf16", "bf16-native"), 2e-2),
    **dict.fromkeys(("int8", "int8-onednn", "int8-native"), 3e-2),
}
"""Largest accepted difference from the fp32 product, relative to the largest output."""


def packed_as(kind: str, weight: Tensor, bias: Tensor | None) -> PackedLinear | None:
    """Pack the weight [N, K] as `kind`; None if torch or the machine cannot, or if the product is inaccurate."""
    try:
        packed = KINDS[kind](weight, bias)
        rows = _test_rows(weight)
        product = packed(rows)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        # A build of torch without the kernel raises one of these, depending on the build.
        return None
    expected = F.linear(rows, weight.detach().float(), None if bias is None else bias.detach().float())
    error = (product - expected).abs().amax() / expected.abs().amax().clamp_min(TINY)
    return packed if bool(error <= TOLERANCES[kind]) else None


def scaled_queries(linear: nn.Linear, count: int, head_size: int) -> tuple[Tensor, Tensor | None]:
    """Return fp32 weight and bias of a layer whose first `count` outputs, the queries, are divided by √head_size."""
    factor = torch.ones(linear.weight.size(0))
    factor[:count] = head_size**-0.5
    bias = None if linear.bias is None else linear.bias.detach().float() * factor
    return linear.weight.detach().float() * factor[:, None], bias


def _test_rows(weight: Tensor) -> Tensor:
    """Return five rows [5, K] of different magnitudes, one of them zero."""
    generator = torch.Generator().manual_seed(weight.size(1))
    rows = torch.randn(5, weight.size(1), generator=generator)
    return rows * torch.tensor([1.0, 0.0, 1e-3, 50.0, 7.0])[:, None]


def _overload_call(overload: Any) -> Callable[..., Tensor]:
    """Return the C++ operator of a torch overload: the Python layer around it takes as long as a small product."""
    call: Callable[..., Tensor] = getattr(overload, "_op", overload)
    return call
