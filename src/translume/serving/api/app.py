"""The ASGI application: all routes, and one shape for all errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from translume.errors import TranslumeError
from translume.serving import health
from translume.serving.access.admission import with_keys
from translume.serving.access.guard import Guard
from translume.serving.api import deepl, generation, libretranslate, version1
from translume.serving.api.errors import RequestError, as_request_error
from translume.serving.api.languages import Detector
from translume.serving.api.openapi import NOTES, TAGS, complete
from translume.serving.api.responses import error_response
from translume.serving.files import routes as files
from translume.serving.files import transcription
from translume.serving.files.jobs import Jobs
from translume.serving.page import routes as page
from translume.serving.server import Server


def build_app(server: Server, *, detector: Detector | None = None) -> ASGIApp:
    """Return the application of a server, which it closes at shutdown.

    detector: language detector; None if `source` cannot be detected.
    """

    jobs = Jobs(server.scheduler, server.limits, watch=server.metrics.watch)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(jobs.close)
        await run_in_threadpool(server.close)

    app = _App(
        title="Translume",
        summary="Translations, and the probabilities that the model predicted for them.",
        description=NOTES,
        openapi_tags=[{"name": name, "description": words} for name, words in TAGS.items()],
        version=health.version(),
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.include_router(page.routes())
    inspect_file = transcription.file_inspector(server, jobs.documents)
    app.include_router(version1.routes(server, inspect_file, detects=detector is not None))
    app.include_router(generation.routes(server))
    app.include_router(health.routes(server))
    app.include_router(libretranslate.routes(server, detector))
    app.include_router(deepl.routes(server, detector))
    app.include_router(files.routes(server, jobs, detector))
    app.include_router(transcription.routes(server, jobs.documents))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(TranslumeError, _known_error)
    app.add_exception_handler(Exception, _internal_error)
    return Guard(app, server)


class _App(FastAPI):
    """An application whose OpenAPI document has our models, and says which routes take a key."""

    def openapi(self) -> dict[str, Any]:
        """Return the document of all routes, which is built once: that takes a tenth of a second."""
        if self.openapi_schema is None:
            self.openapi_schema = complete(with_keys(super().openapi()))
        return self.openapi_schema


async def _known_error(request: Request, error: Exception) -> Response:
    """Respond to an error that has a message for clients."""
    known = as_request_error(error)
    if known.status == 499:
        request.scope.get("translume.note", {})["gone"] = 499
    return error_response(known, request.scope)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Respond to an internal error. Clients see only its type."""
    reason = f"the server failed ({type(error).__name__}); its log has the traceback"
    return error_response(RequestError(500, reason), request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """Respond to an unknown path (404) or a wrong method (405)."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    if error.status_code == 404:
        reason = "no such path; /openapi.json lists all paths"
    elif error.status_code == 405:
        reason = f"method: found {request.method}, expected {allowed.replace(', ', ' or ')}"
    else:
        reason = str(error.detail)
    response = error_response(RequestError(error.status_code, reason), request.scope)
    if allowed:
        response.headers["Allow"] = allowed
    return response
