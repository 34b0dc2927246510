"""The rules of a search and the settings of sampling as the kernels read them."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from translume.belief import BLOCK
from translume.decoding import (
    BannedPhrases,
    ForbidFirst,
    ForbidTokens,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    Rule,
    TextPrefix,
    Truncation,
)
from translume.engine.network import Array
from translume.kernels import loading
from translume.kernels.loading import address, empty

_ONCE = (ForbidFirst, NoRepeatNgram, RepetitionPenalty, BannedPhrases, TextPrefix)
"""Rules of which the kernels support one of each kind."""


class KernelRules:
    """Rules that the kernels support. Equal if they treat sentences alike that begin with a forced text or do not.

    struct: `rules` of rules.h.  has_phrases: whether phrases are banned.
    """

    def __init__(self, rules: Sequence[Rule], eos: int, forbidden: Array) -> None:
        """forbidden: [V], True for tokens that are never generated."""
        by_type = {type(rule): rule for rule in rules}
        ngram, repetition = by_type.get(NoRepeatNgram), by_type.get(RepetitionPenalty)
        banned, prefix, first = by_type.get(BannedPhrases), by_type.get(TextPrefix), by_type.get(ForbidFirst)
        self._rules = [each.what if isinstance(each, TextPrefix) else each for each in rules]
        self._kept: dict[str, Any] = {"forbidden": forbidden}
        if isinstance(first, ForbidFirst):
            self._kept["forbidden_first"] = np.zeros_like(forbidden)
            self._kept["forbidden_first"][list(first.ids)] = True
        self.struct = loading.Rules(
            eos=eos,
            min_length=max([0, *(rule.tokens for rule in rules if isinstance(rule, MinimumLength))]),
            ngram=ngram.order if isinstance(ngram, NoRepeatNgram) else 0,
            repetition=-math.log(repetition.factor) if isinstance(repetition, RepetitionPenalty) else 0.0,
        )
        self.has_phrases = isinstance(banned, BannedPhrases)
        if isinstance(banned, BannedPhrases):
            self.struct.phrase_window = banned.tables.window
            self._kept |= {
                "phrase_states": banned.tables.states,
                "phrase_ends": banned.tables.ends,
                "spelled": banned.tables.spelled,
                "spelled_begins": banned.tables.begins,
            }
        if isinstance(prefix, TextPrefix):
            self.struct.forced_bytes = len(prefix.tables.begins) - 1
            self._kept |= {
                "forced_lengths": prefix.tables.lengths,
                "choices": prefix.tables.ids,
                "choices_left": prefix.tables.left,
                "choices_begins": prefix.tables.begins,
            }
        for name, array in self._kept.items():
            setattr(self.struct, name, address(array))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelRules):
            return NotImplemented
        return bool(self.struct.eos == other.struct.eos and self._rules == other._rules)

    __hash__ = None  # type: ignore[assignment]

    def table(self, name: str) -> Array | None:
        """Return the array that a field of the structure points to; None if it points to none."""
        return self._kept.get(name)

    @property
    def address(self) -> int:
        """Of the structure, which lives as long as this object."""
        return ctypes.addressof(self.struct)

    @classmethod
    def from_rules(cls, rules: Sequence[Rule], eos: int, size: int) -> "Self | None":
        """Return the rules, or None if the kernels do not support one.  size: V."""
        forbidden = np.zeros(size, np.bool_)
        for rule in rules:
            if isinstance(rule, ForbidTokens):
                forbidden[list(rule.ids)] = True
            elif isinstance(rule, OnlyTokens):
                allowed = np.zeros(size, np.bool_)
                allowed[[*rule.ids, eos]] = True
                forbidden |= ~allowed
            elif isinstance(rule, _ONCE):
                if sum(type(each) is type(rule) for each in rules) > 1:
                    return None
            elif not isinstance(rule, MinimumLength):
                return None
            if isinstance(rule, RepetitionPenalty) and rule.factor < 1.0:  # the kernels only lower logits
                return None
        return None if bool(forbidden[eos]) else cls(rules, eos, forbidden)


def forced_sentences(rules: Sequence[Rule], limits: Array) -> Array | None:
    """Return [B], int64, 1 for sentences that begin with a forced text; None if it does not fit a limit of `limits`."""
    forced = np.zeros(limits.size, np.int64)
    for rule in rules:
        if isinstance(rule, TextPrefix):
            if not rule.fits(limits):
                return None
            forced |= np.asarray(rule.tables.which)
    return forced


KNOWN_STATES = 16
"""Of rules.h."""
_SEED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The settings of `Sampling` that all sentences of a search share."""

    seed: int
    temperature: float
    truncation: Truncation


class KernelSampling:
    """The structures `sampling` and `choices` of sampling.h, with their buffers.

    known_phrases: the arrays of `known_phrases` of rules.h; empty if no phrases are banned.
    """

    def __init__(self, settings: SamplingSettings, size: int, *, has_phrases: bool) -> None:
        """size: V.  has_phrases: whether phrases are banned."""
        cut, blocks = settings.truncation, -(-size // BLOCK)
        self.struct = loading.Sampling(
            seed=settings.seed & _SEED,
            top_k=min(cut.top_k, size),
            temperature=settings.temperature,
            top_p=cut.top_p,
            log_min_p=_log(cut.min_p),
            log_epsilon=_log(cut.epsilon),
            log_eta=_log(cut.eta),
        )
        self._buffers = {
            "x": np.full(blocks * BLOCK, -math.inf, np.float32),
            "weights": empty([blocks * BLOCK]),
            "exact": empty([blocks * BLOCK], np.float64),
            "near": empty([2 * blocks * BLOCK], np.int32),
            "near_x": empty([blocks * BLOCK]),
            "near_weights": empty([blocks * BLOCK], np.float64),
            "tops": empty([blocks]),
            "sums": empty([blocks], np.float64),
        }
        pointers = {name: address(array) for name, array in self._buffers.items()}
        self.choices = loading.Choices(blocks=blocks, block=BLOCK, **pointers)
        states = KNOWN_STATES if has_phrases else 0
        self.known_phrases = np.full(states, -1, np.int32), empty([states, size], np.uint8)


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
