"""Logits by the kernels: their statistics, refinement of those of int8 heads, and what a copy head adds to them."""

import ctypes
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from translume.belief import BLOCK, UNSHIFTED, Summary
from translume.engine.packing import NativeLinear
from translume.errors import SettingsError
from translume.heads.copy import CopyHead
from translume.kernels import loading
from translume.kernels.loading import Refinement, address

REFINED_NATS = 1.0
"""Logits within this distance of a row's largest are computed again in fp32."""


class LogitRefiner:
    """Computes the logits near a row's largest again in fp32, so that quantisation does not reorder likely tokens."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [V, D], D a multiple of LANES.  bias: [V]."""
        self._weight = weight.detach().float().contiguous()
        self._bias = None if bias is None else bias.detach().float().contiguous()

    def inputs(self, hidden: Tensor) -> Refinement:
        """Return the kernels' view of the fp32 inputs of logits; hidden: [N, D], contiguous."""
        pointers = (address(hidden), address(self._weight), address(self._bias))
        return Refinement(*pointers, hidden.size(1), REFINED_NATS)


def summarize_logits(logits: Tensor, refinement: Refinement | None = None) -> Summary:
    """Return the statistics of fp32 logits [N, V] that `Logits` uses; refine the logits in place first if given."""
    count, size = logits.shape
    maxima, first = logits.new_empty(count, -(-size // BLOCK)), logits.new_empty(count, 1, dtype=torch.long)
    sums, peak, log_sum = logits.new_empty(3, count, 1).unbind()
    not_finite = loading.kernels().library.translume_summarize(
        logits.data_ptr(),
        count,
        size,
        BLOCK,
        UNSHIFTED,
        None if refinement is None else ctypes.addressof(refinement),
        *map(address, (maxima, first, sums, peak, log_sum)),
    )
    return Summary(maxima, sums, first, None if not_finite else (peak, log_sum))


@dataclass(frozen=True, slots=True)
class CopySources:
    """The tokens of B sources as the kernels read them, and the sentence `owners` [N] of each row.

    structs: [B, 4], the structures `copy_source`.  kept: the arrays that they point to.  length: of the longest source.
    """

    structs: NDArray[np.int64]
    kept: tuple[Tensor, ...]
    length: int
    owners: Tensor

    def select(self, rows: Tensor) -> "CopySources":
        return replace(self, owners=self.owners[rows])

    def addresses(self) -> Tensor:
        """Return the address [N] of each row's structure."""
        return self.owners * self.structs.strides[0] + self.structs.ctypes.data


class CopyKernels:
    """A copy head's gate and its products with the memory, packed for the kernels, in fp32 with every dtype."""

    def __init__(self, head: CopyHead) -> None:
        """Raises SettingsError if the head copies ids that do not exist."""
        if int(head.copied.max()) >= head.vocabulary:  # the kernels do not check ids
            raise SettingsError(f"the head copies token {int(head.copied.max())} of a vocabulary of {head.vocabulary}")
        width = head.query.in_features
        self._head = head
        self._memory = NativeLinear(head.memory_weight(), None)
        self._weight = head.gate.weight.detach()[0, :width].contiguous()
        self.struct = loading.CopyGate(width, address(self._weight), head.gate.bias.item())
        self._library = loading.kernels().library

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself: it holds addresses of tensors that are never written to."""
        return self

    def begin(self, source: Tensor, mask: Tensor, memory: Tensor) -> CopySources:
        """Return what can be copied from sources; arguments as of `Head.begin`."""
        ids, first = (each.contiguous() for each in self._head.copyable(source, mask))
        keys = self._memory(memory)
        count, length = ids.shape
        structs = np.empty((count, 4), np.int64)
        structs[:, 0] = length
        for column, tensor in enumerate((ids, first, keys), 1):
            structs[:, column] = tensor.data_ptr() + np.arange(count) * (tensor.stride(0) * tensor.element_size())
        return CopySources(structs, (ids, first, keys), length, torch.arange(count))

    def add(self, logits: Tensor, summary: Summary, hidden: Tensor, sources: CopySources) -> Summary:
        """Add copies to logits [N, V] after hidden states [N, D], in place; return their statistics."""
        normaliser = summary.normaliser
        if normaliser is None:  # reading them raises
            return summary
        hidden, owners = hidden.contiguous(), sources.owners
        statistics = (summary.maxima, summary.first, summary.sums, *normaliser)
        shares = torch.empty(sources.length)
        not_finite = self._library.translume_add_copies(
            ctypes.addressof(self.struct),
            sources.structs.ctypes.data,
            owners.data_ptr(),
            hidden.data_ptr(),
            *logits.shape,
            BLOCK,
            *map(address, (logits, *statistics, shares)),
        )
        return summary._replace(normaliser=None) if not_finite else summary
