"""HTML as segments: what stands between block elements is one, with the tags of inline elements as its marks."""

import html as entities
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from translume.documents.markup import Token, tokens
from translume.documents.segment import Mark, Segment


def _elements(names: str) -> frozenset[str]:
    return frozenset(names.split())


INLINE: Final = _elements(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q rp rt ruby s small span strike "
    "strong sub sup time tt u"
)
"""Elements that stand within a sentence."""
HELD: Final = _elements("img wbr input audio video canvas embed")
"""Those that stand in one like a word."""
UNTRANSLATED: Final = _elements(
    "script style code kbd samp var textarea svg math template xmp iframe noembed noframes object plaintext"
)
"""Those whose inside is no text to translate."""
VOID: Final = _elements("area base br col embed hr img input link meta param source track wbr")
WITHOUT_END: Final = _elements("p li dt dd option optgroup tr td th rt rp")
"""Those whose end tag may be left out before the next of them, and before the end of what they stand in."""
HOLDERS: Final = _elements("ul ol dl table thead tbody tfoot tr select div section article main body html")
"""What such elements stand in."""
_NOT: Final = re.compile(r"(?:^|\s)notranslate(?:\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypertext:
    """HTML with places for the runs of its segments.  pieces: what is written, or (segment, run) for what stands there.

    raw: each run as it was written, with its entities.
    """

    pieces: tuple[str | tuple[int, int], ...]
    segments: tuple[Segment, ...]
    raw: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, html: str) -> "Hypertext":
        """The segments of a whole document or of a part of one."""
        reader = _Reader()
        for token in tokens(html):
            reader.read(token)
        reader.end_segment()
        return cls(pieces=tuple(reader.pieces), segments=tuple(reader.segments), raw=tuple(reader.raw))

    def with_runs(self, runs: Sequence[Sequence[str]]) -> str:
        """The HTML with other runs, one for each of each segment; one that is the same is written as it was."""
        return "".join(
            piece if isinstance(piece, str) else self._written(piece, runs[piece[0]][piece[1]]) for piece in self.pieces
        )

    def _written(self, piece: tuple[int, int], run: str) -> str:
        segment, number = piece
        if run == self.segments[segment].runs[number]:
            return self.raw[segment][number]
        return entities.escape(run, quote=False).replace("\xa0", "&nbsp;")


@dataclass(slots=True)
class _Reader:
    """Reads tokens into pieces.

    runs, between: of the open segment, and what stands between them.  skipped: the element that is not translated and
    has not ended, empty without one, with its depth in elements of its name, the `HOLDERS` that are open in it, and
    whether it stands inside a sentence.
    """

    pieces: list[str | tuple[int, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    raw: list[tuple[str, ...]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    between: list[tuple[Mark, str]] = field(default_factory=list)
    skipped: str = ""
    depth: int = 0
    holders: int = 0
    inside: bool = False
    preformatted: int = 0

    def read(self, token: Token) -> None:
        """Take one token."""
        if self.skipped:
            self._skip(token)
        elif token.kind == "text":
            self._text(token.text)
        elif token.kind == "opens" and _untranslated(token) and token.name not in VOID:
            self.skipped, self.depth, self.holders, self.inside = token.name, 1, 0, _stands_inside(token)
            self._mark(token.text) if self.inside else self._block(token.text)
        elif token.kind == "other":
            # Comments and the like: nothing that is seen.
            self._inside(Mark.CLOSES, token.text)
        elif token.name in HELD:
            self._mark(token.text)
        elif token.name in INLINE:
            self._inside(Mark.OPENS if token.kind == "opens" else Mark.CLOSES, token.text)
        else:
            if token.name == "pre":
                self.preformatted = max(0, self.preformatted + (1 if token.kind == "opens" else -1))
            self._block(token.text)

    def _skip(self, token: Token) -> None:
        """Take a token of an element that is not translated, up to its end."""
        step = {"opens": 1, "closes": -1}.get(token.kind, 0)
        if self.skipped in WITHOUT_END:
            next_one = step > 0 and (token.name == self.skipped or (self.skipped == "p" and not _stands_inside(token)))
            if self.holders == 0 and (next_one or (step < 0 and token.name in HOLDERS)):
                self.skipped = ""
                self.read(token)
                return
            self.holders += (token.name in HOLDERS) * step
        self.depth += (token.name == self.skipped) * step
        inside = self.inside
        if self.depth == 0:
            self.skipped = ""
        self._mark(token.text) if inside else self._block(token.text)

    def _text(self, text: str) -> None:
        if not self.preformatted:
            self._run(text)
            return
        for number, line in enumerate(text.splitlines(keepends=True)):
            if number:
                self.end_segment()
            self._run(line)

    def _run(self, text: str) -> None:
        if len(self.runs) == len(self.between):
            self.runs.append(text)
        else:
            self.runs[-1] += text

    def _inside(self, mark: Mark, text: str) -> None:
        """A mark of the open segment."""
        if len(self.runs) == len(self.between):
            self.runs.append("")
        self.between.append((mark, text))

    def _mark(self, text: str) -> None:
        """Something that stands in a sentence; what follows one of its kind at once belongs to it."""
        if self.between and len(self.runs) == len(self.between) and self.between[-1][0] is Mark.HOLDS:
            self.between[-1] = (Mark.HOLDS, self.between[-1][1] + text)
        else:
            self._inside(Mark.HOLDS, text)

    def _block(self, text: str) -> None:
        self.end_segment()
        self.pieces.append(text)

    def end_segment(self) -> None:
        """Close the open segment; one without letters is text as it stands."""
        if len(self.runs) == len(self.between):
            self.runs.append("")
        runs = tuple(map(entities.unescape, self.runs))
        segment = Segment(runs=runs, marks=tuple(mark for mark, _ in self.between))
        speaks = segment.speaks
        for number, run in enumerate(self.runs):
            self.pieces.append((len(self.segments), number) if speaks else run)
            if number < len(self.between):
                self.pieces.append(self.between[number][1])
        if speaks:
            self.segments.append(segment)
            self.raw.append(tuple(self.runs))
        self.runs, self.between = [], []


def _untranslated(token: Token) -> bool:
    return (
        token.name in UNTRANSLATED
        or (token.attribute("translate") or "").lower() == "no"
        or _NOT.search(token.attribute("class") or "") is not None
    )


def _stands_inside(token: Token) -> bool:
    """Whether an element stands within a sentence."""
    return token.name in INLINE or token.name in HELD or token.name in UNTRANSLATED
