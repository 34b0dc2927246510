"""Beam search: the K best partial hypotheses at every step."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, BeamStatus, Candidates, Keys
from translume.decoding.scoring import Coverage, LengthPenalty
from translume.errors import SettingsError
from translume.lazy import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Keeps `width` live hypotheses per sentence, in addition to finished ones.

    nbest: number of hypotheses returned, at most `width`.
    stop: "optimal" ends a sentence when no live hypothesis can still beat the worst of its `nbest` best finished ones.
        The bound covers all lengths, full coverage of the source, and the most that rules can add.
        "first" ends it when `patience` times `width` hypotheses have finished (Kasai et al. 2022).
        A beam of 1 ends with its first finished hypothesis in either case: it is greedy search.
    """

    groups: ClassVar[int] = 1

    reads: ClassVar[frozenset[str]] = frozenset(
        {"beam", "nbest", "utility", "ctc_weight", "length_penalty", "length_penalty_form"}
        | {"coverage_penalty", "stop", "patience"}
    )

    width: int = 5
    nbest: int = 1
    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)
    coverage: Coverage | None = None
    stop: Literal["optimal", "first"] = "first"
    patience: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.nbest <= self.width:
            raise ValueError(f"nbest is {self.nbest}, expected 1 to the width, {self.width}")

    @classmethod
    def from_settings(cls, settings: DecodingSettings, keys: Keys) -> "Self | Greedy":
        if settings.beam == 1:
            return Greedy.from_settings(settings, keys)
        if settings.nbest > settings.beam:
            raise SettingsError(f"decoding.nbest: found {settings.nbest}, expected at most beam = {settings.beam}")
        if settings.patience != 1.0 and settings.stop != "first":
            raise SettingsError(
                f"decoding.patience: found {settings.patience} with stop = '{settings.stop}', expected stop = 'first'"
            )
        return cls(
            width=settings.beam,
            nbest=settings.nbest,
            length_penalty=LengthPenalty.from_settings(settings),
            coverage=Coverage.from_settings(settings),
            stop=settings.stop,
            patience=settings.patience,
        )

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Return the 2·width best: at most `width` of them end with eos, so `width` others remain."""
        top = belief.topk(2 * self.width, bias)
        shape = (*beam.total.shape, top.ids.size(1))  # [B, K, 2·width]
        total = (beam.total[..., None] + top.ranks_by.view(shape)).flatten(1)
        log_prob = (beam.log_prob[..., None] + top.log_probs.view(shape)).flatten(1)
        # A stable sort: ties are in the order of hypotheses, then of token ids.
        total, places = total.sort(dim=1, descending=True, stable=True)
        total, places = total[:, : 2 * self.width], places[:, : 2 * self.width]
        return Candidates(
            token=top.ids.view(shape).flatten(1).gather(1, places),
            origin=places // shape[2],
            log_prob=log_prob.gather(1, places),
            total=total,
        )

    def done(self, status: BeamStatus) -> Tensor:
        if self.width == 1:
            return status.ended > 0
        if self.stop == "first":
            return status.ended >= self.patience * self.width
        # The coverage penalty is at most 0, which is its bound.
        lifted = status.total[:, 0] + status.lift * (status.limits - status.length)
        return self.length_penalty.bound(lifted, status.length, status.limits) <= status.best[:, -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Keeps one hypothesis per sentence. Rows are never reordered, so no cache is copied until a sentence is done."""

    reads: ClassVar[frozenset[str]] = frozenset(
        {"nbest", "length_penalty", "length_penalty_form", "coverage_penalty", "draft", "draft_tokens"}
    )
    groups: ClassVar[int] = 1
    width: ClassVar[int] = 1
    nbest: ClassVar[int] = 1

    length_penalty: LengthPenalty = field(default_factory=LengthPenalty)
    coverage: Coverage | None = None

    @classmethod
    def from_settings(cls, settings: DecodingSettings, keys: Keys) -> Self:
        if settings.nbest > 1:
            raise SettingsError(f"decoding.nbest: found {settings.nbest}, expected 1 for greedy search")
        return cls(length_penalty=LengthPenalty.from_settings(settings), coverage=Coverage.from_settings(settings))

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
