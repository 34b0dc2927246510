"""The HTTP API of LibreTranslate, written from its description, so that its clients work unchanged.

Paths, field names and statuses of valid requests are LibreTranslate's. Errors are always JSON with a `code`, and wrong
types are status 400. Nothing is stored, and texts are changed only by translation.
"""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from translume.documents import FORMATS
from translume.serving.api import responses
from translume.serving.api.decoding import accept_parts, loaded, settings_with, split_language
from translume.serving.api.errors import RequestError
from translume.serving.api.languages import UNKNOWN, SourceLanguage, detect, detect_sources, name_of, route
from translume.serving.api.requests import DetectRequest, LibreTranslateRequest, as_list
from translume.serving.api.routing import ALWAYS, KEYED, READ, Routes
from translume.serving.api.texts import RequestTexts, Terms, field_names, in_thread
from translume.serving.server import Server
from translume.serving.work import Translating
from translume.text.detection import Detector
from translume.text.segmentation import has_letters
from translume.translator import Translation


def add_routes(routes: Routes, server: Server, detector: Detector | None) -> None:
    """Add the routes /translate, /detect, /languages, /frontend/settings, /health and /suggest."""

    @routes.on("POST /translate", responses.LibreTranslateResponse, 422, 501, 504, *READ)
    async def translate(request: Request, call: LibreTranslateRequest) -> Any:
        """Translate `q`, a string or a list of strings, from `source` to `target`."""
        texts, html, languages = as_list(call.q), call.format == "html", list[SourceLanguage]()
        sources = [call.source] * len(texts)
        if call.source == "auto":
            languages = await detect_sources(
                texts, call.target, server, detector, html=html, refuse=call.refuse_unknown
            )
            sources = [each.code for each in languages]
        if call.source == "auto" and not any(map(has_letters, texts)):
            await server.accept(request, texts)
            translations, models = [Translation(source=text, text=text) for text in texts], list[list[str]]()
        else:
            several = isinstance(call.q, list)
            translations = await translate_each(
                request, server, texts, sources, call.target, call.alternatives, html=html, several=several
            )
            models = [[each.name for each in route(server, source, call.target)] for source in sources]
        return _response(call, translations, languages, models)

    @routes.on("POST /detect", list[responses.Detected], 422, 501, *READ)
    async def detect_languages(request: Request, call: DetectRequest) -> Any:
        """Return the most probable languages of `q`, best first, with confidences up to 100."""
        text = " ".join(as_list(call.q))
        await server.accept(request, [text])
        return await detect(text, server, detector) or [UNKNOWN]

    @routes.on("GET /languages", list[responses.LanguageTargets], *ALWAYS)
    @routes.on("POST /languages", None, listed=False)
    async def languages() -> Any:
        """List the source languages, and the target languages of each."""
        sources = server.models.sources()
        return [{"code": code, "name": name_of(code), "targets": targets} for code, targets in sources.items()]

    @routes.on("GET /frontend/settings", responses.FrontendSettings, *ALWAYS)
    async def settings() -> Any:
        """Return the settings that a web page needs."""
        pairs = ((source, targets[0]) for source, targets in server.models.sources().items() if targets)
        codes = dict(zip(("source", "target"), next(pairs, ("", "")), strict=True))
        return {
            "apiKeys": server.access is not None,
            "charLimit": server.limits.characters,
            "filesTranslation": True,
            "frontendTimeout": 500,
            "keyRequired": server.access is not None,
            "language": {side: {"code": code, "name": name_of(code)} for side, code in codes.items()},
            "suggestions": False,
            "supportedFilesFormat": list(FORMATS),
        }

    @routes.on("GET /health", responses.Live, *ALWAYS)
    async def health() -> Any:
        """Return a constant; /health/ready checks the models."""
        return {"status": "ok"}

    @routes.on("POST /suggest", None, 429, *KEYED, status=403)
    async def suggest() -> Any:
        """Reject suggestions: the server does not store any."""
        raise RequestError(403, "Suggestions are disabled on this server.", code="not_offered")


async def translate_each(
    request: Request,
    server: Server,
    texts: Sequence[str],
    sources: Sequence[str],
    target: str,
    alternatives: int = 0,
    *,
    html: bool = False,
    field: str = "q",
    several: bool = True,
    split: bool = True,
    glossary: Terms = (),
) -> list[Translation]:
    """Charge and translate texts, each from its own language; one that is in the target language stays unchanged.

    alternatives: further translations of each, as hypotheses.  html: whether the texts are HTML.  field: of the request
    that has them.  several: whether it is a list.  split: whether texts are split into sentences.
    glossary: terms that translations must contain.  Raises RequestError for a language that the server does not have.
    """
    names, places = field_names(field, len(texts), several=several), dict[str, list[int]]()
    for place, source in enumerate(sources):
        places.setdefault(source, []).append(place)
    routes = {source: route(server, source, target) for source in places}
    done: dict[int, Translation] = {}
    for source, own in places.items():
        translations, models = [Translation(source=texts[place], text=texts[place]) for place in own], routes[source]
        if not models:
            await server.accept(request, [each.text for each in translations])
        for model in models:  # each is charged
            await loaded(model)
            last = model is models[-1]
            batch = RequestTexts(
                texts=tuple(each.text for each in translations),
                field=field,
                names=[names[place] for place in own],
                language=split_language(model) if split or html else None,
                glossary=glossary if last else (),
                html=html,
            )
            translations = await _translated(request, server, model, batch, alternatives if last else 0)
        done |= zip(own, translations, strict=True)
    return [done[place] for place in range(len(texts))]


async def _translated(
    request: Request, server: Server, served: Any, texts: RequestTexts, alternatives: int
) -> list[Translation]:
    size, config = sum(map(len, texts.texts)), served.model.config
    split = await in_thread(size, lambda: texts.split(server.limits))
    changes: dict[str, Any] = {"nbest": alternatives + 1}
    if alternatives:
        changes |= {"strategy": "beam", "beam": min(max(alternatives + 1, config.decoding.beam), server.limits.width)}
    if split.marked and not config.without_tokens:
        changes["alignment"] = True
    work = Translating(served.model, await settings_with(served, changes, server.limits))
    changed = ("beam", "nbest") if alternatives else ()
    names = {"text": texts.field, "beam": "alternatives", "nbest": "alternatives"}
    try:
        await accept_parts(server, request, texts.texts, work, split.parts, changed)
    except RequestError as error:
        raise error.renamed(names) from None
    done = await server.results(request, work, split.parts, server.limits.timeout_seconds, split.names)
    return await in_thread(size, lambda: split.join(done, alternatives + 1))


def _response(
    call: LibreTranslateRequest,
    translations: Sequence[Translation],
    languages: Sequence[SourceLanguage],
    models: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Return the body of a response: a string for a string, a list for a list."""
    fields: dict[str, list[Any]] = {"translatedText": [each.text for each in translations]}
    if call.alternatives:
        fields["alternatives"] = [_others(each, call.alternatives) for each in translations]
    if languages:
        fields["detectedLanguage"] = [each.detected for each in languages]
    if any(each.warning for each in languages):
        fields["warnings"] = [[each.warning] if each.warning else [] for each in languages]
    if any(len(each) > 1 for each in models):
        fields["models"] = [*models]
    return fields if isinstance(call.q, list) else {name: values[0] for name, values in fields.items()}


def _others(translation: Translation, maximum: int) -> list[str]:
    """Return other translations, without empty ones and duplicates."""
    texts = dict.fromkeys(each.text for each in translation.hypotheses)
    return [text for text in texts if text and text != translation.text][:maximum]
