"""Statistics of the lengths of training pairs: targets by the length of their sources, and the share of sources with
several sentences."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from translume.json_values import adapter

if TYPE_CHECKING:
    from translume.data.corpus import TokenizedCorpus

ROOM, EXTRA = 2.0, 10
"""A target may have `ROOM` times the tokens of the longest training targets for such sources, plus `EXTRA`."""
COVERED = 0.999
"""Share of the pairs that the stored lengths and ratios cover, so that a few misaligned pairs change nothing."""
FEWEST = 100
"""Pairs from which a length is learned; if a group has fewer, those of longer sources count too."""
FEWEST_RATIOS = 1000
"""Pairs from which a ratio is learned; with fewer in all, none is."""
SINGLE = 0.05
"""A model was trained on single sentences if fewer than this share of its sources have several."""
_SAMPLE, _SURVEYED = 2000, 200_000
"""Sources whose sentences are counted, evenly spread over the first pairs."""
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths in the training pairs, in tokens without EOS.

    Groups of sources: group k has those of 2^k to 2^(k+1) − 1 tokens, k from 0.

    pairs: their number.  several_sentences: share of the sources with more than one sentence.
    longest_source: of all pairs.  longest_target: for each group the length that 99.9 % of its targets do not exceed,
    at least that of the groups before it.  least_ratio: for each group the ratio of target to source length that 99.9 %
    of the pairs with such or longer sources exceed; empty if there were too few pairs.
    """

    pairs: int
    several_sentences: float
    longest_source: PositiveInt
    longest_target: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    least_ratio: tuple[float, ...] = ()

    @property
    def single_sentences(self) -> bool:
        """Whether (nearly) all sources were single sentences."""
        return self.several_sentences < SINGLE

    def target_limit(self, source: int) -> int:
        """Return the maximum length of a target, EOS included, for a source of so many tokens.

        Beyond the longest source in training, the limit grows in proportion.
        """
        longest = float(self.longest_target[_group(source, len(self.longest_target))])
        if source > self.longest_source:
            longest = self.longest_target[-1] * source / self.longest_source
        return math.ceil(ROOM * longest) + EXTRA

    def least_target(self, source: int) -> float:
        """Return the length that 99.9 % of the training targets of such sources reach; 0 if unknown."""
        return source * self.least_ratio[_group(source, len(self.least_ratio))] if self.least_ratio else 0.0

    def merged(self, other: "Lengths") -> "Lengths":
        """Return lengths that allow what either allows, for a model that was trained on both or for an ensemble."""
        size = max(len(self.longest_target), len(other.longest_target))
        targets = zip(_extended(self.longest_target, size), _extended(other.longest_target, size), strict=True)
        ratios: tuple[float, ...] = ()
        if self.least_ratio and other.least_ratio:
            pairs = zip(_extended(self.least_ratio, size), _extended(other.least_ratio, size), strict=True)
            ratios = tuple(min(pair) for pair in pairs)
        return Lengths(
            pairs=self.pairs + other.pairs,
            several_sentences=max(self.several_sentences, other.several_sentences),
            longest_source=max(self.longest_source, other.longest_source),
            longest_target=tuple(max(pair) for pair in targets),
            least_ratio=ratios,
        )

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` returned. Raises ValueError for other texts."""
        kind: Any = cls
        lengths: Self = adapter(kind).validate_json(text)
        return lengths


def learn_lengths(corpus: "TokenizedCorpus", language: str) -> Lengths:
    """Return the lengths of the pairs in a tokenized corpus, which has at least one pair.

    language: code of the source language, for counting sentences.  Reads the lengths of all pairs, and the texts of at
    most 2,000 of the first 200,000 pairs.
    """
    longest_source = int(corpus.source_lengths.max())
    longest_target = int(corpus.target_lengths.max())
    groups = longest_source.bit_length()
    lengths = np.zeros((groups, longest_target + 1), np.int64)
    ratios = np.zeros((groups, _RATIO_BINS + 1), np.int64)
    for begin in range(0, corpus.pairs, _CHUNK):
        source = corpus.source_lengths[begin : begin + _CHUNK].astype(np.int64)
        target = corpus.target_lengths[begin : begin + _CHUNK].astype(np.int64)
        group = np.floor(np.log2(source)).astype(np.int64)
        np.add.at(lengths, (group, target), 1)
        np.add.at(ratios, (group, np.minimum(target * _RATIO_STEPS // source, _RATIO_BINS)), 1)
    return Lengths(
        pairs=corpus.pairs,
        several_sentences=0.0 if corpus.frames is not None else _several_sentences(corpus, language),
        longest_source=longest_source,
        longest_target=tuple(_longest_targets(lengths)),
        least_ratio=tuple(_least_ratios(ratios)),
    )


_RATIO_STEPS = 1000
_RATIO_BINS = 10 * _RATIO_STEPS
"""Ratios are counted in thousandths, up to 10."""


def _longest_targets(counts: NDArray[np.int64]) -> list[int]:
    """Return `longest_target` from the numbers of pairs [groups, target length]."""
    lengths_covered = []
    for group in range(len(counts)):
        last = group + 1
        while last < len(counts) and counts[group:last].sum() < FEWEST:
            last += 1
        covered = counts[group:last].sum(0).cumsum()
        lengths_covered.append(int(np.searchsorted(covered, COVERED * covered[-1])) if covered[-1] else 0)
    longest = np.maximum.accumulate(lengths_covered)
    return [int(each) for each in np.maximum(longest, 1)]


def _least_ratios(counts: NDArray[np.int64]) -> list[float]:
    """Return `least_ratio` from the numbers of pairs [groups, ratio in steps]."""
    if counts.sum() < FEWEST_RATIOS:
        return []
    ratios = []
    for group in range(len(counts)):
        first = group
        while counts[first:].sum() < FEWEST_RATIOS:
            first -= 1
        covered = counts[first:].sum(0).cumsum()
        ratios.append(int(np.searchsorted(covered, (1 - COVERED) * covered[-1], side="right")) / _RATIO_STEPS)
    return ratios


def _several_sentences(corpus: "TokenizedCorpus", language: str) -> float:
    from translume.data.corpus import texts_of
    from translume.text.sentences import sentences_of

    surveyed = min(corpus.pairs, _SURVEYED)
    numbers = np.unique(np.linspace(0, surveyed - 1, min(surveyed, _SAMPLE)).astype(np.int64)).tolist()
    sources, _ = texts_of(corpus, numbers)
    return sum(len(sentences_of(source, language)) > 1 for source in sources) / len(sources)


def _group(source: int, groups: int) -> int:
    return min(max(source, 1).bit_length(), groups) - 1


def _extended(values: Sequence[Any], size: int) -> list[Any]:
    return [*values, *[values[-1]] * (size - len(values))]


T = TypeVar("T")


def truncated_ids(ids: Sequence[T], limit: int, keep: Literal["keep_first", "keep_last"]) -> list[T]:
    """Return the first or the last `limit` ids, or values that stand for ids."""
    return list(ids[:limit] if keep == "keep_first" else ids[len(ids) - limit :])
