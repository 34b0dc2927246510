"""What tells the language of a text."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from translume.documents.sentences import iso_code

if TYPE_CHECKING:
    from lingua import Language, LanguageDetector

LONGEST = 2000
"""Characters from the beginning of a text by which it is known."""


class Detector(Protocol):
    """Tells languages. Safe to call from several threads."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        """Of the codes `among`, the likeliest with their probabilities, from 0 to 1, best first.

        Probabilities are shared among these codes: none says that the text is in no other language. Empty where
        nothing can be said.
        """


class Lingua:
    """The detector of lingua, by the statistics of letters; its tables are read when a language is first asked for."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        """As `Detector` says; codes of languages that lingua does not know are never found.

        Of two codes of one language, such as pt and pt-BR, the first one is.
        """
        codes: dict[str, str] = {}
        for code in among:
            codes.setdefault(iso_code(code), code)
        values = _detector(frozenset(codes)).compute_language_confidence_values(text[:LONGEST])
        found = [(_code_of(each.language), each.value) for each in values]
        return [(codes[code], value) for code, value in found if code in codes and value > 0]


def installed_detector() -> Detector | None:
    """The detector that is installed; None where none is."""
    try:
        import lingua  # noqa: F401
    except ModuleNotFoundError:
        return None
    return Lingua()


@functools.lru_cache(maxsize=4)
def _detector(codes: frozenset[str]) -> "LanguageDetector":
    """A detector of some languages, and of English and German besides where it would have less than two."""
    from lingua import Language, LanguageDetectorBuilder

    known = [each for each in Language.all() if _code_of(each) in codes]
    for other in (Language.ENGLISH, Language.GERMAN):
        if len(known) < 2 and other not in known:
            known.append(other)
    return LanguageDetectorBuilder.from_languages(*known).build()


def _code_of(language: "Language") -> str:
    return language.iso_code_639_1.name.lower()
