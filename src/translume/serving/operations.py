"""For those who run a server: is it alive, is it ready, what is it, how much does it do."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from translume.serving.api.answer_schema import ALWAYS, READY, answers, record
from translume.serving.api.body import read_body
from translume.serving.api.classify import Classifying
from translume.serving.api.responses import json_answer
from translume.serving.server import Server
from translume.serving.workers.work import PROBE, PROBING, Part, Translating

PROBE_SECONDS = 5.0


def version() -> str:
    """The installed version of Translume; "0" where it runs from its sources."""
    try:
        return installed("translume")
    except PackageNotFoundError:
        return "0"


def versions() -> dict[str, str]:
    """The versions of what answers depend on."""
    return {"translume": version(), "torch": installed("torch"), "python": platform.python_version()}


def routes(server: Server) -> APIRouter:
    """/health/live and /health/ready."""
    router = APIRouter(tags=["operations"])

    @router.get("/health/live", responses=answers(record({"status": {"const": "live"}}), "It answers.", *ALWAYS))
    async def live() -> Response:
        """Whether the server answers at all."""
        return json_answer({"status": "live"})

    @router.get("/health/ready", responses=answers(READY, "Every model has.", 408, 413, 504, *ALWAYS))
    async def ready(request: Request) -> Response:
        """Whether every model has done a probe within 5 s (503 or 504 otherwise), and what the last reload left."""
        # Nobody needs a key here: a body is read within bounds like any other.
        await read_body(request, server.limits)
        for served in server.models:
            await server.done(request, Translating(served.translator, PROBING), [Part(text=PROBE)], PROBE_SECONDS)
        for each in server.models.classifiers.values():
            await server.done(request, Classifying(each.classifier), [PROBE], PROBE_SECONDS)
        reloaded = {} if server.reloaded is None else {"last_reload": server.reloaded.told()}
        return json_answer({"status": "ready", **reloaded})

    return router
