"""Languages of a request: their names and codes, the model for a pair, and detection of the source language."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.concurrency import run_in_threadpool

from translume.documents.sentences import iso_code
from translume.serving.api.errors import RequestError
from translume.serving.server import Server
from translume.serving.workers.models import Served

if TYPE_CHECKING:
    from lingua import Language, LanguageDetector

NAMES: Final = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "eo": "Esperanto",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "ga": "Irish",
    "gl": "Galician",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mk": "Macedonian",
    "ms": "Malay",
    "nb": "Norwegian Bokmål",
    "nl": "Dutch",
    "nn": "Norwegian Nynorsk",
    "pl": "Polish",
    "pt": "Portuguese",
    "pt-br": "Portuguese (Brazil)",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "th": "Thai",
    "tl": "Tagalog",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh-hans": "Chinese",
    "zh-hant": "Chinese (traditional)",
}
PUBLIC: Final = {
    "pb": "pt-BR",
    "pt-br": "pt-BR",
    "zh": "zh-Hans",
    "zh-hans": "zh-Hans",
    "zt": "zh-Hant",
    "zh-hant": "zh-Hant",
}
"""Codes that clients know by another form."""
LONGEST: Final = 2000
"""Characters at the beginning of a text that detection reads."""
UNKNOWN: Final[dict[str, Any]] = {"confidence": 0.0, "language": "en"}
"""The result for a text without a language."""
MOST_DETECTED: Final = 3


def public(code: str) -> str:
    """Return a language code in the form that clients know."""
    return PUBLIC.get(code.lower(), code)


def name_of(code: str) -> str:
    """Return a language's English name, or the code if the name is unknown."""
    return NAMES.get(public(code).lower(), code)


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
        found = [(_code_of(each.language), each.value) for each in values]
        return [(codes[code], value) for code, value in found if code in codes and value > 0]


def installed_detector() -> Detector | None:
    """Return the installed detector; None if there is none."""
    try:
        import lingua  # noqa: F401
    except ModuleNotFoundError:
        return None
    return Lingua()


def between(server: Server, source: str, target: str) -> Served:
    """Return the model from one language to another; RequestError (400) in LibreTranslate's words if there is none."""
    known = {public(code).lower(): code for code in server.models.sources()}
    for name, code in (("source", source), ("target", target)):
        if public(code).lower() not in known:
            short = code if len(code) <= 40 else f"{code[:39]}…"
            raise RequestError(400, f"{short} is not supported", code="unknown_language", field=name)
    source, target = known[public(source).lower()], known[public(target).lower()]
    found = server.models.between(source, target)
    if found is None:
        reason = f"{name_of(target)} ({target}) is not available as a target language from {name_of(source)} ({source})"
        raise RequestError(400, reason, code="unknown_pair", field="target")
    return found


async def detect_source(texts: Sequence[str], target: str, server: Server, detector: Detector | None) -> dict[str, Any]:
    """Return the most probable source language of all texts and its confidence, as LibreTranslate writes it.

    If nothing can be detected, that is a language with a model into `target`, English first.
    """
    found = await detect("\n".join(texts), server, detector)
    if found:
        return found[0]
    sources = server.models.sources()
    code = public(target).lower()
    into = [source for source, targets in sources.items() if code in (public(each).lower() for each in targets)]
    first = UNKNOWN["language"] if UNKNOWN["language"] in into or not into else into[0]
    return {**UNKNOWN, "language": public(first)}


async def detect(text: str, server: Server, detector: Detector | None) -> list[dict[str, Any]]:
    """Return the most probable of the server's languages for a text, best first; empty if the text has no letters."""
    if not any(character.isalpha() for character in text):
        return []
    if detector is None:
        raise RequestError(
            501,
            "this server cannot detect languages; name the source language, "
            "or have its operator run pip install 'translume[detect]'",
            code="no_detection",
            field="source",
        )
    found = await run_in_threadpool(detector.languages, text, list(server.models.sources()))
    best = [{"confidence": round(100 * probability, 1), "language": public(code)} for code, probability in found]
    return best[:MOST_DETECTED]


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
