"""Terms whose translation is given: read from a file, found in sources, words as words."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Self

from translume.data import read_lines
from translume.errors import DataError
from translume.text import Tokenizer
from translume.translator.constraints import Constraint, constraint_of
from translume.translator.rules import word_character

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A source term as words, and the constraint that any of its translations meets; None if none can be written."""

    source: Words
    targets: tuple[str, ...]
    constraint: Constraint | None


@dataclass(frozen=True, slots=True)
class Terminology:
    """Terms by their first word, those with most words first."""

    terms: Mapping[str, Sequence[Term]]

    def found_in(self, text: str) -> Iterator[Term]:
        """Each term that a normalised source holds, once, in its order; one inside a longer one does not count."""
        words, place, seen = words_of(text), 0, set()
        while place < len(words):
            here = self.terms.get(words[place], ())
            term = next((each for each in here if words[place : place + len(each.source)] == each.source), None)
            if term is not None and term.source not in seen:
                seen.add(term.source)
                yield term
            place += len(term.source) if term is not None else 1

    @classmethod
    def read(cls, path: str, source: Tokenizer, target: Tokenizer) -> "Terminology":
        """The terms of a file: a source term, a tab and its translation a line; DataError with the line of a bad one.

        Lines with the same source term are alternatives. Blank lines are left out.
        """
        try:
            state = Path(path).stat()
        except OSError as error:
            raise DataError(f"decoding.terminology: {path}: cannot be read: {error.strerror}") from None
        return _read(path, (state.st_mtime_ns, state.st_size), source, target)

    @classmethod
    def of(cls, pairs: Mapping[Words, Sequence[str]], target: Tokenizer) -> Self:
        """The terms with the translations of each."""
        terms = defaultdict(list)
        for source, targets in sorted(pairs.items(), key=lambda pair: -len(pair[0])):
            constraint = constraint_of(targets, target)
            terms[source[0]].append(Term(source=source, targets=tuple(targets), constraint=constraint))
        return cls(terms)


def words_of(text: str) -> Words:
    """Runs of characters that are part of words, and every other character by itself; white space is left out."""
    words: list[str] = []
    for inside, characters in groupby(text, word_character):
        run = "".join(characters)
        words += [run] if inside else [each for each in run if not each.isspace()]
    return tuple(words)


@lru_cache(maxsize=4)
def _read(path: str, stamp: tuple[int, int], source: Tokenizer, target: Tokenizer) -> Terminology:
    pairs: dict[Words, list[str]] = defaultdict(list)
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2:
            found = f"found {len(fields)} field{'s' if len(fields) > 1 else ''}"
            raise DataError(f"{path}:{number}: {found}, wanted 2 parted by a tab: a source term and a target term")
        words = words_of(source.normalise(fields[0]))
        for side, text in (("source", words), ("target", target.normalise(fields[1]).strip())):
            if not text:
                raise DataError(f"{path}:{number}: found a {side} term without a word, wanted a word or a phrase")
        pairs[words].append(fields[1])
    return Terminology.of(pairs, target)
