"""Subtitles (SubRip, WebVTT): each subtitle is a segment; numbers, times and other lines do not change.

A line with --> begins a subtitle; the next one, or its number, ends it. Files are not parsed further: libraries
reformat the times, and take very long for malicious files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.segments import Mark, Segment, check_markup, check_segments
from translume.errors import DocumentError

_TIMES: Final = re.compile(r"\s{0,20}[\d:.,]{4,20} {0,9}-->\s{0,9}[\d:.,]{4,20}(?:\s|$)")
_NUMBER: Final = re.compile(r"\s{0,20}\d{1,9}\s*")
_TAG: Final = re.compile(r"(</?[A-Za-z][^<>]{0,200}>|<[\d:.]{4,20}>|\{\\[^{}]{0,200}\})")
_SPEAKER: Final = re.compile(r"\s*+(?:<[^<>]{0,200}>|\{\\[^{}]{0,200}\})*+\s*+[-–—]\s*+")
_BLOCKS: Final = ("NOTE", "STYLE", "REGION")
"""First words of other blocks of WebVTT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtitles:
    """A file of subtitles.  pieces: unchanged text, or (segment, run)."""

    encoded: EncodedText
    pieces: tuple[str | tuple[int, int], ...]
    segments: tuple[Segment, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Subtitles":
        """Read the subtitles of a file; DocumentError if it is not empty but has none, or too many."""
        encoded = EncodedText.from_bytes(data)
        check_markup(encoded.text.count("<") + encoded.text.count("{"))
        lines = encoded.text.splitlines(keepends=True)
        check_segments(len(lines))
        times = [number for number, line in enumerate(lines) if "-->" in line and _TIMES.match(line)]
        if not times and encoded.text.strip():
            raise DocumentError("found no line with times, such as 00:00:01,000 --> 00:00:02,500")
        reader, web = _Reader(), lines[:1] != [] and lines[0].startswith("WEBVTT")
        end = 0
        for place, number in enumerate(times):
            reader.pieces += lines[end : number + 1]
            end = _end(lines, number + 1, times[place + 1] if place + 1 < len(times) else len(lines), web=web)
            reader.shown(lines[number + 1 : end])
        reader.pieces += lines[end:]
        return cls(encoded=encoded, pieces=tuple(reader.pieces), segments=tuple(reader.segments))

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """Return the file with other texts."""
        return self.encoded.encode(
            "".join(piece if isinstance(piece, str) else runs[piece[0]][piece[1]] for piece in self.pieces)
        )


def _end(lines: Sequence[str], begin: int, following: int, *, web: bool) -> int:
    """Return the end of a subtitle's lines.  following: line with the times of the next subtitle.

    web: whether the format is WebVTT, where a blank line ends a subtitle and any text may be its identifier.
    """
    if web:
        return next((number for number in range(begin, following) if not lines[number].strip()), following)
    end = following
    if following < len(lines) and following - 1 > begin - 1 and _NUMBER.fullmatch(lines[following - 1]):
        end = following - 1
    for number in range(begin + 1, end):
        if not lines[number - 1].strip() and lines[number].startswith(_BLOCKS):
            return number
    return max(begin, end)


@dataclass(slots=True)
class _Reader:
    pieces: list[str | tuple[int, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def shown(self, lines: Sequence[str]) -> None:
        """Read the lines of one subtitle. Sentences continue across lines, but not across speakers."""
        begin = 0
        for number in range(1, len(lines) + 1):
            if number == len(lines) or not lines[number].strip() or _SPEAKER.match(lines[number]):
                self._segment(lines[begin:number])
                begin = number

    def _segment(self, lines: Sequence[str]) -> None:
        speaker = _SPEAKER.match(lines[0])
        if speaker:
            self.pieces.append(speaker.group())
            lines = [lines[0][speaker.end() :], *lines[1:]]
        runs, between = [""], []
        for number, line in enumerate(lines):
            text = line.rstrip("\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
            for place, part in enumerate(_TAG.split(text)):
                if place % 2:
                    between.append((Mark.CLOSING if part.startswith("</") else Mark.OPENING, part))
                    runs.append("")
                else:
                    runs[-1] += part
            if number + 1 < len(lines):
                between.append((Mark.LINE_BREAK, line[len(text) :]))
                runs.append("")
            else:
                last = line[len(text) :]
        segment = Segment(runs=tuple(runs), marks=tuple(mark for mark, _ in between))
        for number, run in enumerate(runs):
            self.pieces.append((len(self.segments), number) if segment.has_letters else run)
            if number < len(between):
                self.pieces.append(between[number][1])
        self.pieces.append(last)
        if segment.has_letters:
            self.segments.append(segment)


FORMS = ("txt", "srt", "vtt", "json")
"""Plain text with a line for each segment; SubRip; WebVTT; the translation with its segments as JSON."""
