"""Routes that translate files: /v1/files, and LibreTranslate's /translate_file and /download_file."""

import re
import time
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from translume.documents import FORMATS
from translume.serving.access.quotas import client_of
from translume.serving.api import responses
from translume.serving.api.body import FORM, FORM_LIMITS, ApiRoute, B, media_type, validated
from translume.serving.api.errors import RequestError, field_error, json_response, refuse_more, unsupported_type
from translume.serving.api.languages import between, detect_sources, sources_into
from translume.serving.api.requests import DeepLDocumentRequest, FileRequest, LibreTranslateFileRequest
from translume.serving.api.responses import FETCHED, KEYED, READ, WORKED, described, errors, with_media
from translume.serving.background import wait_for_result
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.jobs import Job, Jobs, Upload
from translume.serving.server import Server
from translume.serving.settings import Limits
from translume.text.detection import Detector

LONGEST_NAME: Final = 100
LONGEST_NAME_BYTES: Final = 200
"""Maximum number of bytes of a name in UTF-8: with its language and suffix, most file systems take 255."""
DEEPL_STATUSES: Final = {"waiting": "queued", "working": "translating", "done": "done", "failed": "error"}
"""DeepL's words for the status of a file."""
DETECTED_BY: Final = 20
"""Segments of a file from which its language is detected."""


def routes(server: Server, jobs: Jobs, documents: DocumentProcesses, detector: Detector | None) -> APIRouter:
    """Return the routes of files."""
    router = APIRouter(route_class=ApiRoute)
    limits = server.limits

    async def received(request: Request, file: Any, unknown_format: int) -> Upload:
        """Return a document, which is charged.  unknown_format: the status for a file that is not one of `FORMATS`."""
        name, suffix = _safe_name(named(request, file).filename)
        if suffix not in FORMATS:
            reason = f"found '{suffix or 'no suffix'}', expected one of {', '.join(FORMATS)}"
            raise field_error("file", reason, unknown_format, "unsupported_format")
        content = await file_content(request, file, limits)
        segments, _ = await documents.read(suffix, content, limits.file_characters)
        texts = tuple(each.text for each in segments)
        await server.accept(request, texts)
        return Upload(name=name, suffix=suffix, content=content, texts=texts, client=client_of(request.scope))

    async def uploaded(request: Request, model: type[B]) -> tuple[B, Upload]:
        """Return the fields and the document of a form, whose key may be among the fields."""
        async with request.form(**FORM_LIMITS) as form:
            await server.admit(request, form.get("api_key"))
            named(request, form.get("file"))
            call = validated(model, {name: each for name, each in form.items() if name != "file"})
            return call, await received(request, form.get("file"), 400)

    async def source_of(source: str, target: str, upload: Upload) -> str:
        if source != "auto":
            return source
        beginning = "\n".join(upload.texts[:DETECTED_BY])
        (detected,) = await detect_sources([beginning], target, server, detector, refuse=True)
        return detected.code

    @router.post(
        "/translate_file",
        tags=["LibreTranslate"],
        response_model=responses.TranslatedFile,
        responses=errors(422, 501, 504, 507, *READ),
        openapi_extra=described(LibreTranslateFileRequest, FORM),
    )
    async def translate_file(request: Request) -> Response:
        """Translate `file`, and return the address of the result once it is finished."""
        call, upload = await uploaded(request, LibreTranslateFileRequest)
        source = await source_of(call.source, call.target, upload)
        job, task = await jobs.submit(upload, between(server, source, call.target))
        try:
            await wait_for_result(request, task, limits.file_seconds)
        except BaseException:  # the client did not get the job's id
            jobs.delete(job)
            raise
        base = server.settings.public_address or str(request.base_url).rstrip("/")
        return json_response({"translatedFileUrl": f"{base}/download_file/{job.id}{job.suffix}"})

    @router.post(
        "/v1/files",
        tags=["v1"],
        status_code=202,
        response_model=responses.File,
        responses=errors(501, 507, *WORKED),
        openapi_extra=described(FileRequest, FORM),
    )
    async def upload_file(request: Request, file: UploadFile, call: Annotated[FileRequest, Form()]) -> Response:
        """Accept a file for translation in the background (202); Location has the path of its status."""
        upload = await received(request, file, 415)
        source = call.source if call.model else await source_of(call.source, call.target, upload)
        job, _ = await jobs.submit(upload, server.models.choose(call.model, source, call.target))
        return json_response(_status(job), 202, {"Location": f"/v1/files/{job.id}"})

    @router.get("/v1/files/{name}", tags=["v1"], response_model=responses.File, responses=errors(404, 422, *KEYED))
    async def file_status(name: str) -> Response:
        """Return the status of a file, and the path of the result."""
        return json_response(_status(jobs.find(name)))

    @router.post(
        "/v2/document",
        tags=["DeepL"],
        response_model=responses.DeepLDocument,
        responses=errors(422, 456, 501, 504, 507, *READ),
        openapi_extra=described(DeepLDocumentRequest, FORM),
    )
    async def upload_document(request: Request) -> Response:
        """Accept `file` for translation into `target_lang` in the background."""
        call, upload = await uploaded(request, DeepLDocumentRequest)
        sources = [call.source_lang] if call.source_lang else sources_into(call.target_lang, server)
        source = sources[0] if len(sources) == 1 else await source_of("auto", call.target_lang, upload)
        job, _ = await jobs.submit(upload, between(server, source, call.target_lang))
        return json_response({"document_id": job.id, "document_key": job.id})

    @router.post(
        "/v2/document/{name}",
        tags=["DeepL"],
        response_model=responses.DeepLDocumentStatus,
        responses=errors(404, 422, *KEYED),
    )
    async def document_status(name: str) -> Response:
        """Return the status of a document."""
        job = jobs.find(name)
        status = {"document_id": job.id, "status": DEEPL_STATUSES[job.status], "billed_characters": job.characters}
        message = {"error_message": job.error["reason"]} if job.error else {}
        return json_response({**status, **message})

    def fetched(*statuses: int) -> dict[str, Any]:
        """Describe a route that returns a translated file."""
        return {"responses": with_media(None, "*/*") | errors(*FETCHED, *statuses), "response_class": FileResponse}

    @router.get("/v1/files/{name}/result", tags=["v1"], **fetched(*KEYED))
    @router.post("/v2/document/{name}/result", tags=["DeepL"], **fetched(*KEYED))
    @router.get("/download_file/{name}", tags=["LibreTranslate"], **fetched())
    async def file_result(name: str) -> Response:
        """Return the translated file; 409 before it is finished, or the error of a failed one."""
        return await run_in_threadpool(_download, jobs, name.partition(".")[0])

    @router.delete(
        "/v1/files/{name}", tags=["v1"], response_model=responses.FileDeleted, responses=errors(404, 422, *KEYED)
    )
    async def delete_file(name: str) -> Response:
        """Cancel a translation, or delete its result."""
        jobs.delete(jobs.find(name))
        return json_response({"id": name, "status": "deleted"})

    return router


def named(request: Request, file: Any) -> Any:
    """Return an uploaded file; RequestError if there is none (400), or no form (415)."""
    if (kind := media_type(request)) != FORM:
        raise unsupported_type(kind, "multipart/form-data with a part 'file'")
    if not getattr(file, "filename", ""):
        raise RequestError(400, "Invalid request: missing file parameter", code="missing_field", field="file")
    return file


async def file_content(request: Request, file: Any, limits: Limits) -> bytes:
    """Return the content of an uploaded file; RequestError if there is none, or it is too large (413)."""
    named(request, file)
    refuse_more("file", file.size, " bytes", limits.file_bytes, "file_too_large")
    content: bytes = await file.read()
    return content


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
