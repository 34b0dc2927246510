"""Texts and pairs of a file or a list, with the numbers that errors name them by."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from translume.errors import TranslationError
from translume.translator.plan import Line
from translume.translator.scoring import ScoredPair
from translume.translator.values import TextHypothesis


def numbered_lines(
    texts: Iterable[str], constraints: Iterable[Iterable[str]] | None = None
) -> Iterator[tuple[Line, int]]:
    """Texts as lines, counted from 1, with their sizes, as `windows` wants them; a break at an end is no part of it.

    constraints: of each text; None for none. Raises TranslationError unless there are as many of them as texts.
    """
    if constraints is None:
        for number, text in enumerate(texts, start=1):
            yield Line(number=number, text=_without_break(text)), len(text)
        return
    for number, (text, wanted) in enumerate(zip_longest(texts, constraints), start=1):
        if text is None or wanted is None:
            missing = "no text for the constraints" if text is None else "no constraints for the text"
            raise TranslationError(f"line {number}: found {missing}, wanted as many lists of constraints as texts")
        if isinstance(wanted, str):
            raise TypeError("constraints: found one text, wanted a list of texts")
        yield Line(number=number, text=_without_break(text), constraints=tuple(wanted)), len(text)


def _without_break(text: str) -> str:
    """A line of a file without its end."""
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _target(target: str | TextHypothesis) -> str | TextHypothesis:
    return _without_break(target) if isinstance(target, str) else target


def numbered_pairs(pairs: Iterable[tuple[str, str | TextHypothesis]]) -> Iterator[tuple[ScoredPair, int]]:
    """Pairs with their lines and sizes, as `windows` wants them."""
    for number, (source, target) in enumerate(pairs, start=1):
        yield ScoredPair(place=f"line {number}", source=_without_break(source), target=_target(target)), len(source)
