"""Detect the language of a text with lingua, from statistics of its characters."""

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol

from translume.errors import SettingsError, nearest
from translume.text.sentences import iso_code

if TYPE_CHECKING:
    from lingua import Language, LanguageDetector

LONGEST: Final = 2000
"""Characters at the beginning of a text that detection reads."""
LONG_ENOUGH: Final = 20
"""Letters from which a text may be in a language that is not among those asked for."""
DOUBT: Final = 0.05
"""Largest probability of all the languages asked for together for such a text."""


class Detector(Protocol):
    """A language detector that several threads can share."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        """Return the most probable of the codes `among` with their probabilities, from 0 to 1, best first.

        Probabilities are normalised over these codes: no result means "another language". The list is empty if nothing
        can be detected.
        """


class Lingua:
    """The detector of lingua, from character statistics. It loads the tables of a language at its first use."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        """As `Detector.languages`. Languages that lingua does not know are never returned.

        Of two codes of one language, such as pt and pt-BR, only the first is returned.
        """
        codes: dict[str, str] = {}
        for code in among:
            codes.setdefault(iso_code(code), code)
        values = _lingua(frozenset(codes)).compute_language_confidence_values(text[:LONGEST])
        by_code = [(_code_of(each.language), each.value) for each in values]
        return [(codes[code], value) for code, value in by_code if code in codes and value > 0]

    def foreign(self, text: str, among: Sequence[str]) -> tuple[str, float] | None:
        """Return a code that is not `among` and its probability, if the text has hardly another language; else None.

        All languages that lingua knows are compared, by the tables that take 60 MB and not 1 GB. They are less exact:
        a short text counts only if no language of `among` has its script.
        """
        known = {iso_code(code) for code in among}
        values = _every().compute_language_confidence_values(text[:LONGEST])
        by_code = [(_code_of(each.language), each.value) for each in values]
        doubt = sum(value for code, value in by_code if code in known)
        letters = sum(map(str.isalpha, text[:LONGEST]))
        code, value = by_code[0]
        if value and code not in known and (doubt == 0 or (letters >= LONG_ENOUGH and doubt <= DOUBT)):
            return code, value
        return None

    def probability(self, text: str, code: str) -> float:
        """Return the probability, from 0 to 1, that a text is in a language, among all languages as for `foreign`.

        1 for a text without letters. Raises SettingsError for a language that lingua does not know.
        """
        language = _language_of(iso_code(code))
        if not any(map(str.isalpha, text)):
            return 1.0
        return float(_every().compute_language_confidence(text[:LONGEST], language))


def installed_detector() -> Detector | None:
    """Return the installed detector; None if there is none."""
    return Lingua() if find_spec("lingua") else None


@functools.cache
def _every() -> "LanguageDetector":
    """Return a detector of all languages that lingua knows, without its large tables."""
    from lingua import LanguageDetectorBuilder

    return LanguageDetectorBuilder.from_all_languages().with_low_accuracy_mode().build()


@functools.lru_cache(maxsize=4)
def _lingua(codes: frozenset[str]) -> "LanguageDetector":
    """Return a detector of some languages. lingua needs at least two: English and German fill up."""
    from lingua import Language, LanguageDetectorBuilder

    known = [each for each in Language.all() if _code_of(each) in codes]
    for other in (Language.ENGLISH, Language.GERMAN):
        if len(known) < 2 and other not in known:
            known.append(other)
    return LanguageDetectorBuilder.from_languages(*known).build()


def _code_of(language: "Language") -> str:
    return language.iso_code_639_1.name.lower()


@functools.cache
def _language_of(code: str) -> "Language":
    from lingua import Language

    languages = {_code_of(each): each for each in Language.all()}
    if code not in languages:
        raise SettingsError(f"no language '{code}' that can be detected{nearest(code, sorted(languages))}")
    return languages[code]
