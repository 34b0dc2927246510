"""Logits by the kernels: their statistics, refinement of those of int8 heads, and what a copy head adds to them."""

import ctypes
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from translume.belief import BLOCK, UNSHIFTED, Summary
from translume.engine.network import Array, Network
from translume.engine.packing import PackedLinear
from translume.errors import SettingsError
from translume.kernels import loading
from translume.kernels.loading import Refinement, address, empty
from translume.lazy import torch

REFINED_NATS = 1.0
"""Logits within this distance of a row's largest are computed again in fp32."""


class LogitRefiner:
    """Computes the logits near a row's largest again in fp32, so that quantisation does not reorder likely tokens."""

    def __init__(self, weight: Array, bias: Array | None = None) -> None:
        """weight: [V, D], D a multiple of LANES.  bias: [V]."""
        self._weight = np.ascontiguousarray(weight)
        self._bias = None if bias is None else np.ascontiguousarray(bias)

    def inputs(self, hidden: Array) -> Refinement:
        """Return the kernels' view of the fp32 inputs of logits; hidden: [N, D], contiguous."""
        pointers = (address(hidden), address(self._weight), address(self._bias))
        return Refinement(*pointers, hidden.shape[1], REFINED_NATS)


class LogitStatistics(NamedTuple):
    """The arrays of a `Summary`, and whether the normaliser is finite."""

    maxima: Array
    sums: Array
    first: Array
    peak: Array
    log_sum: Array
    finite: bool

    def summary(self) -> Summary:
        """Return them as `Logits` reads them."""
        maxima, sums, first, peak, log_sum = map(torch.from_numpy, self[:5])
        return Summary(maxima, sums, first, (peak, log_sum) if self.finite else None)


def summarize_logits(logits: Array, refinement: Refinement | None = None) -> LogitStatistics:
    """Return the statistics of fp32 logits [N, V]; refine the logits in place first if given."""
    count, size = logits.shape
    maxima, first = empty([count, -(-size // BLOCK)]), empty([count, 1], np.int64)
    sums, peak, log_sum = (empty([count, 1]) for _ in range(3))
    not_finite = loading.kernels().library.translume_summarize(
        address(logits),
        count,
        size,
        BLOCK,
        UNSHIFTED,
        None if refinement is None else ctypes.addressof(refinement),
        *map(address, (maxima, first, sums, peak, log_sum)),
    )
    return LogitStatistics(maxima, sums, first, peak, log_sum, not not_finite)


@dataclass(frozen=True, slots=True)
class CopySources:
    """The tokens of B sources as the kernels read them, and the sentence `owners` [N] of each row.

    structs: [B, 4], the structures `copy_source`.  kept: the arrays that they point to.  length: of the longest source.
    """

    structs: Array
    kept: tuple[Array, ...]
    length: int
    owners: Array

    def select(self, rows: ArrayLike) -> "CopySources":
        """Return those of rows [M]."""
        return replace(self, owners=self.owners[np.asarray(rows)])

    def addresses(self) -> Array:
        """Return the address [N] of each row's structure."""
        return self.owners * self.structs.strides[0] + self.structs.ctypes.data


class CopyKernels:
    """A copy head's gate and its products with the memory, packed for the kernels, in fp32 with every dtype.

    See `heads.copy.CopyHead`.
    """

    def __init__(self, network: Network, vocabulary: int) -> None:
        """Raises SettingsError if the head copies ids that do not exist."""
        width = network.settings.width
        self._copied = network.weight("head.copied", len(network.table("encoder")))
        if int(self._copied.max()) >= vocabulary:  # the kernels do not check ids
            raise SettingsError(f"the head copies token {int(self._copied.max())} of a vocabulary of {vocabulary}")
        query = network.weight("head.query.weight", width, width)
        gate = network.weight("head.gate.weight", 1, 2 * width)
        reads = np.concatenate([query.T * np.float32(width**-0.5), gate[:, width:]])
        self._memory = PackedLinear(PackedLinear.pack(reads, None))
        self._weight = np.ascontiguousarray(gate[0, :width])
        self.struct = loading.CopyGate(width, address(self._weight), float(network.weight("head.gate.bias", 1)[0]))
        self._library = loading.kernels().library

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself: it holds addresses of arrays that are never written to."""
        return self

    def begin(self, source: Array, mask: Array, memory: Array) -> CopySources:
        """Return what can be copied from sources; arguments as of `Head.begin`."""
        ids = np.where(mask, self._copied[source], -1)
        same = (ids[:, :, None] == ids[:, None]) & (ids >= 0)[:, None]
        arrays = (ids, same.argmax(-1), self._memory(memory))
        count, length = ids.shape
        structs = np.empty((count, 4), np.int64)
        structs[:, 0] = length
        for column, each in enumerate(arrays, 1):
            structs[:, column] = each.ctypes.data + np.arange(count) * each.strides[0]
        return CopySources(structs, arrays, length, np.arange(count))

    def add(self, logits: Array, statistics: LogitStatistics, hidden: Array, sources: CopySources) -> LogitStatistics:
        """Add copies to logits [N, V] after hidden states [N, D], in place; return their statistics."""
        if not statistics.finite:  # reading them raises
            return statistics
        owners, shares = sources.owners, empty([sources.length])
        maxima, sums, first, peak, log_sum, _ = statistics
        not_finite = self._library.translume_add_copies(
            ctypes.addressof(self.struct),
            sources.structs.ctypes.data,
            address(owners),
            address(hidden),
            *logits.shape,
            BLOCK,
            *map(address, (logits, maxima, first, sums, peak, log_sum, shares)),
        )
        return statistics._replace(finite=not not_finite)
