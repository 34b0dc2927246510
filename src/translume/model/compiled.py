"""Operations of training in the compiled kernels, with their gradients: linear maps, norms, dropout and attention.

`library_for` says whether they can be used; without them torch computes the same up to rounding.
"""

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.kernels.loading import address, has_kernels, kernels
from translume.model.layout import Layout

LONGEST = 256
"""Maximum length of sequences for `attention`: for longer ones torch's matrix products are faster."""


_torch_only = False


@contextmanager
def torch_only() -> Iterator[None]:
    """Compute in the block on a CPU as on other devices: by torch's operations alone, reading nothing back.

    It holds for all threads. Tests and benchmarks use it where there is no GPU.
    """
    global _torch_only
    before, _torch_only = _torch_only, True
    try:
        yield
    finally:
        _torch_only = before


def on_device(tensor: Tensor) -> bool:
    """Return whether a tensor is on another device than a CPU, or would be: inside `torch_only`.

    There shapes must not depend on data and nothing must be read back, since the host would wait for the device.
    """
    return _torch_only or tensor.device.type != "cpu"


def library_for(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """Return the kernels if they can compute with these tensors: on a CPU, of one dtype, fp32 or bf16; else None.

    They use one thread, and are not used by a process or replica with several.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    first = present[0]
    if on_device(first) or first.dtype not in (torch.float32, torch.bfloat16) or torch.get_num_threads() > 1:
        return None
    if any(tensor.dtype != first.dtype or type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in present):
        return None
    return None if torch.compiler.is_exporting() or not has_kernels() else kernels().library


def trains(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether packed activations x [n, D] are computed for gradients, and the kernels can do it."""
    return x.dim() == 2 and torch.is_grad_enabled() and library_for(x, *others) is not None


def _is_bf16(tensor: Tensor) -> int:
    return int(tensor.dtype == torch.bfloat16)


class _Structure(ctypes.Structure):
    """A structure of pointers, given as tensors, and numbers."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.kept = values  # their memory must outlive the call
        super().__init__(**{name: address(each) if isinstance(each, Tensor) else each for name, each in values.items()})


def _fields(*groups: tuple[Any, str]) -> Sequence[tuple[str, Any]]:
    return [(name, kind) for kind, names in groups for name in names.split()]


class _NormInputs(_Structure):
    """`norm_inputs` of training.c."""

    _fields_ = _fields(
        (ctypes.c_int64, "rows width"),
        (ctypes.c_void_p, "x residual keep"),
        (ctypes.c_float, "scale epsilon"),
        (ctypes.c_void_p, "weight bias sums y statistics"),
    )


class _NormGradients(_Structure):
    """`norm_gradients` of training.c."""

    _fields_ = _fields(
        (ctypes.c_int64, "rows width"),
        (ctypes.c_void_p, "gradient normed statistics weight keep"),
        (ctypes.c_float, "scale"),
        (ctypes.c_void_p, "by_rows by_x by_weight by_bias"),
    )


class _Attention(_Structure):
    """`attention` of packed_attention.c."""

    _fields_ = _fields(
        (ctypes.c_int64, "sentences heads head_size causal positions"),
        (ctypes.c_void_p, "starts memory_starts places rotation query memory"),
        (ctypes.c_int64, "query_stride memory_stride key_offset value_offset"),
        (ctypes.c_float, "scale"),
        (ctypes.c_void_p, "output log_sums gradient by_query by_memory workspace"),
    )


# ---- linear maps


class _Fusion(threading.local):
    enabled = False


_fusion = _Fusion()


@contextmanager
def gradient_accumulation_fusion() -> Iterator[None]:
    """Let the backward passes of this thread add gradients of linear maps to `weight.grad` themselves, if it is set.

    Autograd writes each gradient to a new tensor and adds that. Inside this context `torch.autograd.grad` does not
    return these gradients.
    """
    before, _fusion.enabled = _fusion.enabled, True
    try:
        yield
    finally:
        _fusion.enabled = before


@cache
def _onednn_has_bf16() -> bool:
    """Return whether oneDNN computes products of bf16: not on x86-64 without AVX-512."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def padded_count(rows: int, like: Tensor) -> int:
    """Return the number of rows after padding, for products of bf16 on a CPU; `rows` for other tensors.

    A multiple of 64, and of a 32nd of the next power of two. oneDNN compiles a kernel for each number of rows, which
    takes milliseconds, and caches it, which takes half a mebibyte; so there should be few different numbers.
    """
    step = max(64, 1 << (rows - 1).bit_length() >> 5)
    return -(-rows // step) * step if _is_bf16(like) and not on_device(like) else rows


def empty_padded(like: Tensor) -> Tensor:
    """Return an uninitialised tensor of the shape [n, …] of `like`, with memory for `padded_count(n)` rows."""
    return like.new_empty(padded_count(len(like), like), *like.shape[1:]).resize_(like.shape)


def pad_rows(x: Tensor) -> Tensor:
    """Return x [n, D] with `padded_count(n)` rows, of which those added have any values.

    Without a copy if the memory of x has room for them. x itself if D is not a multiple of 32: such products also read
    the beginning of the next row.
    """
    rows, width = padded_count(len(x), x), x.size(1)
    if rows == len(x) or width % 32:
        return x
    end = (x.storage_offset() + rows * width) * x.element_size()
    if not x.is_contiguous() or end > x.untyped_storage().nbytes():
        x = empty_padded(x).copy_(x)
    return x.as_strided((rows, width), (width, 1))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        if _is_bf16(x) and _onednn_has_bf16():
            # F.linear adds a bias in a pass of its own. This ReLU makes zeros of NaN; the gradients still show them.
            after = "relu" if relu else "none"
            y: Tensor = torch.ops.mkldnn._linear_pointwise(pad_rows(x), weight, bias, after, [], "")
            y.resize_(len(x), len(weight))
        else:
            y = F.linear(x, weight, bias)
            y = y.relu_() if relu else y
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.biased = bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        by_x = by_weight = by_bias = None
        biased = ctx.biased and ctx.needs_input_grad[2]
        if biased or y is not None:
            slopes = gradient if y is None else empty_padded(gradient)
            sums = torch.zeros(gradient.size(1)) if biased else None
            kernels().library.translume_sum_rows(
                _is_bf16(gradient), *gradient.shape, address(gradient), address(y), address(slopes), address(sums)
            )
            gradient, by_bias = slopes, None if sums is None else sums.to(gradient.dtype)
        if ctx.needs_input_grad[0]:
            by_x = torch.mm(pad_rows(gradient), weight).resize_(x.shape)
        if ctx.needs_input_grad[1]:
            sums = weight.grad if _fusion.enabled and weight.is_leaf else None
            product = weight_gradient(gradient, x, sums)
            by_weight = product if sums is None else None
        return by_x, by_weight, by_bias, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """Return x Wᵀ + b, [n, out], of x [n, in] and W [out, in]; with `relu` max(x Wᵀ + b, 0).

    `library_for` has returned kernels for them.
    """
    result: Tensor = _Linear.apply(x.contiguous(), weight, bias, relu)  # type: ignore[no-untyped-call]  # torch's has no types
    return result


def weight_gradient(gradient: Tensor, x: Tensor, sums: Tensor | None = None) -> Tensor:
    """Return gradientᵀ x, [out, in], of [n, out] and [n, in]; with `sums` [out, in], fp32 or of the same dtype, add it.

    With AMX a kernel computes products of bf16: torch's takes up to twice as long, since both operands are transposed.
    """
    library = library_for(gradient, x)
    if library is None or not _is_bf16(x) or not library.translume_has_weight_gradient():
        if sums is None:
            return gradient.t() @ x
        same = sums.dtype == x.dtype
        return sums.addmm_(gradient.t(), x) if same else sums.add_(gradient.t() @ x)
    (rows, outputs), inputs = gradient.shape, x.size(1)
    result = x.new_empty(outputs, inputs) if sums is None else sums
    wide = result.dtype == torch.float32
    size = library.translume_weight_gradient_workspace(rows, outputs, inputs)
    workspace = torch.empty(size, dtype=torch.uint8)
    library.translume_weight_gradient(
        rows, outputs, inputs, address(gradient), address(x), address(result) if wide else None, address(result),
        sums is not None, address(workspace),
    )  # fmt: skip
    return result


def exponentials(logits: Tensor, labels: Tensor) -> Tensor:
    """Replace logits [n, V] by their exponentials, that of each row's label [n] by zero; return their sums [n], fp32.

    Logits above 88 count as 88. `library_for` has returned kernels for the logits, which are contiguous.
    """
    sums, labels = torch.empty(len(logits)), labels.long().contiguous()
    kernels().library.translume_exponentials(
        _is_bf16(logits), *logits.shape, address(logits), address(labels), address(sums)
    )
    return sums


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return KL(p‖q) + KL(q‖p) [n], fp32, of the softmaxes of logits [n, V], which are replaced by its gradients.

    `library_for` has returned kernels for the logits, which are contiguous.
    """
    sums = torch.empty(len(first))
    kernels().library.translume_divergence(
        _is_bf16(first), *first.shape, address(first), address(second), address(sums)
    )
    return sums


# ---- norms and dropout


def drop_add(x: Tensor, residual: Tensor | None, keep: Tensor, scale: float) -> Tensor:
    """Return residual + x · keep · scale, of one shape; `library_for` has returned kernels for x and the residual."""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    result = empty_padded(x)
    kernels().library.translume_drop_add(
        _is_bf16(x), x.numel(), address(x), address(residual), address(keep), scale, address(result)
    )
    return result


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, keep: Tensor | None, scale: float, weight: Tensor,
        bias: Tensor | None, epsilon: float,
    ) -> Tensor:  # fmt: skip
        width, normed = x.size(-1), x if residual is None else torch.empty_like(x)
        y, statistics = empty_padded(x), torch.empty(x.numel() // width, 2)
        inputs = _NormInputs({
            "rows": len(statistics), "width": width, "x": x, "residual": residual, "keep": keep, "scale": scale,
            "epsilon": epsilon, "weight": weight, "bias": bias, "sums": normed, "y": y, "statistics": statistics,
        })  # fmt: skip
        kernels().library.translume_norm(_is_bf16(x), ctypes.byref(inputs))
        ctx.save_for_backward(normed, statistics, weight, keep)
        ctx.scale, ctx.added, ctx.biased = scale, residual is not None, bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normed, statistics, weight, keep = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        by_rows, by_x = empty_padded(normed), None if keep is None else empty_padded(normed)
        by_weight, by_bias = torch.zeros(2, len(weight))
        inputs = _NormGradients({
            "rows": len(statistics), "width": len(weight), "gradient": gradient, "normed": normed,
            "statistics": statistics, "weight": weight, "keep": keep, "scale": ctx.scale, "by_rows": by_rows,
            "by_x": by_x, "by_weight": by_weight, "by_bias": by_bias,
        })  # fmt: skip
        kernels().library.translume_norm_gradient(_is_bf16(normed), ctypes.byref(inputs))
        return (
            by_rows if by_x is None else by_x,
            by_rows if ctx.added else None,
            None,
            None,
            by_weight.to(weight.dtype),
            by_bias.to(weight.dtype) if ctx.biased else None,
            None,
        )


def norm(
    x: Tensor, residual: Tensor | None, keep: Tensor | None, scale: float, weight: Tensor, bias: Tensor | None,
    epsilon: float,
) -> Tensor:  # fmt: skip
    """Return the layer norm of x [..., D], or of residual + x · keep · scale; `library_for` has returned kernels.

    keep: bool, of the shape of x; None: all elements, and no scale.
    """
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    result: Tensor = _Norm.apply(x, residual, keep, scale, weight, bias, epsilon)  # type: ignore[no-untyped-call]  # torch's has no types
    return result


# ---- attention


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], heads: int,
        rotation: Tensor | None, causal: bool,
    ) -> Tensor:  # fmt: skip
        ctx.layouts, ctx.heads, ctx.causal = layouts, heads, causal
        width = first.size(1) // (3 if second is None else 1)
        output, log_sums = empty_padded(first[:, :width]), torch.empty(first.size(0), heads)
        inputs = _attention_inputs(ctx, first, second, rotation, output=output, log_sums=log_sums)
        kernels().library.translume_attention(_is_bf16(first), ctypes.byref(inputs))
        ctx.save_for_backward(first, second, rotation, log_sums)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        first, second, rotation, log_sums = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        by_first, by_second = empty_padded(first), None if second is None else empty_padded(second)
        inputs = _attention_inputs(
            ctx, first, second, rotation, log_sums=log_sums, gradient=gradient, by_query=by_first,
            by_memory=by_first if by_second is None else by_second,
        )  # fmt: skip
        kernels().library.translume_attention_gradient(_is_bf16(first), ctypes.byref(inputs))
        return by_first, by_second, None, None, None, None


def _attention_inputs(
    ctx: Any, first: Tensor, second: Tensor | None, rotation: Tensor | None, **tensors: Tensor
) -> _Attention:
    layout, memory_layout = ctx.layouts
    width = first.size(1) // (3 if second is None else 1)
    offset = width if second is None else 0
    size = kernels().library.translume_attention_workspace(
        layout.grid.size(1), memory_layout.grid.size(1), width // ctx.heads
    )
    return _Attention(dict(
        sentences=layout.grid.size(0), heads=ctx.heads, head_size=width // ctx.heads, causal=ctx.causal,
        positions=0 if rotation is None else rotation.size(1),
        starts=layout.starts, memory_starts=memory_layout.starts, places=layout.places, rotation=rotation,
        query=first, memory=first if second is None else second, query_stride=first.size(1),
        memory_stride=first.size(1) if second is None else second.size(1), key_offset=offset,
        value_offset=offset + width, scale=(width // ctx.heads) ** -0.5, workspace=torch.empty(size), **tensors,
    ))  # fmt: skip


def attention(
    first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], heads: int, rotation: Tensor | None, *,
    causal: bool,
) -> Tensor:  # fmt: skip
    """Return what `packed_attention` does, without dropout and bias; `library_for` has returned kernels.

    rotation: [2, G, d], fp32, contiguous.
    """
    first, second = first.contiguous(), None if second is None else second.contiguous()
    result: Tensor = _PackedAttention.apply(first, second, layouts, heads, rotation, causal)  # type: ignore[no-untyped-call]  # torch's has no types
    return result
