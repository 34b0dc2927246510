"""Several models with one vocabulary as a single step: what they believe, averaged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from translume.belief import Bias, NextToken, TopK, drawn, exact_topk
from translume.decoding.step import Attentive, AttentiveStepper, SearchState, Stepper

Average = Literal["probability", "log_probability"]
"""What is averaged: probabilities, or log-probabilities, which are normalised anew afterwards."""


class Averaged:
    """The mean belief of several about the same rows: log Σ p_i / n, or Σ log p_i / n less its normaliser.

    It is the model's own belief of an ensemble: log_prob is the sum of it, and forced decoding reproduces it.
    """

    def __init__(self, beliefs: Sequence[NextToken], average: Average = "probability") -> None:
        """beliefs: of one size, at least one."""
        self._beliefs, self._average = tuple(beliefs), average
        self._mean: Tensor | None = None
        self.normalised = average == "log_probability" or all(belief.normalised for belief in beliefs)

    @property
    def rows(self) -> int:
        return self._beliefs[0].rows

    @property
    def size(self) -> int:
        return self._beliefs[0].size

    def log_probs(self) -> Tensor:
        if self._mean is None:
            logs = [belief.log_probs() for belief in self._beliefs]
            if self._average == "probability":
                self._mean = _log_mean(logs)
            else:
                mean = reduce(torch.add, logs) / len(logs)
                # A row whose tokens are each impossible to one of them stays impossible, and is no NaN.
                impossible = mean.amax(-1, keepdim=True).isneginf()
                self._mean = mean.log_softmax(-1).masked_fill(impossible, -math.inf)
        return self._mean

    def log_prob_of(self, ids: Tensor) -> Tensor:
        if self._average == "probability" and self._mean is None:
            return _log_mean([belief.log_prob_of(ids) for belief in self._beliefs])
        return self.log_probs().gather(1, ids)

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        log_probs = self.log_probs()
        ranks, ids = exact_topk(log_probs if bias is None else bias.add_to(log_probs), min(k, self.size))
        return TopK(ids, ranks if bias is None else log_probs.gather(1, ids), ranks)

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        log_probs = self.log_probs()
        return drawn(log_probs if bias is None else bias.add_to(log_probs), uniforms, temperature)


def _log_mean(logs: Sequence[Tensor]) -> Tensor:
    """log (Σ exp logs / n), pair by pair: over 320 × 8,000 a thirteenth of the time of a stacked logsumexp on a CPU."""
    return reduce(torch.logaddexp, logs) - math.log(len(logs))


@dataclass(frozen=True, slots=True)
class EnsembleState:
    """What each member remembers of the same rows."""

    states: tuple[SearchState, ...]

    def select(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState(tuple(state.select(rows) for state in self.states))

    @property
    def attention(self) -> Tensor | None:
        """[N, S], the mean of the members'; None where one of them has none. See `Attentive`."""
        found = [state.attention if isinstance(state, Attentive) else None for state in self.states]
        known = [each for each in found if each is not None]
        return torch.stack(known).mean(0) if len(known) == len(found) else None


class Ensemble:
    """A step over the steps of several models that read the same source ids and write the same target ids."""

    def __init__(self, members: Sequence[Stepper], average: Average = "probability") -> None:
        """members: at least one; each weighs as much as the others."""
        self.members, self.average = tuple(members), average

    def start(self, source: Tensor, mask: Tensor) -> EnsembleState:
        """The state before the first target token of sources [B, S], read where mask [B, S] is True."""
        return EnsembleState(tuple(member.start(source, mask) for member in self.members))

    def start_attentive(self, source: Tensor, mask: Tensor) -> EnsembleState:
        """As `start`, for members that all are an `AttentiveStepper`."""
        states: list[Any] = []
        for member in self.members:
            if not isinstance(member, AttentiveStepper):
                raise ValueError(f"attention is asked for, and {type(member).__name__} offers none")
            states.append(member.start_attentive(source, mask))
        return EnsembleState(tuple(states))

    def step(self, prefix: Tensor, state: EnsembleState) -> tuple[NextToken, EnsembleState]:
        """The mean belief about the token after prefix [N, 1 + t]."""
        steps = [member.step(prefix, own) for member, own in zip(self.members, state.states, strict=True)]
        beliefs, states = zip(*steps, strict=True)
        return Averaged(beliefs, self.average), EnsembleState(states)
