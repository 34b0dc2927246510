"""What a strategy is, and which one settings ask for."""

from collections.abc import Iterable
from pkgutil import resolve_name
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.config.decoding import STRATEGIES
from translume.decoding.beam import Beam, Candidates
from translume.decoding.coverage import Coverage
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.errors import SettingsError


class Strategy(Protocol):
    """Chooses continuations; the loop does the rest."""

    @property
    def width(self) -> int:
        """K: hypotheses kept per sentence."""

    @property
    def groups(self) -> int:
        """Equal parts of the K that are searched beside one another, most often 1."""

    @property
    def nbest(self) -> int:
        """Most hypotheses returned per sentence."""

    @property
    def length_penalty(self) -> LengthPenalty:
        """What turns totals into scores."""

    @property
    def coverage(self) -> Coverage | None:
        """What else enters them; None where the step need not say what it read."""

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Continuations of each sentence's hypotheses, best first.

        The loop lets those among the first `width` that end with eos finish, and goes on with the first `width` others.
        With `groups` it does so within each: as many candidates of one group after another, width / groups places each.
        """

    def done(self, standing: Standing) -> Tensor:
        """[B], True where going on cannot or shall not change the result; [B·G] where there are G groups."""


class Buildable(Protocol):
    """A class of strategies that settings can ask for.

    reads: the settings of [decoding] that change what it does and that some other strategy may not read.
    """

    reads: ClassVar[frozenset[str]]

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Tensor) -> Strategy:
        """The strategy of [decoding] for a search of B sentences; SettingsError when settings do not fit each other.

        keys: [B], a number for each sentence's source, for strategies that draw: what they draw for a sentence depends
        on the seed and its key, not on its neighbours.
        """


def strategy_from(settings: DecodingSettings, keys: Tensor | None = None) -> Strategy:
    """The strategy of [decoding] for sentences of `keys` [B], None for none; SettingsError when settings do not fit."""
    return _class_of(settings.strategy).of(settings, torch.empty(0, dtype=torch.long) if keys is None else keys)


def refuse_unread(settings: DecodingSettings, given: Iterable[str]) -> None:
    """SettingsError for the first of the settings `given` by someone that only other strategies than theirs read.

    What no strategy reads, such as a limit, is read by the search itself.
    """
    readers = {name: _class_of(name).reads for name in STRATEGIES}
    for setting in given:
        others = [name for name, reads in readers.items() if setting in reads]
        if others and settings.strategy not in others:
            wanted = " or ".join(f"'{name}'" for name in others)
            raise SettingsError(f"decoding.{setting}: strategy '{settings.strategy}' does not read it, wanted {wanted}")


def _class_of(name: str) -> type[Buildable]:
    found: type[Buildable] = resolve_name(STRATEGIES[name])
    return found
