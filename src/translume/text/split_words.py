"""Tokenizers of imported models that split text at its spaces, and words by the merges of subword-nmt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, Self, get_args

from translume.text.imported import SPACE, encodable
from translume.text.specials import SpecialIds
from translume.text.word_rules import Blenderbot, Moses, WordRules

CACHE_SIZE = 200_000
"""Maximum number of words whose ids are cached."""
WORD_END = "</w>"
"""Ends the last piece of a word in merges; a piece of its own in files of subword-nmt's first version."""
Rules = Literal["spaces", "moses", "blenderbot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWords:
    """How text becomes pieces of a vocabulary.

    merges: pairs of pieces, the first ones first (Sennrich et al. 2016); none: each word is a piece.
    joiner: ends each piece of a word but the last, such as `@@`; empty if `</w>` ends the last one instead.
    apart: whether the end of a word is a piece of its own while pairs are merged.
    lowercase: whether text is lower-cased.  characters: whether each character is a piece, a space `▁`.
    restricted: whether merges are undone whose piece the vocabulary lacks.
    rules: how a text is cut into words: at white space, by Moses for `language`, or as for BlenderBot-small.
    """

    merges: tuple[tuple[str, str], ...] = ()
    joiner: str = "@@"
    apart: bool = False
    lowercase: bool = False
    characters: bool = False
    restricted: bool = False
    rules: Rules = "spaces"
    language: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned. Raises KeyError, TypeError or ValueError for anything else."""
        merges = tuple((str(left), str(right)) for left, right in values["merges"])
        switches = {name: values[name] is True for name in ("apart", "lowercase", "characters", "restricted")}
        rules, language = values.get("rules", "spaces"), str(values.get("language", ""))
        if rules not in get_args(Rules):
            raise ValueError(f"the rules {rules!r} of words are not known")
        return cls(merges=merges, joiner=str(values["joiner"]), rules=rules, language=language, **switches)

    def build_rules(self) -> WordRules:
        """Return how a text becomes words. Raises SettingsError if the package that does it is not installed."""
        if self.rules == "moses":
            return Moses(self.language, lowercase=self.lowercase)
        return (Blenderbot if self.rules == "blenderbot" else WordRules)(lowercase=self.lowercase)

    def spelling(self, piece: str) -> str:
        """Return what a piece adds to a text: the last one of a word ends with a space."""
        if self.characters:
            return piece.replace(SPACE, " ")
        if not self.joiner:
            return f"{piece.removesuffix(WORD_END)} " if piece.endswith(WORD_END) else piece
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

    def __init__(
        self, words: SplitWords, pieces: Sequence[str], specials: SpecialIds, silent: Set[int] = frozenset()
    ) -> None:
        """silent: ids that no text is encoded to.  Raises as `SplitWords.build_rules`."""
        assert specials.unk is not None  # checked where the vocabulary is read
        special = {specials.unk} | specials.marks | silent
        self._ids = {piece: id_ for id_, piece in enumerate(pieces) if id_ not in special}
        self._unknown, self._words, self._rules = specials.unk, words, words.build_rules()
        self._ranks = {pair: rank for rank, pair in reversed([*enumerate(words.merges)])}
        self._merged = {left + right: (left, right) for left, right in self._ranks} if words.restricted else {}
        self._cut = lru_cache(CACHE_SIZE)(self._pieces)

    def normalise(self, text: str) -> str:
        """Return the text as the model reads it: words with one space between them."""
        return " ".join(self._rules.words(encodable(text)))

    def encode(self, text: str) -> list[int]:
        """Return the ids of the normalised text, without special tokens."""
        return [self._ids.get(piece, self._unknown) for unit in self._units(text) for piece in self._cut(unit)]

    def without_mark(self, text: str) -> str:
        """Return the text of words that were spelt with a space after each."""
        return text if self._words.characters else self._rules.joined(text)

    def beginning(self, text: str) -> str:
        """Return a text that `without_mark` of any continuation begins with."""
        return text if self._words.characters else self._rules.beginning(text)

    def spans_of(self, spellings: Sequence[str]) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of each spelling in `without_mark` of all; a word with its space."""
        places = self._rules.places("".join(spellings))
        return [(places[begin], places[end]) for begin, end in self._words.spans(spellings)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `normalise(text)` of each id, with the space before a word."""
        return self._words.spans(self._words.spelling(piece) for unit in self._units(text) for piece in self._cut(unit))

    def _units(self, text: str) -> Sequence[str]:
        return (
            self.normalise(text).replace(" ", SPACE) if self._words.characters else self._rules.words(encodable(text))
        )

    def _pieces(self, word: str) -> tuple[str, ...]:
        """Cut one word: merge the pair that comes first in the list, everywhere, until none is left."""
        if not self._ranks or len(word) == 1:
            return (word if self._words.joiner else word + WORD_END,)
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
        joiner = self._words.joiner
        piece = part.removesuffix(WORD_END) if joiner and part.endswith(WORD_END) else part + joiner
        if piece in self._ids or part not in self._merged:
            yield piece
        else:
            for each in self._merged[part]:
                yield from self._known(each)
