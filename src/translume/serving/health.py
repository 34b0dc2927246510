"""Health checks for operators, and the versions of the software."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from translume.serving.api.body import read_body
from translume.serving.api.openapi import ALWAYS, responses
from translume.serving.api.responses import Live, Ready, json_response
from translume.serving.server import Server
from translume.serving.workers.work import PROBE, PROBE_SETTINGS, Classifying, Part, Translating

PROBE_SECONDS: Final = 5.0


def version() -> str:
    """Return the installed version of Translume; "0" if it runs from its source tree."""
    try:
        return installed("translume")
    except PackageNotFoundError:
        return "0"


def versions() -> dict[str, str]:
    """Return the versions of the software that results depend on."""
    return {"translume": version(), "torch": installed("torch"), "python": platform.python_version()}


def routes(server: Server) -> APIRouter:
    """Return the routes /health/live and /health/ready."""
    router = APIRouter(tags=["operations"])

    @router.get("/health/live", responses=responses(Live, "The server responds.", *ALWAYS))
    async def live() -> Response:
        """Check that the server responds."""
        return json_response({"status": "live"})

    @router.get("/health/ready", responses=responses(Ready, "Every model responds.", 408, 413, 504, *ALWAYS))
    async def ready(request: Request) -> Response:
        """Check that every model processes a short text within 5 s (else 503 or 504), and report the last reload."""
        # No key is required here, so the body, which is ignored, is read within the limits.
        await read_body(request, server.limits)
        for served in server.models:
            await server.results(
                request, Translating(served.translator, PROBE_SETTINGS), [Part(text=PROBE)], PROBE_SECONDS
            )
        for each in server.models.classifiers.values():
            await server.results(request, Classifying(each.classifier), [PROBE], PROBE_SECONDS)
        reloaded = {} if server.reloaded is None else {"last_reload": server.reloaded.to_public_dict()}
        return json_response({"status": "ready", **reloaded})

    return router
