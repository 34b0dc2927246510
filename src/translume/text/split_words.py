"""Tokenizers of imported models that split text at its spaces, and words by the merges of subword-nmt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

from translume.text.imported import SPACE, encodable
from translume.text.specials import SpecialIds

CACHE_SIZE = 200_000
"""Maximum number of words whose ids are cached."""
WORD_END = "</w>"
"""Ends the last piece of a word in merges; a piece of its own in files of subword-nmt's first version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWords:
    """How text becomes pieces of a vocabulary.

    merges: pairs of pieces, the first ones first (Sennrich et al. 2016); none: each word is a piece.
    joiner: ends each piece of a word but the last, such as `@@`.
    apart: whether the end of a word is a piece of its own while pairs are merged.
    lowercase: whether text is lower-cased.  characters: whether each character is a piece, a space `▁`.
    restricted: whether merges are undone whose piece the vocabulary lacks.
    """

    merges: tuple[tuple[str, str], ...] = ()
    joiner: str = "@@"
    apart: bool = False
    lowercase: bool = False
    characters: bool = False
    restricted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned. Raises KeyError, TypeError or ValueError for anything else."""
        merges = tuple((str(left), str(right)) for left, right in values["merges"])
        switches = {name: values[name] is True for name in ("apart", "lowercase", "characters", "restricted")}
        return cls(merges=merges, joiner=str(values["joiner"]), **switches)

    def spelling(self, piece: str) -> str:
        """Return what a piece adds to a text: the last one of a word ends with a space."""
        if self.characters:
            return piece.replace(SPACE, " ")
        if self.merges and piece.endswith(self.joiner) and piece != self.joiner:
            return piece.removesuffix(self.joiner)
        return f"{piece} "

    def spans(self, spellings: Iterable[str]) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of each spelling in the text, with the space before a word."""
        text, ends = "", [0]
        for spelling in spellings:
            text += spelling
            ends.append(len(text) - (text[-1:] == " " and not self.characters))
        return [*pairwise(ends)]


class SplitIds:
    """Encodes texts with `SplitWords`, and looks the pieces up in a vocabulary."""

    def __init__(self, words: SplitWords, pieces: Sequence[str], specials: SpecialIds) -> None:
        assert specials.unk is not None  # checked where the vocabulary is read
        special = {specials.unk} | specials.marks
        self._ids = {piece: id_ for id_, piece in enumerate(pieces) if id_ not in special}
        self._unknown, self._words = specials.unk, words
        self._ranks = {pair: rank for rank, pair in reversed([*enumerate(words.merges)])}
        self._merged = {left + right: (left, right) for left, right in self._ranks} if words.restricted else {}
        self._cut = lru_cache(CACHE_SIZE)(self._pieces)

    def normalise(self, text: str) -> str:
        """Return the text as the model reads it: words with one space between them."""
        text = " ".join(encodable(text).split())
        return text.lower() if self._words.lowercase else text

    def encode(self, text: str) -> list[int]:
        """Return the ids of the normalised text, without special tokens."""
        return [self._ids.get(piece, self._unknown) for unit in self._units(text) for piece in self._cut(unit)]

    def without_mark(self, text: str) -> str:
        """Return a text without the space that its last word was spelt with."""
        return text if self._words.characters else text.removesuffix(" ")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `normalise(text)` of each id, with the space before a word."""
        return self._words.spans(self._words.spelling(piece) for unit in self._units(text) for piece in self._cut(unit))

    def _units(self, text: str) -> Sequence[str]:
        text = self.normalise(text)
        return text.replace(" ", SPACE) if self._words.characters else text.split()

    def _pieces(self, word: str) -> tuple[str, ...]:
        """Cut one word: merge the pair that comes first in the list, everywhere, until none is left."""
        if not self._ranks or len(word) == 1:
            return (word,)
        parts = [*word, WORD_END] if self._words.apart else [*word[:-1], word[-1] + WORD_END]
        while pairs := self._ranks.keys() & set(pairwise(parts)):
            left, right = min(pairs, key=self._ranks.__getitem__)
            merged: list[str] = []
            for part in parts:
                if part == right and merged and merged[-1] == left:
                    merged[-1] = left + right
                else:
                    merged.append(part)
            parts = merged
        if parts[-1] == WORD_END:
            parts[-2:] = [parts[-2] + WORD_END]
        return tuple(piece for part in parts for piece in self._known(part))

    def _known(self, part: str) -> Iterator[str]:
        """Yield the piece of the vocabulary that a part of a word is, or those of the two that it was merged of."""
        piece = part.removesuffix(WORD_END) if part.endswith(WORD_END) else part + self._words.joiner
        if piece in self._ids or part not in self._merged:
            yield piece
        else:
            for each in self._merged[part]:
                yield from self._known(each)
