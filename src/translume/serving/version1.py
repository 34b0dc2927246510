"""API v1: translate, score, and what there is."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.serving import schema
from translume.serving.answers import json_answer
from translume.serving.asked import Asked, asked, chosen, refuse_unknown, texts_in, timeout
from translume.serving.body import read_object
from translume.serving.operations import version
from translume.serving.request_error import RequestError
from translume.serving.server import Server
from translume.serving.streaming import streamed
from translume.serving.work import Scoring, Translating
from translume.translator import Translation


def routes(server: Server) -> APIRouter:
    """Everything under /v1."""
    router = APIRouter(prefix="/v1", tags=["v1"], responses=schema.ERRORS)

    @router.post("/translate", openapi_extra=schema.TRANSLATE)
    async def translate(request: Request) -> Response:
        """The translation of each text, in order, each what it would be alone."""
        wanted = await run_in_threadpool(asked, await read_object(request, server.limits), server.models, server.limits)
        await server.accept(request, wanted.texts.texts)
        work = Translating(wanted.served.translator, wanted.settings)
        found = await server.translated(request, work, wanted.texts)
        # Details of many texts are megabytes.
        return await run_in_threadpool(lambda: json_answer(_answer(found, wanted)))

    @router.post("/translate/stream", openapi_extra=schema.TRANSLATE)
    async def stream(request: Request) -> Response:
        """The same as server-sent events: beginnings of translations, token by token, then the plain answer."""
        wanted = await run_in_threadpool(asked, await read_object(request, server.limits), server.models, server.limits)
        await server.accept(request, wanted.texts.texts)
        work = Translating(wanted.served.translator, wanted.settings)
        return streamed(server, request, work, wanted.texts, lambda found: _answer(found, wanted))

    @router.post("/score", openapi_extra=schema.SCORE)
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

    @router.get("/models")
    async def models() -> Response:
        """The models there are: languages, sizes, how they decode unless asked otherwise, what may be asked of them."""
        return json_answer({"models": [each.to_dict() for each in server.models.all]})

    @router.get("/info")
    async def info() -> Response:
        """Versions, limits, and for each model whether answers depend on what is translated beside them."""
        return json_answer(
            {
                "version": version(),
                "limits": server.limits.to_dict(),
                "waiting": server.scheduler.waiting,
                "engines": {each.name: each.facts["engine"] for each in server.models.all},
                "offers": {each.name: each.facts["offers"] for each in server.models.all},
                "batches": BATCHES,
            }
        )

    return router


BATCHES = (
    "a text has the same tokens alone and in company; log-probabilities are the same bit for bit where "
    "alone_equals_batched is true, and within rounding otherwise"
)


BRIEF = ("text", "log_prob", "score", "alignment")
"""What is told of a hypothesis unless details are wanted."""


def _answer(found: Sequence[Translation], wanted: Asked) -> dict[str, Any]:
    return {"model": wanted.served.name, "translations": [_shown(each, wanted) for each in found]}


def _shown(translation: Translation, wanted: Asked) -> dict[str, Any]:
    whole = translation.to_dict()
    shown = {name: whole[name] for name in ("text", "warnings")}
    if wanted.detail:
        shown["hypotheses"] = whole["hypotheses"]
    elif wanted.settings.nbest > 1 or wanted.settings.alignment:
        shown["hypotheses"] = [{name: each[name] for name in BRIEF if name in each} for each in whole["hypotheses"]]
    return shown
