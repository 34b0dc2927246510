"""Placement of markup in a translation, by word alignment.

Each mark is placed where it best separates the words that it separates in the source. Marks keep their order, so closed
tags stay closed, and none is lost or duplicated. The price: if the target language reverses two marked parts of a
sentence, their marks cannot follow.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from translume.documents.segments import Mark, Segment
from translume.translator.alignment import WITHOUT_SPACES, word_spans
from translume.translator.assembly import separator_between

LARGEST_TABLE = 4_000_000
"""Largest product of words and runs of a sentence for which the best placement is searched."""
DEEPEST = 7
"""Largest depth that is distinguished."""
_WORD = re.compile(r"\S+")
_CORE = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A translated sentence of a segment.

    begin, end: of its source in the segment's text.  spacing: white space after it there.
    links: pairs of indices of a source word and a target word, split at white space; empty if unknown.
    word_links: spans (source begin, source end, target begin, target end) of words of all scripts; empty if unknown.
    """

    begin: int
    end: int
    spacing: str
    target: str
    links: tuple[tuple[int, int], ...] = ()
    word_links: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Atom:
    """Characters of the target that stay together: a word, or the punctuation next to it.  owner: its run."""

    spacing: str
    text: str
    owner: int


def place_markup(segment: Segment, sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Return the runs of a translated segment; those of the source if the translation equals the source."""
    if _joined(sentences) == segment.text:
        return segment.runs
    runs = [""] * len(segment.runs)
    before: int | None = None
    written, spacing, source = "", "", ""
    for sentence in sentences:
        atoms = _atoms(segment, sentence)
        ends = source + segment.text[sentence.begin : sentence.begin + 1]
        wanted = _must_have_words(segment, sentence)
        order = _in_order([atom.owner for atom in atoms], wanted, segment.depths)
        for atom, run in zip(atoms, order, strict=True):
            space = separator_between(written, spacing, atom.text, ends) if atom is atoms[0] else atom.spacing
            if before is not None:
                _space(segment, runs, (before, run), space)
            runs[run] += atom.text
            before, written = run, atom.text
        spacing, source = sentence.spacing, segment.text[sentence.end - 1 : sentence.end]
    return tuple(_with_outer_space(segment, runs))


def _must_have_words(segment: Segment, sentence: Sentence) -> set[int]:
    """Return the runs with words of a sentence, without those outside tags: these may stay empty, but tags may not.

    Of runs of one style next to each other only the first is returned: the others may stay empty.
    """
    runs = segment.runs_with_words(sentence.begin, sentence.end)
    runs = {run for run in runs if run - 1 not in runs or segment.marks[run - 1] is not Mark.SAME_STYLE}
    return {run for run in runs if segment.depths[run] > 0} if max(segment.depths) else runs


def _joined(sentences: Sequence[Sentence]) -> str:
    return "".join(each.target + each.spacing for each in sentences)


def _atoms(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """Split the target into parts that belong to one run each."""
    if sentence.word_links and WITHOUT_SPACES.search(sentence.target + segment.text[sentence.begin : sentence.end]):
        return _linked_words(segment, sentence)
    words = [(found.start(), found.group()) for found in _WORD.finditer(sentence.target)]
    sources = [(found.start(), found.end()) for found in _WORD.finditer(segment.text, sentence.begin, sentence.end)]
    links = {target: source for source, target in sentence.links if source < len(sources)}
    marked = segment.runs_with_words(sentence.begin, sentence.end)
    if len(words) < len(marked) and WITHOUT_SPACES.search(sentence.target):
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
    """Split a target word into up to three parts if the punctuation next to its source word is in other runs.

    end: the run of the punctuation at the end of the sentence; None within the sentence.
    """
    begin, behind = source
    first, core, last = _split_punctuation(segment.text[begin:behind])
    owner = segment.owner(begin + len(first), behind - len(last)) if core else segment.owner(begin, behind)
    signs = end if end is not None else segment.owners[behind - 1] if last and core else owner
    owners = (segment.owners[begin] if first and core else owner, owner, signs)
    found: list[_Atom] = []
    for text, run in zip(_split_punctuation(word), owners, strict=True):
        if text:
            found.append(_Atom("" if found else space, text, run))
    return found


def _split_punctuation(word: str) -> tuple[str, str, str]:
    """Split a word into leading punctuation, letters and trailing punctuation."""
    found = _CORE.fullmatch(word)
    return (found[1], found[2], found[3]) if found else ("", word, "")


def _linked_words(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """Split a target into its words; each belongs to the run of its source word."""
    atoms: list[_Atom] = []
    last = sentence.word_links[-1]
    place = 0
    for source_begin, source_end, begin, end in sentence.word_links:
        owner = segment.owner(sentence.begin + source_begin, sentence.begin + source_end)
        text = sentence.target[begin:end]
        if end == last[3] and not text[-1].isalnum():
            # Punctuation at the end of a sentence belongs to that of the source.
            owner = segment.owners[sentence.end - 1]
        atoms.append(_Atom(sentence.target[place:begin] if atoms else "", text, owner))
        place = end
    return atoms


def _letters(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """Split a target that is written without spaces into letters, and into words of other scripts."""
    target = sentence.target
    spans = word_spans(target, ((place, place + 1) for place in range(len(target))))
    ends = [0, *(end for _, end in spans)]
    return [
        _Atom(target[before:begin] if before else "", target[begin:end], _opposite(segment, sentence, begin))
        for before, (begin, end) in zip(ends, spans, strict=False)
    ]


def _opposite(segment: Segment, sentence: Sentence, place: int) -> int:
    """Return the run at the same relative position of the source as `place` in the target, for words without links."""
    length = sentence.end - sentence.begin
    return segment.owners[sentence.begin + min(length - 1, place * length // max(1, len(sentence.target)))]


def _in_order(owners: Sequence[int], required: set[int], depths: Sequence[int]) -> list[int]:
    """Return a run for each atom, in non-decreasing order, that agrees with the most owners, and else is in few tags.

    required: runs that must not be empty, if there are enough atoms.  depths: of all runs.
    This is the best path through a table [atoms, runs], by dynamic programming.
    """
    runs = sorted({*owners, *required})
    if not owners or (required <= set(owners) and all(one <= two for one, two in itertools.pairwise(owners))):
        return list(owners)
    if len(runs) * len(owners) > LARGEST_TABLE:
        return list(itertools.accumulate(owners, max))
    must = np.array([run in required for run in runs]) & (len(owners) >= len(required))
    # A block is a required run with the optional ones after it. A path leaves a block only for the next one.
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
        # The first run of a block is reached from itself or from the best run of the previous block.
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
    """Return the gain of placing an atom in each run: high for its owner, and lower for deeper runs."""
    gain = -deep
    gain[owner] = agreement
    return gain


def _space(segment: Segment, runs: list[str], ends: tuple[int, int], space: str) -> None:
    """Write the space between the last word of one run and the first word of the same or another run."""
    before, after = ends
    marks = segment.marks[before:after]
    if Mark.LINE_BREAK in marks:
        return
    if Mark.OBJECT in marks:
        runs[before] += _trailing_space(segment.runs[before])
        for place in range(before + 1, after):
            runs[place] += segment.runs[place] if segment.runs[place].isspace() else ""
        runs[after] += _leading_space(segment.runs[after])
        return
    runs[_run_for_space(segment, before, after)] += space


def _run_for_space(segment: Segment, before: int, after: int) -> int:
    """Return the run that gets the space: as in the source, else outside tags. In `after` it goes to the beginning."""
    if before == after or _trailing_space(segment.runs[before]):
        return before
    for place in range(before + 1, after):
        if segment.runs[place].isspace():
            return place
    if _leading_space(segment.runs[after]):
        return after
    return next((place for place in range(before, after) if segment.marks[place] is Mark.OPENING), after)


def _with_outer_space(segment: Segment, runs: list[str]) -> list[str]:
    """Return the runs with the source's white space before its first word and after its last one."""
    filled = [place for place, run in enumerate(segment.runs) if run and not run.isspace()]
    if not filled:
        return list(segment.runs)
    first, last = filled[0], filled[-1]
    return [
        (_leading_space(source) if place == first else source if place < first else "")
        + run
        + (_trailing_space(source) if place == last else source if place > last else "")
        for place, (source, run) in enumerate(zip(segment.runs, runs, strict=True))
    ]


def _leading_space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _trailing_space(text: str) -> str:
    return text[len(text.rstrip()) :]
