"""The HTTP API of LibreTranslate, written from its description, so that its clients work unchanged.

Paths, field names and statuses of valid requests are LibreTranslate's. Errors are always JSON with a `code`, and wrong
types are status 400. Nothing is stored, and texts are changed only by translation.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.documents.files import FORMATS
from translume.documents.html import HtmlText
from translume.documents.sentences import SplitSegments
from translume.serving.api.body import form_fields, media_type, parsed_json, read_body
from translume.serving.api.cost import characters_to_charge
from translume.serving.api.errors import RequestError
from translume.serving.api.language_codes import name_of
from translume.serving.api.languages import UNKNOWN, Detector, between, detect, detect_source
from translume.serving.api.openapi import ALWAYS, JSON, KEYED, READ, body, list_of, refusals, responses
from translume.serving.api.requests import DetectRequest, LibreTranslateRequest, as_list, settings_with, split_language
from translume.serving.api.responses import (
    Detected,
    FrontendSettings,
    Health,
    LibreTranslateResponse,
    SourceLanguage,
    json_response,
)
from translume.serving.api.texts import RequestTexts
from translume.serving.server import Server
from translume.serving.workers.models import Served
from translume.serving.workers.work import Part, Translating
from translume.translator import TextHypothesis, Translation
from translume.translator.assembly import combinations

WORDLESS: Final = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "So", "Sk", "Mn", "Me"}
"""Unicode categories that are not translated, such as spaces and pictographs."""
FORM: Final = "application/x-www-form-urlencoded"


def routes(server: Server, detector: Detector | None) -> APIRouter:
    """Return the routes /translate, /detect, /languages, /frontend/settings, /health and /suggest."""
    router = APIRouter(tags=["LibreTranslate"])
    translated = responses(LibreTranslateResponse, "A text for a text, a list for a list.", 422, 501, 504, *READ)
    detected = responses(list_of(Detected), "Best first.", 501, *READ)

    @router.post("/translate", openapi_extra=body(LibreTranslateRequest, JSON, FORM), responses=translated)
    async def translate(request: Request) -> Response:
        """Translate `q`, a text or a list of texts, from `source` to `target`."""
        call = LibreTranslateRequest.parse(await _fields(request, server), server.limits)
        given = as_list(call.q)
        texts = tuple(text for text in given if not _wordless(text))
        html = call.format == "html"
        language = None
        if call.source == "auto":
            visible = await run_in_threadpool(visible_texts, texts) if html else texts
            language = await detect_source(visible, call.target, server, detector)
        unchanged = [_unchanged(text) for text in given]
        served = None
        if language is None or texts:
            served = between(server, language["language"] if language else call.source, call.target)
        if served is None:
            await server.accept(request, given)
            return json_response(_response(call, unchanged, language))
        if html:
            pages = await translate_html(request, server, served, given, call.alternatives)
            return json_response(_response(call, pages, language))
        work = Translating(served.translator, await run_in_threadpool(_settings, served, call.alternatives, server))
        seconds = server.limits.timeout_seconds
        several = isinstance(call.q, list)
        units = split_language(served)
        batch = RequestTexts(texts=texts, field="q", several=several, timeout_seconds=seconds, language=units)
        split = await run_in_threadpool(batch.split, server.limits)
        await accept(request, server, given, work, split.parts, call.alternatives)
        done = iter(await server.translate(request, work, split))
        translations = [_unchanged(text) if _wordless(text) else next(done) for text in given]
        return json_response(_response(call, translations, language))

    @router.post("/detect", openapi_extra=body(DetectRequest, JSON, FORM), responses=detected)
    async def detect_languages(request: Request) -> Response:
        """Return the most probable languages of `q`, best first, with confidences up to 100."""
        call = DetectRequest.parse(await _fields(request, server), server.limits)
        text = call.joined(call.q)
        await server.accept(request, [text])
        return json_response(await detect(text, server, detector) or [UNKNOWN])

    _add_facts(router, server)
    return router


def _add_facts(router: APIRouter, server: Server) -> None:
    """Add the routes that describe the server, and the refusal of suggestions."""

    @router.get("/languages", responses=responses(list_of(SourceLanguage), "All languages.", *ALWAYS))
    @router.post("/languages", include_in_schema=False)
    async def languages() -> Response:
        """List the source languages, and the target languages of each."""
        sources = server.models.sources()
        return json_response(
            [{"code": code, "name": name_of(code), "targets": targets} for code, targets in sources.items()]
        )

    @router.get("/frontend/settings", responses=responses(FrontendSettings, "The settings.", *ALWAYS))
    async def settings() -> Response:
        """Return the settings that a web page needs."""
        return json_response(_frontend(server))

    @router.get("/health", responses=responses(Health, "The server responds.", *ALWAYS))
    async def health() -> Response:
        """Return a constant; /health/ready checks the models."""
        return json_response({"status": "ok"})

    @router.post("/suggest", status_code=403, responses=refusals(403, 429, *KEYED))
    async def suggest() -> Response:
        """Refuse suggestions: the server does not store any."""
        raise RequestError(403, "Suggestions are disabled on this server.", code="not_offered")


async def _fields(request: Request, server: Server) -> dict[str, Any]:
    """Return the fields of a request, from JSON or else from a form and the query string."""
    content = await read_body(request, server.limits)
    value = (
        await parsed_json(content)
        if media_type(request) == JSON
        else dict(await run_in_threadpool(form_fields, request, content))
    )
    if not isinstance(value, dict):
        raise RequestError(400, "Invalid JSON format", code="invalid_json")
    await server.admit(request, value.get("api_key"))
    return value


async def accept(
    request: Request,
    server: Server,
    texts: Sequence[str],
    work: Translating,
    parts: Sequence[Part],
    alternatives: int,
    field: str = "q",
) -> None:
    """Charge texts, and what their search costs beyond the usual; RequestError if it is too much."""
    given = ("beam", "nbest") if alternatives else ()
    names = {"text": field, "beam": "alternatives", "nbest": "alternatives"}
    more = await run_in_threadpool(characters_to_charge, work, parts, given, server.limits, names)
    await server.accept(request, texts, more)


async def translate_html(
    request: Request, server: Server, served: Served, texts: Sequence[str], alternatives: int, field: str = "q"
) -> list[Translation]:
    """Charge and translate texts that are HTML, each with its best translation and other ones as hypotheses.

    field: the field of the request that has them.
    """
    pages = await run_in_threadpool(lambda: [_Page.of(text, split_language(served)) for text in texts])
    lines = [line for page in pages for line in page.split.lines]
    if len(lines) > server.limits.lines:
        reason = f"{field}: found {len(lines):,} sentences, expected at most {server.limits.lines:,}"
        raise RequestError(413, reason, code="too_many_lines", field=field)
    marked = any(page.split.marked for page in pages)
    settings = await run_in_threadpool(_settings, served, alternatives, server, alignment=marked)
    parts, names = [Part(text=line) for line in lines], [field] * len(lines)
    work = Translating(served.translator, settings)
    await accept(request, server, texts, work, parts, alternatives, field)
    done = iter(await server.results(request, work, parts, server.limits.timeout_seconds, names))
    return await run_in_threadpool(
        lambda: [page.translation([next(done) for _ in page.split.lines], alternatives + 1) for page in pages]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A text that is HTML, and its sentences."""

    source: str
    html: HtmlText
    split: SplitSegments

    @classmethod
    def of(cls, source: str, language: str | None) -> "_Page":
        """Parse HTML and split its text into sentences, if there is a language."""
        html = HtmlText.of(source)
        return cls(source=source, html=html, split=SplitSegments.of(html.segments, language))

    def translation(self, done: Sequence[Translation], most: int) -> Translation:
        """Return the page with its sentences translated, and up to `most` combinations of their hypotheses."""
        written = [self.html.with_runs([*self.split.join(each)]) for each in combinations(done, most)]
        hypotheses = (
            TextHypothesis(text=text, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")
            for text in dict.fromkeys(written)
        )
        return Translation(source=self.source, text=written[0], hypotheses=tuple(hypotheses))


def visible_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the visible texts of HTML, from which its language is detected."""
    return tuple(segment.text for text in texts for segment in HtmlText.of(text).segments)


def _settings(served: Served, alternatives: int, server: Server, *, alignment: bool = False) -> Any:
    """Return the decoding settings for one translation, or for several different ones."""
    aligned = {"alignment": True} if alignment and not served.translator.config.without_tokens else {}
    if not alternatives:
        return settings_with(served, {"nbest": 1, **aligned}, server.limits)
    count = alternatives + 1
    beam = min(max(count, served.translator.config.decoding.beam), server.limits.width)
    return settings_with(served, {"strategy": "beam", "beam": beam, "nbest": count, **aligned}, server.limits)


def _response(
    call: LibreTranslateRequest, found: Sequence[Translation], language: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the body of a response: a text for a text, a list for a list."""
    several = isinstance(call.q, list)
    response: dict[str, Any] = {}
    if call.alternatives:
        others = [_others(each, call.alternatives) for each in found]
        response["alternatives"] = others if several else others[0]
    if language is not None:
        response["detectedLanguage"] = [language] * len(found) if several else language
    texts = [each.text for each in found]
    response["translatedText"] = texts if several else texts[0]
    return response


def _others(translation: Translation, most: int) -> list[str]:
    """Return other translations, without empty ones and duplicates."""
    texts = dict.fromkeys(each.text for each in translation.hypotheses)
    return [text for text in texts if text and text != translation.text][:most]


def _frontend(server: Server) -> dict[str, Any]:
    pairs = ((source, targets[0]) for source, targets in server.models.sources().items() if targets)
    source, target = next(pairs, ("", ""))
    return {
        "apiKeys": server.access is not None,
        "charLimit": server.limits.characters,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": server.access is not None,
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": list(FORMATS),
    }


def _unchanged(text: str) -> Translation:
    """Return a text with nothing to translate as its own translation."""
    return Translation(source=text, text=text)


def _wordless(text: str) -> bool:
    """Return whether a text has nothing to translate."""
    return all(unicodedata.category(character) in WORDLESS for character in set(text))
