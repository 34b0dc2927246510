"""The K best partial targets, at every step."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, Candidates
from translume.decoding.greedy import Greedy
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Keeps `width` live hypotheses per sentence and, beside them, those that have finished.

    nbest: how many are returned, at most `width`.
    stop: "optimal" ends a sentence when no live hypothesis can still beat the worst of its `nbest` best finished ones;
        "first" when `width` have finished.  A beam of 1 ends at its first, whatever `stop` says: it is greedy search.
    """

    reads: ClassVar[frozenset[str]] = frozenset(
        {"beam", "nbest", "utility", "length_penalty", "length_penalty_form", "stop"}
    )

    width: int = 5
    nbest: int = 1
    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)
    stop: Literal["optimal", "first"] = "optimal"

    def __post_init__(self) -> None:
        if not 1 <= self.nbest <= self.width:
            raise ValueError(f"nbest is {self.nbest}, wanted from 1 to the width, {self.width}")

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Tensor) -> "Self | Greedy":
        if settings.beam == 1:
            return Greedy.of(settings, keys)
        if settings.nbest > settings.beam:
            raise SettingsError(
                f"decoding.nbest: {settings.nbest}, wanted at most as many as beam keeps {settings.beam}"
            )
        penalty = LengthPenalty.of(settings)
        return cls(width=settings.beam, nbest=settings.nbest, length_penalty=penalty, stop=settings.stop)

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """The 2·width best: at most `width` of them can end with eos, so that `width` others are left."""
        top = belief.topk(2 * self.width, bias)
        shape = (*beam.total.shape, top.ids.size(1))  # [B, K, 2·width]
        total = (beam.total[..., None] + top.ranks_by.view(shape)).flatten(1)
        log_prob = (beam.log_prob[..., None] + top.log_probs.view(shape)).flatten(1)
        # Stable: equal totals stay in the order of their hypothesis, then of their token's id.
        total, places = total.sort(dim=1, descending=True, stable=True)
        total, places = total[:, : 2 * self.width], places[:, : 2 * self.width]
        return Candidates(
            token=top.ids.view(shape).flatten(1).gather(1, places),
            origin=places // shape[2],
            log_prob=log_prob.gather(1, places),
            total=total,
        )

    def done(self, standing: Standing) -> Tensor:
        if self.stop == "first" or self.width == 1:
            return standing.ended >= self.width
        bound = self.length_penalty.bound(standing.total[:, 0], standing.length, standing.limits)
        return bound <= standing.best[:, -1]
