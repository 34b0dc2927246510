"""Routes that translate files: /v1/files, and LibreTranslate's /translate_file and /download_file."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from translume.documents.files import FORMATS
from translume.serving.access.admission import refund_if_failed
from translume.serving.api.errors import RequestError
from translume.serving.api.languages import Detector, between, detect_source
from translume.serving.api.openapi import DOCUMENT, FETCHED, FORM, KEYED, READ, WORKED, body, responses
from translume.serving.api.requests import FileRequest, LibreTranslateFileRequest
from translume.serving.api.responses import File, FileDeleted, TranslatedFile, json_response
from translume.serving.background import client_disconnected, wait_for_result
from translume.serving.files.jobs import Job, Jobs
from translume.serving.files.uploads import DETECTED_BY, Uploads
from translume.serving.server import Server

CHUNK: Final = 65536
"""Bytes that are read from a result at a time."""


def routes(server: Server, jobs: Jobs, detector: Detector | None) -> APIRouter:
    """Return the routes of files."""
    router = APIRouter()
    uploads = Uploads(server, jobs.documents)
    _add_version1(router, server, jobs, uploads, detector)
    translated = responses(TranslatedFile, "The address of the translated file.", 422, 501, 504, 507, *READ)
    form = body(LibreTranslateFileRequest, FORM, file=DOCUMENT)

    @router.post("/translate_file", tags=["LibreTranslate"], openapi_extra=form, responses=translated)
    async def translate_file(request: Request) -> Response:
        """Translate `file`, and return the address of the result once it is finished."""
        upload = await uploads.read(request, unknown_format=400)
        call = LibreTranslateFileRequest.parse(upload.fields, server.limits)
        source, target = call.source.lower(), call.target.lower()
        if source == "auto":
            source = (await detect_source(upload.texts[:DETECTED_BY], target, server, detector))["language"]
        job = await run_in_threadpool(jobs.submit, upload.task(between(server, source, target), server.limits))
        await _finished(request, job, server.limits.file_seconds)
        jobs.result(job)
        base = server.public_address.rstrip("/") or str(request.base_url).rstrip("/")
        suffix = FORMATS[job.suffix].written or job.suffix
        return json_response({"translatedFileUrl": f"{base}/download_file/{job.id}{suffix}"})

    file = responses(None, "The file.", *FETCHED, kind="*/*")

    @router.get("/download_file/{name}", tags=["LibreTranslate"], responses=file, response_class=StreamingResponse)
    async def download_file(name: str) -> Response:
        """Return a translated file."""
        return await _download(jobs, jobs.find(name.partition(".")[0]))

    return router


def _add_version1(router: APIRouter, server: Server, jobs: Jobs, uploads: Uploads, detector: Detector | None) -> None:
    """Add /v1/files."""
    accepted = responses(File, "The file waits; Location has the path of its status.", 501, 507, *WORKED, status=202)
    status = responses(File, "The status, and the path of the result.", 404, *KEYED)
    fetched = responses(None, "The file.", *FETCHED, *KEYED, kind="*/*")
    deleted = responses(FileDeleted, "The file is deleted.", 404, *KEYED)
    form = body(FileRequest, FORM, file=DOCUMENT)

    @router.post("/v1/files", tags=["v1"], status_code=202, responses=accepted, openapi_extra=form)
    async def upload_file(request: Request) -> Response:
        """Accept a file for translation in the background (202)."""
        upload = await uploads.read(request, unknown_format=415)
        call = FileRequest.parse(upload.fields, server.limits)
        source = call.source
        if source == "auto" and not call.model:
            source = (await detect_source(upload.texts[:DETECTED_BY], call.target, server, detector))["language"]
        served = server.models.choose(call.model, source, call.target)
        job = await run_in_threadpool(jobs.submit, upload.task(served, server.limits))
        _refund_if_job_fails(request.scope, job)
        return json_response(_status(job), 202, {"Location": f"/v1/files/{job.id}"})

    @router.get("/v1/files/{name}", tags=["v1"], responses=status)
    async def file_status(name: str) -> Response:
        """Return the status of a file."""
        return json_response(_status(jobs.find(name)))

    @router.get("/v1/files/{name}/result", tags=["v1"], responses=fetched, response_class=StreamingResponse)
    async def file_result(name: str) -> Response:
        """Return the translated file; 409 before it is finished, or the error of a failed one."""
        return await _download(jobs, jobs.find(name))

    @router.delete("/v1/files/{name}", tags=["v1"], responses=deleted)
    async def delete_file(name: str) -> Response:
        """Cancel a translation, or delete its result."""
        await run_in_threadpool(jobs.delete, jobs.find(name))
        return json_response({"id": name, "status": "deleted"})


def _status(job: Job) -> dict[str, Any]:
    """Return the status of a job as clients see it."""
    status = {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "sentences": job.lines,
        "done": job.done,
    }
    if status["status"] == "done":
        left = max(0, round(job.kept_until - time.monotonic()))
        return {**status, "result": f"/v1/files/{job.id}/result", "kept_seconds": left}
    error = job.error
    return {**status, "error": error.to_dict()} if error is not None else status


def _refund_if_job_fails(scope: Scope, job: Job) -> None:
    """Refund the charge if the job fails: its response was sent when it began."""
    loop = asyncio.get_running_loop()

    def refund(_: object) -> None:
        if (error := job.error) is not None:
            asyncio.run_coroutine_threadsafe(refund_if_failed(scope, error.status), loop)

    job.finished.add_done_callback(refund)


async def _finished(request: Request, job: Job, seconds: float) -> None:
    """Wait for a job, and cancel it if its client disconnects."""
    gone = asyncio.ensure_future(client_disconnected(request))
    try:
        await wait_for_result(asyncio.wrap_future(job.finished), gone, seconds, time.monotonic() + seconds)
    finally:
        gone.cancel()


async def _download(jobs: Jobs, job: Job) -> Response:
    """Return a result, streamed from its file."""
    path = jobs.result(job)
    try:
        file, size = await run_in_threadpool(_opened, path)
    except OSError:
        raise RequestError(404, "no such file, or it was deleted", code="unknown_file") from None

    async def chunks() -> AsyncIterator[bytes]:
        try:
            while chunk := await run_in_threadpool(file.read, CHUNK):
                yield chunk
        finally:
            file.close()

    plain = job.name.encode("ascii", "replace").decode().replace("?", "_")
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(job.name, safe='')}",
        "Content-Length": str(size),
    }
    return StreamingResponse(chunks(), headers=headers, media_type=FORMATS[job.suffix].media_type)


def _opened(path: Path) -> tuple[BinaryIO, int]:
    file = path.open("rb")
    return file, path.stat().st_size
