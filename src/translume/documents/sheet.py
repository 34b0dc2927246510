"""All sentences of some segments, to be translated in any company, and back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from translume.documents.placing import Sentence, placed
from translume.documents.segment import Segment, speaks
from translume.documents.sentences import sentences_of
from translume.translator import Translation


@dataclass(frozen=True, slots=True)
class _Place:
    """A sentence of a segment.  line: its number among those that are translated; None for one without letters."""

    begin: int
    end: int
    spacing: str
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The sentences of segments.  lines: those that have letters, in order; `places` are all of each segment's."""

    segments: tuple[Segment, ...]
    lines: tuple[str, ...]
    places: tuple[tuple[_Place, ...], ...]

    @classmethod
    def of(cls, segments: Sequence[Segment], language: str, *, split: bool = True) -> "Sheet":
        """The sentences of segments in a language; with `split` False each segment is one."""
        lines: list[str] = []
        places: list[tuple[_Place, ...]] = []
        for segment in segments:
            found: list[_Place] = []
            begin = 0
            for sentence in sentences_of(segment.text, language) if split else [segment.text]:
                text = sentence.rstrip()
                number = len(lines) if speaks(text) else None
                if number is not None:
                    lines.append(text)
                found.append(_Place(begin, begin + len(text), sentence[len(text) :], number))
                begin += len(sentence)
            places.append(tuple(found))
        return cls(segments=tuple(segments), lines=tuple(lines), places=tuple(places))

    @property
    def marked(self) -> bool:
        """Whether anything in it has marks, so that it helps to know which words belong together."""
        return any(len(segment.runs) > 1 for segment in self.segments)

    def joined(self, done: Sequence[Translation]) -> Iterator[tuple[str, ...]]:
        """The runs of each translated segment, from the translations of all `lines`."""
        for segment, places in zip(self.segments, self.places, strict=True):
            yield placed(segment, [_sentence(segment, place, done) for place in places])


def _sentence(segment: Segment, place: _Place, done: Sequence[Translation]) -> Sentence:
    source = segment.text[place.begin : place.end]
    target = source if place.line is None else done[place.line].text
    links: tuple[tuple[int, int], ...] = ()
    if target == source:
        links = tuple((word, word) for word in range(len(source.split())))
    elif place.line is not None:
        hypotheses = done[place.line].hypotheses
        alignment = hypotheses[0].alignment if hypotheses else None
        links = alignment.links if alignment is not None else ()
    return Sentence(begin=place.begin, end=place.end, spacing=place.spacing, target=target, links=links)
