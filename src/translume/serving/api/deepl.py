"""The HTTP API of DeepL, for clients written for it: /v2/translate, /v2/languages and /v2/usage.

Codes of languages are in capitals, as DeepL writes them. Errors have this server's form, and DeepL's `message`.
"""

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request

from translume.serving.access.keys import LARGEST
from translume.serving.access.quotas import ACCESS, Access, client_of
from translume.serving.api import responses
from translume.serving.api.body import ApiRequest
from translume.serving.api.errors import field_error
from translume.serving.api.glossaries import Glossaries
from translume.serving.api.language_codes import find_language
from translume.serving.api.languages import detect_sources, name_of, sources_into
from translume.serving.api.libretranslate import translate_each
from translume.serving.api.requests import DeepLRequest
from translume.serving.api.routing import ALWAYS, KEYED, READ, Routes
from translume.serving.api.terms import Terms
from translume.serving.server import Server
from translume.text.detection import Detector

VARIANTS: Final = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
"""Codes that DeepL's clients require as target languages, by the code of the language."""


def routes(server: Server, detector: Detector | None) -> Routes:
    """Return the routes /v2/translate, /v2/languages and /v2/usage."""
    routes = Routes(prefix="/v2", tags=["DeepL"])

    @routes.on("POST /translate", responses.DeepLResponse, 404, 422, 456, 501, 504, *READ)
    async def translate(request: Request, call: DeepLRequest) -> Any:
        """Translate the texts of `text` to `target_lang`."""
        html, sources = bool(call.tag_handling), [call.source_lang] * len(call.text)
        shown = sources
        if not call.source_lang:
            (source, *others) = sources_into(call.target_lang, server) or [""]
            shown = sources = [source] * len(call.text)
            if others or not source:
                detected = await detect_sources(call.text, call.target_lang, server, detector, html=html)
                sources, shown = [each.code for each in detected], [str(each.detected["language"]) for each in detected]
        translations = await translate_each(
            request,
            server,
            call.text,
            sources,
            call.target_lang,
            html=html,
            field="text",
            split=call.split_sentences != "0",
            glossary=_terms(Glossaries(server), call, client_of(request.scope)) if call.glossary_id else (),
        )
        return _response(shown, [each.text for each in translations], call.text)

    @routes.on("GET /languages", list[responses.DeepLLanguage], 400, 408, 413, 415, *ALWAYS)
    @routes.on("POST /languages", None, listed=False)
    async def languages(request: ApiRequest) -> Any:
        """List the source languages, or with `type=target` the target languages."""
        # DeepL's client for Python sends a form, in the body of a GET.
        wanted = (await request.fields()).get("type")
        sources = server.models.sources()
        if wanted != "target":
            return [{"language": code.upper(), "name": name_of(code)} for code, targets in sources.items() if targets]
        targets = dict.fromkeys(code for codes in sources.values() for code in codes)
        variants = [(variant, code) for code in targets for variant in VARIANTS.get(code.upper(), (code.upper(),))]
        return [{"language": variant, "name": name_of(code), "supports_formality": False} for variant, code in variants]

    @routes.on("GET /usage", responses.DeepLUsage, 429, *KEYED)
    async def usage(request: Request) -> Any:
        """Return the characters of the key's daily quota that are used, and the quota."""
        access: Access | None = request.scope[ACCESS]
        key = None if access is None else access.owner(request.scope)
        used, limit = (0, 0) if access is None or key is None else await access.used(key)
        return {"character_count": used, "character_limit": limit or LARGEST}

    return routes


def _terms(glossaries: Glossaries, call: DeepLRequest, client: str) -> Terms:
    """Return the terms of a request's glossary; RequestError if it is unknown, or for other languages."""
    glossary = glossaries.find(call.glossary_id, client)
    pair = (call.source_lang.lower(), call.target_lang.lower())
    own = (glossary.source_lang, glossary.target_lang)
    if any(find_language(code, [each]) is None for code, each in zip(pair, own, strict=True)):
        reason = f"this glossary is for {'-'.join(own)}"
        raise field_error("glossary_id", reason, 400, "invalid_glossary")
    return glossary.terms


def _response(sources: Sequence[str], translations: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    codes = [source.replace("_", "-").partition("-")[0].upper() for source in sources]
    return {
        "translations": [
            {"detected_source_language": language, "text": translation, "billed_characters": len(text)}
            for language, translation, text in zip(codes, translations, texts, strict=True)
        ]
    }
