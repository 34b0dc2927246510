"""Routes that translate files: /v1/files, and LibreTranslate's /translate_file and /download_file."""

import re
import time
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from translume.documents import FORMATS
from translume.serving.access.quotas import client_of
from translume.serving.api import responses
from translume.serving.api.errors import RequestError, field_error, json_response
from translume.serving.api.languages import between, detect_sources, sources_into
from translume.serving.api.requests import DeepLDocumentRequest, FileRequest, LibreTranslateFileRequest
from translume.serving.api.routing import ALWAYS, KEYED, READ, WORKED, Routes
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.jobs import Job, Jobs, Upload
from translume.serving.server import Server, wait_for_result
from translume.text.detection import Detector

LONGEST_NAME: Final = 100
LONGEST_NAME_BYTES: Final = 200
"""Maximum number of bytes of a name in UTF-8: with its language and suffix, most file systems take 255."""
DEEPL_STATUSES: Final = {"waiting": "queued", "working": "translating", "done": "done", "failed": "error"}
"""DeepL's words for the status of a file."""
FETCHED: Final = (404, 409, 422, 504, 507)
"""Error statuses of a route that returns a translated file."""
ANY: Final = {"*/*": None}
DETECTED_BY: Final = 20
"""Segments of a file from which its language is detected."""


def add_routes(
    routes: Routes, server: Server, jobs: Jobs, documents: DocumentProcesses, detector: Detector | None
) -> None:
    """Add the routes of files."""
    limits = server.limits

    async def received(request: Request, file: Any, unknown_format: int = 400) -> Upload:
        """Return a document, which is charged.  unknown_format: the status for a file that is not one of `FORMATS`."""
        name, suffix = _safe_name(file.filename)
        if suffix not in FORMATS:
            reason = f"found '{suffix or 'no suffix'}', expected one of {', '.join(FORMATS)}"
            raise field_error("file", reason, unknown_format, "unsupported_format")
        content = await file.read()
        segments, _ = await documents.read(suffix, content, limits.file_characters)
        texts = tuple(each.text for each in segments)
        await server.accept(request, texts)
        return Upload(name=name, suffix=suffix, content=content, texts=texts, client=client_of(request.scope))

    async def source_of(source: str, target: str, upload: Upload) -> str:
        if source != "auto":
            return source
        beginning = "\n".join(upload.texts[:DETECTED_BY])
        (detected,) = await detect_sources([beginning], target, server, detector, refuse=True)
        return detected.code

    @routes.on("POST /translate_file", responses.TranslatedFile, 422, 501, 504, 507, *READ)
    async def translate_file(request: Request, call: LibreTranslateFileRequest) -> Any:
        """Translate `file`, and return the address of the result once it is finished."""
        upload = await received(request, call.file)
        source = await source_of(call.source, call.target, upload)
        job, task = await jobs.submit(upload, between(server, source, call.target))
        try:
            await wait_for_result(request, task, limits.file_seconds)
        except BaseException:  # the client did not get the job's id
            jobs.delete(job)
            raise
        base = server.settings.public_address or str(request.base_url).rstrip("/")
        return {"translatedFileUrl": f"{base}/download_file/{job.id}{job.suffix}"}

    @routes.on("POST /v1/files", responses.File, 501, 507, *WORKED, status=202)
    async def upload_file(request: Request, call: FileRequest) -> Response:
        """Accept a file for translation in the background (202); Location has the path of its status."""
        upload = await received(request, call.file, 415)
        source = call.source if call.model else await source_of(call.source, call.target, upload)
        job, _ = await jobs.submit(upload, server.models.choose(call.model, source, call.target))
        return json_response(_status(job), 202, {"Location": f"/v1/files/{job.id}"})

    @routes.on("GET /v1/files/{name}", responses.File, 404, 422, *KEYED)
    async def file_status(name: str) -> Any:
        """Return the status of a file, and the path of the result."""
        return _status(jobs.find(name))

    @routes.on("POST /v2/document", responses.DeepLDocument, 422, 456, 501, 504, 507, *READ)
    async def upload_document(request: Request, call: DeepLDocumentRequest) -> Any:
        """Accept `file` for translation into `target_lang` in the background."""
        upload = await received(request, call.file)
        sources = [call.source_lang] if call.source_lang else sources_into(call.target_lang, server)
        source = sources[0] if len(sources) == 1 else await source_of("auto", call.target_lang, upload)
        job, _ = await jobs.submit(upload, between(server, source, call.target_lang))
        return {"document_id": job.id, "document_key": job.id}

    @routes.on("POST /v2/document/{name}", responses.DeepLDocumentStatus, 404, 422, *KEYED)
    async def document_status(name: str) -> Any:
        """Return the status of a document."""
        job = jobs.find(name)
        status = {"document_id": job.id, "status": DEEPL_STATUSES[job.status], "billed_characters": job.characters}
        message = {"error_message": job.error["reason"]} if job.error else {}
        return {**status, **message}

    @routes.on("GET /v1/files/{name}/result", None, *FETCHED, *KEYED, media=ANY)
    @routes.on("POST /v2/document/{name}/result", None, *FETCHED, *KEYED, media=ANY)
    @routes.on("GET /download_file/{name}", None, *FETCHED, *ALWAYS, media=ANY)
    async def file_result(name: str) -> Response:
        """Return the translated file; 409 before it is finished, or the error of a failed one."""
        return await run_in_threadpool(_download, jobs, name.partition(".")[0])

    @routes.on("DELETE /v1/files/{name}", responses.FileDeleted, 404, 422, *KEYED)
    async def delete_file(name: str) -> Any:
        """Cancel a translation, or delete its result."""
        jobs.delete(jobs.find(name))
        return {"id": name, "status": "deleted"}


def _safe_name(name: str) -> tuple[str, str]:
    """Return a file name without folders and special characters, as stem and suffix."""
    name = re.split(r"[/\\]", name)[-1]
    plain = "".join(each for each in name if each.isprintable() and each not in "\"';%&<>|:*?").strip(" .")
    path = Path(plain or "file")
    suffix = path.suffix.lower()[:10]
    stem = path.stem[:LONGEST_NAME].encode()[:LONGEST_NAME_BYTES].decode(errors="ignore")
    return (stem or "file", suffix)


def _status(job: Job) -> dict[str, Any]:
    """Return the status of a job as clients see it."""
    status = {name: getattr(job, name) for name in ("id", "name", "status", "sentences", "done")}
    if job.warnings:
        status["warnings"] = job.warnings
    if job.status == "done":
        left = max(0, round(job.until - time.time()))
        return {**status, "result": f"/v1/files/{job.id}/result", "kept_seconds": left}
    return {**status, "error": RequestError(**job.error).to_dict()} if job.error else status


def _download(jobs: Jobs, name: str) -> Response:
    """Return a result, streamed from its file."""
    job = jobs.find(name)
    path, status = jobs.result(job)
    return FileResponse(path, media_type=FORMATS[job.suffix].media_type, filename=job.name, stat_result=status)
