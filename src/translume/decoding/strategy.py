"""What a strategy is, and which one settings ask for."""

from typing import Protocol

from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config.decoding import DecodingSettings
from translume.decoding.beam import Beam, Candidates
from translume.decoding.beam_search import BeamSearch
from translume.decoding.greedy import Greedy
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.errors import SettingsError


class Strategy(Protocol):
    """Chooses continuations; the loop does the rest."""

    @property
    def width(self) -> int:
        """K: hypotheses kept per sentence."""

    @property
    def nbest(self) -> int:
        """Most hypotheses returned per sentence."""

    @property
    def length_penalty(self) -> LengthPenalty:
        """What turns totals into scores."""

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Continuations of each sentence's hypotheses, best first.

        The loop lets those among the first `width` that end with eos finish, and goes on with the first `width` others.
        """

    def done(self, standing: Standing) -> Tensor:
        """[B], True where going on cannot or shall not change the result."""


def strategy_from(settings: DecodingSettings) -> Strategy:
    """The strategy of [decoding]; SettingsError when more hypotheses are wanted than kept."""
    width = 1 if settings.strategy == "greedy" else settings.beam
    if settings.nbest > width:
        why = "greedy keeps 1" if settings.strategy == "greedy" else f"beam keeps {width}"
        raise SettingsError(f"decoding.nbest: {settings.nbest}, wanted at most as many as {why}")
    penalty = LengthPenalty(form=settings.length_penalty_form, exponent=settings.length_penalty)
    if width == 1:
        return Greedy(length_penalty=penalty)
    return BeamSearch(width=width, nbest=settings.nbest, length_penalty=penalty, stop=settings.stop)
