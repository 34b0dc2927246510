"""Segments: runs of text with markup between them, such as a paragraph of HTML with its tags."""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

from translume.errors import DocumentError
from translume.text.segmentation import has_letters
from translume.text.sentences import ALIASES, iso_code

MAX_SEGMENTS: Final = 200_000
"""Maximum number of segments of a document."""
MAX_MARKUP: Final = 1_000_000
"""Maximum number of tags and attributes of a document. Each costs about 1 microsecond and 100 bytes to read."""


class Mark(Enum):
    """The kind of markup between two runs, which determines the white space next to it."""

    OPENING = "opening"
    """Such as <b>: spaces are placed before it."""
    CLOSING = "closing"
    """Such as </b>: spaces are placed after it."""
    OBJECT = "object"
    """Such as an image: the spaces next to it do not change."""
    STYLE_CHANGE = "style_change"
    """Where text becomes bold in a Word document: one style ends and another begins."""
    LINE_BREAK = "line_break"
    """The end of a line, which replaces a space."""
    ATTACHED = "attached"
    """Such as the mark of a note or a comment: it stands behind a word without a space."""
    SCRIPT = "script"
    """Such as <sub> in H<sub>2</sub>O: as OPENING, but the run may be a part of a word."""
    SAME_STYLE = "same_style"
    """Where a Word document divides text of one style, such as at a spelling mistake."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A unit of text.  runs: texts.  marks: between the runs, one fewer.

    kept: indices of runs whose texts stay whole, such as the result of a field. The model reads them as text; if their
    order changes in the translation, they exchange their texts.
    """

    runs: tuple[str, ...]
    marks: tuple[Mark, ...] = ()
    kept: frozenset[int] = frozenset()

    @cached_property
    def text(self) -> str:
        """All runs as one line without soft hyphens, with one space between words and for objects and line breaks."""
        return self._collapsed[0]

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The index of the run of each character of `text`."""
        return self._collapsed[1]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of open tags at each run, relative to the smallest."""
        steps = [{Mark.OPENING: 1, Mark.SCRIPT: 1, Mark.CLOSING: -1}.get(mark, 0) for mark in self.marks]
        depths = list(itertools.accumulate(steps, initial=0))
        least = min(depths)
        return tuple(depth - least for depth in depths)

    @cached_property
    def scripts(self) -> frozenset[int]:
        """The indices of runs that are subscripts or superscripts."""
        return frozenset(place + 1 for place, mark in enumerate(self.marks) if mark is Mark.SCRIPT)

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """For each run the first of those that only attached marks divide from it."""
        heads = [0]
        for run, mark in enumerate(self.marks, start=1):
            attached = mark is Mark.ATTACHED and run not in self.kept and run - 1 not in self.kept
            heads.append(heads[-1] if attached else run)
        return tuple(heads)

    @cached_property
    def depth(self) -> int:
        """The largest of `depths`."""
        return max(self.depths)

    @cached_property
    def has_letters(self) -> bool:
        """Whether the segment has text to translate."""
        return any(has_letters(run) for place, run in enumerate(self.runs) if place not in self.kept)

    @cached_property
    def _collapsed(self) -> tuple[str, tuple[int, ...]]:
        text: list[str] = []
        owners: list[int] = []
        space: int | None = None
        for place, run in enumerate(self.runs):
            if place and self.marks[place - 1] in (Mark.OBJECT, Mark.LINE_BREAK) and space is None:
                space = place - 1
            for character in run:
                if character.isspace():
                    space = place if space is None else space
                    continue
                if character == "\xad":
                    continue
                if space is not None and text:
                    text.append(" ")
                    owners.append(space)
                space = None
                text.append(character)
                owners.append(place)
        return "".join(text), tuple(owners)

    def owner(self, begin: int, end: int) -> int:
        """Return the run that has most of the characters `text[begin:end]`; the first one at a tie.

        A subscript or superscript has a word only if it is the whole word.
        """
        owners = self.owners[begin:end]
        return Counter([run for run in owners if run not in self.scripts] or owners).most_common(1)[0][0]

    def runs_with_words(self, begin: int, end: int) -> set[int]:
        """Return the runs that have letters or digits in `text[begin:end]`."""
        return {self.owners[place] for place in range(begin, end) if self.text[place].isalnum()}


def with_style_marks(
    runs: Sequence[str], marks: Sequence[Mark], styles: Sequence[Hashable], scripts: Collection[int] = ()
) -> tuple[Mark, ...]:
    """Return the marks with each change of style as the beginning or end of a styled part of the text.

    styles: of the runs, compared for equality. The one with the most letters is the plain text.
    scripts: indices of the runs that are subscripts or superscripts.
    """
    letters: Counter[Hashable] = Counter()
    for run, style in zip(runs, styles, strict=True):
        letters[style] += sum(map(str.isalnum, run))
    plain = letters.most_common(1)[0][0] if letters else None
    styled: list[Mark] = []
    for place, (mark, (before, after)) in enumerate(zip(marks, itertools.pairwise(styles), strict=True), start=1):
        if mark is not Mark.STYLE_CHANGE:
            styled.append(mark)
        elif place in scripts and before != after:
            styled.append(Mark.SCRIPT)
        elif before == after:
            styled.append(Mark.SAME_STYLE)
        else:
            styled.append(Mark.OPENING if before == plain else Mark.CLOSING if after == plain else Mark.STYLE_CHANGE)
    return tuple(styled)


NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Matches a character that XML cannot have."""


def check_segments(count: int) -> None:
    """Raise DocumentError if a document has more than `MAX_SEGMENTS` segments."""
    if count > MAX_SEGMENTS:
        raise DocumentError(f"found {count:,} lines or paragraphs, expected at most {MAX_SEGMENTS:,}")


def check_markup(count: int) -> None:
    """Raise DocumentError if a document has more than `MAX_MARKUP` tags and attributes."""
    if count > MAX_MARKUP:
        raise DocumentError(f"found {count:,} tags and attributes, expected at most {MAX_MARKUP:,}")


_NOTE: Final = re.compile(
    r"\s*(?:[\[(]\s*[^\s\])]{1,12}(?:\s[^\s\])]{1,8})?\s*[\])]|[*†‡§¶#]{1,4}|(?P<plain>\d{1,4}|[a-z]|[ivxl]{1,6}))\s*"
)
_LONG_WORD: Final = re.compile(r"(?:[^\W\d_]{4}|[.!?,;:»”“\"')])\Z")


def is_note(text: str, before: str, *, linked: bool) -> bool:
    """Return whether a superscript is the mark of a note, such as [1], * or 3.

    before: the text before it. A number or letter is one if it is a link, or follows a longer word or punctuation.
    """
    match = _NOTE.fullmatch(text)
    return match is not None and (match["plain"] is None or linked or _LONG_WORD.search(before[-8:]) is not None)


_LANGUAGE: Final = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


def language_tag(code: str) -> str:
    """Return a language as files name it, such as pt-br for LibreTranslate's pb; empty for what is not a code."""
    return ALIASES.get(code.lower(), code).replace("_", "-") if _LANGUAGE.fullmatch(code) else ""


RIGHT_TO_LEFT: Final = frozenset({"ar", "arc", "ckb", "dv", "fa", "he", "ks", "ps", "sd", "ug", "ur", "yi"})
"""Languages that are written from right to left."""


def is_right_to_left(language: str) -> bool:
    """Return whether the script of a language, a code such as ar-EG, is written from right to left."""
    return iso_code(language) in RIGHT_TO_LEFT
