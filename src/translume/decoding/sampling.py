"""Targets drawn at random, token by token."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from translume.belief import Bias, NextToken, drawn
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, Candidates
from translume.decoding.draws import uniforms
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.decoding.truncation import Truncation
from translume.decoding.used import priced, used_log_probs
from translume.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """`width` chains per sentence, each drawn from p_used by itself: the rules' bias, the temperature, the truncations.

    Two chains may write the same target. Draws depend on the seed, the sentence's key, the chain's place in the beam
    and the step alone. Hypotheses carry and are ranked by what they are worth to the model, not by p_used.

    keys: [B], a number for each sentence.  nbest: how many are returned, at most `width`.
    """

    reads: ClassVar[frozenset[str]] = frozenset(
        {"samples", "nbest", "utility", "seed", "temperature", "length_penalty", "length_penalty_form"}
        | {"top_k", "top_p", "min_p", "epsilon", "eta"}
    )
    groups: ClassVar[int] = 1
    coverage: ClassVar[None] = None

    keys: Tensor
    width: int = 1
    nbest: int = 1
    seed: int = 0
    temperature: float = 1.0
    truncation: Truncation = field(default_factory=Truncation)
    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)

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
            truncation=Truncation.of(settings),
            length_penalty=LengthPenalty.of(settings),
        )

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """One token a chain, in the order of the chains; all begin as the one row that a sentence has at first."""
        size, before = beam.total.shape
        places = torch.arange(self.width, device=beam.total.device)
        keys = self.keys.to(places.device)[beam.sentences, None]
        chances = uniforms(self.seed, keys, places, beam.tokens.size(2)).view(size * before, -1)  # [N, K / before]
        ids, possible = self._draw(belief, bias, chances)
        log_probs, ranks = priced(belief, ids, bias)
        origin = (places if before > 1 else torch.zeros_like(places)).expand(size, -1)
        total = beam.total.gather(1, origin) + ranks.view(size, -1)
        return Candidates(
            token=ids.view(size, -1),
            origin=origin,
            log_prob=beam.log_prob.gather(1, origin) + log_probs.view(size, -1),
            # Whoever has no token to go on with ends here, the others do not.
            total=total.masked_fill(~possible.view(size, before).gather(1, origin), -torch.inf),
        )

    def done(self, standing: Standing) -> Tensor:
        return standing.ended >= self.width

    def _draw(self, belief: NextToken, bias: Bias | None, chances: Tensor) -> tuple[Tensor, Tensor]:
        """Ids [N, count], one for each of `chances`; and the rows [N] that had any to draw from."""
        if self.truncation.nothing:
            blocked = None if bias is None else belief.topk(1, bias).ranks_by[:, 0].isneginf()
            if bias is None or blocked is None or not bool(blocked.any()):
                possible = torch.ones(belief.rows, dtype=torch.bool, device=chances.device)
            else:
                bias, possible = _silent(bias, blocked), ~blocked
            return belief.sample(chances, temperature=self.temperature, bias=bias), possible
        if self.truncation.only_best:
            top = belief.topk(self.truncation.top_k, bias)
            ids, by_id = top.ids.sort(-1)
            scores = (top.ranks_by.float() / self.temperature).gather(1, by_id)
            # The share of all others moves no cut that is relative to the best.
            among = Truncation(min_p=self.truncation.min_p)
        else:
            ids, among = None, self.truncation
            scores = used_log_probs(belief, bias, self.temperature)
        possible = ~scores.amax(-1).isneginf()
        scores = scores.masked_fill(~among.kept(scores), -torch.inf).masked_fill(~possible[:, None], 0.0)
        found = drawn(scores, chances)
        return (found if ids is None else ids.gather(1, found)), possible


def _silent(bias: Bias, rows: Tensor) -> Bias:
    """The bias without a word on the `rows` [N] that are marked."""
    said = ~rows[bias.rows]
    allowed = None if bias.allowed is None else bias.allowed | rows[:, None]
    return Bias(bias.rows[said], bias.ids[said], bias.values[said], allowed)
