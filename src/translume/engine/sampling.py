"""Sampling in the kernels: its settings, and the draws that the kernels leave to torch."""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import BLOCK, BeliefError, Bias, Logits, Summary
from translume.decoding import Sampling, Truncation
from translume.kernels import loading

_SEED = (1 << 64) - 1
_FAILED = 0


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The settings of `Sampling` that all sentences of a search share."""

    seed: int
    temperature: float
    truncation: Truncation

    @classmethod
    def of(cls, strategy: Sampling) -> "SamplingSettings":
        """Return those of a strategy."""
        return cls(strategy.seed, strategy.temperature, strategy.truncation)


class KernelSampling:
    """The kernels' view of sampling.

    struct: `sampling` of sampling.h.  draw: what the kernels call where other rounding errors could change a draw.
    """

    def __init__(self, settings: SamplingSettings, repetition: float, size: int) -> None:
        """repetition: what the rules add to tokens that a hypothesis contains.  size: V."""
        self._repetition, self._size = repetition, size
        self._strategy = Sampling(
            keys=torch.empty(0, dtype=torch.long), temperature=settings.temperature, truncation=settings.truncation
        )
        cut = settings.truncation
        self.struct = loading.Sampling(
            seed=settings.seed & _SEED,
            top_k=min(cut.top_k, size),
            temperature=settings.temperature,
            top_p=cut.top_p,
            log_min_p=_log(cut.min_p),
            log_epsilon=_log(cut.epsilon),
            log_eta=_log(cut.eta),
        )
        self.draw = loading.DrawFunction(self._draw)

    def buffers(self) -> dict[str, Tensor]:
        """Return the memory of `choices`, and of the scores of a row."""
        return {
            "scores": torch.empty(self._size),
            "weights": torch.empty(self._size),
            "blocks": torch.empty(-(-self._size // BLOCK), dtype=torch.double),
            "kept": torch.empty(self._size, 2, dtype=torch.double),  # weight, score and token
        }

    def _draw(self, pointer: "ctypes._Pointer[loading.RowOfLogits]") -> int:
        """Return the token that `Sampling` draws from a row of logits, plus 1."""
        row = pointer.contents
        logits, scores = _floats(row.logits, self._size), _floats(row.scores, self._size)
        sums, peak, rest = (_floats(each, 1) for each in (row.sum, row.peak, row.log_sum))
        maxima = _floats(row.maxima, -(-self._size // BLOCK))
        summary = Summary(maxima, sums, logits.argmax(-1, keepdim=True), (peak, rest))
        ids = (scores != logits).nonzero()[:, 1]
        values = torch.where(scores[0, ids].isneginf(), -math.inf, self._repetition)
        bias = Bias(torch.zeros_like(ids), ids, values) if ids.numel() else None
        chances = torch.tensor([[row.chance]], dtype=torch.double)
        try:
            return 1 + int(self._strategy.draw(Logits(logits, summary), bias, chances)[0])
        except BeliefError:
            return _FAILED


def _floats(address: int, count: int) -> Tensor:
    """Return the floats at an address as [1, count]."""
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)[None]


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
