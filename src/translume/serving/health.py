"""Health checks for operators, and the versions of the software."""

import asyncio
import platform
from importlib.metadata import version as installed
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from translume import __version__
from translume.lazy import is_installed
from translume.serving.api import responses
from translume.serving.api.errors import json_response
from translume.serving.api.responses import ALWAYS, errors
from translume.serving.server import Server

PROBE_SECONDS: Final = 5.0


def versions() -> dict[str, str | None]:
    """Return the versions of the software that results depend on."""
    torch = installed("torch") if is_installed() else None
    return {"translume": __version__, "torch": torch, "python": platform.python_version()}


def routes(server: Server) -> APIRouter:
    """Return the routes /health/live and /health/ready."""
    router = APIRouter(tags=["operations"])
    probes: list[asyncio.Task[None]] = []

    async def probe() -> None:
        for served in server.models.all:
            if served.loaded:
                work, item = served.probe()
                await server.results(None, work, [item], PROBE_SECONDS)

    @router.get("/health/live", response_model=responses.Live, responses=errors(*ALWAYS))
    async def live() -> Response:
        """Check that the server responds."""
        return json_response({"status": "live"})

    @router.get("/health/ready", response_model=responses.Ready, responses=errors(504, *ALWAYS))
    async def ready() -> Response:
        """Check that every model processes a short text within 5 s (else 503 or 504), and report the last reload."""
        # Requests at the same time share a probe: no key is required here.
        if not probes or probes[0].done():
            probes[:] = [asyncio.ensure_future(probe())]
        await asyncio.shield(probes[0])
        reloaded = {} if server.reloaded is None else {"last_reload": server.reloaded}
        return json_response({"status": "ready", **reloaded})

    return router
