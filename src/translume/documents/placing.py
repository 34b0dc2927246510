"""Which words of a translation belong to which run of its source: marks keep their order, words say where they stand.

A mark stands in the translation where the words that it parted in the source are parted best. Since no mark passes
another, every tag that was closed stays closed, and none is lost or doubled. What that costs: where a language turns
two marked parts of a sentence round, the marks cannot follow.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from translume.documents.segment import Mark, Segment
from translume.translator.plan import UNSPACED, between

LARGEST_TABLE = 4_000_000
"""Words times runs of one sentence up to which the best places are looked for."""
DEEPEST = 7
"""Depths above it count as it."""
_WORD = re.compile(r"\S+")
_CORE = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A translated part of a segment.  begin, end: of its source in the segment's text; spacing: behind it there.

    links: pairs of a source word and a target word, counted from 0 where spaces part them; empty where none are known.
    """

    begin: int
    end: int
    spacing: str
    target: str
    links: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Atom:
    """Letters of the target that stay together: a word, or the signs beside one.  owner: the run they are linked to."""

    spacing: str
    text: str
    owner: int


def placed(segment: Segment, sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """The runs of a translated segment; those of the source where the translation is the same as the source."""
    if _joined(sentences) == segment.text:
        return segment.runs
    runs = [""] * len(segment.runs)
    before: int | None = None
    written, spacing, source = "", "", ""
    for sentence in sentences:
        atoms = _atoms(segment, sentence)
        ends = source + segment.text[sentence.begin : sentence.begin + 1]
        wanted = segment.speaking(sentence.begin, sentence.end)
        order = _in_order([atom.owner for atom in atoms], wanted, segment.depths)
        for atom, run in zip(atoms, order, strict=True):
            space = between(written, spacing, atom.text, ends) if atom is atoms[0] else atom.spacing
            if before is not None:
                _space(segment, runs, (before, run), space)
            runs[run] += atom.text
            before, written = run, atom.text
        spacing, source = sentence.spacing, segment.text[sentence.end - 1 : sentence.end]
    return tuple(_edged(segment, runs))


def _joined(sentences: Sequence[Sentence]) -> str:
    return "".join(each.target + each.spacing for each in sentences)


def _atoms(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """The target in parts that belong to one run each."""
    words = [(found.start(), found.group()) for found in _WORD.finditer(sentence.target)]
    sources = [(found.start(), found.end()) for found in _WORD.finditer(segment.text, sentence.begin, sentence.end)]
    links = {target: source for source, target in sentence.links if source < len(sources)}
    if len(words) < len(segment.speaking(sentence.begin, sentence.end)) and UNSPACED.search(sentence.target):
        return _letters(segment, sentence)
    atoms: list[_Atom] = []
    end = 0
    for place, (begin, word) in enumerate(words):
        space = sentence.target[end:begin] if place else ""
        end = begin + len(word)
        if place in links:
            last = segment.owners[sentence.end - 1] if place == len(words) - 1 else None
            atoms += _parts(segment, sources[links[place]], word, space, last)
        else:
            atoms.append(_Atom(space, word, _opposite(segment, sentence, begin + len(word) // 2)))
    return atoms


def _parts(segment: Segment, source: tuple[int, int], word: str, space: str, end: int | None) -> list[_Atom]:
    """A target word, in up to three parts where signs beside its source word are in other runs than the word.

    end: the run that signs at the end of the sentence are in; None in its midst.
    """
    begin, behind = source
    first, core, last = _cores(segment.text[begin:behind])
    owner = segment.owner(begin + len(first), behind - len(last)) if core else segment.owner(begin, behind)
    signs = end if end is not None else segment.owners[behind - 1] if last and core else owner
    owners = (segment.owners[begin] if first and core else owner, owner, signs)
    found: list[_Atom] = []
    for text, run in zip(_cores(word), owners, strict=True):
        if text:
            found.append(_Atom("" if found else space, text, run))
    return found


def _cores(word: str) -> tuple[str, str, str]:
    """Signs, word, signs."""
    found = _CORE.fullmatch(word)
    return (found[1], found[2], found[3]) if found else ("", word, "")


def _letters(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """Each letter by itself, for a target that is written without spaces."""
    atoms: list[_Atom] = []
    space = ""
    for place, letter in enumerate(sentence.target):
        if letter.isspace():
            space += letter
            continue
        atoms.append(_Atom(space if atoms else "", letter, _opposite(segment, sentence, place)))
        space = ""
    return atoms


def _opposite(segment: Segment, sentence: Sentence, place: int) -> int:
    """The run at the same share of the source as `place` has of the target: all that is known without links."""
    length = sentence.end - sentence.begin
    return segment.owners[sentence.begin + min(length - 1, place * length // max(1, len(sentence.target)))]


def _in_order(owners: Sequence[int], speaking: set[int], depths: Sequence[int]) -> list[int]:
    """A run for each atom, never going back, that agrees with the most owners, and for the rest is in the fewest tags.

    speaking: runs that must not stay empty, if there are atoms enough.  depths: of all runs.
    The best path through a table [atoms, runs].
    """
    runs = sorted({*owners, *speaking})
    if not owners or (speaking <= set(owners) and all(one <= two for one, two in itertools.pairwise(owners))):
        return list(owners)
    if len(runs) * len(owners) > LARGEST_TABLE:
        return list(itertools.accumulate(owners, max))
    must = np.array([run in speaking for run in runs]) & (len(owners) >= len(speaking))
    # A block is a run that must be filled with those behind it that need not be: no path leaves one but for the next.
    block = np.cumsum(must)
    deep = np.array([min(depths[run], DEEPEST) for run in runs], dtype=np.int64)
    agreement = (DEEPEST + 1) * len(owners)
    apart = 4 * agreement * (len(owners) + 1)
    numbers = {run: place for place, run in enumerate(runs)}
    here = np.arange(len(runs))
    best = np.where(block - must == 0, 0, -apart // 2) + _gain(numbers[owners[0]], deep, agreement)
    came = np.zeros((len(owners), len(runs)), dtype=np.int32)
    for place in range(1, len(owners)):
        raised = best + block * apart
        highest = np.maximum.accumulate(raised)
        reached = np.maximum.accumulate(np.where(raised == highest, here, 0))
        # Into the first run of a block: from it, or from the best of the block before.
        entry = np.roll(reached, 1)
        stays = ~must | (here == 0) | (best >= best[entry])
        came[place] = np.where(stays, np.where(must, here, reached), entry)
        best = best[came[place]] + _gain(numbers[owners[place]], deep, agreement)
    run = int(np.where(block == block[-1], best, -2 * apart).argmax())
    path = [run]
    for place in range(len(owners) - 1, 0, -1):
        run = int(came[place, run])
        path.append(run)
    return [runs[place] for place in reversed(path)]


def _gain(owner: int, deep: "np.ndarray[Any, np.dtype[np.int64]]", agreement: int) -> "np.ndarray[Any, np.dtype[Any]]":
    """What an atom is worth in each run: much in its own, and the less the deeper in any other."""
    gain = -deep
    gain[owner] = agreement
    return gain


def _space(segment: Segment, runs: list[str], ends: tuple[int, int], space: str) -> None:
    """Write the space between the last word of one run and the first of another, or of the same, where it stands."""
    before, after = ends
    marks = segment.marks[before:after]
    if Mark.BREAKS in marks:
        return
    if Mark.HOLDS in marks:
        runs[before] += _tail(segment.runs[before])
        for place in range(before + 1, after):
            runs[place] += segment.runs[place] if segment.runs[place].isspace() else ""
        runs[after] += _lead(segment.runs[after])
        return
    runs[_where(segment, before, after)] += space


def _where(segment: Segment, before: int, after: int) -> int:
    """The run whose end, or beginning if it is `after`, has the space: as in the source, else outside the tags."""
    if before == after or _tail(segment.runs[before]):
        return before
    for place in range(before + 1, after):
        if segment.runs[place].isspace():
            return place
    if _lead(segment.runs[after]):
        return after
    return next((place for place in range(before, after) if segment.marks[place] is Mark.OPENS), after)


def _edged(segment: Segment, runs: list[str]) -> list[str]:
    """The runs with the white space that the source has before its first word and after its last one."""
    filled = [place for place, run in enumerate(segment.runs) if run and not run.isspace()]
    if not filled:
        return list(segment.runs)
    first, last = filled[0], filled[-1]
    return [
        (_lead(source) if place == first else source if place < first else "")
        + run
        + (_tail(source) if place == last else source if place > last else "")
        for place, (source, run) in enumerate(zip(segment.runs, runs, strict=True))
    ]


def _lead(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _tail(text: str) -> str:
    return text[len(text.rstrip()) :]
