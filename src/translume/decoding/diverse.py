"""Diverse beam search (Vijayakumar et al. 2018)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding.beam import Beam, BeamStatus, Candidates, Keys
from translume.decoding.beam_search import BeamSearch, Greedy
from translume.decoding.scoring import Coverage, LengthPenalty
from translume.errors import SettingsError
from translume.lazy import Tensor, torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseBeam:
    """Runs `groups` beam searches side by side and penalises tokens that earlier groups chose in the same step.

    Hamming diversity (section 4): a token costs `diversity` for each of the `group.width` best continuations of every
    earlier group that ends with it. The cost stays in the hypothesis's total, and so in its score, but not in its
    log_prob. One model step serves all groups.

    A sentence ends when the searches of all groups have ended. Each group contributes at most `group.nbest` hypotheses.
    With one group this is beam search.

    group: the search within a group.  nbest: number of hypotheses returned, at most groups · group.width.
    """

    reads: ClassVar[frozenset[str]] = BeamSearch.reads | {"groups", "diversity"}

    group: BeamSearch
    groups: int
    diversity: float = 0.5
    nbest: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.nbest <= self.width:
            raise ValueError(f"nbest is {self.nbest}, expected 1 to the width, {self.width}")

    @classmethod
    def from_settings(cls, settings: DecodingSettings, keys: Keys) -> "Self | BeamSearch | Greedy":
        groups = settings.groups or settings.beam
        if settings.beam % groups:
            raise SettingsError(f"decoding.groups: found {groups}, expected a divisor of beam = {settings.beam}")
        whole = BeamSearch.from_settings(settings, keys)
        if isinstance(whole, Greedy):
            return whole
        width = settings.beam // groups
        group = replace(whole, width=width, nbest=min(whole.nbest, width))
        return cls(group=group, groups=groups, diversity=settings.diversity, nbest=settings.nbest)

    @property
    def width(self) -> int:
        return self.groups * self.group.width

    @property
    def length_penalty(self) -> LengthPenalty:
        return self.group.length_penalty

    @property
    def coverage(self) -> Coverage | None:
        return self.group.coverage

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Return the 2·group.width best of each group, group after group."""
        size, before = beam.total.shape
        width = self.group.width
        # Earlier groups choose at most this many tokens, so with as many more candidates enough remain unpenalised.
        top = belief.topk(2 * width + (self.groups - 1) * width, bias)
        shape = (size, before, top.ids.size(1))
        ids = top.ids.view(shape)
        log_prob = beam.log_prob[..., None] + top.log_probs.view(shape)
        total = beam.total[..., None] + top.ranks_by.view(shape)
        parts: list[Candidates] = []
        taken = ids.new_empty(size, 0)
        for number in range(self.groups):
            # In the first step all groups share the one row of a sentence.
            start = number * width if before > 1 else 0
            rows = slice(start, min(start + width, before))
            tokens, totals = ids[:, rows].flatten(1), total[:, rows].flatten(1)
            if number:
                totals = totals - self.diversity * (tokens[..., None] == taken[:, None]).sum(-1)
            totals, places = (ranked[:, : 2 * width] for ranked in totals.sort(dim=1, descending=True, stable=True))
            part = Candidates(
                token=tokens.gather(1, places),
                origin=start + places // shape[2],
                log_prob=log_prob[:, rows].flatten(1).gather(1, places),
                total=totals,
            )
            parts.append(part.filled(2 * width))
            chosen = part.token[:, :width].masked_fill(part.total[:, :width].isneginf(), -1)
            taken = torch.cat([taken, chosen], 1)
        return Candidates(
            token=torch.cat([part.token for part in parts], 1),
            origin=torch.cat([part.origin for part in parts], 1),
            log_prob=torch.cat([part.log_prob for part in parts], 1),
            total=torch.cat([part.total for part in parts], 1),
        )

    def done(self, status: BeamStatus) -> Tensor:
        return self.group.done(status)
