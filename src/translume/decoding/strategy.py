"""What a strategy is, and which one settings ask for."""

from typing import Protocol

import torch
from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.config.decoding import STRATEGIES
from translume.config.implementation import implementation
from translume.decoding.beam import Beam, Candidates
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing


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


class Buildable(Protocol):
    """A class of strategies that settings can ask for."""

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Tensor) -> Strategy:
        """The strategy of [decoding] for a search of B sentences; SettingsError when settings do not fit each other.

        keys: [B], a number for each sentence's source, for strategies that draw: what they draw for a sentence depends
        on the seed and its key, not on its neighbours.
        """


def strategy_from(settings: DecodingSettings, keys: Tensor | None = None) -> Strategy:
    """The strategy of [decoding] for sentences of `keys` [B], None for none; SettingsError when settings do not fit."""
    strategy: Buildable = implementation(STRATEGIES[settings.strategy])
    return strategy.of(settings, torch.empty(0, dtype=torch.long) if keys is None else keys)
