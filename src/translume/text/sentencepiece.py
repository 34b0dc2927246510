"""SentencePiece's segmentation of sentences (Kudo and Richardson 2018), for the tokenizers of imported models.

The unigram model segments the whole sentence, spaces included, and adds scores in single precision. Both decide ties
between equally likely segmentations, so both are reproduced here.
"""

import re
from collections.abc import Mapping, Sequence, Set
from ctypes import c_float
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import Any, Self

from translume.text.specials import BYTES, SpecialIds

SPACE = "▁"
"""SentencePiece's character for a space. If a text contains it, SentencePiece reads a space."""
UNKNOWN_PENALTY = 10.0
"""Difference in nats between the log-probabilities of the rarest piece and of an unknown character."""
CODE = re.compile(r">>.*?<<", re.DOTALL)
"""The target language at the beginning of a source, as multilingual Marian models expect it."""

_SPACES = re.compile(" +")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieces:
    """A model of SentencePiece, with spaces written as spaces; a piece that begins a word starts with one.

    scores: of each piece: log-probabilities in nats, or with `merges` numbers that order the merges, largest first.
    rules: replacements of the normaliser; the longest match wins.  merges: whether it is byte-pair encoding.
    codes: whether `>>…<<` at the beginning of a text is one token, as in Marian's multilingual models.
    fallback: whether unknown characters become the bytes of their UTF-8.
    """

    scores: Mapping[str, float]
    rules: Mapping[str, str] = field(default_factory=dict)
    merges: bool = False
    codes: bool = True
    fallback: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        merges, codes = {"merges": True} if self.merges else {}, {} if self.codes else {"codes": False}
        fallback = {"fallback": True} if self.fallback else {}
        return {"scores": dict(self.scores), "rules": dict(self.rules), **merges, **codes, **fallback}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned. Raises ValueError, KeyError or TypeError for anything else."""
        scores = {str(piece): float(score) for piece, score in values["scores"].items()}
        rules: dict[str, str] = values["rules"]
        if not scores or "" in scores or "" in rules or {*map(type, rules.values())} - {str}:
            raise ValueError("a piece or a rule of SentencePiece is empty, or no text")
        merges, codes = values.get("merges") is True, values.get("codes", True) is True
        fallback = values.get("fallback") is True
        return cls(scores=scores, rules=rules, merges=merges, codes=codes, fallback=fallback)


class SentenceIds:
    """Encodes texts: segments them with SentencePiece, and looks the pieces up in a vocabulary."""

    def __init__(
        self, sentences: SentencePieces, pieces: Sequence[str], specials: SpecialIds, silent: Set[int] = frozenset()
    ) -> None:
        """silent: ids that no text is encoded to."""
        assert specials.unk is not None  # checked where the vocabulary is read
        special = {specials.pad, specials.bos, specials.eos, specials.unk, *silent}
        self._unknown = specials.unk
        self._ids = {piece: id_ for id_, piece in enumerate(pieces) if id_ not in special}
        self._codes = sentences.codes
        self._scores = sentences.scores
        self._bytes = [self._ids.get(byte, self._unknown) for byte in BYTES] if sentences.fallback else []
        self._rules = _Rules(sentences.rules)
        self._model = _Merges(sentences.scores) if sentences.merges else _Unigram(sentences.scores)

    def normalise(self, text: str) -> str:
        """Return the text as the model reads it: rules applied, runs of spaces collapsed, no space at either end."""
        code, rest = self._language(text)
        return code + self._rules.normalise(rest).strip()

    def encode(self, text: str) -> list[int]:
        """Return the ids of the normalised text, without eos. A language code at its beginning is one token."""
        return [id_ for _, ids in self._units(text) for id_ in ids]

    def without_mark(self, text: str) -> str:
        """Return a text that was spelt without the mark of its first word, and without spaces at the end."""
        return text.strip()

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `normalise(text)` that each id of `encode(text)` stands for."""
        code, _ = self._language(text)
        units, last = self._units(text), len(self.normalise(text))
        ends = list(accumulate((len(unit) for unit, _ in units), initial=0))
        # The first piece after a code begins with a space that is not in the text.
        places = [min(end - (end > len(code)), last) for end in ends]
        return [span for (_, ids), span in zip(units, pairwise(places), strict=True) for _ in ids]

    def _units(self, text: str) -> list[tuple[str, list[int]]]:
        """Return the pieces of a text with their ids. An unknown character that becomes bytes is a piece."""
        code, rest = self._language(text)
        ids, unknown = self._ids, self._unknown
        units = [(code, [ids.get(code, unknown)])] if code else []
        normalised = self._rules.normalise(rest)
        for piece in self._model.segment(" " + normalised) if normalised else ():
            if self._bytes and piece not in self._scores:
                units += [(each, [self._bytes[byte] for byte in each.replace(" ", SPACE).encode()]) for each in piece]
            else:
                units.append((piece, [ids.get(piece, unknown)]))
        return units

    def _language(self, text: str) -> tuple[str, str]:
        """Return the code at the beginning of a text, or an empty one, and the rest."""
        found = CODE.match(text) if self._codes else None
        return (found.group(), text[found.end() :]) if found else ("", text)


class _Rules:
    """The normaliser: applies the longest matching rule at every position."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        self._rules = rules
        ascii_rules = {given: put for given, put in rules.items() if given.isascii()}
        self._ascii = str.maketrans(ascii_rules) if all(len(given) == 1 for given in ascii_rules) else None

    def normalise(self, text: str) -> str:
        """Return the text after replacements, with spaces collapsed and none at either end."""
        text = _SPACES.sub(" ", self._replaced(text)).removeprefix(" ")
        return text.rstrip(" " + SPACE).replace(SPACE, " ")

    def _replaced(self, text: str) -> str:
        if text.isascii() and self._ascii is not None:
            return text.translate(self._ascii)
        text = _SURROGATE.sub("\ufffd", text)  # half a surrogate pair cannot be encoded
        found, place, end = [], 0, len(text)
        while place < end:
            given, put = self._longest(text, place)
            found.append(put)
            place += len(given)
        return "".join(found)

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """Lengths of the rules by first character, for texts beyond ASCII only: there may be 200,000 rules."""
        return _lengths(self._rules)

    def _longest(self, text: str, place: int) -> tuple[str, str]:
        first = text[place]
        for length in self._lengths.get(first, ()):
            given = text[place : place + length]
            if given in self._rules:
                return given, self._rules[given]
        return first, first


def _lengths(table: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the lengths of the keys that begin with each character, longest first."""
    lengths: dict[str, set[int]] = {}
    for given in table:
        lengths.setdefault(given[0], set()).add(len(given))
    return {first: sorted(found, reverse=True) for first, found in lengths.items()}


class _Unigram:
    """The likeliest segmentation (Kudo 2018, equation 3), with ties broken as SentencePiece does."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._least = c_float(min(scores.values()) - UNKNOWN_PENALTY).value
        self._trie: dict[str, Any] = {}
        for piece, score in scores.items():
            node = self._trie
            for character in piece:
                node = node.setdefault(character, {})
            node[""] = score

    def segment(self, text: str) -> list[str]:
        """Return pieces that join to the text. Adjacent unknown characters form one piece."""
        size = len(text)
        best, begins, known = [0.0] * (size + 1), [-1] * (size + 1), [False] * (size + 1)

        def reach(begin: int, end: int, score: float, is_known: bool) -> None:
            score = c_float(score).value  # single precision decides which of two equally likely paths wins
            if begins[end] < 0 or score > best[end]:
                best[end], begins[end], known[end] = score, begin, is_known

        for begin in range(size):
            node: Any = self._trie
            score = best[begin]
            for end in range(begin + 1, size + 1):
                node = node.get(text[end - 1])
                if node is None:
                    break
                if "" in node:
                    reach(begin, end, score + node[""], True)
            if "" not in self._trie.get(text[begin], ()):
                reach(begin, begin + 1, score + self._least, False)
        return _path(text, begins, known)


class _Merges:
    """Byte-pair encoding: merges the adjacent pair whose piece has the largest score, the leftmost first."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = scores

    def segment(self, text: str) -> list[str]:
        """Return pieces that join to the text. Adjacent unknown characters form one piece."""
        scores, parts = self._scores, list(text)
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(parts) and (piece := parts[left] + parts[right]) in scores:
                heappush(queue, (-scores[piece], left, right, piece))

        for left in range(len(parts) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, piece = heappop(queue)
            if not parts[left] or not parts[right] or parts[left] + parts[right] != piece or after[left] != right:
                continue  # one of both has been merged with another
            parts[left], parts[right] = piece, ""
            after[left] = after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        pieces: list[str] = []
        after_known = True
        for part in filter(None, parts):
            known = part in scores
            if known or after_known:
                pieces.append(part)
            else:
                pieces[-1] += part
            after_known = known
        return pieces


def _path(text: str, begins: Sequence[int], known: Sequence[bool]) -> list[str]:
    pieces: list[str] = []
    end, after_known = len(text), True
    while end:
        piece = text[begins[end] : end]
        if known[end] or after_known:
            pieces.append(piece)
        else:
            pieces[-1] = piece + pieces[-1]
        end, after_known = begins[end], known[end]
    return pieces[::-1]
