"""Different targets drawn at random: sampling without replacement by a beam (Kool, van Hoof and Welling 2019)."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from translume.belief import CACHED_ELEMENTS, Bias, NextToken, exact_topk
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, Candidates
from translume.decoding.draws import gumbels
from translume.decoding.length import LengthPenalty
from translume.decoding.reshaped import own_belief
from translume.decoding.standing import Standing
from translume.decoding.used import used_log_probs
from translume.errors import SettingsError

_ROOT = -1
"""The counter of what is drawn before the first token, where others have their token's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticBeam:
    """The `width` targets with the largest Gumbel-perturbed log-probabilities of all there are: no two are equal.

    That is as if targets were drawn from p_used (rules and temperature included) one after another, each not again
    (Gumbel-top-k). A hypothesis's score is its perturbed log-probability: in this order they were drawn, and the first
    is a plain sample. Lengths do not enter it.

    keys: [B], a number for each sentence.  nbest: how many are returned, at most `width`.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"samples", "nbest", "utility", "seed", "temperature"})
    groups: ClassVar[int] = 1
    coverage: ClassVar[None] = None

    keys: Tensor
    width: int = 5
    nbest: int = 1
    seed: int = 0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.nbest <= self.width:
            raise ValueError(f"nbest is {self.nbest}, wanted from 1 to the width, {self.width}")

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Tensor) -> Self:
        if settings.nbest > settings.samples:
            raise SettingsError(
                f"decoding.nbest: {settings.nbest}, wanted at most as many as samples {settings.samples}"
            )
        return cls(
            keys=keys,
            width=settings.samples,
            nbest=settings.nbest,
            seed=settings.seed,
            temperature=settings.temperature,
        )

    @property
    def length_penalty(self) -> LengthPenalty:
        """None: what a hypothesis is ranked by is not to be divided."""
        return LengthPenalty(exponent=0.0)

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """The 2·width with the largest perturbed log-probabilities G, as beam search has its 2·width best.

        `Candidates.total` is G, `carried` is φ = log p_used of the whole hypothesis.
        """
        size, before = beam.total.shape
        keys = self.keys.to(beam.total.device)[beam.sentences]
        step = beam.tokens.size(2)
        parent = beam.total if beam.carried is not None else gumbels(self.seed, keys[:, None], 0, 0, _ROOT).float()
        so_far = torch.zeros_like(parent) if beam.carried is None else beam.carried
        log_probs = used_log_probs(belief, bias, self.temperature)  # [N, V]
        perturbed, ids = self._perturbed(log_probs, keys, step)  # G̃ − φ of the parent, best first
        shape = (size, before, ids.size(1))
        total = _at_most(perturbed + so_far.view(-1, 1), parent.reshape(-1, 1)).float().view(shape).flatten(1)
        total, order = total.sort(dim=1, descending=True, stable=True)
        total, order = total[:, : 2 * self.width], order[:, : 2 * self.width]
        own = own_belief(belief).log_prob_of(ids).float().view(shape)
        phi = log_probs.gather(1, ids).view(shape)
        return Candidates(
            token=ids.reshape(size, -1).gather(1, order),
            origin=order // shape[2],
            log_prob=(beam.log_prob[..., None] + own).flatten(1).gather(1, order),
            total=total,
            carried=(so_far[..., None] + phi).flatten(1).gather(1, order),
        )

    def _perturbed(self, log_probs: Tensor, keys: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The 2·width best of log_probs [N, V] with Gumbel noise, best first, and their ids, [N, 2·width] each."""
        count, size = log_probs.shape
        before = count // len(keys)
        places = torch.arange(before, device=keys.device).repeat(len(keys))[:, None]
        keys = keys.repeat_interleave(before)[:, None]
        tokens = torch.arange(size, device=keys.device)
        # On a CPU a few rows at a time: what is mixed a dozen times stays in its cache.
        rows = max(1, CACHED_ELEMENTS // size) if log_probs.is_cpu else count
        values, ids = [], []
        for start in range(0, count, rows):
            some = slice(start, start + rows)
            noise = gumbels(self.seed, keys[some], places[some], step, tokens)
            best = exact_topk(log_probs[some] + noise, 2 * self.width)
            values.append(best[0])
            ids.append(best[1])
        return torch.cat(values), torch.cat(ids)

    def done(self, standing: Standing) -> Tensor:
        # No target is worth more than its beginning.
        return standing.total.amax(1) <= standing.best[:, -1]


def _at_most(perturbed: Tensor, parent: Tensor) -> Tensor:
    """Gumbels [N, m], the largest first in each row, given that the largest is `parent` [N, 1].

    −log(e^−G − e^−Z + e^−G̃), Z the largest of G̃, as Kool et al. 2019, appendix B.3, compute it; −inf stays −inf.
    """
    impossible = perturbed.isneginf() | parent.isneginf()
    largest = perturbed[:, :1]
    beyond = parent - perturbed + torch.log1p(-(perturbed - largest).exp())
    found = parent - beyond.clamp(min=0.0) - torch.log1p((-beyond.abs()).exp())
    return found.masked_fill(impossible, -torch.inf)
