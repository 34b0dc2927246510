"""The K best partial targets, at every step."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, Candidates
from translume.decoding.coverage import Coverage
from translume.decoding.greedy import Greedy
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Keeps `width` live hypotheses per sentence and, beside them, those that have finished.

    nbest: how many are returned, at most `width`.
    stop: "optimal" ends a sentence when no live hypothesis can still beat the worst of its `nbest` best finished ones,
        whatever length it ends at, however much of the source it will read and as much as rules may still lift it;
        "first" when `patience` times `width` have finished (Kasai et al. 2022).  A beam of 1 ends at its first,
        whatever they say: it is greedy search.
    """

    groups: ClassVar[int] = 1

    reads: ClassVar[frozenset[str]] = frozenset(
        {
            "beam",
            "nbest",
            "utility",
            "length_penalty",
            "length_penalty_form",
            "coverage_penalty",
            "stop",
            "patience",
        }
    )

    width: int = 5
    nbest: int = 1
    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)
    coverage: Coverage | None = None
    stop: Literal["optimal", "first"] = "optimal"
    patience: float = 1.0

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
        if settings.patience != 1.0 and settings.stop != "first":
            raise SettingsError(
                f"decoding.patience: found {settings.patience} with stop = '{settings.stop}', wanted stop = 'first', "
                "which it is the patience of"
            )
        return cls(
            width=settings.beam,
            nbest=settings.nbest,
            length_penalty=LengthPenalty.of(settings),
            coverage=Coverage.of(settings),
            stop=settings.stop,
            patience=settings.patience,
        )

    def narrowed(self, width: int) -> Self:
        """The same search with a smaller beam, which can return no more than that."""
        return replace(self, width=width, nbest=min(self.nbest, width))

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
        if self.width == 1:
            return standing.ended > 0
        if self.stop == "first":
            return standing.ended >= self.patience * self.width
        # Coverage adds at most 0: what was not read may still be.
        lifted = standing.total[:, 0] + standing.lift * (standing.limits - standing.length)
        return self.length_penalty.bound(lifted, standing.length, standing.limits) <= standing.best[:, -1]
