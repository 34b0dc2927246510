"""Translation of a document as a whole."""

from collections.abc import Callable, Iterable, Sequence

from translume.documents.segments import Segment
from translume.documents.sentences import SplitSegments
from translume.translator import Translation

Translate = Callable[[Sequence[str], bool], Iterable[Translation]]
"""Translates lines in order; with word alignment if the second argument is True."""


def translated_runs(
    segments: Sequence[Segment],
    language: str | None,
    translate: Translate,
    on_begin: Callable[[int], None] = lambda lines: None,
) -> list[tuple[str, ...]]:
    """Return the runs of each segment in the target language.

    language: of the segments, a code; None if segments are not split into sentences.
    on_begin: called with the number of sentences before they are translated.
    Only segments with markup are translated with alignment, which takes longer.
    """
    marked = [len(segment.runs) > 1 for segment in segments]
    groups = {
        kind: SplitSegments.of([each for each, own in zip(segments, marked, strict=True) if own is kind], language)
        for kind in (False, True)
    }
    on_begin(sum(len(split.lines) for split in groups.values()))
    runs = {kind: iter([*split.join([*translate(split.lines, kind)])]) for kind, split in groups.items()}
    return [next(runs[kind]) for kind in marked]
