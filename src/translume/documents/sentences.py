"""Splitting lines and segments into sentences, and joining their translations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from translume.documents.markup_placement import Sentence, place_markup
from translume.documents.segments import Segment
from translume.text.segmentation import has_letters
from translume.text.sentences import sentences_of
from translume.translator import Translation


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
    def from_segments(cls, segments: Sequence[Segment], language: str | None) -> "SplitSegments":
        """Split segments by the rules of a language, a code or empty; with None, each segment is one sentence."""
        lines: list[str] = []
        places: list[tuple[_Place, ...]] = []
        for segment in segments:
            of_segment: list[_Place] = []
            begin = 0
            for sentence in [segment.text] if language is None else sentences_of(segment.text, language):
                text = sentence.rstrip()
                number = len(lines) if has_letters(text) else None
                if number is not None:
                    lines.append(text)
                of_segment.append(_Place(begin, begin + len(text), sentence[len(text) :], number))
                begin += len(sentence)
            places.append(tuple(of_segment))
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


Translate = Callable[[Sequence[str], bool], Iterable[Translation]]
"""Translates lines in order; with word alignment if the second argument is True."""


def translated_runs(
    segments: Sequence[Segment],
    language: str | None,
    translate: Translate,
    on_begin: Callable[[int], None] = lambda lines: None,
    *,
    in_order: bool = False,
) -> list[tuple[str, ...]]:
    """Return the runs of each segment in the target language.

    language: of the segments, a code; None if segments are not split into sentences.
    on_begin: called with the number of sentences before they are translated.
    Only segments with markup are translated with alignment, which takes longer.
    in_order: whether all are translated together, as the context of each other.
    """
    marked = [len(segment.runs) > 1 for segment in segments]
    if in_order:
        marked = [any(marked)] * len(marked)
    groups = {
        kind: SplitSegments.from_segments(
            [each for each, own in zip(segments, marked, strict=True) if own is kind], language
        )
        for kind in (False, True)
    }
    on_begin(sum(len(split.lines) for split in groups.values()))
    runs = {kind: iter([*split.join([*translate(split.lines, kind)])]) for kind, split in groups.items()}
    return [next(runs[kind]) for kind in marked]
