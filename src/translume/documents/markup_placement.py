"""Placement of markup in a translation, by word alignment.

Each mark is placed where it best separates the words that it separates in the source. Marks keep their order, so closed
tags stay closed, and none is lost or duplicated. The price: if the target language reverses two marked parts of a
sentence, their marks cannot follow.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from translume.documents.segments import Mark, Segment
from translume.text.segmentation import WITHOUT_SPACES
from translume.translator.alignment import word_spans
from translume.translator.assembly import separator_between

LARGEST_TABLE = 4_000_000
"""Largest product of words and runs of a sentence for which the best placement is searched."""
MAX_KEPT = 200
"""Number of kept runs of a sentence whose places are searched; others stay between the words of their neighbours."""
DEEPEST = 7
"""Largest depth that is distinguished."""
_WORD = re.compile(r"\S+")
_SIGNS = re.compile(r"\A\W++")
_ENCLOSING = frozenset("\"'()[]{}«»‹›“”„‟‘’‚‛「」『』（）［］【】《》〈〉")
"""Quotes and brackets."""
_OPENING = (Mark.OPENING, Mark.SCRIPT)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Atom:
    """Characters of the target that stay together: a word, or the punctuation next to it.

    begin, end: in the target.  spacing: before it.  owner: its run.  kept: whether it is the text of a kept run.
    source: the characters [begin, end) of the word of the source that it translates; empty if that is unknown.
    """

    begin: int
    end: int
    spacing: str
    text: str
    owner: int
    kept: bool = False
    source: tuple[int, int] = (0, 0)


def place_markup(segment: Segment, sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Return the runs of a translated segment; those of the source if the translation equals the source."""
    if _joined(sentences) == segment.text:
        return segment.runs
    runs = ["" if place not in segment.kept else run.strip() for place, run in enumerate(segment.runs)]
    before: int | None = None
    written, spacing, source = "", "", ""
    for sentence in sentences:
        if len(runs) == 1 and not segment.kept:  # nothing to place: the text is one atom
            text = sentence.target.strip()
            atoms = [_Atom(begin=0, end=len(text), spacing="", text=text, owner=0)] if text else []
            order = [0] * len(atoms)
        else:
            atoms = _with_kept(segment, sentence, _atoms(segment, sentence))
            order = _order(segment, sentence, atoms)
        ends = source + segment.text[sentence.begin : sentence.begin + 1]
        for atom, run in zip(atoms, order, strict=True):
            space = separator_between(written, spacing, atom.text, ends) if atom is atoms[0] else atom.spacing
            if before is not None:
                _space(segment, runs, (before, run), space)
            runs[run] = atom.text if atom.kept else runs[run] + atom.text
            before, written = run, atom.text
        spacing, source = sentence.spacing, segment.text[sentence.end - 1 : sentence.end]
    return tuple(_with_outer_space(segment, runs))


def _must_have_words(segment: Segment, sentence: Sentence) -> set[int]:
    """Return the runs with words of a sentence, without those outside tags: these may stay empty, but tags may not.

    Of runs of one style next to each other only the first is returned: the others may stay empty, as may subscripts.
    """
    runs = segment.runs_with_words(sentence.begin, sentence.end) - segment.scripts
    runs = {run for run in runs if run - 1 not in runs or segment.marks[run - 1] is not Mark.SAME_STYLE}
    return {run for run in runs if segment.depths[run] > 0} if segment.depth else runs


def _joined(sentences: Sequence[Sentence]) -> str:
    return "".join(each.target + each.spacing for each in sentences)


def _atoms(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """Split the target into parts that belong to one run each."""
    if sentence.word_links and WITHOUT_SPACES.search(sentence.target + segment.text[sentence.begin : sentence.end]):
        words = [(begin, end) for _, _, begin, end in sentence.word_links]
        spans = ((sentence.begin + begin, sentence.begin + end) for begin, end, _, _ in sentence.word_links)
        links = dict(enumerate(spans))
    else:
        words = [match.span() for match in _WORD.finditer(sentence.target)]
        sources = [match.span() for match in _WORD.finditer(segment.text, sentence.begin, sentence.end)]
        links = {target: sources[source] for source, target in sentence.links if source < len(sources)}
        marked = segment.runs_with_words(sentence.begin, sentence.end)
        if len(words) < len(marked) and WITHOUT_SPACES.search(sentence.target):
            return _letters(segment, sentence)
    atoms: list[_Atom] = []
    for place, (begin, end) in enumerate(words):
        parts = [(sentence.target[begin:end], _opposite(segment, sentence, (begin + end) // 2))]
        if place in links:
            parts = _parts(segment, sentence, links[place], parts[0][0], (place == 0, place == len(words) - 1))
        for text, owner in parts:
            space = sentence.target[atoms[-1].end : begin] if atoms else ""
            end, source = begin + len(text), links.get(place, (0, 0))
            atoms.append(_Atom(begin=begin, end=end, spacing=space, text=text, owner=owner, source=source))
            begin = end
    return atoms


def _parts(
    segment: Segment, sentence: Sentence, source: tuple[int, int], word: str, outer: tuple[bool, bool]
) -> list[tuple[str, int]]:
    """Split a target word where its parts belong to different runs, and return their owners.

    A copied word is split as in the source. Punctuation belongs to the runs of the same punctuation of the source: of
    its word, or at the ends of the sentence (`outer`: whether it is the first or last word) that of the sentence.
    """
    begin, behind = source
    if word.casefold() == segment.text[begin:behind].casefold() and len(word) == behind - begin:
        characters = [*zip(word, segment.owners[begin:behind], strict=True)]
    else:
        first, core, last = _split_punctuation(segment.text[begin:behind])
        owner = segment.owner(begin + len(first), behind - len(last)) if core else segment.owner(begin, behind)
        opening, closing = ((sentence.begin, sentence.end) if ends else source for ends in outer)
        first, core, last = _split_punctuation(word)
        if not core:
            first, last = ("", first) if outer[1] else (first, "")
        leading = _sign_owners(first, _signs(segment, range(opening[0], opening[1])), owner)
        trailing = _sign_owners(last[::-1], _signs(segment, range(closing[1] - 1, closing[0] - 1, -1)), owner)
        characters = [*leading, *((character, owner) for character in core), *reversed(trailing)]
    return [
        ("".join(character for character, _ in group), owner)
        for owner, group in itertools.groupby(characters, key=lambda each: each[1])
    ]


def _signs(segment: Segment, places: range) -> list[tuple[str, int]]:
    """Return the punctuation before the first word at these places of the text, with its runs."""
    outer = itertools.takewhile(lambda place: not segment.text[place].isalnum(), places)
    return [(segment.text[place], segment.owners[place]) for place in outer if not segment.text[place].isspace()]


def _sign_owners(signs: str, sources: Sequence[tuple[str, int]], owner: int) -> list[tuple[str, int]]:
    """Return the run of each sign, that of the next sign of its kind (quotes and brackets, or others) in the source.

    signs, sources: from the outside to the word.  owner: of the word, for a source without signs.
    """
    owner = sources[0][1] if sources else owner
    left = {kind: iter([run for sign, run in sources if (sign in _ENCLOSING) is kind]) for kind in (True, False)}
    owners = []
    for sign in signs:
        owner = next(left[sign in _ENCLOSING], owner)
        owners.append((sign, owner))
    return owners


def _split_punctuation(word: str) -> tuple[str, str, str]:
    """Split a word into leading punctuation, letters and trailing punctuation."""
    begin, end = (len(word) - len(_SIGNS.sub("", each, count=1)) for each in (word, word[::-1]))
    return (
        (word, "", "") if begin == len(word) else (word[:begin], word[begin : len(word) - end], word[len(word) - end :])
    )


def _with_kept(segment: Segment, sentence: Sentence, atoms: list[_Atom]) -> list[_Atom]:
    """Return the atoms with the texts of kept runs in the place of what the model wrote for them.

    That is the same text; else the words that are aligned with it.
    """
    if not segment.kept or not atoms:
        return atoms
    kept = sorted(segment.kept.intersection(segment.owners[sentence.begin : sentence.end]))[:MAX_KEPT]
    if not kept:
        return atoms
    spans: list[tuple[int, int, str]] = []
    for run in kept:
        text = " ".join(segment.runs[run].split())
        borders = [
            r"\d" if each.isdigit() else "[A-Za-z]" if each.isalpha() else r"\b\B" for each in (text[0], text[-1])
        ]
        copy = f"(?<!{borders[0]}){re.escape(text)}(?!{borders[1]})"
        copies = (match.span() for match in re.finditer(copy, sentence.target))
        linked = [[*group] for owner, group in itertools.groupby(atoms, _linked_owner) if owner == run]
        aligned = [(group[0].begin, group[-1].end) for group in linked]
        # Else it stands before the first word of what follows it.
        place = next((atom.begin for atom in atoms if atom.owner > run), atoms[-1].end)
        for begin, end in (*copies, *aligned, (place, place)):
            if all(end <= other[0] or begin >= other[1] for other in spans):
                spans.append((begin, end, text))
                break
        else:
            spans.append((atoms[-1].end, atoms[-1].end, text))
    spans.sort(key=lambda span: span[:2])
    return _replaced(segment, atoms, spans, kept)


def _linked_owner(atom: _Atom) -> int:
    """Return the run of an atom that is aligned with its source; -1 for others."""
    return atom.owner if any(atom.source) else -1


def _replaced(
    segment: Segment, atoms: Sequence[_Atom], spans: Sequence[tuple[int, int, str]], kept: Sequence[int]
) -> list[_Atom]:
    """Return the atoms with the texts of `kept` runs, in order, at `spans` of the target: begin, end and text."""
    cuts = sorted({place for begin, end, _ in spans for place in (begin, end)})
    replaced: list[_Atom] = []
    waiting = [*zip(spans, kept, strict=True)]

    def place_until(place: int, space: str) -> str:
        """Add the texts that begin up to a place; return the space before what follows."""
        while waiting and waiting[0][0][0] <= place:
            (begin, end, text), run = waiting.pop(0)
            replaced.append(_Atom(begin=begin, end=end, spacing=space, text=text, owner=run, kept=True))
            space = space if begin == end else ""
        return space

    for atom in atoms:
        space = atom.spacing
        edges = [atom.begin, *(cut for cut in cuts if atom.begin < cut < atom.end), atom.end]
        for begin, end in itertools.pairwise(edges):
            space = place_until(begin, space)
            if any(first <= begin and end <= last for first, last, _ in spans):
                continue
            text = atom.text[begin - atom.begin : end - atom.begin]
            owner = atom.owner if atom.owner not in segment.kept else atom.owner + 1
            replaced.append(replace(atom, begin=begin, end=end, spacing=space, text=text, owner=owner))
            space = ""
    place_until(cuts[-1], "" if WITHOUT_SPACES.search(atoms[-1].text) else " ")
    return replaced


def _order(segment: Segment, sentence: Sentence, atoms: Sequence[_Atom]) -> list[int]:
    """Return a run for each atom, in non-decreasing order, where kept atoms have their own."""
    required = {segment.heads[run] for run in _must_have_words(segment, sentence) - segment.kept}
    if not segment.kept:
        order = _in_order([segment.heads[atom.owner] for atom in atoms], required, segment.depths)
        return _behind_words(segment, sentence, atoms, order)
    free = [run for run in range(len(segment.runs)) if run not in segment.kept and segment.heads[run] == run]
    order = []
    low = 0
    for kept, group in itertools.groupby(atoms, key=lambda atom: atom.kept):
        owners = [atom.owner for atom in group]
        if kept:
            order += owners
            low = owners[-1] + 1
            continue
        following = (atom.owner for atom in atoms[len(order) + len(owners) :] if atom.kept)
        high = next(following, len(segment.runs))
        allowed = free[bisect_left(free, low) : bisect_left(free, high)]
        # Between two fields without text the words go before the first one, or else behind the second.
        allowed = allowed or free[: bisect_left(free, low)][-1:] or free[:1]
        owners = [allowed[max(0, bisect_right(allowed, owner) - 1)] for owner in owners]
        order += _in_order(owners, required.intersection(allowed), segment.depths)
    return _behind_words(segment, sentence, atoms, order)


def _behind_words(segment: Segment, sentence: Sentence, atoms: Sequence[_Atom], order: list[int]) -> list[int]:
    """Return the runs of the atoms with those between attached marks, which stand behind the words that they follow.

    order: the first of the runs that only attached marks divide.
    """
    if not atoms or Mark.ATTACHED not in segment.marks:
        return order
    parts: dict[int, list[tuple[int, int]]] = {}  # by the beginning of the source word: owners and places
    for place, atom in enumerate(atoms):
        if any(atom.source):
            parts.setdefault(atom.source[0], []).append((atom.owner, place))
    words = sorted(parts)
    begun = segment.owners[sentence.begin]
    cuts: list[tuple[int, int, int]] = []  # the first and last place that a run can have
    for run in range(begun + 1, segment.owners[sentence.end - 1] + 1):
        if segment.heads[run] == run:
            continue
        last = bisect_left(segment.owners, run, sentence.begin, sentence.end) - 1
        last -= segment.text[last] == " "
        word = words[max(0, bisect_right(words, last) - 1)] if words else 0
        atoms_of_word = parts.get(word, [])
        if atoms_of_word and word <= last < atoms[atoms_of_word[0][1]].source[1]:
            place = atoms_of_word[max(0, bisect_left(atoms_of_word, (run, 0)) - 1)][1] + 1
        else:
            place = len(atoms) * (last + 1 - sentence.begin) // (sentence.end - sentence.begin)
        first, after = bisect_left(order, segment.heads[run]), bisect_right(order, segment.heads[run])
        place = max(place, first, cuts[-1][0] if cuts else 0)
        cuts.append((min(place, after), after, run))
    order = [begun if run == segment.heads[begun] else run for run in order]
    end = len(order)
    for place, after, run in reversed(cuts):
        end = min(end, after)
        order[place : max(place, end)] = [run] * max(0, end - place)
        end = place
    return order


def _letters(segment: Segment, sentence: Sentence) -> list[_Atom]:
    """Split a target that is written without spaces into letters, and into words of other scripts."""
    target = sentence.target
    spans = word_spans(target, ((place, place + 1) for place in range(len(target))))
    ends = [0, *(end for _, end in spans)]
    return [
        _Atom(
            begin=begin,
            end=end,
            spacing=target[before:begin] if before else "",
            text=target[begin:end],
            owner=_opposite(segment, sentence, begin),
        )
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
    if Mark.ATTACHED in marks and space and any(map(str.isspace, "".join(segment.runs[before + 1 : after]))):
        runs[after] += _leading_space(segment.runs[after])
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
    return next((place for place in range(before, after) if segment.marks[place] in _OPENING), after)


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
