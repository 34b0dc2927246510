"""The HTTP API of DeepL, for clients written for it: /v2/translate, /v2/languages and /v2/usage.

Codes of languages are in capitals, as DeepL writes them. Errors have this server's form, and DeepL's `message`.
"""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.serving.access.admission import ACCESS, Access
from translume.serving.access.keys import LARGEST
from translume.serving.api.body import form_fields, form_values, media_type, parsed_json, read_body
from translume.serving.api.errors import RequestError
from translume.serving.api.language_codes import name_of
from translume.serving.api.languages import Detector, between, detect_source, sources_into
from translume.serving.api.libretranslate import FORM, accept, translate_html, visible_texts
from translume.serving.api.openapi import ALWAYS, JSON, KEYED, READ, body, list_of, responses
from translume.serving.api.requests import DeepLRequest, settings_with, split_language
from translume.serving.api.responses import DeepLLanguage, DeepLResponse, DeepLUsage, json_response
from translume.serving.api.texts import RequestTexts
from translume.serving.server import Server
from translume.serving.workers.work import Translating

VARIANTS: Final = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
"""Codes that DeepL's clients require as target languages, by the code of the language."""


def routes(server: Server, detector: Detector | None) -> APIRouter:
    """Return the routes /v2/translate, /v2/languages and /v2/usage."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])
    translated = responses(DeepLResponse, "A translation of each text, in order.", 422, 456, 501, 504, *READ)

    @router.post("/translate", openapi_extra=body(DeepLRequest, JSON, FORM), responses=translated)
    async def translate(request: Request) -> Response:
        """Translate the texts of `text` to `target_lang`."""
        call = DeepLRequest.parse(await _fields(request, server), server.limits)
        texts = tuple(call.text)
        html = call.tag_handling == "html"
        source = call.source_lang or await _source(texts, call.target_lang, server, detector, html=html)
        served = between(server, source, call.target_lang)
        if served is None:
            await server.accept(request, texts)
            return json_response(_response(source, texts, texts))
        if html:
            pages = await translate_html(request, server, served, texts, 0, "text")
            return json_response(_response(served.source, [page.text for page in pages], texts))
        settings = await run_in_threadpool(settings_with, served, {"nbest": 1}, server.limits)
        batch = RequestTexts(
            texts=texts,
            field="text",
            several=True,
            timeout_seconds=server.limits.timeout_seconds,
            language=None if call.split_sentences == "0" else split_language(served),
        )
        split = await run_in_threadpool(batch.split, server.limits)
        work = Translating(served.translator, settings)
        await accept(request, server, texts, work, split.parts, 0, "text")
        done = await server.translate(request, work, split)
        return json_response(_response(served.source, [each.text for each in done], texts))

    listed = responses(list_of(DeepLLanguage), "The languages.", 400, 408, 413, *ALWAYS)

    @router.get("/languages", responses=listed)
    @router.post("/languages", include_in_schema=False)
    async def languages(request: Request, type: str = "source") -> Response:  # the name of the parameter is DeepL's
        """List the source languages, or with `type=target` the target languages."""
        # DeepL's client for Python sends a form, in the body of a GET.
        type = form_fields(request, await read_body(request, server.limits)).get("type", type)
        sources = server.models.sources()
        targets = dict.fromkeys(each for targets in sources.values() for each in targets)
        if type != "target":
            found = [{"language": code.upper(), "name": name_of(code)} for code, into in sources.items() if into]
            return json_response(found)
        variants = [(variant, code) for code in targets for variant in VARIANTS.get(code.upper(), (code.upper(),))]
        return json_response(
            [{"language": variant, "name": name_of(code), "supports_formality": False} for variant, code in variants]
        )

    counted = responses(DeepLUsage, "The usage.", 429, *KEYED)

    @router.get("/usage", responses=counted)
    async def usage(request: Request) -> Response:
        """Return the characters of the key's daily quota that are used, and the quota."""
        access: Access | None = request.scope[ACCESS]
        key = None if access is None else access.owner(request.scope)
        used, limit = (0, 0) if access is None or key is None else await access.used(key)
        return json_response({"character_count": used, "character_limit": limit or LARGEST})

    return router


async def _fields(request: Request, server: Server) -> dict[str, Any]:
    """Return the fields of a request, from JSON or a form, and admit it by its key."""
    content = await read_body(request, server.limits)
    if media_type(request) == JSON:
        value = await parsed_json(content)
        if not isinstance(value, dict):
            raise RequestError(400, "the body is not a JSON object", code="invalid_json")
    else:
        value = {**form_fields(request, content), "text": form_values(request, content, "text")}
    await server.admit(request, value.get("auth_key"))
    return value


async def _source(texts: Sequence[str], target: str, server: Server, detector: Detector | None, *, html: bool) -> str:
    """Return the language of texts: the only one with a model into the target, or the detected one."""
    into = sources_into(target, server)
    if len(into) == 1:
        return into[0]
    visible = await run_in_threadpool(visible_texts, texts) if html else texts
    found: str = (await detect_source(visible, target, server, detector))["language"]
    return found


def _response(source: str, texts: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    language = source.partition("-")[0].upper()
    return {
        "translations": [
            {"detected_source_language": language, "text": text, "billed_characters": len(before)}
            for text, before in zip(texts, given, strict=True)
        ]
    }
