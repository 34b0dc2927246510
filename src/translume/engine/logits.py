"""Statistics of logits computed by the kernels, and refinement of the logits of int8 heads."""

import ctypes

import torch
from torch import Tensor

from translume.belief import BLOCK, UNSHIFTED, Summary
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
