"""Texts and pairs of a file or a list, with the numbers that errors name them by."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

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
            yield Line(number=number, text=_without_break(text, number)), len(text)
        return
    nothing: Any = object()
    for number, (text, wanted) in enumerate(zip_longest(texts, constraints, fillvalue=nothing), start=1):
        if text is nothing or wanted is nothing:
            missing = "no text for the constraints" if text is nothing else "no constraints for the text"
            raise TranslationError(f"line {number}: found {missing}, wanted as many lists of constraints as texts")
        if isinstance(wanted, str):
            raise TypeError("constraints: found one text, wanted a list of texts")
        yield Line(number=number, text=_without_break(text, number), constraints=tuple(wanted)), len(text)


def _without_break(text: str, number: int) -> str:
    """A line of a file without its end. Raises TypeError for what is no text: bytes, None, a list of texts."""
    if not isinstance(text, str):
        raise TypeError(f"line {number}: found {type(text).__name__}, wanted a text (str)")
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _target(target: str | TextHypothesis, number: int) -> str | TextHypothesis:
    return target if isinstance(target, TextHypothesis) else _without_break(target, number)


def numbered_pairs(pairs: Iterable[tuple[str, str | TextHypothesis]]) -> Iterator[tuple[ScoredPair, int]]:
    """Pairs with their lines and sizes, as `windows` wants them."""
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"line {number}: found {_shown(pair)}, wanted a pair of a source and a target")
        source, target = pair
        source = _without_break(source, number)
        yield ScoredPair(place=f"line {number}", source=source, target=_target(target, number)), len(source)


def _shown(pair: Sequence[object]) -> str:
    return "one text" if isinstance(pair, str) else f"{len(pair)} of them"
