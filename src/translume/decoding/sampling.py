"""Sampling: targets drawn at random, token by token, with truncations and reproducible random numbers.

Random numbers are a function of a seed, a sentence, a place and a step. No generator is advanced, so draws for a
sentence do not depend on other draws, their order or the batch. Each counter is mixed into 64 bits by the finaliser of
SplitMix64 (Steele, Lea and Flood 2014, figure 16), in int64, whose sums and products wrap as unsigned ones do.

Truncations restrict the tokens that may be drawn. All are applied to the same p_used, and a token is drawn from their
intersection, so their order does not matter. The intersection is never empty, because each keeps the most likely token.
p_used is given as log-probabilities [N, V], up to a constant for each row, after reshaping, rules and temperature.
"""

import math
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self

from translume.belief import Bias, NextToken, drawn, exact_topk, log_weights
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, BeamStatus, Candidates, Keys
from translume.decoding.scoring import LengthPenalty
from translume.decoding.used_distribution import biased_log_probs, token_log_probs
from translume.errors import SettingsError
from translume.lazy import Tensor, torch

_BITS = 64
_GOLDEN, _FIRST, _SECOND = (
    each - (1 << _BITS) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_KEPT = 52
"""Bits of a uniform. With half a step added, the fp64 result is neither 0 nor 1."""


def uniforms(seed: int, *counters: Tensor | int) -> Tensor:
    """Return uniform numbers in (0, 1), fp64, determined by the seed and the counters.

    counters: int64, broadcast to one shape, such as keys [B, 1], places [K] and a step; their order matters.
    """
    state = seeded(seed)
    for counter in counters:
        steps = counter if isinstance(counter, Tensor) else torch.tensor(counter, device=state.device)
        state = counted(state.to(steps.device), steps)
    return uniform_of(state)


def seeded(seed: int) -> Tensor:
    """Return 64 mixed bits, an int64 [], for a seed: the state of `uniforms` before the first counter."""
    half = 1 << (_BITS - 1)
    return _mixed(torch.tensor((seed + half) % (1 << _BITS) - half) + _GOLDEN)


def counted(state: Tensor, counter: Tensor) -> Tensor:
    """Return the int64 state of `uniforms` after one more counter; state and counter are broadcast to one shape."""
    return _mixed(state + (counter + 1) * _GOLDEN)


def uniform_of(state: Tensor) -> Tensor:
    """Return the uniform numbers, fp64, of int64 states after the last counter."""
    return _shifted(state, _BITS - _KEPT).double().add_(0.5).mul_(2.0**-_KEPT)


def gumbels(seed: int, *counters: Tensor | int) -> Tensor:
    """Return standard Gumbel numbers −log(−log u), fp64; arguments as for `uniforms`."""
    return uniforms(seed, *counters).log_().neg_().log_().neg_()


def _mixed(state: Tensor) -> Tensor:
    """Return the SplitMix64 finaliser, a bijection of 64 bits."""
    state = (state ^ _shifted(state, 30)).mul_(_FIRST)
    state.bitwise_xor_(_shifted(state, 27)).mul_(_SECOND)
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Return a logical right shift; that of int64 copies the sign."""
    return (state >> bits).bitwise_and_((1 << (_BITS - bits)) - 1)


FIRST_NUCLEUS_SIZE, GROWTH = 32, 4
"""Number of tokens that `top_p` sorts first, and the factor by which it grows if they are not the whole nucleus."""


def top_k(log_probs: Tensor, k: int) -> Tensor:
    """Return [N, V], True for the k most likely tokens, ties by smaller id (Fan et al. 2018, section 5.1)."""
    ids = exact_topk(log_probs, min(k, log_probs.size(1)))[1]
    return torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, ids, value=True)


def top_p(log_probs: Tensor, p: float) -> Tensor:
    """Return [N, V], True for the nucleus: the fewest likely tokens that sum to `p` (Holtzman et al. 2020, eq. 2-3).

    Sorts the k most likely tokens, and more only for rows where these sum to less than `p`.
    """
    relative = log_weights(log_probs)
    wanted = p * relative.exp().sum(-1, keepdim=True)
    kept = torch.zeros_like(log_probs, dtype=torch.bool)
    rows = torch.arange(len(log_probs), device=log_probs.device)
    k = FIRST_NUCLEUS_SIZE
    while rows.numel():
        values, ids = exact_topk(relative[rows], min(k, log_probs.size(1)))
        before = torch.nn.functional.pad(values.exp().cumsum(-1)[:, :-1], (1, 0))  # weight of those ahead
        inside = before < wanted[rows]
        inside[:, 0] = True
        enough = ~inside[:, -1] | (ids.size(1) == log_probs.size(1))
        kept[rows[enough][:, None], ids[enough]] = inside[enough]
        rows, k = rows[~enough], k * GROWTH
    return kept


def min_p(log_probs: Tensor, p: float) -> Tensor:
    """Return [N, V], True for tokens with at least `p` times the highest probability (Nguyen et al. 2024, eq. 1-2)."""
    return log_weights(log_probs) >= math.log(p)


def epsilon(log_probs: Tensor, smallest: float) -> Tensor:
    """Return [N, V], True for the best token and all of at least probability `smallest` (Hewitt et al. 2022, 4.2)."""
    relative = log_weights(log_probs)
    threshold = math.log(smallest) + relative.exp().sum(-1, keepdim=True).log()
    return relative >= threshold.clamp(max=0.0)


def eta(log_probs: Tensor, smallest: float) -> Tensor:
    """Return [N, V], True for the best token and all with at least min(ε, √ε · e^−H), H being the row's entropy.

    smallest: ε.  Hewitt et al. 2022, equation 4, with α = √ε as there.
    """
    relative = log_weights(log_probs)
    weights = relative.exp()
    total = weights.sum(-1, keepdim=True)
    entropy = total.log() + torch.special.entr(weights).sum(-1, keepdim=True) / total
    threshold: Tensor = (0.5 * math.log(smallest) - entropy).clamp(max=math.log(smallest)) + total.log()
    return relative >= threshold.clamp(max=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The truncations of [decoding] by their parameters; 0 turns one off, 1 for top_p."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    epsilon: float = 0.0
    eta: float = 0.0

    @classmethod
    def from_settings(cls, settings: DecodingSettings) -> Self:
        """Return the truncations of [decoding]."""
        return cls(**{each.name: getattr(settings, each.name) for each in fields(cls)})

    @property
    def nothing(self) -> bool:
        """Whether all tokens are kept."""
        return self == type(self)()

    @property
    def only_best(self) -> bool:
        """Whether the `top_k` best tokens alone determine which are kept."""
        return bool(self.top_k) and self.top_p == 1.0 and not self.epsilon and not self.eta

    def kept(self, log_probs: Tensor) -> Tensor:
        """Return [N, V], True for tokens of p_used [N, V] that every truncation keeps, at least one in each row."""
        parts = [
            *([top_k(log_probs, self.top_k)] if self.top_k else []),
            *([top_p(log_probs, self.top_p)] if self.top_p < 1.0 else []),
            *([min_p(log_probs, self.min_p)] if self.min_p else []),
            *([epsilon(log_probs, self.epsilon)] if self.epsilon else []),
            *([eta(log_probs, self.eta)] if self.eta else []),
        ]
        kept = torch.ones_like(log_probs, dtype=torch.bool)
        for part in parts:
            kept &= part
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Draws `width` independent samples per sentence from p_used, truncated.

    Samples of a sentence may be equal. Draws depend only on the seed, the sentence's key, the index of the sample and
    the step. Hypotheses are ranked by p_model with biases, not by p_used.

    keys: [B], a number for each sentence.  nbest: number of hypotheses returned, at most `width`.
    """

    reads: ClassVar[frozenset[str]] = frozenset(
        {"samples", "nbest", "utility", "seed", "temperature", "length_penalty", "length_penalty_form"}
        | {"top_k", "top_p", "min_p", "epsilon", "eta", "draft", "draft_tokens"}
    )
    groups: ClassVar[int] = 1
    coverage: ClassVar[None] = None

    keys: Keys
    width: int = 1
    nbest: int = 1
    seed: int = 0
    temperature: float = 1.0
    truncation: Truncation = field(default_factory=Truncation)
    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)

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
            truncation=Truncation.from_settings(settings),
            length_penalty=LengthPenalty.from_settings(settings),
        )

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Draw one token per sample, in order of samples; in the first step all share the sentence's one row."""
        size, before = beam.total.shape
        places = torch.arange(self.width, device=beam.total.device)
        keys = torch.as_tensor(self.keys, device=places.device)[beam.sentences, None]
        chances = uniforms(self.seed, keys, places, beam.tokens.size(2)).view(size * before, -1)  # [N, K / before]
        ids, possible = self.draw(belief, bias, chances)
        log_probs, ranks = token_log_probs(belief, ids, bias)
        origin = (places if before > 1 else torch.zeros_like(places)).expand(size, -1)
        total = beam.total.gather(1, origin) + ranks.view(size, -1)
        return Candidates(
            token=ids.view(size, -1),
            origin=origin,
            log_prob=beam.log_prob.gather(1, origin) + log_probs.view(size, -1),
            # Samples without a possible token end here.
            total=total.masked_fill(~possible.view(size, before).gather(1, origin), -torch.inf),
        )

    def done(self, status: BeamStatus) -> Tensor:
        return status.ended >= self.width

    def draw(self, belief: NextToken, bias: Bias | None, chances: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids [N, count], one for each of the uniforms `chances`, and which rows [N] had a token to draw."""
        if self.truncation.nothing:
            possible = torch.ones(belief.rows, dtype=torch.bool, device=chances.device)
            if bias is not None:
                possible = ~belief.topk(1, bias).ranks_by[:, 0].isneginf()
                if not bool(possible.all()):
                    bias = _without_rows(bias, ~possible)
            return belief.sample(chances, temperature=self.temperature, bias=bias), possible
        if self.truncation.only_best:
            top = belief.topk(self.truncation.top_k, bias)
            ids, by_id = top.ids.sort(-1)
            scores = log_weights(top.ranks_by.float().gather(1, by_id), self.temperature)
            # min_p is relative to the most likely token, which is among the top k.
            among = Truncation(min_p=self.truncation.min_p)
        else:
            ids, among = None, self.truncation
            scores = log_weights(biased_log_probs(belief, bias).float(), self.temperature)
        possible = ~scores.amax(-1).isneginf()
        scores = scores.masked_fill(~among.kept(scores), -torch.inf).masked_fill(~possible[:, None], 0.0)
        places = drawn(scores, chances)
        return (places if ids is None else ids.gather(1, places)), possible


def _without_rows(bias: Bias, rows: Tensor) -> Bias:
    """Return the bias without the marked `rows` [N]."""
    kept = ~rows[bias.rows]
    allowed = None if bias.allowed is None else bias.allowed | rows[:, None]
    return Bias(bias.rows[kept], bias.ids[kept], bias.values[kept], allowed)
