"""API v1: translate, score, and what there is."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from translume.serving.api import schema
from translume.serving.api.answer_schema import (
    ALWAYS,
    EVENT,
    SCORED,
    TRANSLATED,
    WORKED,
    answers,
    listed,
    named,
    record,
)
from translume.serving.api.body import read_object
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import Asked, asked, chosen, refuse_unknown, texts_in, timeout
from translume.serving.api.responses import json_answer
from translume.serving.api.streaming import streamed
from translume.serving.operations import version, versions
from translume.serving.server import Server
from translume.serving.workers.manifests import MANIFEST
from translume.serving.workers.work import Scoring, Translating
from translume.translator import Translation

SHORT: Final = 2000
"""Characters of translations that are written sooner than another thread could be told to."""


def routes(server: Server) -> APIRouter:
    """Everything under /v1."""
    router = APIRouter(prefix="/v1", tags=["v1"])
    translations = answers(TRANSLATED, "A translation of each text, in order.", *WORKED)
    events = answers(EVENT, "Server-sent events.", *WORKED, kind="text/event-stream")

    @router.post("/translate", openapi_extra=schema.TRANSLATE, responses=translations)
    async def translate(request: Request) -> Response:
        """The translation of each text, in order, each what it would be alone."""
        wanted = await run_in_threadpool(asked, await read_object(request, server.limits), server.models, server.limits)
        await server.accept(request, wanted.texts.texts)
        work = Translating(wanted.served.translator, wanted.settings)
        found = await server.translated(request, work, wanted.texts)
        if _is_short(found, wanted):
            return json_answer(_answer(found, wanted))
        # Details of many texts are megabytes.
        return await run_in_threadpool(lambda: json_answer(_answer(found, wanted)))

    @router.post(
        "/translate/stream", openapi_extra=schema.TRANSLATE, responses=events, response_class=StreamingResponse
    )
    async def stream(request: Request) -> Response:
        """The same as server-sent events: beginnings of translations, token by token, then the plain answer."""
        wanted = await run_in_threadpool(asked, await read_object(request, server.limits), server.models, server.limits)
        await server.accept(request, wanted.texts.texts)
        work = Translating(wanted.served.translator, wanted.settings)
        return streamed(server, request, work, wanted.texts, lambda found: _answer(found, wanted))

    @router.post("/score", openapi_extra=schema.SCORE, responses=answers(SCORED, "A score of each pair.", *WORKED))
    async def score(request: Request) -> Response:
        """What a model thinks of each pair of a source and a target: log-probabilities in nats, token by token."""
        values = await read_object(request, server.limits)
        refuse_unknown(values, ("sources", "targets", "model", "source", "target", "timeout_seconds"))
        sources, targets = (texts_in(values, name, server.limits) for name in ("sources", "targets"))
        if len(sources) != len(targets):
            raise RequestError(
                422, f"targets: found {len(targets):,} for {len(sources):,} sources, wanted as many", field="targets"
            )
        served = chosen(values, server.models)
        await server.accept(request, (*sources, *targets))
        pairs = list(zip(sources, targets, strict=True))
        names = [f"pairs[{place}]" for place in range(len(pairs))]
        seconds = timeout(values, server.limits)
        found = await server.done(request, Scoring(served.translator), pairs, seconds, names)
        return json_answer({"model": served.name, "scores": [each.to_dict() for each in found]})

    _describe(router, server)
    return router


def _describe(router: APIRouter, server: Server) -> None:
    """Add what there is."""

    @router.get("/models", responses=answers(record({"models": listed(named("Model"))}), "All models.", *ALWAYS))
    async def models() -> Response:
        """The models there are: languages, sizes, how they decode unless asked otherwise, what may be asked of them."""
        return json_answer({"models": [each.to_dict() for each in server.models.all]})

    @router.get("/info", responses=answers(named("Info"), "What the server is.", *ALWAYS))
    async def info() -> Response:
        """Versions, limits, and for each model which one it is and whether answers depend on what is beside them."""
        return json_answer(
            {
                "version": version(),
                "versions": versions(),
                "limits": server.limits.to_dict(),
                "waiting": server.scheduler.waiting,
                "engines": {each.name: each.facts["engine"] for each in server.models.all},
                "manifests": {each.name: each.facts[MANIFEST] for each in server.models.all if MANIFEST in each.facts},
                "offers": {each.name: each.facts["offers"] for each in server.models.all},
                "batches": BATCHES,
            }
        )


BATCHES = (
    "where alone_equals_batched is true, a text has the same tokens and log-probabilities, bit for bit, alone and in "
    "company; elsewhere sums may be rounded otherwise, log-probabilities differ by about 1e-4, and tokens at near ties"
)


BRIEF = ("text", "log_prob", "score", "alignment")
"""What is told of a hypothesis unless details are wanted."""


def _answer(found: Sequence[Translation], wanted: Asked) -> dict[str, Any]:
    return {"model": wanted.served.name, "translations": [_shown(each, wanted) for each in found]}


def _is_short(found: Sequence[Translation], wanted: Asked) -> bool:
    """Whether nothing but texts is told, and little of them."""
    more = wanted.detail or wanted.settings.nbest > 1 or wanted.settings.alignment
    return not more and sum(len(each.text) for each in found) <= SHORT


def _shown(translation: Translation, wanted: Asked) -> dict[str, Any]:
    whole = translation.to_dict()
    shown = {name: whole[name] for name in ("text", "warnings")}
    if wanted.detail:
        shown["hypotheses"] = whole["hypotheses"]
    elif wanted.settings.nbest > 1 or wanted.settings.alignment:
        shown["hypotheses"] = [{name: each[name] for name in BRIEF if name in each} for each in whole["hypotheses"]]
    return shown
