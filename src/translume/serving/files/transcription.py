"""Routes that read recordings, images and arrays: /v1/transcribe and OpenAI's /v1/audio."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from starlette.requests import Request
from starlette.responses import Response

from translume.config import DecodingSettings
from translume.documents.transcripts import transcript
from translume.serving.api import responses
from translume.serving.api.decoding import accept_parts, settings_with
from translume.serving.api.errors import RequestError, field_error, json_response
from translume.serving.api.requests import SpeechRequest, TranscribeRequest, UploadRequest
from translume.serving.api.routing import WORKED, Routes
from translume.serving.files.documents import DocumentProcesses
from translume.serving.server import Server, wait_for_result
from translume.serving.work import Part, Translating
from translume.translator import Translation

TYPES: Final = {"txt": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
WRITTEN: Final = dict.fromkeys(TYPES.values())
FIELDS: Final = ("text", "warnings", "language", "segments")
OWN_NAMES: Final = {"from_": "source", "to": "target"}
"""Fields of requests, by the settings of [decoding] that they set."""
BRIEF: Final = ("text", "log_prob", "score")
"""Fields of a hypothesis without `detail`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A file that was read for a request, which is charged.  deadline: of the request."""

    served: Any
    work: Translating
    part: Part
    deadline: float

    @classmethod
    async def from_upload(
        cls,
        server: Server,
        documents: DocumentProcesses,
        request: Request,
        call: UploadRequest,
        served: Any,
        settings: DecodingSettings,
        texts: Sequence[str] = (),
    ) -> Self:
        """Read the file of a request until the client disconnects (499) or the deadline passes (504).

        texts: that it has besides the file.
        Raises RequestError if the model cannot read it, or not all of it.
        """
        deadline = time.monotonic() + call.seconds
        reading: Any = asyncio.ensure_future(documents.read_frames(served, await call.file.read(), server.limits))
        part = Part(text="", given=await wait_for_result(request, reading, call.seconds, deadline))
        work = Translating(served.model, settings)
        try:
            work.size(part)
        except RequestError as error:
            raise RequestError(422, str(error), code="file_too_long", field="file") from None
        await accept_parts(server, request, texts, work, [part], call.decoding)
        return cls(served=served, work=work, part=part, deadline=deadline)

    @property
    def seconds(self) -> float:
        """The length of a recording."""
        rate = max(1, self.served.model.config.data.source.rate)
        return 0.0 if self.part.frames is None else len(self.part.frames.values) / rate

    @property
    def seconds_left(self) -> float:
        """The time until the deadline."""
        return max(0.1, round(self.deadline - time.monotonic(), 1))


def add_routes(routes: Routes, server: Server, documents: DocumentProcesses) -> None:
    """Add the routes of files that are no text."""

    async def transcribed(request: Request, call: TranscribeRequest) -> tuple[ReadFile, Translation, Response]:
        """Return a file, what it says, and the response if its format is no JSON."""
        served = server.models.only("transcribe", call.model)
        if call.format in ("srt", "vtt") and not served.facts["reads"]["times"]:
            raise field_error("format", f"found {call.format}, expected json or txt: the model writes no times")
        try:
            settings = await settings_with(served, call.decoding, server.limits)
        except RequestError as error:
            raise error.renamed(OWN_NAMES) from None
        read = await ReadFile.from_upload(server, documents, request, call, served, settings)
        (said,) = await server.results(request, read.work, [read.part], read.seconds_left, ["file"])
        if call.format == "json":
            return read, said, json_response(_values(read, said, call))
        text = transcript(said, call.format).encode()
        return read, said, Response(text, media_type=f"{TYPES[call.format]}; charset=utf-8")

    @routes.on("POST /v1/transcribe", responses.TranscribeResponse, *WORKED, media=WRITTEN)
    async def transcribe(request: Request, call: TranscribeRequest) -> Response:
        """Write what a recording, an image or an array says: `file`, with options as further fields of the form."""
        return (await transcribed(request, call))[2]

    async def speech(request: Request, form: SpeechRequest, *, to_english: bool) -> Any:
        call = form.transcription(to_english=to_english)
        try:
            read, said, response = await transcribed(request, call)
        except RequestError as error:
            if error.field in ("timestamps", "format"):
                reason = f"found {form.response_format}, expected json or text: the model writes no times"
                raise field_error("response_format", reason) from None
            if error.field == "target":
                raise field_error("model", "this one does not translate into English") from None
            raise error.renamed({"source": "language"}) from None
        if call.format != "json":
            return response
        if form.response_format == "json":
            return {"text": said.text}
        return {
            "task": "translate" if to_english else "transcribe",
            "language": said.language,
            "duration": read.seconds,
            "text": said.text,
            "segments": [
                {"id": number, "start": each.start, "end": each.end, "text": each.text}
                for number, each in enumerate(said.segments)
            ],
        }

    @routes.on("POST /v1/audio/transcriptions", responses.SpeechResponse, *WORKED, media=WRITTEN)
    async def transcriptions(request: Request, call: SpeechRequest) -> Any:
        """Write what is said in a recording, in the format of OpenAI."""
        return await speech(request, call, to_english=False)

    @routes.on("POST /v1/audio/translations", responses.SpeechResponse, *WORKED, media=WRITTEN)
    async def translations(request: Request, call: SpeechRequest) -> Any:
        """Write in English what is said in a recording, in the format of OpenAI."""
        return await speech(request, call, to_english=True)


def _values(read: ReadFile, said: Translation, call: TranscribeRequest) -> dict[str, Any]:
    values = said.to_dict()
    response: dict[str, Any] = {"model": read.served.name, **{name: values[name] for name in FIELDS if name in values}}
    if call.detail:
        response["hypotheses"] = values["hypotheses"]
    elif read.work.settings.nbest > 1:
        response["hypotheses"] = [{name: each[name] for name in BRIEF} for each in values["hypotheses"]]
    return response
