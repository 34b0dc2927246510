"""--attribution: one more method, by which what each source token says is worked out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from translume.errors import SettingsError, nearest

Method = TypeVar("Method", bound=str)


def methods_told(told: str | None, known: Sequence[Method]) -> list[Method]:
    """The method that --attribution names among the known ones, or none; SettingsError where there is no such."""
    if told is not None and told not in known:
        raise SettingsError(f"attribution: found '{told}'{nearest(told, known)}")
    return [each for each in known if each == told]


@contextmanager
def blaming_attribution() -> Iterator[None]:
    """A method that cannot be worked out is refused by the option's name, not by that of the function's argument."""
    try:
        yield
    except SettingsError as error:
        text = str(error)
        raise SettingsError(f"attribution: {text[6:]}" if text.startswith("show: ") else text) from None
