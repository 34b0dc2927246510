"""Every error that Translume raises on purpose.

A `TranslumeError` is one line for the person who can mend it: the place, what was found, what was wanted and, for a
misspelt word, the nearest known one. The command line prints it without a traceback and exits with code 1.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class TranslumeError(Exception):
    """Base of all deliberate errors; its text is one line."""


class SettingsError(TranslumeError):
    """A setting is unknown, missing, of the wrong type or out of range."""


class DataError(TranslumeError):
    """A file does not hold what it should, or cannot be read or written."""


class DocumentError(DataError):
    """A document (docx, HTML, subtitles, text) cannot be read."""


class ModelFolderError(TranslumeError):
    """A folder is not a model, is damaged, or was written by a newer Translume."""


class TrainingError(TranslumeError):
    """A run cannot go on: its loss is not finite, its folder is taken, its settings changed."""


class TranslationError(TranslumeError):
    """A text cannot be translated as asked."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'width'?` for a word near a known one, else `; known: …` with all of them."""
    names = list(known)
    close = get_close_matches(word, names, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(names)}"
