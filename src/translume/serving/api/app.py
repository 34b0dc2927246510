"""The ASGI application: all routes, and one shape for all errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from translume import __version__
from translume.serving.access.guard import Guard
from translume.serving.api import deepl, libretranslate, requests, version1
from translume.serving.api.errors import add_error_handler
from translume.serving.api.routing import Routes
from translume.serving.files import inspection, transcription
from translume.serving.files import routes as files
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.jobs import Jobs
from translume.serving.page import routes as page
from translume.serving.server import Server
from translume.text.detection import Detector

NOTES: Final = (
    "An unknown path is answered with 404, a wrong method with 405, each with an `Error`. If a client disconnects "
    "before its response, the log records status 499. docs/serving.md has examples."
)
KEY: Final = {"type": "http", "scheme": "bearer", "description": "An API key, if the server requires one."}
THREADS: Final = 2
"""Threads that check and split texts: with more, the event loop would wait for all of them to have their turn."""
TAGS: Final = {
    "v1": "Translation, transcription, scoring, classification, files, and inspection of the model's predictions.",
    "OpenAI": "The API of OpenAI for recordings, for clients written for it.",
    "LibreTranslate": "The API of LibreTranslate, for clients written for it.",
    "DeepL": "The API of DeepL, for clients written for it.",
    "operations": "Health checks for operators.",
    "page": "Web pages.",
}


def build_app(server: Server, *, detector: Detector | None = None) -> ASGIApp:
    """Return the application of a server, which it closes at shutdown.

    detector: language detector; None if `source` cannot be detected.
    """
    documents = DocumentProcesses(server.limits.document_seconds)
    jobs = Jobs(server, documents)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        yield
        await jobs.close()
        await run_in_threadpool(documents.close)
        await run_in_threadpool(server.close)

    app = _App(
        title="Translume",
        summary="Translations, and the probabilities that the model predicted for them.",
        description=NOTES,
        openapi_tags=[{"name": name, "description": words} for name, words in TAGS.items()],
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.server = server
    routes = Routes()
    page.add_routes(routes)
    version1.add_routes(routes, server, detects=detector is not None)
    inspection.add_routes(routes, server, documents)
    libretranslate.add_routes(routes, server, detector)
    deepl.add_routes(routes, server, detector)
    files.add_routes(routes, server, jobs, documents, detector)
    transcription.add_routes(routes, server, documents)
    app.include_router(routes)
    add_error_handler(app)
    return Guard(app, server)


class _App(FastAPI):
    """An application whose OpenAPI document says which routes take a key."""

    def openapi(self) -> dict[str, Any]:
        """Return the document of all routes, which is built once: that takes a tenth of a second."""
        if self.openapi_schema is None:
            document = super().openapi()
            shapes = document["components"]["schemas"]
            shapes.pop("Limits", None)  # pydantic writes it where it is used
            shapes |= {
                name: each.model_json_schema()
                for name, each in vars(requests).items()
                if isinstance(each, type) and issubclass(each, requests.RequestBody) and each.example
            }
            document["components"]["securitySchemes"] = {"key": KEY}
            self.openapi_schema = _without_defaults(document)
        return self.openapi_schema


def _without_defaults(value: Any) -> Any:
    """Remove the titles of fields, and defaults: a field with a default may be left out."""
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    if not isinstance(value, dict):
        return value
    described = value.keys() & {"type", "anyOf", "enum", "$ref", "const", "oneOf"} and not isinstance(
        value.get("type"), dict
    )
    dropped = ("title", "default") if described else ()
    return {name: _without_defaults(each) for name, each in value.items() if name not in dropped}
