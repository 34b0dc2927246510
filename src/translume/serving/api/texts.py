"""Texts of a request as lines or sentences, and their translations joined again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.concurrency import run_in_threadpool

from translume.documents.html import HtmlText
from translume.documents.sentences import SplitSegments
from translume.serving.api.errors import refuse_more
from translume.serving.settings import Limits
from translume.serving.work import Paragraphs, Part
from translume.translator import TextHypothesis, Translation
from translume.translator.assembly import combinations
from translume.translator.constraints import places

SHORT: Final = 2000
"""Characters of texts that are split, and of responses that are written, by the event loop."""
Terms = Sequence[tuple[str, str]]
"""Pairs of a source and a target term."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A text that is HTML, split into sentences; used as `Paragraphs`."""

    html: HtmlText
    split: SplitSegments

    @classmethod
    def from_text(cls, text: str, language: str | None) -> "Page":
        """Parse HTML and split its visible text by the rules of a language."""
        html = HtmlText.from_string(text)
        return cls(html=html, split=SplitSegments.from_segments(html.segments, language))

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentences."""
        return self.split.lines

    @property
    def names(self) -> tuple[str, ...]:
        """Nothing for each sentence: error messages name only the text."""
        return ("",) * len(self.lines)

    def join(self, text: str, translations: Sequence[Translation], nbest: int) -> Translation:
        """Return the text with its sentences translated, with up to `nbest` combinations of their hypotheses."""
        combined = combinations([*translations], nbest)
        written = [self.html.with_runs([*self.split.join(each)]) for each in combined]
        return Translation(
            source=text, text=written[0], hypotheses=tuple(_only_text(each) for each in dict.fromkeys(written))
        )


def _only_text(text: str) -> TextHypothesis:
    """Return a hypothesis with only a text, or its prefix."""
    return TextHypothesis(text=text, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")


def _with_text(text: str) -> Translation:
    return Translation(source="", text=text, hypotheses=(_only_text(text),))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTexts:
    """The texts of a request.

    field: the field of the request that has them.  names: of each in error messages.
    language: the language whose rules split texts into sentences; None if texts are split into lines.
    constraints: phrases that the translation of each text must contain; empty if there are none.
    glossary: pairs of terms; the translation of a line with the first must contain the second.
    html: whether the texts are HTML.
    """

    texts: tuple[str, ...]
    field: str
    names: Sequence[str]
    language: str | None = None
    constraints: tuple[tuple[str, ...], ...] = ()
    glossary: Terms = ()
    html: bool = False

    def split(self, limits: Limits) -> "SplitTexts":
        """Split the texts into lines or sentences; RequestError (413) if there are too many.

        Texts of 1 MB with many short lines take seconds to split, so their lines are counted first.
        """
        if not self.html:
            self._check(sum(map(_lines_in, self.texts)), limits)
        paragraphs, count = list[Any](), 0
        for text in self.texts:
            paragraphs.append((Page if self.html else Paragraphs).from_text(text, self.language))
            count += len(paragraphs[-1].lines)
            self._check(count, limits)
        return SplitTexts(texts=self, paragraphs=tuple(paragraphs))

    def _check(self, count: int, limits: Limits) -> None:
        unit = " lines" if self.language is None else " sentences"
        refuse_more(self.field, count, unit, limits.lines, "too_many_lines")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTexts:
    """The texts of a request, split into lines or sentences.  paragraphs: `Paragraphs`, or a `Page`, of each text."""

    texts: RequestTexts
    paragraphs: tuple[Any, ...]

    @property
    def marked(self) -> bool:
        """Whether a sentence has markup."""
        return any(isinstance(each, Page) and each.split.marked for each in self.paragraphs)

    @property
    def parts(self) -> list[Part]:
        """The lines of all texts, in order."""
        constraints = self.texts.constraints or ((),) * len(self.paragraphs)
        return [
            Part(text=line, first=not place, constraints=(*phrases, *_terms_in(line, self.texts.glossary)))
            for each, of_text in zip(self.paragraphs, constraints, strict=True)
            for place, (line, phrases) in enumerate(zip(each.lines, _distributed(of_text, each.lines), strict=True))
        ]

    @property
    def names(self) -> list[str]:
        """The name of each line in error messages: that of its text, and its position if the text has several."""
        return [
            f"{name}: {inside}" if inside else name
            for name, each in zip(self.texts.names, self.paragraphs, strict=True)
            for inside in each.names
        ]

    def join(self, translations: Sequence[Translation], nbest: int) -> list[Translation]:
        """Return the translation of each text from those of all lines."""
        lines = iter(translations)
        return [
            each.join(text, [next(lines) for _ in each.lines], nbest)
            for text, each in zip(self.texts.texts, self.paragraphs, strict=True)
        ]

    def beginnings(self, prefixes: Sequence[str], done: Sequence[Translation | None]) -> Iterator[str]:
        """Yield the beginning of the translation of each text, from those of its first lines.

        prefixes: of the lines that are not done. Trailing white space is left out: it depends on what follows.
        """
        first = 0
        for text, each in zip(self.texts.texts, self.paragraphs, strict=True):
            last = first + len(each.lines)
            known = next((line + 1 for line in range(first, last) if done[line] is None), last)
            lines = [
                line if line is not None and not line.hypotheses else _with_text(prefix if line is None else line.text)
                for prefix, line in zip(prefixes[first:known], done[first:known], strict=True)
            ]
            if known < last:
                each = Paragraphs(lines=each.lines[: len(lines)], gaps=(*each.gaps[: len(lines)], ""))
            yield each.join(text, lines, 1).text.rstrip() if lines else ""
            first = last


async def in_thread(size: int, function: Callable[[], T]) -> T:
    """Return what a function returns, called in a thread unless it works on few characters: a thread takes longer."""
    return function() if size <= SHORT else await run_in_threadpool(function)


def field_names(field: str, count: int, *, several: bool) -> list[str]:
    """Return the name of each text of a field in error messages."""
    return [f"{field}[{place}]" for place in range(count)] if several else [field] * count


def _lines_in(text: str) -> int:
    """Return the number of lines that are not blank. The ends of lines are those of `Paragraphs`."""
    return sum(1 for line in text.replace("\r", "\n").split("\n") if line and not line.isspace())


def _terms_in(line: str, terms: Terms) -> tuple[str, ...]:
    """Return the target terms of the source terms that a line has as whole words, ignoring case."""
    folded = line.casefold() if terms else ""
    return tuple(dict.fromkeys(target for source, target in terms if places(source.casefold(), folded)))


def _distributed(phrases: Sequence[str], lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Assign each phrase to the first source line that contains it, ignoring case; otherwise to the first line."""
    assigned: list[list[str]] = [[] for _ in lines]
    for phrase in phrases if lines else ():
        place = next((place for place, line in enumerate(lines) if phrase.casefold() in line.casefold()), 0)
        assigned[place].append(phrase)
    return [tuple(each) for each in assigned]
