"""API v1: translation, streaming, scoring, classification, inspection, and facts about the server."""

import json
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from translume.serving.api.body import media_type, read_object
from translume.serving.api.cost import characters_to_charge
from translume.serving.api.openapi import ALWAYS, FORM, TEXT, UPLOADED, WORKED, body, responses
from translume.serving.api.requests import (
    KNOWN_SETTINGS,
    LONGEST_NAME,
    ClassifyRequest,
    InspectFileRequest,
    InspectRequest,
    ResolvedTranslation,
    ScoreRequest,
    TranslateRequest,
    as_list,
    resolve_inspection,
    resolve_translation,
)
from translume.serving.api.responses import (
    ClassifyResponse,
    Event,
    Info,
    InspectResponse,
    ModelsResponse,
    ScoreResponse,
    TranslateResponse,
    json_response,
)
from translume.serving.api.streaming import stream
from translume.serving.api.texts import SplitTexts
from translume.serving.health import version, versions
from translume.serving.server import Server
from translume.serving.workers.loading import MANIFEST
from translume.serving.workers.work import Classifying, Scoring, Translating
from translume.translator import Classification, Translation

SHORT: Final = 2000
"""Characters of translations that are written at once: a thread for them would take longer."""
THRESHOLD: Final = 0.5
"""Probability above which a classifier of several labels returns a label."""
BRIEF: Final = ("text", "log_prob", "score", "alignment")
"""Fields of a hypothesis without `detail`."""
BATCHES: Final = (
    "where alone_equals_batched is true, a text has the same tokens and log-probabilities, bit for bit, alone and in a "
    "batch; elsewhere sums may be rounded differently: log-probabilities differ by about 1e-4, and tokens at near ties"
)


def routes(server: Server, inspect_file: Callable[[Request, str], Awaitable[str]], *, detects: bool) -> APIRouter:
    """Return the routes under /v1, except files.

    inspect_file: inspects the file of a request, as "json" or a "page".  detects: whether the server detects languages.
    """
    router = APIRouter(prefix="/v1", tags=["v1"])
    translated = responses(TranslateResponse, "A translation of each text, in order.", *WORKED)
    events = responses(Event, "Server-sent events.", *WORKED, kind="text/event-stream")

    quick = _QuickRequests()

    def checked(values: Mapping[str, Any]) -> tuple[ResolvedTranslation, Translating, SplitTexts, int]:
        """Return a valid request, its work, its lines, and the characters to charge beyond those of its texts."""
        call = resolve_translation(values, server.models, server.limits)
        work, split = Translating(call.served.translator, call.settings), call.texts.split(server.limits)
        return call, work, split, characters_to_charge(work, split.parts, values, server.limits)

    async def accepted(request: Request) -> tuple[ResolvedTranslation, Translating, SplitTexts]:
        values = await read_object(request, server.limits)
        if quick.holds(values, server.models):
            call, work, split, more = checked(values)
        else:
            call, work, split, more = await run_in_threadpool(checked, values)
            quick.add(values, server.models)
        await server.accept(request, call.texts.texts, more)
        return call, work, split

    @router.post("/translate", openapi_extra=body(TranslateRequest), responses=translated)
    async def translate(request: Request) -> Response:
        """Translate each text. Results do not depend on other requests."""
        call, work, split = await accepted(request)
        found = await server.translate(request, work, split)
        if _is_short(found, call):
            return json_response(_translations(found, call))
        # Details of many texts are megabytes.
        return await run_in_threadpool(lambda: json_response(_translations(found, call)))

    @router.post(
        "/translate/stream", openapi_extra=body(TranslateRequest), responses=events, response_class=StreamingResponse
    )
    async def translate_stream(request: Request) -> Response:
        """Translate each text, and send prefixes of the translations as they become stable, then the full response."""
        call, work, split = await accepted(request)
        return stream(server, request, work, split, lambda found: _translations(found, call))

    scored = responses(ScoreResponse, "A score of each pair, in order.", *WORKED)

    @router.post("/score", openapi_extra=body(ScoreRequest), responses=scored)
    async def score(request: Request) -> Response:
        """Score each pair of a source and a target: log-probabilities in nats, token by token."""
        call = ScoreRequest.parse(await read_object(request, server.limits), server.limits)
        pairs = call.pairs
        served = server.models.choose(call.model, call.source, call.target)
        await server.accept(request, (*as_list(call.sources), *as_list(call.targets)))
        names = [f"pairs[{place}]" for place in range(len(pairs))]
        seconds = call.timeout_seconds or server.limits.timeout_seconds
        work = Scoring(served.translator, **served.direction)
        found = await server.results(request, work, pairs, seconds, names)
        return json_response({"model": served.name, "scores": [each.to_dict() for each in found]})

    classified = responses(ClassifyResponse, "The labels of each text, in order.", *WORKED)

    @router.post("/classify", openapi_extra=body(ClassifyRequest), responses=classified)
    async def classify(request: Request) -> Response:
        """Classify each text: labels with probabilities, the most probable first."""
        call = ClassifyRequest.parse(await read_object(request, server.limits), server.limits)
        texts = as_list(call.text)
        served = server.models.classifier(call.model)
        several = isinstance(call.text, list)
        names = [f"text[{place}]" if several else "text" for place in range(len(texts))]
        await server.accept(request, texts)
        seconds = call.timeout_seconds or server.limits.timeout_seconds
        found = await server.results(request, Classifying(served.classifier), texts, seconds, names)
        return json_response({"model": served.name, "classifications": [_labels(each, call.nbest) for each in found]})

    _add_inspection(router, server, inspect_file)
    _add_facts(router, server, detects=detects)
    return router


class _QuickRequests:
    """What valid requests to the current models had besides their texts.

    `settings_with` has kept their settings, so requests like them are checked within microseconds, in the event loop.
    A thread would take longer.
    """

    def __init__(self) -> None:
        self._models: Callable[[], object] = lambda: None  # a weak reference: models that were replaced are unloaded
        self._seen = set[str]()

    def holds(self, values: Mapping[str, Any], models: object) -> bool:
        """Return whether a request has short texts, and all else was in an earlier one."""
        return self._models() is models and _is_quick(values) and _all_but_texts(values) in self._seen

    def add(self, values: Mapping[str, Any], models: object) -> None:
        """Add a valid request."""
        if not _is_quick(values):
            return
        if self._models() is not models or len(self._seen) >= KNOWN_SETTINGS // 2:
            self._models, self._seen = weakref.ref(models), set()
        self._seen.add(_all_but_texts(values))


def _is_quick(values: Mapping[str, Any]) -> bool:
    """Return whether a request has only short texts and single values, of which none is long, such as a ban."""
    given = values.get("text")
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in texts) or sum(len(each) + 1 for each in texts) > SHORT:
        return False
    return not any(
        isinstance(value, list | dict) or (isinstance(value, str) and len(value) > LONGEST_NAME)
        for name, value in values.items()
        if name != "text"
    )


def _all_but_texts(values: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in values.items() if name not in ("text", "timeout_seconds")}
    return json.dumps(kept, sort_keys=True)


def _add_inspection(router: APIRouter, server: Server, inspect_file: Callable[[Request, str], Awaitable[str]]) -> None:
    """Add /v1/inspect and /v1/inspect/page."""

    async def inspected(request: Request, form: str) -> str:
        if media_type(request) == FORM:
            return await inspect_file(request, form)
        limits = server.limits
        values = await read_object(request, limits)
        call = await run_in_threadpool(resolve_inspection, values, server.models, limits)
        await server.accept(request, [each for each in (call.text, call.translation, call.reference) if each])
        translator = call.served.model

        def work(check_cancelled: Callable[[], None]) -> str:
            return translator.inspected(values, limits, form, check_cancelled)

        return await server.background.run(request, work, call.timeout_seconds)

    traces = responses(InspectResponse, "A trace; docs/inspect.md describes it.", *WORKED)
    pages = responses(TEXT, "One self-contained page.", *WORKED, kind="text/html")

    described = body(InspectRequest)
    described["requestBody"]["content"] |= body(InspectFileRequest, FORM, file=UPLOADED)["requestBody"]["content"]

    @router.post("/inspect", openapi_extra=described, responses=traces)
    async def inspect_json(request: Request) -> Response:
        """Return the predicted distribution at each step of the translation of one sentence, or of the text of a file.

        docs/trace.schema.json describes it.
        """
        return Response(await inspected(request, "json"), media_type="application/json")

    @router.post("/inspect/page", openapi_extra=described, responses=pages, response_class=HTMLResponse)
    async def inspect_page(request: Request) -> Response:
        """Return the same as one self-contained HTML page."""
        return Response(await inspected(request, "page"), media_type="text/html")


def _add_facts(router: APIRouter, server: Server, *, detects: bool) -> None:
    """Add /v1/models and /v1/info."""

    @router.get("/models", responses=responses(ModelsResponse, "All models.", *ALWAYS))
    async def models() -> Response:
        """List the models: languages, sizes, default decoding settings, and the endpoints they serve."""
        return json_response({"models": [each.to_dict() for each in server.models.all]})

    @router.get("/info", responses=responses(Info, "Facts about the server.", *ALWAYS))
    async def info() -> Response:
        """Return versions and limits, and for each model its digest and its engine's self-test."""
        return json_response(
            {
                "version": version(),
                "versions": versions(),
                "limits": server.limits.to_dict(),
                "waiting": server.scheduler.waiting,
                "engines": {each.name: each.facts["engine"] for each in server.models.all},
                "manifests": {each.name: each.facts[MANIFEST] for each in server.models.all if MANIFEST in each.facts},
                "offers": {each.name: each.facts["offers"] for each in server.models.all},
                "detects": detects,
                "batches": BATCHES,
            }
        )


def _translations(found: Sequence[Translation], call: ResolvedTranslation) -> dict[str, Any]:
    return {"model": call.served.name, "translations": [_translation(each, call) for each in found]}


def _is_short(found: Sequence[Translation], call: ResolvedTranslation) -> bool:
    """Return whether the response has only texts, and short ones."""
    more = call.detail or call.settings.nbest > 1 or call.settings.alignment
    return not more and sum(len(each.text) for each in found) <= SHORT


def _translation(translation: Translation, call: ResolvedTranslation) -> dict[str, Any]:
    whole = translation.to_dict()
    result = {name: whole[name] for name in ("text", "warnings")}
    if call.detail:
        result["hypotheses"] = whole["hypotheses"]
    elif call.settings.nbest > 1 or call.settings.alignment:
        result["hypotheses"] = [{name: each[name] for name in BRIEF if name in each} for each in whole["hypotheses"]]
    return result


def _labels(found: Classification, nbest: int) -> dict[str, Any]:
    """Return a classification with its margin, as `responses.Classification` defines it."""
    values = found.to_dict(nbest)
    del values["source"]
    probabilities = [probability for _, probability in found.probabilities]
    closest = min(abs(each - THRESHOLD) for each in probabilities)
    return {**values, "margin": closest if found.separator else probabilities[0] - probabilities[1]}
