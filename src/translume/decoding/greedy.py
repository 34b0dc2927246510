"""The likeliest next token, at every step."""

from dataclasses import dataclass, field

from torch import Tensor

from translume.belief import Bias, NextToken
from translume.decoding.beam import Beam, Candidates
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """One hypothesis per sentence; never reorders rows, so no cache is copied until a sentence leaves."""

    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)

    @property
    def width(self) -> int:
        return 1

    @property
    def nbest(self) -> int:
        return 1

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        top = belief.topk(1, bias)
        return Candidates(
            token=top.ids,
            origin=beam.origin,  # [B, 1], always 0
            log_prob=beam.log_prob + top.log_probs,
            total=beam.total + top.ranks_by,
        )

    def done(self, standing: Standing) -> Tensor:
        return standing.ended > 0
