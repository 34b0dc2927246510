"""Greedy search: the most likely next token at every step."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, BeamStatus, Candidates
from translume.decoding.scoring import Coverage, LengthPenalty
from translume.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Keeps one hypothesis per sentence. Rows are never reordered, so no cache is copied until a sentence is done."""

    reads: ClassVar[frozenset[str]] = frozenset({"nbest", "length_penalty", "length_penalty_form", "coverage_penalty"})
    groups: ClassVar[int] = 1

    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)
    coverage: Coverage | None = None

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Tensor) -> Self:
        if settings.nbest > 1:
            raise SettingsError(f"decoding.nbest: found {settings.nbest}, expected 1 for greedy search")
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

    def done(self, status: BeamStatus) -> Tensor:
        return status.ended > 0
