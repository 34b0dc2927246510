"""Routes that inspect a model: /v1/inspect for texts, recordings, images and arrays."""

from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.serving.api.inspection import Inspection, inspect, inspection_settings
from translume.serving.api.requests import InspectFileRequest, InspectRequest
from translume.serving.api.responses import InspectResponse
from translume.serving.api.routing import WORKED, Routes
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.transcription import ReadFile
from translume.serving.server import Server


def routes(server: Server, documents: DocumentProcesses) -> Routes:
    """Return the routes /v1/inspect and /v1/inspect/page."""
    routes = Routes(prefix="/v1", tags=["v1"])
    limits = server.limits

    async def inspected(request: Request, call: InspectRequest | InspectFileRequest, form: str) -> str:
        """Return the result as text.  form: "json" or "page" (HTML)."""
        texts = [text for text in (call.translation, call.reference) if text]
        source: Any
        if isinstance(call, InspectFileRequest):
            served: Any = server.models.only("transcribe", call.model)
            settings = await run_in_threadpool(inspection_settings, served, call, limits)
            read = await ReadFile.from_upload(server, documents, request, call, served, settings, texts)
            source, seconds = read.part.frames, read.seconds_left
        else:
            served = server.models.choose(call.model, call.source, call.target)
            settings = await run_in_threadpool(inspection_settings, served, call, limits)
            await server.accept(request, [call.text, *texts])
            source, seconds = call.text, call.seconds
        inspection = Inspection(served=served, settings=settings, call=call, source=source)
        return await server.inspect(request, partial(inspect, inspection, limits, form), seconds)

    @routes.on("POST /inspect", InspectResponse, *WORKED)
    async def inspect_json(request: Request, call: InspectRequest | InspectFileRequest) -> Response:
        """Return the predicted distribution at each step of the translation of one sentence, or of the text of a file.

        docs/trace.schema.json describes it.
        """
        return Response(await inspected(request, call, "json"), media_type="application/json")

    @routes.on("POST /inspect/page", None, *WORKED, media={"text/html": None})
    async def inspect_page(request: Request, call: InspectRequest | InspectFileRequest) -> Response:
        """Return the same as one self-contained HTML page."""
        return Response(await inspected(request, call, "page"), media_type="text/html")

    return routes
