"""Linear layers packed for one machine: weights stored once, in the number format that is fastest there.

Inputs and outputs are fp32. Quantisation scales belong to one row. Whether a row's product also has the same rounding
in every batch is what `PackedLinear.rows_are_independent` states.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.engine.machine import has_amx
from translume.engine.quiet import quietly

SIGNED = 127
"""Largest number of a quantised weight, and of a quantised activation above its zero point."""
ZERO = 128
"""What stands for 0 in an unsigned byte."""
INDEPENDENCE_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65)
"""Batch sizes whose products are compared to decide whether rows are independent."""


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
    """The weight as it is, in fp32."""

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
        # A private call of torch (what its compiler uses): `packed_as` checks it before it is relied on.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16().contiguous(), 64)
        self.multiply = _bare(torch.ops.mkldnn._linear_pointwise.default)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.multiply(x.bfloat16(), self.packed, None, "none", [], "")
        return product.float() if self.bias is None else product + self.bias


class _Quantized(PackedLinear):
    """Weights in int8 with a scale an output, inputs in uint8 with a scale a row (absmax / 127); sums are exact."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight = weight.detach().float()
        self.scales = weight.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny) / SIGNED
        self.pack((weight / self.scales[:, None]).round_().clamp_(-SIGNED, SIGNED).to(torch.int8))

    def pack(self, weight: Tensor) -> None:
        """Keep the quantised weight [N, K] in the kernel's own order."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """[n, K], in rows whose largest magnitude is at most 1, to [n, N]: the product with the weight, scaled back."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.size(-1))
        scaled = rows.abs()
        peaks = scaled.amax(-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny)
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


class Int8Linear(_Quantized):
    """int8 by FBGEMM, which quantises the input itself; best for few rows."""

    kind = "int8"

    def pack(self, weight: Tensor) -> None:
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with quietly():
            quantized = torch._make_per_channel_quantized_tensor(weight, self.scales.double(), zeros, 0)
            self.packed: Any = torch.ops.quantized.linear_prepack(quantized, None)
        self.multiply = _bare(torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default)

    def product(self, x: Tensor) -> Tensor:
        product: Tensor = self.multiply(x, 1 / SIGNED, ZERO, self.packed)
        return product


class Int8OneDnnLinear(_Quantized):
    """int8 by oneDNN; best for many rows and wide outputs.

    With AMX its kernels for few and many rows round differently, so independence is not claimed on those processors.
    """

    kind = "int8-onednn"

    def pack(self, weight: Tensor) -> None:
        self.packed = torch.ops.onednn.qlinear_prepack(weight.contiguous(), [64, weight.size(1)])
        self.zeros = torch.zeros(len(weight), dtype=torch.long)
        self.multiply = _bare(torch.ops.onednn.qlinear_pointwise.default)

    def product(self, x: Tensor) -> Tensor:
        # Halves are cut off after a half was added: rounding, as all that is left is positive.
        inputs = x.mul_(SIGNED).add_(ZERO + 0.5).to(torch.uint8)
        product: Tensor = self.multiply(
            inputs,
            1.0 / SIGNED,
            ZERO,
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


def _bare(overload: Any) -> Callable[..., Tensor]:
    """The call behind an overload of torch's: what stands before it takes as long as a small product."""
    bare: Callable[..., Tensor] = getattr(overload, "_op", overload)
    return bare
