"""Sampling in the kernels: its settings and buffers."""

import math
from dataclasses import dataclass

import torch

from translume.belief import BLOCK
from translume.decoding import Sampling, Truncation
from translume.kernels import loading
from translume.kernels.loading import address

KNOWN_STATES = 16
"""Of rules.h."""
_SEED = (1 << 64) - 1


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
    """The structures `sampling` and `choices` of sampling.h, with their buffers.

    known_phrases: the arrays of `known_phrases` of rules.h; empty if no phrases are banned.
    """

    def __init__(self, settings: SamplingSettings, size: int, *, has_phrases: bool) -> None:
        """size: V.  has_phrases: whether phrases are banned."""
        cut, blocks = settings.truncation, -(-size // BLOCK)
        self.struct = loading.Sampling(
            seed=settings.seed & _SEED,
            top_k=min(cut.top_k, size),
            temperature=settings.temperature,
            top_p=cut.top_p,
            log_min_p=_log(cut.min_p),
            log_epsilon=_log(cut.epsilon),
            log_eta=_log(cut.eta),
        )
        self._buffers = {
            "x": torch.full((blocks * BLOCK,), -math.inf),
            "weights": torch.empty(blocks * BLOCK),
            "exact": torch.empty(blocks * BLOCK, dtype=torch.double),
            "near": torch.empty(2 * blocks * BLOCK, dtype=torch.int32),
            "near_x": torch.empty(blocks * BLOCK),
            "near_weights": torch.empty(blocks * BLOCK, dtype=torch.double),
            "tops": torch.empty(blocks),
            "sums": torch.empty(blocks, dtype=torch.double),
        }
        pointers = {name: address(tensor) for name, tensor in self._buffers.items()}
        self.choices = loading.Choices(blocks=blocks, block=BLOCK, **pointers)
        states = KNOWN_STATES if has_phrases else 0
        self.known_phrases = (
            torch.full((states,), -1, dtype=torch.int32),
            torch.empty(states, size, dtype=torch.uint8),
        )


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
