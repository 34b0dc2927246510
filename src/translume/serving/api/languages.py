"""Which languages a request is about: as it names them, or as they are told."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from translume.serving.api.detection import Detector
from translume.serving.api.errors import RequestError
from translume.serving.api.language_names import name_of, public
from translume.serving.server import Server
from translume.serving.workers.models import Served

UNKNOWN: Final[dict[str, Any]] = {"confidence": 0.0, "language": "en"}
"""What is said of a text that has no language."""
MOST_DETECTED: Final = 3


def between(server: Server, source: str, target: str) -> Served:
    """The model from one language to another; RequestError (400) in LibreTranslate's words where there is none."""
    known = {public(code).lower(): code for code in server.models.sources()}
    for name, code in (("source", source), ("target", target)):
        if public(code).lower() not in known:
            shown = code if len(code) <= 40 else f"{code[:39]}…"
            raise RequestError(400, f"{shown} is not supported", code="unknown_language", field=name)
    source, target = known[public(source).lower()], known[public(target).lower()]
    found = server.models.between(source, target)
    if found is None:
        raise RequestError(
            400,
            f"{name_of(target)} ({target}) is not available as a target language from {name_of(source)} ({source})",
            code="unknown_pair",
            field="target",
        )
    return found


async def source_of(texts: Sequence[str], target: str, server: Server, detector: Detector | None) -> dict[str, Any]:
    """The likeliest language of all texts; where none can be told, one that there is a model from, English first."""
    found = await languages_of("\n".join(texts), server, detector)
    if found:
        return found[0]
    sources = server.models.sources()
    wanted = public(target).lower()
    into = [code for code, targets in sources.items() if wanted in (public(each).lower() for each in targets)]
    first = UNKNOWN["language"] if UNKNOWN["language"] in into or not into else into[0]
    return {**UNKNOWN, "language": public(first)}


async def languages_of(text: str, server: Server, detector: Detector | None) -> list[dict[str, Any]]:
    """The likeliest of the server's languages for a text, best first; empty where it has no letters, or none fits."""
    if not any(character.isalpha() for character in text):
        return []
    if detector is None:
        raise RequestError(
            501,
            "this server cannot tell languages; name the source language, "
            "or have its operator run pip install 'translume[detect]'",
            code="no_detection",
            field="source",
        )
    found = await run_in_threadpool(detector.languages, text, list(server.models.sources()))
    shown = [{"confidence": round(100 * probability, 1), "language": public(code)} for code, probability in found]
    return shown[:MOST_DETECTED]
