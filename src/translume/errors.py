"""The exceptions that Translume raises deliberately.

The message of a `TranslumeError` is one line: the place, the value found, the value expected and, for a misspelt name,
the nearest valid one. The command line prints it without a traceback and exits with code 1.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class TranslumeError(Exception):
    """Base class of all deliberate errors. The message is one line."""


class SettingsError(TranslumeError):
    """A setting is unknown, missing, of the wrong type or out of range."""


class DataError(TranslumeError):
    """A file has invalid content, or cannot be read or written."""


class DocumentError(DataError):
    """A document (docx, HTML, subtitles, text) cannot be read."""


class ModelFolderError(TranslumeError):
    """A folder is not a model, is damaged, or was written by a newer Translume."""


class TrainingError(TranslumeError):
    """Training cannot continue: the loss is not finite, the folder is in use, or settings have changed."""


class TranslationError(TranslumeError):
    """A text cannot be translated with the given settings."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'width'?" for a misspelt known word, otherwise "; known: …" with all known words."""
    names = list(known)
    close = get_close_matches(word, names, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(names)}"
