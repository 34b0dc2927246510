"""The application: routes, and one shape for all errors."""

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
from translume.serving import operations
from translume.serving.access.admission import with_keys
from translume.serving.access.guard import Guard
from translume.serving.api import classify, inspect, libretranslate, version1
from translume.serving.api.answer_schema import ELSEWHERE, TAGS, with_schemas
from translume.serving.api.detection import Detector
from translume.serving.api.errors import RequestError, as_request_error
from translume.serving.api.responses import error_answer
from translume.serving.files import routes as files
from translume.serving.files.jobs import Jobs
from translume.serving.page import routes as page
from translume.serving.server import Server


def build_app(server: Server, *, detector: Detector | None = None) -> ASGIApp:
    """The application of a server, which it closes when it is shut down.

    detector: what tells languages; None: nothing does.
    """

    jobs = Jobs(server.scheduler, server.limits, watch=server.metrics.watch)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(jobs.close)
        await run_in_threadpool(server.close)

    app = _Described(
        title="Translume",
        summary="Translations, and what the model believed about them.",
        description=ELSEWHERE,
        openapi_tags=[{"name": name, "description": words} for name, words in TAGS.items()],
        version=operations.version(),
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.include_router(page.routes())
    app.include_router(version1.routes(server))
    app.include_router(inspect.routes(server))
    app.include_router(classify.routes(server))
    app.include_router(operations.routes(server))
    app.include_router(libretranslate.routes(server, detector))
    app.include_router(files.routes(server, jobs, detector))
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(TranslumeError, _told)
    app.add_exception_handler(Exception, _failed)
    return Guard(app, server)


class _Described(FastAPI):
    """An application whose document says what a key is for, and names what answers are made of."""

    def openapi(self) -> dict[str, Any]:
        """The document of all addresses."""
        return with_schemas(with_keys(super().openapi()))


async def _told(request: Request, error: Exception) -> Response:
    """What is known to be wrong, with its own status if it has one."""
    known = as_request_error(error)
    if known.status == 499:
        request.scope.get("translume.note", {})["gone"] = 499
    return error_answer(known, request.scope)


async def _failed(request: Request, error: Exception) -> Response:
    """A fault of the server's own, of which nothing is told but its kind."""
    return error_answer(
        RequestError(500, f"the server failed ({type(error).__name__}); its log says where"), request.scope
    )


async def _refused(request: Request, error: Exception) -> Response:
    """What is at no address (404), or is asked for with a wrong method (405)."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    if error.status_code == 404:
        reason = "no such address; /openapi.json lists all there are"
    elif error.status_code == 405:
        reason = f"{request.method} is not for this address, wanted {allowed.replace(', ', ' or ')}"
    else:
        reason = str(error.detail)
    answer = error_answer(RequestError(error.status_code, reason), request.scope)
    if allowed:
        answer.headers["Allow"] = allowed
    return answer
