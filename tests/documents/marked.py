"""Checks of text files whose translations a stand-in makes up."""

import re
from collections.abc import Callable, Iterator

from tests.documents.test_markup_placement import changed

from translume.documents import FORMATS
from translume.documents.marked_text import PLACEHOLDERS

CHANGES: dict[str, Callable[[str], str]] = {
    "longer": lambda text: f"{text} and more",
    "shorter": lambda text: text.split()[0],
    "reordered": lambda text: " ".join(reversed(text.split())),
    "merged": lambda text: text.replace(" ", "-"),
    "split": lambda text: ". ".join(text.split()),
    "without spaces": lambda text: "漢字。" * len(text.split()),
    "hostile": lambda text: f"# {text} * \" ' \\ & < > ]]> _x_ `",
}


def translated(suffix: str, text: str, change: Callable[[str], str] = str.upper) -> str:
    """Return a file with other texts, after checking that the same texts give the same file."""
    data = text.encode()
    document = FORMATS[suffix].read(data)
    assert document.with_runs([segment.runs for segment in document.segments]) == data
    return bytes(changed(FORMATS[suffix].read(data), change)).decode()


def variants(suffix: str, text: str) -> Iterator[str]:
    """Yield the file in translations of all kinds, after checking that they have each placeholder once."""
    for change in CHANGES.values():
        found = translated(suffix, text, change)
        assert sorted(placeholders(found)) == sorted(placeholders(translated(suffix, text)))
        yield found


def placeholders(text: str) -> list[str]:
    """Return the placeholders in a text, in order."""
    return [each for each in re.findall(PLACEHOLDERS, text) if each[0] in "{$%"]
