"""Files over HTTP: sent, watched, fetched, deleted; in API v1 and as LibreTranslate's clients do it."""

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
from translume.serving.access.admission import settle
from translume.serving.api import schema
from translume.serving.api.answer_schema import FETCHED, KEYED, READ, TEXT, WORKED, answers, named, record
from translume.serving.api.detection import Detector
from translume.serving.api.errors import RequestError
from translume.serving.api.languages import between, source_of
from translume.serving.api.responses import json_answer
from translume.serving.files.jobs import Job, Jobs
from translume.serving.files.uploads import TOLD_BY, Uploads
from translume.serving.server import Server
from translume.serving.workers.waiting import client_gone, unless_gone

CHUNK: Final = 65536
"""Bytes of a file that are sent at a time."""


def routes(server: Server, jobs: Jobs, detector: Detector | None) -> APIRouter:
    """/v1/files, /translate_file and /download_file."""
    router = APIRouter()
    uploads = Uploads(server)
    _version1(router, server, jobs, uploads, detector)
    address = record({"translatedFileUrl": TEXT})
    translated = answers(address, "Where the translated file is.", 422, 501, 504, 507, *READ)
    file = answers(None, "The file.", *FETCHED, kind="*/*")

    @router.post("/translate_file", tags=["LibreTranslate"], openapi_extra=schema.TRANSLATE_FILE, responses=translated)
    async def translate_file(request: Request) -> Response:
        """Where the translation of `file` can be fetched, once it is done."""
        upload = await uploads.read(request, unknown_format=400)
        for name in ("source", "target"):
            if not upload.fields.get(name):
                raise RequestError(400, f"Invalid request: missing {name} parameter", code="missing_field", field=name)
        source, target = upload.fields["source"].lower(), upload.fields["target"].lower()
        if source == "auto":
            source = (await source_of(upload.texts[:TOLD_BY], target, server, detector))["language"]
        job = await run_in_threadpool(jobs.take, upload.order(between(server, source, target), server.limits))
        await _finished(request, job, server.limits.file_seconds)
        jobs.result(job)
        base = server.public_address.rstrip("/") or str(request.base_url).rstrip("/")
        return json_answer({"translatedFileUrl": f"{base}/download_file/{job.id}{job.suffix}"})

    @router.get("/download_file/{name}", tags=["LibreTranslate"], responses=file, response_class=StreamingResponse)
    async def download_file(name: str) -> Response:
        """A translated file."""
        return await _sent(jobs, jobs.find(name.partition(".")[0]))

    return router


def _version1(router: APIRouter, server: Server, jobs: Jobs, uploads: Uploads, detector: Detector | None) -> None:
    """Add /v1/files."""
    taken = answers(named("File"), "It waits; Location says where to look.", 501, 507, *WORKED, status=202)
    looked = answers(named("File"), "How far it is, and where its result is.", 404, *KEYED)
    fetched = answers(None, "The file.", *FETCHED, *KEYED, kind="*/*")
    deleted = answers(record({"id": TEXT, "status": {"const": "deleted"}}), "It is gone.", 404, *KEYED)

    @router.post("/v1/files", tags=["v1"], status_code=202, responses=taken, openapi_extra=schema.FILES)
    async def send(request: Request) -> Response:
        """Take a file to be translated; the answer (202) says where to look how far it is."""
        upload = await uploads.read(request, unknown_format=415)
        model, source, target = (upload.fields.get(name, "") for name in ("model", "source", "target"))
        if source == "auto" and not model:
            source = (await source_of(upload.texts[:TOLD_BY], target, server, detector))["language"]
        served = server.models.choose(model, source, target)
        job = await run_in_threadpool(jobs.take, upload.order(served, server.limits))
        _settle_later(request.scope, job)
        return json_answer(_shown(job), 202, {"Location": f"/v1/files/{job.id}"})

    @router.get("/v1/files/{name}", tags=["v1"], responses=looked)
    async def look(name: str) -> Response:
        """How far a file is."""
        return json_answer(_shown(jobs.find(name)))

    @router.get("/v1/files/{name}/result", tags=["v1"], responses=fetched, response_class=StreamingResponse)
    async def fetch(name: str) -> Response:
        """The translated file; 409 before it is done, and where it failed, why."""
        return await _sent(jobs, jobs.find(name))

    @router.delete("/v1/files/{name}", tags=["v1"], responses=deleted)
    async def delete(name: str) -> Response:
        """Give a file up, or delete its result."""
        await run_in_threadpool(jobs.delete, jobs.find(name))
        return json_answer({"id": name, "status": "deleted"})


def _shown(job: Job) -> dict[str, Any]:
    """A job as clients see it."""
    shown = {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "sentences": job.lines,
        "done": job.done,
    }
    if shown["status"] == "done":
        left = max(0, round(job.kept_until - time.monotonic()))
        return {**shown, "result": f"/v1/files/{job.id}/result", "kept_seconds": left}
    error = job.error
    return {**shown, "error": error.to_dict()} if error is not None else shown


def _settle_later(scope: Scope, job: Job) -> None:
    """Have the characters of a file that fails counted off, since its client was answered before."""
    loop = asyncio.get_running_loop()

    def told(_: object) -> None:
        if (error := job.error) is not None:
            asyncio.run_coroutine_threadsafe(settle(scope, error.status), loop)

    job.finished.add_done_callback(told)


async def _finished(request: Request, job: Job, seconds: float) -> None:
    """Wait for a job; where its client goes, it is given up."""
    gone = asyncio.ensure_future(client_gone(request))
    try:
        await unless_gone(asyncio.wrap_future(job.finished), gone, seconds, time.monotonic() + seconds)
    finally:
        gone.cancel()


async def _sent(jobs: Jobs, job: Job) -> Response:
    """A result, from its file to its client, as fast as that one reads."""
    path = jobs.result(job)
    try:
        file, size = await run_in_threadpool(_opened, path)
    except OSError:
        raise RequestError(404, "no such file, or none any more", code="unknown_file") from None

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
