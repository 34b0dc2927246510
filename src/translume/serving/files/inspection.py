"""Routes that inspect a model: /v1/inspect for texts, recordings, images and arrays."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from translume.serving.api.body import FORM, FORM_LIMITS, JSON, ApiRoute, media_type, validated
from translume.serving.api.errors import unsupported_type
from translume.serving.api.inspection import inspect, inspection_of, inspection_settings
from translume.serving.api.requests import InspectFileRequest, InspectionFields, InspectRequest
from translume.serving.api.responses import WORKED, InspectResponse, described, errors, with_media
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.transcription import ReadFile
from translume.serving.server import Server
from translume.translator.search import CancelCheck


def routes(server: Server, documents: DocumentProcesses) -> APIRouter:
    """Return the routes /v1/inspect and /v1/inspect/page."""
    router = APIRouter(prefix="/v1", tags=["v1"], route_class=ApiRoute)
    limits = server.limits

    async def inspected(request: Request, form: str) -> str:
        """Return the result as text.  form: "json" or "page" (HTML)."""
        kind, read = media_type(request), None
        call: InspectionFields
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
        elif kind == JSON:
            values = await request.json()
            call = validated(InspectRequest, values)
            served = server.models.choose(call.model, call.source, call.target)
            await run_in_threadpool(inspection_settings, served, call, limits)
            await server.accept(request, _texts(call, call.text))
        else:
            raise unsupported_type(kind)

        def work(check_cancelled: CancelCheck) -> str:
            inspection = inspection_of(served, values, limits, None if read is None else read.part.frames)
            return inspect(inspection, limits, form, check_cancelled)

        return await server.background.run(request, work, call.seconds if read is None else read.seconds_left)

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
