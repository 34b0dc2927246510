"""Text files as segments: placeholders and tags within texts are markup, and all else stays as it is written."""

import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.segments import Mark, Segment, check_segments
from translume.text.segmentation import has_letters

_PRINTF: Final = (
    r"%(?:\d+\$|\([^()]*+\)|<[^<>]*+>)?[+#0']?(?:-?(?:\*|\d+))?(?:\.(?:\*|\d+))?(?:hh?|ll?|[Lqjzt])?[diouxXeEfgGcsSp@n]"
)
_BRACES = r"\{[^{}]*+\}"
for _ in range(6):
    _BRACES = rf"\{{(?:[^{{}}]++|{_BRACES})*+\}}"
PLACEHOLDERS: Final = "|".join(
    (
        # {0}, {name}, {{x}}, ${x}, %{x}, {n, plural, one {# file} other {# files}}, and the number in one of its texts
        rf"[$#%@]?{_BRACES}|(?<![^\s{{])#(?!\S)",
        # %s, %1$s, %(name)s, %%, %1. "50%discount" has none.
        rf"(?<!\d){_PRINTF}|{_PRINTF}(?![a-z])|%%|%L?\d{{1,2}}",
        # Nested texts of i18next, placeholders of browser extensions, entities
        r"\$t\([^()]*+\)|\$\w++\$|&(?:[A-Za-z][A-Za-z0-9]{1,31}|#\d{1,7}|#x[0-9A-Fa-f]{1,6});",
        # Addresses
        r"(?:https?|ftp)://[^\s<>\"]*[^\s<>\".,;:!?)\]}']|(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w.-]*\w",
        # Tabs, control characters, halves of a surrogate pair, and what `OBJECT` stands for
        r"\t+|[\x00-\x08\x0e-\x1b\x7f\ud800-\udfff\ue000]",
    )
)
"""Matches what stays as it is within a text, in time linear in its length."""
OBJECT: Final = "\ue000"
"""What `Syntax.read` returns for something that stays as it is written."""
_SPLIT: Final = re.compile(
    rf"(?P<line>(?:\r\n|[\n\r\v\f\x85\u2028\u2029])\s*)|(?P<tag></?[A-Za-z0-9][^<>]{{0,1000}}>)|(?P<object>{PLACEHOLDERS})"
)
_MESSAGE: Final = re.compile(r"\{\s*[\w.-]+\s*,\s*(?:plural|select|selectordinal)\s*,")
"""The beginning of a message of ICU, such as {n, plural, one {# file} other {# files}}."""
_ALONE: Final = re.compile(r"<(?:br|hr|img|input|wbr)\b|.*/>$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a format writes text.

    special: matches what does not stand for itself, and `read` returns what it means.  write: writes a text.
    """

    special: re.Pattern[str]
    read: Callable[[re.Match[str]], str]
    write: Callable[[str], str]

    def decoded(self, raw: str) -> tuple[str, list[int]]:
        """Return what is written, and for each of its characters the place in `raw` where it begins; then the end."""
        text: list[str] = []
        places: list[int] = []
        end = 0
        for match in self.special.finditer(raw):
            meaning = self.read(match)
            text += raw[end : match.start()], meaning
            places += range(end, match.start())
            places += [match.start()] * len(meaning)
            end = match.end()
        places += range(end, len(raw) + 1)
        places[0] = 0
        return "".join((*text, raw[end:])), places


@dataclass(frozen=True, slots=True)
class Choice:
    """Pieces that are written if a test of all runs succeeds, and a text that is written otherwise."""

    test: Callable[[Sequence[Sequence[str]]], bool]
    pieces: "tuple[Piece, ...]"
    otherwise: str


Piece = str | tuple[int, int] | Choice
"""Unchanged text, the indices of a segment and its run, or a choice."""


def together(*pieces: Piece) -> Piece:
    """Return some pieces as one, whether a segment is translated or not."""
    return Choice(lambda runs: True, pieces, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText:
    """A text file.  written: each run as it is in the file, and its syntax.

    encode: returns the file of a text.  adjust: changes the runs of a translated segment.  declare: returns a text that
    names another language, a code.
    """

    pieces: tuple[Piece, ...]
    segments: tuple[Segment, ...]
    written: tuple[tuple[tuple[str, Syntax], ...], ...]
    encode: Callable[[str], bytes]
    adjust: Callable[[Segment, Sequence[str]], Sequence[str]]
    declare: Callable[[str, str], str] | None = None
    warnings: tuple[str, ...] = ()

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """As `Document.with_runs`."""
        text = self.text_with_runs(runs)
        return self.encode(self.declare(text, language) if language and self.declare else text)

    def text_with_runs(self, runs: Sequence[Sequence[str]]) -> str:
        """Return the text of the file with other runs for each segment."""
        adjusted = [
            segment.runs if tuple(own) == segment.runs else tuple(self.adjust(segment, own))
            for segment, own in zip(self.segments, runs, strict=True)
        ]
        return "".join(self._written(self.pieces, adjusted))

    def _written(self, pieces: Sequence[Piece], runs: Sequence[Sequence[str]]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
            elif isinstance(piece, Choice):
                yield from self._written(piece.pieces if piece.test(runs) else (piece.otherwise,), runs)
            else:
                segment, number = piece
                run, (raw, syntax) = runs[segment][number], self.written[segment][number]
                yield raw if run == self.segments[segment].runs[number] else syntax.write(run)


def spaced(segment: Segment, runs: Sequence[str]) -> list[str]:
    """Return other runs of a segment with the white space that the source has next to objects."""
    filled = list(runs)
    for place, (source, run) in enumerate(zip(segment.runs, runs, strict=True)):
        core = run.strip()
        left = Mark.OBJECT in segment.marks[max(0, place - 1) : place]
        right = Mark.OBJECT in segment.marks[place : place + 1]
        leading, trailing = (_ends(source)[0] if left else _ends(run)[0], _ends(source)[1] if right else _ends(run)[1])
        filled[place] = leading + core + trailing if core else max(leading, trailing, key=len)
    return filled


def _ends(text: str) -> tuple[str, str]:
    """Return the white space at the beginning and at the end of a text."""
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


@dataclass(slots=True)
class TextBuilder:
    """Builds a `MarkedText` from front to back.  runs: of the open segment: raw, meaning, syntax.

    between: the marks between the runs as they are written, and their pieces in a translated segment.
    """

    encoded: EncodedText
    syntax: Syntax
    pieces: list[Piece] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    written: list[tuple[tuple[str, Syntax], ...]] = field(default_factory=list)
    runs: list[tuple[str, str, Syntax]] = field(default_factory=list)
    between: list[tuple[Mark, Piece, Piece]] = field(default_factory=list)

    def keep(self, text: str) -> None:
        """End the open segment, and add unchanged text."""
        self.end()
        if text:
            self.pieces.append(text)

    def mark(self, mark: Mark, raw: Piece, piece: Piece | None = None) -> None:
        """Add markup to the open segment.  piece: written instead of `raw` in a translated segment."""
        if len(self.runs) == len(self.between):
            self.runs.append(("", "", self.syntax))
        self.between.append((mark, raw, raw if piece is None else piece))

    def text(self, raw: str, syntax: Syntax | None = None) -> None:
        """Add text as it is written. A line goes on in the next one if that begins with a small letter."""
        syntax = syntax or self.syntax
        value, places = syntax.decoded(raw)
        end = 0
        for match in _SPLIT.finditer(value):
            self._run(raw[places[end] : places[match.start()]], value[end : match.start()], syntax)
            end = match.end()
            own = raw[places[match.start()] : places[end]]
            if match["line"]:
                if value[end : end + 1].islower():
                    self.mark(Mark.LINE_BREAK, own)
                else:
                    self.keep(own)
            elif match["tag"] and not _ALONE.match(match["tag"]):
                self.mark(Mark.CLOSING if match["tag"].startswith("</") else Mark.OPENING, own)
            else:
                self.mark(Mark.OBJECT, self._message(own, syntax) if _MESSAGE.match(own) else own)
        self._run(raw[places[end] :], value[end:], syntax)

    def _message(self, raw: str, syntax: Syntax) -> Piece:
        """Return a message of ICU, each text of which is a segment."""
        parts = re.split(r"([{}])", raw)
        depths = [*itertools.accumulate((parts[place] == "{") - (parts[place] == "}") for place in range(len(parts)))]
        pieces = list[Piece]()
        for inside, group in itertools.groupby(zip(depths, parts, strict=True), key=lambda part: part[0] > 1):
            text = "".join(part for _, part in group)
            pieces += self.inner(text[1:], syntax, text[0]) if inside else [text]
        return together(*pieces)

    def inner(self, raw: str, syntax: Syntax, before: str) -> list[Piece]:
        """Return the pieces of a text within markup, whose segments come before the open one."""
        builder = TextBuilder(self.encoded, syntax, segments=self.segments, written=self.written)
        builder.keep(before)
        builder.text(raw)
        builder.end()
        return builder.pieces

    def _run(self, raw: str, value: str, syntax: Syntax) -> None:
        if len(self.runs) > len(self.between):
            before = self.runs.pop()
            raw, value = before[0] + raw, before[1] + value
        self.runs.append((raw, value, syntax))

    def end(self) -> None:
        """Close the open segment. Without letters it stays unchanged text."""
        if not self.runs:
            return
        if len(self.runs) == len(self.between):
            self.runs.append(("", "", self.syntax))
        values = tuple(value for _, value, _ in self.runs)
        translated = has_letters("".join(values))
        for number, (raw, _, _) in enumerate(self.runs):
            self.pieces.append((len(self.segments), number) if translated else raw)
            if number < len(self.between):
                _, own, piece = self.between[number]
                self.pieces.append(piece if translated else own)
        if translated:
            self.segments.append(Segment(runs=values, marks=tuple(mark for mark, _, _ in self.between)))
            self.written.append(tuple((raw, syntax) for raw, _, syntax in self.runs))
            check_segments(len(self.segments))
        self.runs, self.between = [], []

    def changed(self, segments: Sequence[int]) -> Callable[[Sequence[Sequence[str]]], bool]:
        """Return a test whether one of the segments is translated."""
        return lambda runs: any(runs[each] is not self.segments[each].runs for each in segments)

    def copied(self, otherwise: str, first: int, begin: int) -> None:
        """End the open segment. Write the pieces from `begin` on only if a segment from `first` on is translated."""
        self.end()
        segments = range(first, len(self.segments))
        pieces = tuple(self.pieces[begin:])
        self.pieces[begin:] = [Choice(self.changed(segments), pieces, otherwise)] if segments else [otherwise]

    def file(
        self,
        encode: Callable[[str], bytes] | None = None,
        adjust: Callable[[Segment, Sequence[str]], Sequence[str]] = spaced,
        declare: Callable[[str, str], str] | None = None,
    ) -> MarkedText:
        """End the open segment, and return the file."""
        self.end()
        return MarkedText(
            pieces=tuple(self.pieces),
            segments=tuple(self.segments),
            written=tuple(self.written),
            encode=encode or self.encoded.encode,
            adjust=adjust,
            declare=declare,
        )


def read_entity(match: re.Match[str]) -> str:
    """Return the character of an entity; the entity itself if it is unknown."""
    return html.unescape(match.group())
