"""Linear maps by the engine's own kernels: a row's numbers are the same, bit for bit, however many rows there are."""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.belief import BLOCK, UNSHIFTED, Summary
from translume.engine import native
from translume.engine.linear import SIGNED, ZERO, PackedLinear
from translume.engine.native import ALIGNED, NativeError, address

FP32, QUANTIZED = 0, 1
"""`format` of linear.h."""
LANES = 16
SHARP_NATS = 1.0
"""How far below a row's largest logit one may be that is summed again."""


class NativeLinear(PackedLinear):
    """The weight in fp32, by panels of outputs."""

    kind = "native"
    format = FP32
    whole = 1
    """Inputs are filled up with zeros to a multiple of this."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Raises NativeError where there are no kernels, or none for this shape."""
        super().__init__(weight, bias)
        self._kernels = native.kernels()
        panel = self._kernels.panel
        padding, self._missing = -self.outputs % panel, -self.inputs % self.whole
        weight = F.pad(weight.detach().float(), (0, self._missing, 0, padding))
        shift = weight.new_zeros(len(weight)) if self.bias is None else F.pad(self.bias, (0, padding))
        packed, scales = self._packed(weight, panel)
        self._kept = (packed, scales, shift.contiguous())
        self.map = native.Linear(self.inputs + self._missing, self.outputs, self.format, *map(address, self._kept))
        self._address = ctypes.addressof(self.map)
        self.bytes = packed.numel() * packed.element_size()

    def __deepcopy__(self, memo: dict[int, object]) -> "NativeLinear":
        """Itself: it holds addresses, and nothing writes to what stands there."""
        return self

    def _packed(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        """The weight [panels·panel, K] in the kernel's order, and its scales."""
        return weight.view(-1, panel, weight.size(1)).transpose(1, 2).contiguous(), None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.inputs).contiguous()
        if self._missing:
            rows = F.pad(rows, (0, self._missing))
        count = rows.size(0)
        found = rows.new_empty(count, self.outputs)
        room = torch.empty(count * (rows.size(1) + 8) + 3 * ALIGNED, dtype=torch.uint8)
        self._kernels.library.translume_linear(self._address, rows.data_ptr(), count, found.data_ptr(), room.data_ptr())
        return found if x.dim() == 2 else found.view(*x.shape[:-1], self.outputs)

    def rows_are_independent(self) -> bool:
        """True: the kernel sums each output in an order that does not depend on the number of rows."""
        return True


class Sharpener:
    """Sums logits near the largest of a row again in fp32, where a coarser product made them."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [V, D], D in whole vectors.  bias: [V]."""
        self._weight = weight.detach().float().contiguous()
        self._bias = None if bias is None else bias.detach().float().contiguous()

    def origin(self, hidden: Tensor) -> native.Origin:
        """What logits of `hidden` [N, D], contiguous, are made of."""
        place = (address(hidden), address(self._weight), address(self._bias))
        return native.Origin(*place, hidden.size(1), SHARP_NATS)


def summary(logits: Tensor, origin: native.Origin | None = None) -> Summary:
    """What `Logits` wants to know of fp32 logits [N, V], which are sharpened first where their origin is given."""
    count, size = logits.shape
    maxima, first = logits.new_empty(count, -(-size // BLOCK)), logits.new_empty(count, 1, dtype=torch.long)
    sums, peak, rest = logits.new_empty(3, count, 1).unbind()
    broken = native.kernels().library.translume_summarise(
        logits.data_ptr(),
        count,
        size,
        BLOCK,
        UNSHIFTED,
        None if origin is None else ctypes.addressof(origin),
        *map(address, (maxima, first, sums, peak, rest)),
    )
    return Summary(maxima, sums, first, None if broken else (peak, rest))


class NativeInt8Linear(NativeLinear):
    """The weight in int8 with a scale an output, inputs in int8 with a scale a row (absmax / 127); sums are exact."""

    kind = "int8-native"
    format = QUANTIZED
    whole = LANES

    def _packed(self, weight: Tensor, panel: int) -> tuple[Tensor, Tensor | None]:
        if not self._kernels.int8:
            raise NativeError("this processor has no products of bytes (AVX512-VNNI)")
        scales = weight.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny) / SIGNED
        whole = (weight / scales[:, None]).round_().clamp_(-SIGNED, SIGNED).add_(ZERO).to(torch.uint8)
        return whole.view(-1, panel, weight.size(1) // 4, 4).transpose(1, 2).contiguous(), scales
