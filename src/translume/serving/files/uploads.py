"""Uploaded files: read within the limits, and parsed before they are accepted."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from translume.documents.files import FORMATS
from translume.serving.access.admission import ACCESS, ADMITTED
from translume.serving.access.clients import check_share, client_of
from translume.serving.access.limits import Limits
from translume.serving.api.body import FormPart, form_fields, form_parts, media_type, read_body
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import missing_parameter, settings_with, split_language
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.jobs import FileTask
from translume.serving.server import Server
from translume.serving.workers.models import Served
from translume.serving.workers.scheduler import Work
from translume.serving.workers.work import Translating

AT_ONCE: Final = 4
"""Most uploads that are read at a time, since each is held in memory."""
FORM_BYTES: Final = 20_000
"""Most bytes of a form besides its file."""
LONGEST_NAME: Final = 100
LONGEST_NAME_BYTES: Final = 200
"""Most bytes of a name in UTF-8: with its language and suffix, most file systems take 255."""
DETECTED_BY: Final = 20
"""Segments of a file from which its language is detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An uploaded file.  name: without its suffix.  texts: of its segments."""

    name: str
    suffix: str
    data: bytes
    fields: dict[str, str]
    texts: tuple[str, ...]
    client: str

    def task(self, served: Served | None, limits: Limits) -> FileTask:
        """Return the task of translating the file with a model; of returning it unchanged without one."""
        if served is None:
            return FileTask(name=f"{self.name}{self.suffix}", suffix=self.suffix, data=self.data, client=self.client)

        def work(marked: bool) -> Work:
            # Alignment takes another pass, and only sentences with markup need it.
            aligned = marked and not served.translator.config.without_tokens
            return Translating(served.translator, settings_with(served, {"nbest": 1, "alignment": aligned}, limits))

        name = f"{self.name}_{served.target}{FORMATS[self.suffix].written or self.suffix}"
        return FileTask(
            name=name,
            suffix=self.suffix,
            data=self.data,
            client=self.client,
            language=split_language(served),
            work=work,
        )


class Uploads:
    """Reads the uploads of a server, a few at a time."""

    def __init__(self, server: Server, documents: DocumentProcesses) -> None:
        self._server, self._documents = server, documents
        # By whether the key was in the headers: clients without one cannot block those with one.
        self._reading: dict[bool, list[str]] = {False: [], True: []}

    async def read(self, request: Request, *, unknown_format: int) -> Upload:
        """Read a document of a form, and admit and charge the request; RequestError if it is invalid.

        unknown_format: the status for a file that is not one of `FORMATS`.
        """
        async with self.receive(request, unknown_format) as (fields, part):
            name, suffix = _document_name(part, unknown_format)
            texts = await run_in_threadpool(self._texts, suffix, part.value)
        await self._server.accept(request, texts)
        client = client_of(request.scope)
        return Upload(name=name, suffix=suffix, data=part.value, fields=fields, texts=texts, client=client)

    @asynccontextmanager
    async def receive(
        self, request: Request, unknown_format: int = 415
    ) -> AsyncIterator[tuple[dict[str, str], FormPart]]:
        """Yield the fields and the part 'file' of a form, whose request is admitted.

        Until the context ends, the file counts among those that are read. unknown_format: the status for another body.
        """
        server = self._server
        if (found := media_type(request)) != "multipart/form-data":
            raise RequestError(
                unknown_format,
                f"content-type: found '{found}', expected multipart/form-data with a part 'file'",
                code="unsupported_media_type",
                field="content-type",
            )
        known = request.scope.get(ACCESS) is None or ADMITTED in request.scope
        async with self._turn(self._reading[known], client_of(request.scope)):
            limits = server.limits.model_copy(
                update={
                    "body_bytes": server.limits.file_bytes + FORM_BYTES,
                    "read_seconds": max(server.limits.read_seconds, server.limits.timeout_seconds),
                }
            )
            body = await read_body(request, limits)
            fields = form_fields(request, body)
            await server.admit(request, fields.get("api_key"))
            part = _file(request, body)
            if len(part.value) > server.limits.file_bytes:
                raise RequestError(
                    413,
                    f"file: found {len(part.value):,} bytes, expected at most {server.limits.file_bytes:,}",
                    code="file_too_large",
                    field="file",
                )
            yield fields, part

    def _texts(self, suffix: str, data: bytes) -> tuple[str, ...]:
        """Return the texts of a file's segments; RequestError for a damaged file (422) or too much text (413)."""
        segments = self._documents.read(suffix, data, self._server.limits.file_characters)
        return tuple(segment.text for segment in segments)

    @asynccontextmanager
    async def _turn(self, reading: list[str], client: str) -> AsyncIterator[None]:
        check_share(reading, client, AT_ONCE, "uploads", retry_after=2)
        reading.append(client)
        try:
            yield
        finally:
            reading.remove(client)


def _file(request: Request, body: bytes) -> FormPart:
    """Return the part 'file'."""
    part = next((part for part in form_parts(request, body) if part.name == "file"), None)
    if part is None:
        raise missing_parameter("file")
    if not part.file_name:
        raise RequestError(400, "Invalid request: empty file", code="missing_field", field="file")
    return part


def _document_name(part: FormPart, unknown_format: int) -> tuple[str, str]:
    """Return the name without suffix, and the suffix, of a document."""
    name, suffix = _name(part.file_name or "")
    if suffix not in FORMATS:
        raise RequestError(
            unknown_format,
            f"file: found '{suffix or 'no suffix'}', expected one of {', '.join(FORMATS)}",
            code="unsupported_format",
            field="file",
        )
    return name, suffix


def _name(given: str) -> tuple[str, str]:
    """Return a safe file name without folders and special characters, as stem and suffix."""
    own = re.split(r"[/\\]", given)[-1]
    plain = "".join(each for each in own if each.isprintable() and each not in "\"';%&<>|:*?").strip(" .")
    path = Path(plain or "file")
    suffix = path.suffix.lower()[:10]
    stem = path.stem[:LONGEST_NAME].encode()[:LONGEST_NAME_BYTES].decode(errors="ignore")
    return (stem or "file", suffix)
