"""What is translated as one: runs of text with marks between them, such as a paragraph of HTML with its tags."""

import itertools
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Mark(Enum):
    """What stands between two runs, as far as white space beside it goes."""

    OPENS = "opens"
    """Such as <b>: a space stands before it."""
    CLOSES = "closes"
    """Such as </b>: a space stands behind it."""
    HOLDS = "holds"
    """Such as an image: the spaces beside it stay as they are."""
    TURNS = "turns"
    """Where letters become bold in a Word document: something ends and something begins."""
    BREAKS = "breaks"
    """The end of a line: it is the space."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """runs: texts.  marks: what stands between them, one fewer."""

    runs: tuple[str, ...]
    marks: tuple[Mark, ...] = ()

    @cached_property
    def text(self) -> str:
        """All runs as one line: single spaces between words, and for what holds or breaks; none at the ends."""
        return self._collapsed[0]

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The run of each character of `text`."""
        return self._collapsed[1]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """In how many tags each run stands, counted from the least."""
        steps = [{Mark.OPENS: 1, Mark.CLOSES: -1}.get(mark, 0) for mark in self.marks]
        depths = list(itertools.accumulate(steps, initial=0))
        least = min(depths)
        return tuple(depth - least for depth in depths)

    @property
    def speaks(self) -> bool:
        """Whether there is something to translate."""
        return speaks(self.text)

    @cached_property
    def _collapsed(self) -> tuple[str, tuple[int, ...]]:
        text: list[str] = []
        owners: list[int] = []
        space: int | None = None
        for place, run in enumerate(self.runs):
            if place and self.marks[place - 1] in (Mark.HOLDS, Mark.BREAKS) and space is None:
                space = place - 1
            for character in run:
                if character.isspace():
                    space = place if space is None else space
                    continue
                if space is not None and text:
                    text.append(" ")
                    owners.append(space)
                space = None
                text.append(character)
                owners.append(place)
        return "".join(text), tuple(owners)

    def owner(self, begin: int, end: int) -> int:
        """The run that most of the characters of `text` from `begin` to `end` come from; the first of equals."""
        return Counter(self.owners[begin:end]).most_common(1)[0][0]

    def speaking(self, begin: int, end: int) -> set[int]:
        """The runs that have letters or digits among those characters."""
        return {self.owners[place] for place in range(begin, end) if self.text[place].isalnum()}


def speaks(text: str) -> bool:
    """Whether a text has letters."""
    return any(character.isalpha() for character in text)
