"""Routes that inspect a model: /v1/inspect for texts, recordings, images and arrays."""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from translume.serving.api.body import FORM, FORM_LIMITS, JSON, ApiRoute, media_type, validated
from translume.serving.api.errors import unsupported_type
from translume.serving.api.inspection import Inspection, inspect, inspection_settings
from translume.serving.api.requests import InspectFileRequest, InspectionFields, InspectRequest
from translume.serving.api.responses import WORKED, InspectResponse, described, errors, with_media
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.transcription import ReadFile
from translume.serving.server import Server


def routes(server: Server, documents: DocumentProcesses) -> APIRouter:
    """Return the routes /v1/inspect and /v1/inspect/page."""
    router = APIRouter(prefix="/v1", tags=["v1"], route_class=ApiRoute)
    limits = server.limits

    async def inspected(request: Request, form: str) -> str:
        """Return the result as text.  form: "json" or "page" (HTML)."""
        kind = media_type(request)
        call: InspectRequest | InspectFileRequest
        source: Any
        if kind == FORM:
            async with request.form(**FORM_LIMITS) as form_data:
                values: dict[str, Any] = {name: text for name, text in form_data.items() if isinstance(text, str)}
                call = validated(InspectFileRequest, values)
                served: Any = server.models.only("transcribe", call.model)
                settings = await run_in_threadpool(inspection_settings, served, call, limits)
                file: Any = form_data.get("file")
                read = await ReadFile.from_upload(
                    server, documents, request, file, served, settings, call.decoding, call.seconds, _texts(call)
                )
            source, seconds = read.part.frames, read.seconds_left
        elif kind == JSON:
            call = validated(InspectRequest, await request.json())
            served = server.models.choose(call.model, call.source, call.target)
            settings = await run_in_threadpool(inspection_settings, served, call, limits)
            await server.accept(request, _texts(call, call.text))
            source, seconds = call.text, call.seconds
        else:
            raise unsupported_type(kind)
        inspection = Inspection(served=served, settings=settings, call=call, source=source)
        return await server.background.run(request, partial(inspect, inspection, limits, form), seconds)

    body = described(InspectRequest, JSON)
    body["requestBody"]["content"] |= described(InspectFileRequest, FORM)["requestBody"]["content"]

    @router.post("/inspect", openapi_extra=body, response_model=InspectResponse, responses=errors(*WORKED))
    async def inspect_json(request: Request) -> Response:
        """Return the predicted distribution at each step of the translation of one sentence, or of the text of a file.

        docs/trace.schema.json describes it.
        """
        return Response(await inspected(request, "json"), media_type="application/json")

    @router.post(
        "/inspect/page",
        openapi_extra=body,
        response_class=HTMLResponse,
        responses=with_media(None, "text/html") | errors(*WORKED),
    )
    async def inspect_page(request: Request) -> Response:
        """Return the same as one self-contained HTML page."""
        return HTMLResponse(await inspected(request, "page"))

    return router


def _texts(call: InspectionFields, *texts: str) -> list[str]:
    return [text for text in (*texts, call.translation, call.reference) if text]
