"""The interface of decoding strategies, and their construction from settings."""

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import ClassVar, Protocol

import numpy as np

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.config.decoding import STRATEGIES
from translume.decoding.beam import Beam, BeamStatus, Candidates, Keys
from translume.decoding.scoring import Coverage, LengthPenalty
from translume.errors import SettingsError
from translume.lazy import Tensor
from translume.parts import find


class Strategy(Protocol):
    """Chooses continuations; the decoding loop does everything else."""

    @property
    def width(self) -> int:
        """K: hypotheses kept per sentence."""

    @property
    def groups(self) -> int:
        """Number of equal parts of the K that are searched side by side; usually 1."""

    @property
    def nbest(self) -> int:
        """Maximum number of hypotheses returned per sentence."""

    @property
    def length_penalty(self) -> LengthPenalty:
        """The length penalty that turns totals into scores."""

    @property
    def coverage(self) -> Coverage | None:
        """The coverage penalty; None if the search needs no attention."""

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Return continuations of each sentence's hypotheses, best first.

        Of the first `width` candidates, those that end with eos finish; the first `width` others form the next beam.
        With `groups` this holds within each group: candidates come group after group, equally many of each, and each
        group has width / groups places.
        """

    def done(self, status: BeamStatus) -> Tensor:
        """Return [B], True where the search of a sentence ends; [B·G] with G groups."""


class StrategyClass(Protocol):
    """A strategy class that settings can name.

    reads: the settings of [decoding] that it reads and that not all strategies read.
    """

    reads: ClassVar[frozenset[str]]

    @classmethod
    def from_settings(cls, settings: DecodingSettings, keys: Keys) -> Strategy:
        """Build the strategy of [decoding] for B sentences; raise SettingsError if settings contradict each other.

        keys: [B], a number derived from each source. Random draws depend on the seed and this key, not on the batch.
        """


def strategy_from(settings: DecodingSettings, keys: Keys | None = None) -> Strategy:
    """Build the strategy of [decoding]; raise SettingsError if settings contradict each other.

    keys: [B], see `StrategyClass.from_settings`; None to check the settings alone.
    """
    if keys is None or not makes_draws(settings):
        try:
            return _checked_strategy(settings)
        except TypeError:  # `model_copy` has set a list for a tuple
            keys = np.empty(0, np.int64)
    return _class_of(settings.strategy).from_settings(settings, keys)


@lru_cache(maxsize=64)
def _checked_strategy(settings: DecodingSettings) -> Strategy:
    """Return the strategy without keys. One object for equal settings saves time where batches are small."""
    return _class_of(settings.strategy).from_settings(settings, np.empty(0, np.int64))


def makes_draws(settings: DecodingSettings) -> bool:
    """Return whether the strategy of [decoding] makes random draws and therefore needs keys."""
    return "seed" in _class_of(settings.strategy).reads


def resolve_strategy(settings: DecodingSettings, changed: Iterable[str]) -> DecodingSettings:
    """Return the settings with a strategy that reads all in `changed`, the names of the settings that a call changes.

    `beam` in `changed` chooses beam search, unless `strategy` is in it too or the model's strategy uses a beam.
    Raises SettingsError for the first setting in `changed` that other strategies read and the chosen one does not.
    Settings that no strategy names in `reads`, such as limits, are read by the search itself.
    """
    changed = list(changed)
    readers = {name: _class_of(name).reads for name in STRATEGIES}
    if "beam" in changed and "strategy" not in changed and "beam" not in readers[settings.strategy]:
        settings = settings.model_copy(update={"strategy": "beam"})
    for setting in changed:
        suitable = [name for name, reads in readers.items() if setting in reads]
        if suitable and settings.strategy not in suitable:
            expected = " or ".join(f"'{name}'" for name in suitable)
            raise SettingsError(
                f"decoding.{setting}: strategy '{settings.strategy}' does not read it, expected {expected}"
            )
    return settings


@cache
def _class_of(name: str) -> type[StrategyClass]:
    strategy: type[StrategyClass] = find("strategy", name)
    return strategy
