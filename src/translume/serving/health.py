"""Health checks for operators, and the versions of the software."""

import asyncio
import platform
from importlib.metadata import version as installed
from typing import Any, Final

from translume import __version__
from translume.lazy import is_installed
from translume.serving.api import responses
from translume.serving.api.routing import ALWAYS, Routes
from translume.serving.server import Server

PROBE_SECONDS: Final = 5.0


def versions() -> dict[str, str | None]:
    """Return the versions of the software that results depend on."""
    torch = installed("torch") if is_installed() else None
    return {"translume": __version__, "torch": torch, "python": platform.python_version()}


def routes(server: Server) -> Routes:
    """Return the routes /health/live and /health/ready."""
    routes = Routes(tags=["operations"])
    probes: list[asyncio.Task[None]] = []

    async def probe() -> None:
        for served in server.models.all:
            if served.loaded:
                work, item = served.probe()
                await server.results(None, work, [item], PROBE_SECONDS)

    @routes.on("GET /health/live", responses.Live, *ALWAYS)
    async def live() -> Any:
        """Check that the server responds."""
        return {"status": "live"}

    @routes.on("GET /health/ready", responses.Ready, 504, *ALWAYS)
    async def ready() -> Any:
        """Check that every model processes a short text within 5 s (else 503 or 504), and report the last reload."""
        # Requests at the same time share a probe: no key is required here.
        if not probes or probes[0].done():
            probes[:] = [asyncio.ensure_future(probe())]
        await asyncio.shield(probes[0])
        return {"status": "ready"} | ({} if server.reloaded is None else {"last_reload": server.reloaded})

    return routes
