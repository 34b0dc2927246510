"""Stochastic beam search: sampling without replacement (Kool, van Hoof and Welling 2019)."""

from dataclasses import dataclass
from typing import ClassVar, Self

from translume.belief import CACHED_ELEMENTS, Bias, NextToken, exact_topk
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, BeamStatus, Candidates, Keys
from translume.decoding.sampling import gumbels
from translume.decoding.scoring import LengthPenalty
from translume.decoding.used_distribution import own_belief, used_log_probs
from translume.errors import SettingsError
from translume.lazy import Tensor, torch

_ROOT = -1
"""The counter of the draw before the first token, instead of a token id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StochasticBeam:
    """Finds the `width` targets with the largest Gumbel-perturbed log-probabilities; no two are equal.

    This draws targets from p_used (rules and temperature included) without replacement (Gumbel-top-k). A hypothesis's
    score is its perturbed log-probability, so hypotheses are in the order of drawing, and the first one is an ordinary
    sample. Length does not enter the score.

    keys: [B], a number for each sentence.  nbest: number of hypotheses returned, at most `width`.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"samples", "nbest", "utility", "seed", "temperature"})
    groups: ClassVar[int] = 1
    coverage: ClassVar[None] = None
    length_penalty: ClassVar[LengthPenalty] = LengthPenalty(exponent=0.0)
    """No penalty: perturbed log-probabilities are not divided."""

    keys: Keys
    width: int = 5
    nbest: int = 1
    seed: int = 0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.nbest <= self.width:
            raise ValueError(f"nbest is {self.nbest}, expected 1 to the width, {self.width}")

    @classmethod
    def from_settings(cls, settings: DecodingSettings, keys: Keys) -> Self:
        if settings.nbest > settings.samples:
            expected = f"expected at most samples = {settings.samples}"
            raise SettingsError(f"decoding.nbest: found {settings.nbest}, {expected}")
        return cls(
            keys=keys,
            width=settings.samples,
            nbest=settings.nbest,
            seed=settings.seed,
            temperature=settings.temperature,
        )

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Return the 2·width candidates with the largest perturbed log-probabilities G; compare `BeamSearch.choose`.

        `Candidates.total` is G, `carried` is φ = log p_used of the whole hypothesis.
        """
        size, before = beam.total.shape
        keys = torch.as_tensor(self.keys, device=beam.total.device)[beam.sentences]
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
        """Add Gumbel noise to log_probs [N, V]; return the 2·width best and their ids, [N, 2·width] each."""
        count, size = log_probs.shape
        before = count // len(keys)
        places = torch.arange(before, device=keys.device).repeat(len(keys))[:, None]
        keys = keys.repeat_interleave(before)[:, None]
        tokens = torch.arange(size, device=keys.device)
        # On a CPU a few rows at a time, so that intermediate results stay in its cache.
        rows = max(1, CACHED_ELEMENTS // size) if log_probs.is_cpu else count
        values, ids = [], []
        for start in range(0, count, rows):
            chosen = slice(start, start + rows)
            noise = gumbels(self.seed, keys[chosen], places[chosen], step, tokens)
            best = exact_topk(log_probs[chosen] + noise, 2 * self.width)
            values.append(best[0])
            ids.append(best[1])
        return torch.cat(values), torch.cat(ids)

    def done(self, status: BeamStatus) -> Tensor:
        # G of a target never exceeds G of its prefixes.
        return status.total.amax(1) <= status.best[:, -1]


def _at_most(perturbed: Tensor, parent: Tensor) -> Tensor:
    """Return Gumbels [N, m], largest first in each row, conditioned on the largest being `parent` [N, 1].

    −log(e^−G − e^−Z + e^−G̃), Z the largest of G̃, as Kool et al. 2019, appendix B.3, compute it; −inf stays −inf.
    """
    impossible = perturbed.isneginf() | parent.isneginf()
    largest = perturbed[:, :1]
    beyond = parent - perturbed + torch.log1p(-(perturbed - largest).exp())
    conditioned = parent - beyond.clamp(min=0.0) - torch.log1p((-beyond.abs()).exp())
    return conditioned.masked_fill(impossible, -torch.inf)
