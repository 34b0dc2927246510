"""Routes that inspect a model: /v1/inspect for texts, recordings, images and arrays."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.config import DecodingSettings
from translume.errors import TranslumeError
from translume.inspection import BeamRecord, Trace, record_beam, trace
from translume.inspection.inputs import SentenceSearch
from translume.inspection.passes import MAX_WEIGHTS
from translume.json_values import to_json
from translume.serving.api.decoding import decoding_settings, split_language
from translume.serving.api.errors import RequestError, field_error, refuse_more
from translume.serving.api.requests import InspectFileRequest, InspectionFields, InspectRequest
from translume.serving.api.responses import InspectResponse
from translume.serving.api.routing import WORKED, Routes
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.transcription import ReadFile
from translume.serving.server import Server
from translume.serving.settings import Limits
from translume.serving.work import Paragraphs
from translume.sources import Frames
from translume.translator import TextHypothesis, Translator
from translume.translator.planning import Line, LineError, Reading, plan_lines
from translume.translator.search import CancelCheck

FIELDS = {"source": "text", "show": "show", "target": "translation", "reference": "reference"}
"""The field of a request, by the place that an error of an inspection names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A valid request to inspect. Its tokens are not checked yet.  source: a text, or the frames of a file."""

    served: Any
    settings: DecodingSettings
    call: InspectRequest | InspectFileRequest
    source: str | Frames
    limits: Limits

    @property
    def translator(self) -> Translator:
        """The model to inspect."""
        translator: Translator = self.served.model
        return translator

    def result(self, form: str, check_cancelled: CancelCheck) -> str:
        """Return the result as text.

        form: "json" or "page" (HTML).  check_cancelled: raises if the client has disconnected.
        """
        parts, traced, beam = self._traced(check_cancelled)
        check_cancelled()
        if form == "page":
            return traced.to_page(beam=beam)
        search = {} if beam is None else {"search": beam.to_dict()}
        part = 0 if isinstance(self.call, InspectFileRequest) else self.call.part
        facts = {"model": self.served.name, "part": part, "parts": parts}
        return to_json({**facts, "trace": traced.to_dict(), **search}) + "\n"

    def _traced(self, check_cancelled: CancelCheck) -> tuple[int, Trace, BeamRecord | None]:
        """Return the number of parts in which the text is translated, and the trace and the search of one part.

        Raises RequestError if the model cannot do it or the cost would exceed the limits.
        """
        translator, settings, call = self.translator, self.settings, self.call
        try:
            source, parts = self._part()
            target = self._target(source)
            searched = target is None
            if target is None:
                (translation,) = translator.translate_lines([_line(source)], settings, None, check_cancelled)
                if not translation.hypotheses:
                    raise field_error("file", "found digital silence, expected speech", code="cannot_inspect")
                target = translation.hypotheses[0]
            check_cancelled()
            self._reject_costly(source, target)
            steps = trace(translator, source, target, k=call.k, settings=settings, show=tuple(call.show))
            check_cancelled()
            record = None
            if call.search:
                reference = call.reference if "reference" in call.model_fields_set else None
                record = record_beam(translator, source, reference=reference, settings=settings)
        except LineError as error:
            reason = str(error).removeprefix("text: ").partition("; decoding.")[0]
            raise field_error("text", reason, code="text_too_long") from None
        except RequestError:
            raise
        except TranslumeError as error:
            field = FIELDS.get(str(error).partition(":")[0], "")
            field = "file" if field == "text" and isinstance(self.source, Frames) else field
            raise RequestError(422, str(error), code="cannot_inspect", field=field) from None
        return parts, replace(steps, origin="search") if searched or call.prefix_tokens else steps, record

    def _part(self) -> tuple[str | Frames, int]:
        """Return the part of the text to inspect, or the frames of a file, and the number of parts."""
        source, call, tokenizer = self.source, self.call, self.translator.checkpoint.source_tokenizer
        if isinstance(source, Frames):
            window = self.translator.config.data.source.window
            if window and len(source.values) > window:
                expected = f"expected at most {window:,}, one window; inspect parts of it"
                raise field_error("file", f"found {len(source.values):,} frames, {expected}", code="file_too_long")
            return source, 1
        assert isinstance(call, InspectRequest)  # with a text
        reading = Reading.from_settings(self.translator.checkpoint, self.settings)
        sentences = Paragraphs.from_text(source, split_language(self.served, call.split)).lines
        lines = [Line(number=0, text=text) for text in sentences if tokenizer.encode(text)]
        if not reading.cuts_lines:
            reading = replace(reading, keep="none")
        parts = [piece.text for plan in plan_lines(lines, tokenizer, reading) for piece in plan.pieces]
        if not parts:
            raise field_error("text", "found a blank text, expected one to translate")
        if call.part >= len(parts):
            raise field_error("part", f"found {call.part}, expected 0 to {len(parts) - 1}, a part of the text")
        return parts[call.part], len(parts)

    def _target(self, source: str | Frames) -> str | TextHypothesis | None:
        """Return the given target, or the completion of a given prefix; None for the model's own translation."""
        call, tokenizer = self.call, self.translator.checkpoint.target_tokenizer
        if "translation" in call.model_fields_set:
            return call.translation
        field = "prefix_tokens" if call.prefix_tokens else "target_tokens"
        tokens = getattr(call, field)
        if not tokens:
            return None
        known = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
        for place, token in enumerate(tokens):
            if token not in known:
                reason = "no such token, expected tokens as /v1/translate returns them"
                raise field_error(f"{field}[{place}]", reason, code="unknown_token")
        ids = tuple(known[token] for token in tokens)
        refuse_more(field, len(ids), "", self.translator.config.model.max_positions, status=422)
        if call.prefix_tokens:
            ids = SentenceSearch.from_source(self.translator, source, self.settings).best(ids).tokens
        ended = ids[-1] == tokenizer.specials.eos
        return TextHypothesis(
            text=tokenizer.decode(ids[:-1] if ended else ids),
            tokens=tuple(tokenizer.tokens(ids)),
            ids=ids,
            log_prob=0.0,
            score=0.0,
            finished_by="eos" if ended else "length",
        )

    def _positions(self, source: str | Frames) -> int:
        """Return the number of positions that the encoder reads."""
        if isinstance(source, str):
            checkpoint = self.translator.checkpoint
            reading = Reading.from_settings(checkpoint, self.settings)
            return len(reading.cut_line(checkpoint.source_tokenizer.encode(source))[0]) + 1
        (plan,) = self.translator.plans([_line(source)], self.settings)
        return len(plan.pieces[0].ids)

    def _reject_costly(self, source: str | Frames, target: str | TextHypothesis) -> None:
        """Raise RequestError (413) if the trace would read too many tokens or return too much attention."""
        show, model, limits = self.call.show, self.translator.config.model, self.limits
        tokenizer = self.translator.checkpoint.target_tokenizer
        length = len(tokenizer.encode(target)) + 1 if isinstance(target, str) else len(target.ids)
        size = self._positions(source)
        passes = 1 + ("prior" in show) + length * ("input-gradient" in show)
        passes += size * sum(part.startswith("occlusion") for part in show)
        encoder = model.encoder_layers * model.attention_heads * size * size
        if encoder > MAX_WEIGHTS:
            encoder = 0  # the trace leaves it out
        weights = encoder + model.decoder_layers * model.attention_heads * length * (length + size)
        weights *= "attention" in show
        for found, count, maximum, cure in (
            ("its passes read {} tokens", (size + length) * passes, limits.inspected_tokens, "show fewer parts"),
            ("attention has {} numbers", weights, limits.inspected_numbers, "show all parts but attention"),
        ):
            if count > maximum:
                reason = f"{found.format(f'{count:,}')}, expected at most {maximum:,}; {cure}"
                raise field_error("show", reason, 413, "too_much_to_inspect")


def _line(source: str | Frames) -> Line:
    return Line(number=0, text=source) if isinstance(source, str) else Line(number=0, text="", given=source)


def inspection_settings(served: Any, call: InspectionFields, limits: Limits) -> DecodingSettings:
    """Return the settings of an inspection; RequestError (422) if they do not fit."""
    settings = decoding_settings(served, call.decoding, limits)
    if call.search and settings.strategy not in ("beam", "greedy"):
        raise field_error("search", f"found strategy '{settings.strategy}', expected 'beam' or 'greedy' to record")
    return settings.model_copy(update={"nbest": 1})


def add_routes(routes: Routes, server: Server, documents: DocumentProcesses) -> None:
    """Add the routes /v1/inspect and /v1/inspect/page."""
    limits = server.limits

    async def inspected(request: Request, call: InspectRequest | InspectFileRequest, form: str) -> str:
        """Return the result as text.  form: "json" or "page" (HTML)."""
        texts = [text for text in (call.translation, call.reference) if text]
        source: Any
        served: Any
        if isinstance(call, InspectFileRequest):
            served = server.models.only("transcribe", call.model)
        else:
            served = server.models.choose(call.model, call.source, call.target)
        settings = await run_in_threadpool(inspection_settings, served, call, limits)
        if isinstance(call, InspectFileRequest):
            read = await ReadFile.from_upload(server, documents, request, call, served, settings, texts)
            source, seconds = read.part.frames, read.seconds_left
        else:
            await server.accept(request, [call.text, *texts])
            source, seconds = call.text, call.seconds
        inspection = Inspection(served=served, settings=settings, call=call, source=source, limits=limits)
        result: str = await server.inspect(request, partial(inspection.result, form), seconds)
        return result

    @routes.on("POST /v1/inspect", InspectResponse, *WORKED)
    async def inspect_json(request: Request, call: InspectRequest | InspectFileRequest) -> Response:
        """Return the predicted distribution at each step of the translation of one sentence, or of the text of a file.

        docs/trace.schema.json describes it.
        """
        return Response(await inspected(request, call, "json"), media_type="application/json")

    @routes.on("POST /v1/inspect/page", None, *WORKED, media={"text/html": None})
    async def inspect_page(request: Request, call: InspectRequest | InspectFileRequest) -> Response:
        """Return the same as one self-contained HTML page."""
        return Response(await inspected(request, call, "page"), media_type="text/html")
