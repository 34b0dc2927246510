"""Routes that read recordings, images and arrays: /v1/transcribe, OpenAI's /v1/audio, and files for /v1/inspect."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.config import DecodingSettings
from translume.documents.transcripts import transcript
from translume.serving.access.limits import Limits
from translume.serving.api.cost import characters_to_charge
from translume.serving.api.errors import RequestError
from translume.serving.api.openapi import FORM, UPLOADED, WORKED, body, responses, with_texts
from translume.serving.api.requests import (
    InspectFileRequest,
    SpeechRequest,
    TranscribeRequest,
    resolve_file_inspection,
    settings_with,
)
from translume.serving.api.responses import SpeechResponse, TranscribeResponse, json_response
from translume.serving.background import client_disconnected, wait_for_result
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.uploads import Uploads
from translume.serving.server import Server
from translume.serving.workers.models import ServedTranscriber
from translume.serving.workers.work import Part, Translating
from translume.sources import Frames
from translume.translator import Translation
from translume.translator.search import CancelCheck
from translume.translator.speech import FRAMES_PER_SECOND

TYPES: Final = {"txt": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
FIELDS: Final = ("text", "warnings", "language", "segments")
BRIEF: Final = ("text", "log_prob", "score")
"""Fields of a hypothesis without `detail`."""


def routes(server: Server, documents: DocumentProcesses) -> APIRouter:
    """Return the routes of files that are no text."""
    router = APIRouter(prefix="/v1")
    uploads = Uploads(server, documents)
    described = with_texts(responses(TranscribeResponse, "What the file says.", *WORKED), *TYPES.values())

    @router.post(
        "/transcribe", tags=["v1"], openapi_extra=body(TranscribeRequest, FORM, file=UPLOADED), responses=described
    )
    async def transcribe(request: Request) -> Response:
        """Write what a recording, an image or an array says: `file`, with options as further fields of the form."""
        async with uploads.receive(request) as (fields, part):
            call = TranscribeRequest.parse(TranscribeRequest.form_values(fields), server.limits)
            begun = await _transcription(server, request, call, part.value)
        found = await begun.result()
        if call.format == "json":
            return json_response(_response(begun, found, call))
        return _written(found, call.format)

    spoken = with_texts(responses(SpeechResponse, "What is said.", *WORKED), *TYPES.values())

    async def speech(request: Request, *, to_english: bool) -> Response:
        async with uploads.receive(request) as (fields, part):
            # OpenAI's clients send lists, such as timestamp_granularities[], as fields of this form.
            times = fields.pop("timestamp_granularities[]", "segment")
            if times != "segment":
                raise RequestError(422, "timestamp_granularities: expected 'segment'", field="timestamp_granularities")
            given = SpeechRequest.parse_form(fields, server.limits)
            call = given.transcription(to_english=to_english)
            begun = await _transcription(server, request, call, part.value)
        found = await begun.result()
        if call.format != "json":
            return _written(found, call.format)
        if given.response_format == "json":
            return json_response({"text": found.text})
        return json_response(
            {
                "task": "translate" if to_english else "transcribe",
                "language": found.language,
                "duration": begun.seconds,
                "text": found.text,
                "segments": [
                    {"id": number, "start": each.start, "end": each.end, "text": each.text}
                    for number, each in enumerate(found.segments)
                ],
            }
        )

    form = body(SpeechRequest, FORM, file="A recording: WAV, FLAC, Ogg or MP3.")

    @router.post("/audio/transcriptions", tags=["OpenAI"], openapi_extra=form, responses=spoken)
    async def transcriptions(request: Request) -> Response:
        """Write what is said in a recording, in the format of OpenAI."""
        return await speech(request, to_english=False)

    @router.post("/audio/translations", tags=["OpenAI"], openapi_extra=form, responses=spoken)
    async def translations(request: Request) -> Response:
        """Write in English what is said in a recording, in the format of OpenAI."""
        return await speech(request, to_english=True)

    return router


def file_inspector(server: Server, documents: DocumentProcesses) -> Callable[[Request, str], Awaitable[str]]:
    """Return a function that inspects the file of a request; its text is "json" or a "page" (HTML)."""
    uploads = Uploads(server, documents)

    async def inspect(request: Request, form: str) -> str:
        limits = server.limits
        async with uploads.receive(request) as (fields, part):
            values = InspectFileRequest.form_values(fields)
            call = await run_in_threadpool(resolve_file_inspection, values, server.models, limits)
            served = cast(ServedTranscriber, call.served)
            texts = [each for each in (call.translation, call.reference) if each]
            begun = await _ReadFile.begin(
                server, request, served, call.settings, values, part.value, call.timeout_seconds, texts
            )

        def work(check_cancelled: CancelCheck) -> str:
            return served.transcriber.inspected(values, limits, form, check_cancelled, begun.part.frames)

        return await server.background.run(request, work, begun.seconds_left)

    return inspect


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadFile:
    """A file that was read for a request, which is charged.  deadline: of the request."""

    server: Server
    request: Request
    served: ServedTranscriber
    work: Translating
    part: Part
    deadline: float

    @classmethod
    async def begin(
        cls,
        server: Server,
        request: Request,
        served: ServedTranscriber,
        settings: DecodingSettings,
        given: Iterable[str],
        content: bytes,
        timeout_seconds: float,
        texts: Sequence[str] = (),
    ) -> Self:
        """Read a file. Raises RequestError if the model cannot read it, or not all of it.

        given: names of the settings that the request replaces.  texts: that it has besides the file.
        """
        deadline = time.monotonic() + timeout_seconds
        work = Translating(served.transcriber, settings)
        part = Part(text="", frames=await _read(server, request, served, content, timeout_seconds))

        def cost() -> int:
            try:
                work.size(part)
            except RequestError as error:
                raise RequestError(422, str(error), code="file_too_long", field="file") from None
            return characters_to_charge(work, [part], given, server.limits)

        await server.accept(request, texts, await run_in_threadpool(cost), others=part.characters)
        return cls(server=server, request=request, served=served, work=work, part=part, deadline=deadline)

    @property
    def seconds(self) -> float:
        """The length of a recording."""
        return 0.0 if self.part.frames is None else len(self.part.frames.values) / FRAMES_PER_SECOND

    @property
    def seconds_left(self) -> float:
        """The time until the deadline."""
        return max(0.1, round(self.deadline - time.monotonic(), 1))

    async def result(self) -> Translation:
        """Return what the file says. Errors are those of `Server.results`."""
        (found,) = await self.server.results(self.request, self.work, [self.part], self.seconds_left, ["file"])
        return cast(Translation, found)


async def _transcription(server: Server, request: Request, call: TranscribeRequest, content: bytes) -> _ReadFile:
    served = server.models.transcriber(call.model)
    settings = await run_in_threadpool(_settings, served, call, server.limits)
    timeout = call.timeout_seconds or server.limits.timeout_seconds
    return await _ReadFile.begin(server, request, served, settings, call.decoding, content, timeout)


def _settings(served: ServedTranscriber, call: TranscribeRequest, limits: Limits) -> DecodingSettings:
    timed = call.format in ("srt", "vtt")
    if timed and not served.facts["reads"]["times"]:
        reason = f"format: found {call.format}, expected json or txt: the model writes no times"
        raise RequestError(422, reason, field="format")
    return settings_with(served, call.decoding, limits)


async def _read(
    server: Server, request: Request, served: ServedTranscriber, content: bytes, timeout_seconds: float
) -> Frames:
    """Read a file in a worker process, until the client disconnects (499) or the deadline passes (504)."""
    cancelled = threading.Event()

    def check_cancelled() -> None:
        if cancelled.is_set():
            raise RequestError(499, "the request was cancelled")

    gone = asyncio.ensure_future(client_disconnected(request))
    reading: Any = asyncio.ensure_future(
        run_in_threadpool(served.transcriber.read_source, content, server.limits, check_cancelled)
    )
    try:
        frames: Frames = await wait_for_result(reading, gone, timeout_seconds, time.monotonic() + timeout_seconds)
        return frames
    finally:
        gone.cancel()
        cancelled.set()


def _response(begun: _ReadFile, found: Translation, call: TranscribeRequest) -> dict[str, Any]:
    whole = found.to_dict()
    response: dict[str, Any] = {"model": begun.served.name, **{name: whole[name] for name in FIELDS if name in whole}}
    if call.detail:
        response["hypotheses"] = whole["hypotheses"]
    elif begun.work.settings.nbest > 1:
        response["hypotheses"] = [{name: each[name] for name in BRIEF} for each in whole["hypotheses"]]
    return response


def _written(found: Translation, form: str) -> Response:
    return Response(transcript(found, form).encode(), media_type=f"{TYPES[form]}; charset=utf-8")
