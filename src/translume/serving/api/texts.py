"""Texts of a request as the lines or sentences that are translated, and back."""

from collections.abc import Sequence
from dataclasses import dataclass

from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.workers.work import Paragraphs, Part
from translume.translator import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of a request, and the field that they came in.  several: whether as a list.

    language: of their sentences, which are translated one by one; with None, lines are.
    constraints: what the translation of each must hold; empty where none must hold anything.
    """

    texts: tuple[str, ...]
    field: str
    several: bool
    timeout_seconds: float
    language: str | None = None
    constraints: tuple[tuple[str, ...], ...] = ()

    def split(self, limits: Limits) -> "Split":
        """Their lines or sentences; RequestError (413) where they have too many."""
        paragraphs = tuple(Paragraphs.of(text, self.language) for text in self.texts)
        lines = sum(len(each.lines) for each in paragraphs)
        if lines > limits.lines:
            raise RequestError(
                413,
                f"{self.field}: found {lines:,} {'lines' if self.language is None else 'sentences'}, "
                f"wanted at most {limits.lines:,}",
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
        wanted = self.texts.constraints or ((),) * len(self.paragraphs)
        return [
            Part(text=line, first=not place, constraints=held)
            for each, phrases in zip(self.paragraphs, wanted, strict=True)
            for place, (line, held) in enumerate(zip(each.lines, _shared_out(phrases, each.lines), strict=True))
        ]

    @property
    def names(self) -> list[str]:
        """What errors call each line: the text's field, and the line or sentence in it where it has several."""
        field, several = self.texts.field, self.texts.several
        return [
            f"{name}: {inside}" if inside else name
            for place, each in enumerate(self.paragraphs)
            for name in (f"{field}[{place}]" if several else field,)
            for inside in each.names
        ]

    def join(self, done: Sequence[Translation], nbest: int) -> list[Translation]:
        """The translation of each text from those of all lines."""
        given = iter(done)
        return [
            each.join(text, [next(given) for _ in each.lines], nbest)
            for text, each in zip(self.texts.texts, self.paragraphs, strict=True)
        ]

    def begun(self, place: int, lines: Sequence[Translation]) -> str:
        """What the translation of the text at a place begins with, by those of its first lines.

        The last of these may itself be only what a translation begins with. White space at the end is left out: what
        follows decides about it.
        """
        each, count = self.paragraphs[place], len(lines)
        whole = count == len(each.lines)
        part = each if whole else Paragraphs(lines=each.lines[:count], gaps=(*each.gaps[:count], ""))
        return part.join(self.texts.texts[place], lines, 1).text.rstrip()


def _shared_out(phrases: Sequence[str], lines: Sequence[str]) -> list[tuple[str, ...]]:
    """What each line must hold: a phrase that stands in the source itself, as names do, there; others at first."""
    held: list[list[str]] = [[] for _ in lines]
    for phrase in phrases:
        place = next((place for place, line in enumerate(lines) if phrase.casefold() in line.casefold()), 0)
        if held:
            held[place].append(phrase)
    return [tuple(each) for each in held]
