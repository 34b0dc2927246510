"""Subtitles (SubRip, WebVTT): each subtitle is a segment; numbers, times and other lines do not change.

A line with --> begins a subtitle; the next one, or its number, ends it. Files are not parsed further: libraries
reformat the times, and take very long for malicious files. The lines of a translated subtitle are divided again.
"""

import html
import itertools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.segments import Mark, Segment, check_markup, check_segments
from translume.errors import DocumentError
from translume.text.segmentation import WITHOUT_SPACES
from translume.text.sentences import iso_code

_TIME: Final = r"[\d:.,]{4,20}(?:[ \t]{1,3}\d{1,3}(?=\s))?"
_TIMES: Final = re.compile(rf"\s{{0,20}}{_TIME}\s{{0,9}}-->\s{{0,9}}{_TIME}(?:\s|$)")
_ARROW: Final = re.compile(r"\s{0,20}-?\d[^\n]{0,40}?(?:-->|--?>|=>|→|⟶|[–—]>|--&gt;)\s{0,9}-?\d")
"""A line that looks like times, but cannot be read."""
_NUMBER: Final = re.compile(r"\s{0,20}\d{1,9}\s*")
_TAG: Final = re.compile(
    r"(<rt(?:[.\s][^<>]{0,200})?>[^<>\n]{0,200}(?:</rt>)?|</?[A-Za-z][^<>]{0,200}>|<[\d:.]{4,20}>|\{\\[^{}]{0,200}\})"
)
"""A tag, or the reading of ruby text."""
_LANGUAGE: Final = re.compile(r"WEBVTT[^\n]*\n(?:[^\n]+\n){0,20}?Language:[ \t]*(\S+)")
"""The language of a file in its header."""
_SPEAKER: Final = re.compile(r"\s*+(?:<[^<>]{0,200}>|\{\\[^{}]{0,200}\})*+\s*+[-–—‐−](?!\s?\d)\s*+")
_BLOCKS: Final = ("NOTE", "STYLE", "REGION")
"""First words of other blocks of WebVTT."""
_ENDS: Final = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
FARTHEST: Final = 0.6
"""How far from its best place a line may end, as a share of a line."""
_NEVER_FIRST: Final = frozenset("。、，．！？：；・…ー」』）】》〉］”’)]}.,!?:;%")
_NEVER_LAST: Final = frozenset("「『（【《〈［“‘([{")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cue:
    """The lines of a segment.  raw: its runs as they are written.  width: of the longest line."""

    raw: tuple[str, ...]
    lines: int
    width: int
    newline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtitles:
    """A file of subtitles.  pieces: unchanged text, or (segment, run).  web: whether it is WebVTT."""

    encoded: EncodedText
    pieces: tuple[str | tuple[int, int], ...]
    segments: tuple[Segment, ...]
    cues: tuple[_Cue, ...]
    web: bool
    warnings: tuple[str, ...] = ()

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
        reader = _Reader(web=lines[:1] != [] and lines[0].startswith("WEBVTT"))
        read, warnings = set(times), list[str]()
        for number, line in enumerate(lines):
            if number not in read and _ARROW.match(line):
                warnings.append(f"line {number + 1}: the times cannot be read, so its subtitle is not translated")
                times.append(number)
        times.sort()
        end = 0
        for place, number in enumerate(times):
            reader.pieces += lines[end : number + 1]
            end = _end(lines, number + 1, times[place + 1] if place + 1 < len(times) else len(lines), web=reader.web)
            if number in read:
                reader.shown(lines[number + 1 : end])
            else:
                reader.pieces += lines[number + 1 : end]
        reader.pieces += lines[end:]
        return cls(
            encoded=encoded,
            pieces=tuple(reader.pieces),
            segments=tuple(reader.segments),
            cues=tuple(reader.cues),
            web=reader.web,
            warnings=tuple(warnings),
        )

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """Return the file with other texts."""
        written = [
            cue.raw if tuple(texts) == segment.runs else self._written(cue, segment, texts)
            for cue, segment, texts in zip(self.cues, self.segments, runs, strict=True)
        ]
        text = "".join(piece if isinstance(piece, str) else written[piece[0]][piece[1]] for piece in self.pieces)
        header = _LANGUAGE.match(text) if language and self.web else None
        if header and iso_code(header[1]) != iso_code(language):
            text = f"{text[: header.start(1)]}{language}{text[header.end(1) :]}"
        return self.encoded.encode(text)

    def _written(self, cue: _Cue, segment: Segment, texts: Sequence[str]) -> Sequence[str]:
        """Return the runs of a subtitle, in as many lines as in the source at most, and without a second arrow."""
        texts = [_LINE_END.sub(" ", text) for text in texts]
        texts = in_lines(texts, segment.marks, cue)
        if self.web:
            return [html.escape(text, quote=False) for text in texts]
        return [text.replace("-->", "->") for text in texts]


_LINE_END: Final = re.compile(rf"\s*[{_ENDS}]\s*")


def in_lines(texts: Sequence[str], marks: Sequence[Mark], cue: _Cue) -> list[str]:
    """Return runs in lines of similar length: one line if it is no longer than the longest of the source.

    Lines end at spaces, or between characters of scripts without spaces, and before tags rather than behind them. The
    last one has more than digits, since players take a number before a blank line for that of the next subtitle.
    """
    text = "".join(texts)
    size = len(text.strip())
    if cue.lines < 2 or _width(text.strip()) <= cue.width:
        return list(texts)
    digits = len(text.rstrip().rstrip("0123456789").rstrip())
    places = [place for place in range(1, digits) if _may_end(text, place)]
    begin = len(text) - len(text.lstrip())
    ends = [*itertools.accumulate(map(len, texts), initial=0)]
    cuts: dict[int, list[int]] = {}
    last = len(places)
    for line in range(cue.lines - 1, 0, -1):
        wanted = begin + size * line / cue.lines
        nearest = bisect_left(places, wanted, 0, last)
        around = [each for each in (nearest - 1, nearest) if 0 <= each < last]
        chosen = min(around, key=lambda each: abs(places[each] - wanted), default=None)
        if chosen is None or abs(places[chosen] - wanted) > size / cue.lines * FARTHEST:
            continue
        last, place = chosen, places[chosen]
        # A tag that opens here begins the next line; one that closes here ends this one.
        run = bisect_left(ends, place) - 1
        closes = place == ends[run + 1] and run < len(marks) and marks[run] is Mark.CLOSING and text[place] != " "
        cuts.setdefault(run + closes, []).append(place)
    runs: list[str] = []
    for run, (written, first) in enumerate(zip(texts, ends, strict=False)):
        edges = [first, *reversed(cuts.get(run, [])), first + len(written)]
        parts = [text[one:two] for one, two in itertools.pairwise(edges)]
        begins = run > 0 and runs[-1].endswith(cue.newline)
        parts = [part.lstrip(" ") if number or begins else part for number, part in enumerate(parts)]
        parts = [*(part.rstrip(" ") for part in parts[:-1]), parts[-1]]
        runs.append(cue.newline.join(parts))
    return runs


def _width(text: str) -> int:
    """Return the width of a text in letters; those of Chinese and the like are twice as wide."""
    return len(text) + sum(1 for _ in WITHOUT_SPACES.finditer(text))


def _may_end(text: str, place: int) -> bool:
    """Return whether a line may end before a character."""
    before, after = text[place - 1], text[place]
    if after == " ":
        return not before.isspace() and place + 1 < len(text)
    joined = after in _NEVER_FIRST or before in _NEVER_LAST or before.isspace()
    return not joined and WITHOUT_SPACES.match(before) is not None and WITHOUT_SPACES.match(after) is not None


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


def _mark(tag: str) -> Mark:
    if re.match(r"<rt[.\s>]", tag):
        return Mark.ATTACHED
    return Mark.CLOSING if tag.startswith("</") else Mark.OPENING


@dataclass(slots=True)
class _Reader:
    web: bool
    pieces: list[str | tuple[int, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    cues: list[_Cue] = field(default_factory=list)

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
        text = "".join(lines)
        last = text[len(text.rstrip(_ENDS)) :]
        parts = _TAG.split(text[: len(text) - len(last)])
        raw, tags = tuple(parts[::2]), parts[1::2]
        segment = Segment(
            runs=tuple(map(html.unescape, raw)) if self.web else raw,
            marks=tuple(map(_mark, tags)),
        )
        for number, run in enumerate(raw):
            self.pieces.append((len(self.segments), number) if segment.has_letters else run)
            self.pieces += tags[number : number + 1]
        self.pieces.append(last)
        if segment.has_letters:
            shown = _TAG.sub("", text).rstrip(_ENDS).splitlines()
            ending = lines[0][len(lines[0].rstrip(_ENDS)) :] or "\n"
            width = max(_width(line.strip()) for line in shown)
            self.segments.append(segment)
            self.cues.append(_Cue(raw=raw, lines=len(shown), width=width, newline=ending))
