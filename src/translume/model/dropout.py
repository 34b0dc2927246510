"""Dropout (Srivastava et al. 2014) with few random numbers on CPUs.

torch draws one number per element, which takes longer than the matrix products of a narrow layer. Here one 64-bit draw
decides eight elements: the rate is rounded to a multiple of 1/256, and kept elements are scaled by the rounded
rate, so that expectations are exact.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from translume.model import compiled
from translume.model.compiled import on_device


def rounded(rate: float) -> tuple[int, float]:
    """Return (threshold, scale) of a rate: elements with a byte below `threshold` are dropped, others times `scale`.

    A rate above zero is not rounded to zero, nor one below one to one.
    """
    threshold = min(max(round(rate * 256), 1), 255) if rate > 0 else 0
    return threshold, 256 / (256 - threshold)


def keep_mask(shape: torch.Size, threshold: int, device: torch.device) -> Tensor:
    """Return a bool mask of `shape`, False with probability threshold/256.

    Random numbers come from torch's default generator, or from the seed of an enclosing `seeded_masks`.
    """
    if device.type != "cpu":
        return torch.rand(shape, device=device) >= threshold / 256
    count = shape.numel()
    generator = getattr(_thread, "generator", None)
    if generator is None:
        generator = _generator(int(torch.randint(0, 2**63 - 1, ())))
    draws = generator.integers(0, 2**64, size=(count + 7) // 8, dtype=np.uint64)
    return torch.from_numpy(np.greater_equal(draws.view(np.uint8)[:count], threshold)).view(shape)


_thread = threading.local()


@contextmanager
def seeded_masks(seed: int) -> Iterator[None]:
    """Seed the masks that this thread draws inside the block, independently of other threads."""
    _thread.generator = _generator(seed)
    try:
        yield
    finally:
        del _thread.generator


def recomputed(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """Return function(*args), which the backward pass computes again instead of keeping its activations.

    The second time draws the same masks (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
    """
    generator = getattr(_thread, "generator", None)
    state = None if generator is None else generator.bit_generator.state

    @contextmanager
    def again() -> Iterator[None]:
        if state is None:
            yield
            return
        now, _thread.generator = _thread.generator, _generator(0)
        _thread.generator.bit_generator.state = state
        try:
            yield
        finally:
            _thread.generator = now

    result: Tensor = checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=generator is None,
        context_fn=lambda: (nullcontext(), again()),
    )
    return result


def draw_seed() -> int:
    """Return a seed below 2⁶³ for other random numbers of training, from the generator of the masks."""
    generator = getattr(_thread, "generator", None)
    return int(torch.randint(0, 2**63 - 1, ()) if generator is None else generator.integers(0, 2**63 - 1))


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))


class _DropAdd(torch.autograd.Function):
    """residual + x * mask * scale, or x * mask * scale without a residual."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, rate: float) -> Tensor:
        threshold, scale = rounded(rate)
        mask = keep_mask(x.shape, threshold, x.device)
        ctx.save_for_backward(mask)
        ctx.scale, ctx.has_residual = scale, residual is not None
        if compiled.library_for(x, residual):
            return compiled.drop_add(x, residual, mask, scale)
        kept = mask.to(x.dtype)
        if residual is None:
            return kept.mul_(x).mul_(scale)
        return torch.addcmul(residual, x, kept, value=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (gradient,) = gradients
        (mask,) = ctx.saved_tensors
        if compiled.library_for(gradient):
            return compiled.drop_add(gradient, None, mask, ctx.scale), gradient if ctx.has_residual else None, None
        kept: Tensor = mask.to(gradient.dtype).mul_(gradient).mul_(ctx.scale)
        return kept, gradient if ctx.has_residual else None, None


class Dropout(nn.Module):
    """Zero elements at random in training, and add the result to a residual if given."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return dropout(x), plus the residual of the same shape if given."""
        if not self.training or self.rate == 0.0:
            return x if residual is None else residual + x
        if not compiled.on_device(x):
            dropped: Tensor = _DropAdd.apply(x, residual, self.rate)  # type: ignore[no-untyped-call]  # torch's has no types
            return dropped
        dropped = F.dropout(x, self.rate)
        return dropped if residual is None else residual + dropped

    def mask(self, x: Tensor) -> tuple[Tensor | None, float]:
        """Return the mask of elements to keep, and the factor of kept elements; None without dropout."""
        if not self.training or self.rate == 0.0:
            return None, 1.0
        threshold, scale = rounded(self.rate)
        return keep_mask(x.shape, threshold, x.device), scale

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def uniforms(*shape: int, like: Tensor) -> Tensor:
    """Return random numbers in [0, 1) on the device of a tensor, in fp64 (fp32 on MPS, which has no fp64).

    On a CPU they come from the generator of the masks of dropout, on other devices from torch's generator of the
    device: then the host neither draws nor copies, and the numbers of a captured CUDA graph differ at each replay.
    """
    dtype = torch.float32 if like.device.type == "mps" else torch.float64
    if on_device(like):
        return torch.rand(shape, device=like.device, dtype=dtype)
    return torch.rand(shape, generator=torch.Generator().manual_seed(draw_seed()), dtype=dtype)


def integers(fractions: Tensor, counts: Tensor | int) -> Tensor:
    """Return integers from 0 to below `counts`, which is at least 1, for numbers in [0, 1); evenly distributed."""
    return (fractions * counts).long()
