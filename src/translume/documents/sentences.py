"""Splitting lines and segments into sentences, and joining their translations."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import sentencex

from translume.documents.markup_placement import Sentence, place_markup
from translume.documents.segments import Segment, has_letters
from translume.translator import Translation
from translume.translator.planning import split_sentences

LONGEST = 20_000
"""Longest line, in characters, that sentencex splits; longer ones are split by our own rules."""
MOST_QUOTES = 6_000_000
"""Largest product of a line's opening quotes and characters for sentencex, whose time grows with it (5 ms here)."""
_QUOTES = re.compile("[«‹“„‘「『]")
_OTHER_SPACE = re.compile(r"[^\S ]")
OTHER_CODES: Final = {"pb": "pt", "zt": "zh", "no": "nb"}
"""Language codes of clients that are not ISO 639-1, or that lingua names differently."""


def iso_code(code: str) -> str:
    """Return the ISO 639-1 code in a code such as zh-Hans."""
    short = code.lower().replace("_", "-").partition("-")[0]
    return OTHER_CODES.get(short, short)


def sentences_of(line: str, language: str = "") -> list[str]:
    """Split a line into sentences, each with the white space after it; concatenated they are the line.

    language: a code; English for an empty or unknown one.  A blank line is one sentence.
    """
    if len(line) > LONGEST or len(_QUOTES.findall(line)) * len(line) > MOST_QUOTES:
        found = [sentence + spacing for sentence, spacing in split_sentences(line)]
    else:
        found = _by_sentencex(line, language)
    merged: list[str] = []
    for sentence in found:
        if merged and not (sentence.strip() and merged[-1].strip()):
            merged[-1] += sentence
        else:
            merged.append(sentence)
    return merged if "".join(merged) == line and merged else [line]


def _by_sentencex(line: str, language: str) -> list[str]:
    try:
        # White space other than a plain space can make sentencex panic, such as "\u2028X. " in version 1.0.32.
        found = sentencex.segment(iso_code(language) or "en", _OTHER_SPACE.sub(" ", line))
    except BaseException as error:
        # A panic of the native library is not an Exception, and must not end the server.
        if type(error).__name__ != "PanicException":
            raise
        return [line]
    sentences, begin = [], 0
    for sentence in found:
        sentences.append(line[begin : begin + len(sentence)])
        begin += len(sentence)
    return sentences


@dataclass(frozen=True, slots=True)
class _Place:
    """A sentence of a segment.  line: its index in `SplitSegments.lines`; None if it has no letters."""

    begin: int
    end: int
    spacing: str
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSegments:
    """Segments split into sentences.  lines: the sentences with letters, in order.  places: all of each segment."""

    segments: tuple[Segment, ...]
    lines: tuple[str, ...]
    places: tuple[tuple[_Place, ...], ...]

    @classmethod
    def of(cls, segments: Sequence[Segment], language: str, *, split: bool = True) -> "SplitSegments":
        """Split segments by the rules of a language; if `split` is False, each segment is one sentence."""
        lines: list[str] = []
        places: list[tuple[_Place, ...]] = []
        for segment in segments:
            found: list[_Place] = []
            begin = 0
            for sentence in sentences_of(segment.text, language) if split else [segment.text]:
                text = sentence.rstrip()
                number = len(lines) if has_letters(text) else None
                if number is not None:
                    lines.append(text)
                found.append(_Place(begin, begin + len(text), sentence[len(text) :], number))
                begin += len(sentence)
            places.append(tuple(found))
        return cls(segments=tuple(segments), lines=tuple(lines), places=tuple(places))

    @property
    def marked(self) -> bool:
        """Whether a segment has markup, whose placement needs word alignment."""
        return any(len(segment.runs) > 1 for segment in self.segments)

    def join(self, done: Sequence[Translation]) -> Iterator[tuple[str, ...]]:
        """Yield the runs of each translated segment from the translations of all `lines`."""
        for segment, places in zip(self.segments, self.places, strict=True):
            yield place_markup(segment, [_sentence(segment, place, done) for place in places])


def _sentence(segment: Segment, place: _Place, done: Sequence[Translation]) -> Sentence:
    source = segment.text[place.begin : place.end]
    target = source if place.line is None else done[place.line].text
    links: tuple[tuple[int, int], ...] = ()
    word_links: tuple[tuple[int, int, int, int], ...] = ()
    if target == source:
        links = tuple((word, word) for word in range(len(source.split())))
    elif place.line is not None:
        hypotheses = done[place.line].hypotheses
        alignment = hypotheses[0].alignment if hypotheses else None
        if alignment is not None:
            links = alignment.links
            fits = alignment.word_links and alignment.word_links[-1][3] == len(target.rstrip())
            word_links = alignment.word_links if fits else ()
    return Sentence(
        begin=place.begin, end=place.end, spacing=place.spacing, target=target, links=links, word_links=word_links
    )
