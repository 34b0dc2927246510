"""Texts of a request as the lines that are translated, and back."""

from collections.abc import Sequence
from dataclasses import dataclass

from translume.serving.limits import Limits
from translume.serving.request_error import RequestError
from translume.serving.work import Paragraphs, Part
from translume.translator import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of a request, and the field that they came in.  several: whether as a list."""

    texts: tuple[str, ...]
    field: str
    several: bool
    timeout_seconds: float

    def split(self, limits: Limits) -> "Split":
        """Their lines; RequestError (413) where they have too many."""
        paragraphs = tuple(Paragraphs.of(text) for text in self.texts)
        lines = sum(len(each.lines) for each in paragraphs)
        if lines > limits.lines:
            raise RequestError(
                413,
                f"{self.field}: found {lines:,} lines, wanted at most {limits.lines:,}",
                code="too_many_lines",
                field=self.field,
            )
        return Split(texts=self, paragraphs=paragraphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Texts in lines."""

    texts: Texts
    paragraphs: tuple[Paragraphs, ...]

    @property
    def parts(self) -> list[Part]:
        """All lines, one text's after another's."""
        return [Part(text=line, first=not place) for each in self.paragraphs for place, line in enumerate(each.lines)]

    @property
    def names(self) -> list[str]:
        """What errors call each line: the text's field, and the line in it where it has several."""
        field, several = self.texts.field, self.texts.several
        return [
            f"{name}: line {number}" if len(each.lines) > 1 else name
            for place, each in enumerate(self.paragraphs)
            for name in (f"{field}[{place}]" if several else field,)
            for number, _ in enumerate(each.lines, start=1)
        ]

    def join(self, done: Sequence[Translation], nbest: int) -> list[Translation]:
        """The translation of each text from those of all lines."""
        given = iter(done)
        return [
            each.join(text, [next(given) for _ in each.lines], nbest)
            for text, each in zip(self.texts.texts, self.paragraphs, strict=True)
        ]

    def begun(self, done: Sequence[Translation], nbest: int) -> tuple[int, str]:
        """The place of the text that the last of some first lines belongs to, and what its translation begins with."""
        before = 0
        for place, each in enumerate(self.paragraphs):
            count = len(done) - before
            if count <= len(each.lines):
                part = Paragraphs(lines=each.lines[:count], gaps=(*each.gaps[:count], ""))
                return place, part.join(self.texts.texts[place], done[before:], nbest).text
            before += len(each.lines)
        raise ValueError(f"{len(done)} lines are done, and there are {before}")
