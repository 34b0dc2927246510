"""The likeliest next token, at every step."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, Candidates
from translume.decoding.coverage import Coverage
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """One hypothesis per sentence; never reorders rows, so no cache is copied until a sentence leaves."""

    reads: ClassVar[frozenset[str]] = frozenset({"nbest", "length_penalty", "length_penalty_form", "coverage_penalty"})
    groups: ClassVar[int] = 1

    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)
    coverage: Coverage | None = None

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Tensor) -> Self:
        if settings.nbest > 1:
            raise SettingsError(f"decoding.nbest: {settings.nbest}, wanted at most as many as greedy keeps 1")
        return cls(length_penalty=LengthPenalty.of(settings), coverage=Coverage.of(settings))

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
