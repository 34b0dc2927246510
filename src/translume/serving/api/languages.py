"""Languages of a request: the model for a pair, and detection of the source language."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from translume.documents.html import HtmlText
from translume.serving.api.errors import RequestError, field_error
from translume.serving.api.language_codes import find_language
from translume.serving.api.language_codes import name_of as name_of
from translume.serving.server import Server
from translume.text.detection import Detector, Lingua

UNKNOWN: Final[dict[str, Any]] = {"confidence": 0.0, "language": "en"}
"""The result for a text without a language."""
MAX_DETECTED: Final = 3


def between(server: Server, source: str, target: str) -> Any:
    """Return the model from one language to another; None if both are the same language.

    Raises RequestError (400) as `route`, and for languages that two models translate.
    """
    models = route(server, source, target)
    if len(models) > 1:
        raise _no_pair(source, target)
    return models[0] if models else None


def route(server: Server, source: str, target: str) -> list[Any]:
    """Return the models from one language to another, to apply one after the other; none for the same language.

    Raises RequestError (400) in LibreTranslate's words if the server does not have them.
    """
    known, languages = server.models.sources(), []
    for name, code in (("source", source), ("target", target)):
        language = find_language(code, known)
        if language is None:
            short = code if len(code) <= 40 else f"{code[:39]}…"
            wanted = f"expected one of: {', '.join(known)}" if known else "the models of this server have no languages"
            raise RequestError(400, f"{short} is not supported; {wanted}", code="unknown_language", field=name)
        languages.append(language)
    source, target = languages
    if source == target:
        return []
    models = server.models.route(source, target)
    if not models:
        raise _no_pair(source, target)
    return models


def _no_pair(source: str, target: str) -> RequestError:
    reason = f"{name_of(target)} ({target}) is not available as a target language from {name_of(source)} ({source})"
    return RequestError(400, reason, code="unknown_pair", field="target")


def sources_into(target: str, server: Server) -> list[str]:
    """Return the source languages of models into `target`."""
    return [source for source, targets in server.models.sources().items() if find_language(target, targets) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLanguage:
    """The detected language of a text.

    detected: it and its confidence, as LibreTranslate writes them.  code: the server's language to translate from,
    another one if the server does not have it.
    """

    detected: Mapping[str, Any]
    code: str

    @property
    def warning(self) -> str:
        """Says that the server does not have the language; empty if it does."""
        language = str(self.detected["language"])
        if language == self.code:
            return ""
        return f"found {name_of(language)} ({language}), which this server does not have; translated from {self.code}"


async def detect_sources(
    texts: Sequence[str],
    target: str,
    server: Server,
    detector: Detector | None,
    *,
    html: bool = False,
    refuse: bool = False,
) -> list[SourceLanguage]:
    """Return the most probable source language of each text.

    html: whether texts are HTML, whose visible texts count.  refuse: raise RequestError (400) for a language that the
    server does not have.
    A text in which nothing is detected has the language of all texts together; without one, that is a language with a
    model into `target`, English first.
    """
    visible = await run_in_threadpool(_visible, texts) if html else texts
    known = server.models.sources()
    into = sources_into(target, server)
    first = UNKNOWN["language"] if UNKNOWN["language"] in into or not into else into[0]
    unknown = [{**UNKNOWN, "language": first}]
    detected = [await detect(text, server, detector) for text in visible]
    if not all(detected) and len(texts) > 1:
        unknown = await detect("\n".join(visible), server, detector) or unknown
    sources = []
    for languages in (each or unknown for each in detected):
        best = languages[0]["language"]
        code = (
            best if best in known else next((each["language"] for each in languages if each["language"] in into), first)
        )
        sources.append(SourceLanguage(detected=languages[0], code=code))
    if refuse and (warning := next((each.warning for each in sources if each.warning), "")):
        reason = f"{warning.partition(';')[0]}; name the source language to translate it nevertheless"
        raise field_error("source", reason, 400, "unknown_language")
    return sources


async def detect(text: str, server: Server, detector: Detector | None) -> list[dict[str, Any]]:
    """Return the most probable languages of a text, best first; empty if the text has no letters.

    They are among the server's, but the first one if the text is in another language.
    """
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
    known = list(server.models.sources())
    ranked = await run_in_threadpool(detector.languages, text, known)
    foreign = await run_in_threadpool(detector.foreign, text, known) if isinstance(detector, Lingua) else None
    if foreign is not None:
        ranked = [foreign, *((code, value * (1 - foreign[1])) for code, value in ranked)]
    best = [{"confidence": round(100 * probability, 1), "language": code} for code, probability in ranked]
    return best[:MAX_DETECTED]


def _visible(texts: Sequence[str]) -> list[str]:
    return ["\n".join(segment.text for segment in HtmlText.from_string(text).segments) for text in texts]
