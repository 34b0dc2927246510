"""The HTTP interface of LibreTranslate, written from its description, so that its clients work unchanged.

Paths, names, shapes and statuses of valid calls are its own. Errors are JSON everywhere and have a `code`; wrong types
are 400; nothing is stored, and no text is changed but by translating it.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.documents.files import FORMATS
from translume.documents.hypertext import Hypertext
from translume.documents.sheet import Sheet
from translume.serving.api import schema
from translume.serving.api.answer_schema import (
    ALWAYS,
    FRONTEND,
    KEYED,
    LANGUAGES,
    LIBRETRANSLATED,
    READ,
    answers,
    listed,
    named,
    record,
    refusals,
)
from translume.serving.api.body import form_fields, media_type, parsed, read_body
from translume.serving.api.detection import Detector
from translume.serving.api.errors import RequestError
from translume.serving.api.language_names import name_of, public
from translume.serving.api.languages import UNKNOWN, between, languages_of, source_of
from translume.serving.api.requests import settings_with
from translume.serving.api.responses import json_answer
from translume.serving.api.texts import Texts
from translume.serving.server import Server
from translume.serving.workers.models import Served
from translume.serving.workers.work import Part, Translating
from translume.translator import Translation

WORDLESS: Final = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "So", "Sk", "Mn", "Me"}
"""Kinds of characters that are not translated: spaces, pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of /translate. several: whether `q` was a list."""

    texts: tuple[str, ...]
    several: bool
    source: str
    target: str
    alternatives: int
    html: bool


def routes(server: Server, detector: Detector | None) -> APIRouter:
    """/translate, /detect, /languages, /frontend/settings, /health, and an honest refusal of what is not offered."""
    router = APIRouter(tags=["LibreTranslate"])
    translations = answers(LIBRETRANSLATED, "A text for a text, a list for a list.", 422, 501, 504, *READ)
    languages = answers(listed(named("Detected")), "The likeliest first.", 501, *READ)

    @router.post("/translate", openapi_extra=schema.LIBRETRANSLATE, responses=translations)
    async def translate(request: Request) -> Response:
        """The translation of `q`, a text or a list of texts, from `source` to `target`."""
        call = _call(await _fields(request, server), server)
        await server.accept(request, call.texts)
        texts = tuple(text for text in call.texts if not _wordless(text))
        told_by = await run_in_threadpool(_seen, texts) if call.html else texts
        found = await source_of(told_by, call.target, server, detector) if call.source == "auto" else None
        if found is not None and not texts:
            return json_answer(_answer(call, [_as_it_is(text) for text in call.texts], found))
        served = between(server, found["language"] if found else call.source, call.target)
        if call.html:
            return json_answer(_answer(call, await _pages(request, server, served, call), found))
        work = Translating(served.translator, await run_in_threadpool(_settings, served, call, server))
        seconds = server.limits.timeout_seconds
        asked = Texts(texts=texts, field="q", several=call.several, timeout_seconds=seconds, language=served.source)
        done = iter(await server.translated(request, work, asked))
        translations = [_as_it_is(text) if _wordless(text) else next(done) for text in call.texts]
        return json_answer(_answer(call, translations, found))

    @router.post("/detect", openapi_extra=schema.DETECT, responses=languages)
    async def detect(request: Request) -> Response:
        """The likeliest languages of `q`, best first, with confidences up to 100."""
        fields = await _fields(request, server)
        q = fields.get("q")
        if q is None or q == "" or q == []:
            raise _missing("q")
        text = " ".join(q) if isinstance(q, list) and all(isinstance(each, str) for each in q) else str(q)
        _refuse_long(text, server.limits.characters)
        await server.accept(request, [text])
        return json_answer(await languages_of(text, server, detector) or [UNKNOWN])

    _describe(router, server)
    return router


def _describe(router: APIRouter, server: Server) -> None:
    """Add what is there, and what is not offered."""

    @router.get("/languages", responses=answers(LANGUAGES, "All languages.", *ALWAYS))
    @router.post("/languages", include_in_schema=False)
    async def languages() -> Response:
        """Languages there are models from, and into which."""
        sources = server.models.sources()
        return json_answer(
            [
                {"code": public(code), "name": name_of(code), "targets": [public(target) for target in targets]}
                for code, targets in sources.items()
            ]
        )

    @router.get("/frontend/settings", responses=answers(FRONTEND, "The settings.", *ALWAYS))
    async def settings() -> Response:
        """What a page needs to know."""
        return json_answer(_frontend(server))

    @router.get("/health", responses=answers(record({"status": {"const": "ok"}}), "It answers.", *ALWAYS))
    async def health() -> Response:
        """Always the same; /health/ready says more."""
        return json_answer({"status": "ok"})

    @router.post("/suggest", status_code=403, responses=refusals(403, 429, *KEYED))
    async def suggest() -> Response:
        """Suggestions are not kept."""
        raise RequestError(403, "Suggestions are disabled on this server.", code="not_offered")


async def _fields(request: Request, server: Server) -> dict[str, Any]:
    """The call's fields, from JSON or else from a form and the query."""
    body = await read_body(request, server.limits)
    value = parsed(body) if media_type(request) == "application/json" else dict(form_fields(request, body))
    if not isinstance(value, dict):
        raise RequestError(400, "Invalid JSON format", code="invalid_json")
    await server.admit(request, value.get("api_key"))
    return value


def _call(fields: Mapping[str, Any], server: Server) -> _Call:
    """The call, checked in the order in which LibreTranslate does it, which decides what error comes first."""
    for name in ("q", "source", "target"):
        if not fields.get(name):
            raise _missing(name)
    q, limits = fields["q"], server.limits
    several = isinstance(q, list)
    texts = q if several else [q]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(400, "Invalid request: q parameter is not a text or a list of texts", field="q")
    for name in ("source", "target"):
        if not isinstance(fields[name], str):
            raise RequestError(400, f"Invalid request: {name} parameter is not a text", field=name)
    alternatives = _alternatives(fields.get("alternatives", 0), limits.width - 1)
    if len(texts) > limits.texts:
        raise RequestError(
            400,
            f"Invalid request: request ({len(texts)}) exceeds text limit ({limits.texts})",
            code="too_many_texts",
            field="q",
        )
    for text in texts:
        _refuse_long(text, limits.characters)
    form = fields.get("format") or "text"
    if form not in ("text", "html"):
        shown = form if isinstance(form, str) and len(form) <= 40 else "this"
        raise RequestError(400, f"{shown} format is not supported", code="unsupported_format", field="format")
    return _Call(
        texts=tuple(texts),
        several=several,
        source=fields["source"].lower(),
        target=fields["target"].lower(),
        alternatives=alternatives,
        html=form == "html",
    )


async def _pages(request: Request, server: Server, served: Served, call: _Call) -> list[Translation]:
    """The translations of texts that are HTML."""
    pages, sheet = await run_in_threadpool(_sheet, call.texts, served.source)
    if len(sheet.lines) > server.limits.lines:
        raise RequestError(
            413,
            f"q: found {len(sheet.lines):,} sentences, wanted at most {server.limits.lines:,}",
            code="too_many_lines",
            field="q",
        )
    knobs = {"nbest": 1, "alignment": sheet.marked}
    settings = await run_in_threadpool(settings_with, served, knobs, server.limits)
    parts = [Part(text=line) for line in sheet.lines]
    seconds = server.limits.timeout_seconds
    done = await server.done(request, Translating(served.translator, settings), parts, seconds, ["q"] * len(parts))
    runs = iter(await run_in_threadpool(lambda: list(sheet.joined(done))))
    return [
        Translation(source=text, text=page.with_runs([next(runs) for _ in page.segments]))
        for text, page in zip(call.texts, pages, strict=True)
    ]


def _seen(texts: Sequence[str]) -> tuple[str, ...]:
    """What people see of HTML, by which its language is told."""
    return tuple(segment.text for text in texts for segment in Hypertext.of(text).segments)


def _sheet(texts: Sequence[str], language: str) -> tuple[list[Hypertext], Sheet]:
    """Pages, and the sentences of all of them."""
    pages = [Hypertext.of(text) for text in texts]
    return pages, Sheet.of([segment for page in pages for segment in page.segments], language)


def _alternatives(value: Any, most: int) -> int:
    """How many other translations are wanted; less than none is none."""
    wrong = RequestError(
        400, "Invalid request: alternatives parameter is not a number", code="invalid_value", field="alternatives"
    )
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise wrong
    number = int(value)
    if number > most:
        raise RequestError(
            400, f"Invalid request: alternatives parameter must be <= {most}", code="too_wide", field="alternatives"
        )
    return max(number, 0)


def _settings(served: Served, call: _Call, server: Server) -> Any:
    """How the model searches for one translation, or for some different ones."""
    if not call.alternatives:
        return settings_with(served, {"nbest": 1}, server.limits)
    count = call.alternatives + 1
    beam = min(max(count, served.translator.config.decoding.beam), server.limits.width)
    return settings_with(served, {"strategy": "beam", "beam": beam, "nbest": count}, server.limits)


def _answer(call: _Call, found: list[Translation], language: dict[str, Any] | None) -> dict[str, Any]:
    """The body of an answer: a text for a text, a list for a list."""
    others = [_others(each, call.alternatives) for each in found]
    answer: dict[str, Any] = {}
    if call.alternatives:
        answer["alternatives"] = others if call.several else others[0]
    if language is not None:
        answer["detectedLanguage"] = [language] * len(found) if call.several else language
    texts = [each.text for each in found]
    answer["translatedText"] = texts if call.several else texts[0]
    return answer


def _others(translation: Translation, most: int) -> list[str]:
    """Other translations, each once and none empty."""
    texts = dict.fromkeys(each.text for each in translation.hypotheses)
    return [text for text in texts if text and text != translation.text][:most]


def _frontend(server: Server) -> dict[str, Any]:
    first = next((each for each in server.models if each.source and each.target), None)
    source, target = (first.source, first.target) if first else ("", "")
    return {
        "apiKeys": server.access is not None,
        "charLimit": server.limits.characters,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": server.access is not None,
        "language": {
            "source": {"code": public(source), "name": name_of(source)},
            "target": {"code": public(target), "name": name_of(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": list(FORMATS),
    }


def _as_it_is(text: str) -> Translation:
    """What comes back of a text that has nothing to translate."""
    return Translation(source=text, text=text)


def _wordless(text: str) -> bool:
    """Whether there is nothing to translate."""
    return all(unicodedata.category(character) in WORDLESS for character in set(text))


def _missing(name: str) -> RequestError:
    return RequestError(400, f"Invalid request: missing {name} parameter", code="missing_field", field=name)


def _refuse_long(text: str, most: int) -> None:
    if len(text) > most:
        raise RequestError(
            400,
            f"Invalid request: request ({len(text)}) exceeds text limit ({most})",
            code="text_too_long",
            field="q",
        )
