"""Inspection of a served model: a trace of one sentence's translation, by the plain model, within a bounded cost."""

from dataclasses import dataclass, replace
from typing import Any

from translume.config import DecodingSettings
from translume.errors import TranslumeError
from translume.inspection import BeamRecord, Trace, record_beam, trace
from translume.inspection.inputs import SentenceSearch
from translume.inspection.passes import MAX_WEIGHTS
from translume.json_values import to_json
from translume.serving.api.decoding import decoding_settings, split_language
from translume.serving.api.errors import RequestError, field_error, refuse_more
from translume.serving.api.requests import InspectFileRequest, InspectionFields, InspectRequest
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

    @property
    def translator(self) -> Translator:
        """The model to inspect."""
        translator: Translator = self.served.model
        return translator


def inspection_settings(served: Any, call: InspectionFields, limits: Limits) -> DecodingSettings:
    """Return the settings of an inspection; RequestError (422) if they do not fit."""
    settings = decoding_settings(served, call.decoding, limits)
    if call.search and settings.strategy not in ("beam", "greedy"):
        raise field_error("search", f"found strategy '{settings.strategy}', expected 'beam' or 'greedy' to record")
    return settings.model_copy(update={"nbest": 1})


def inspect(inspection: Inspection, limits: Limits, form: str, check_cancelled: CancelCheck) -> str:
    """Inspect a model of this process, and return the result as text.

    form: "json" or "page" (HTML).  check_cancelled: raises if the client has disconnected.
    """
    parts, traced, beam = _inspected(inspection, limits, check_cancelled)
    check_cancelled()
    if form == "page":
        return traced.to_page(beam=beam)
    search = {} if beam is None else {"search": beam.to_dict()}
    part = 0 if isinstance(inspection.call, InspectFileRequest) else inspection.call.part
    facts = {"model": inspection.served.name, "part": part, "parts": parts}
    return to_json({**facts, "trace": traced.to_dict(), **search}) + "\n"


def _inspected(
    inspection: Inspection, limits: Limits, check_cancelled: CancelCheck
) -> tuple[int, Trace, BeamRecord | None]:
    """Return the number of parts in which the text is translated, and the trace and the search of one part.

    Raises RequestError if the model cannot do it or the cost would exceed the limits.
    """
    translator, settings, call = inspection.translator, inspection.settings, inspection.call
    try:
        source, parts = _part_of(inspection)
        target = _target(inspection, source)
        searched = target is None
        if target is None:
            frames = None if isinstance(source, str) else source
            line = Line(number=0, text=source if isinstance(source, str) else "", given=frames)
            (translation,) = translator.translate_lines([line], settings, None, check_cancelled)
            if not translation.hypotheses:
                raise field_error("file", "found digital silence, expected speech", code="cannot_inspect")
            target = translation.hypotheses[0]
        check_cancelled()
        _reject_costly(inspection, source, target, limits)
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
        field = "file" if field == "text" and isinstance(inspection.source, Frames) else field
        raise RequestError(422, str(error), code="cannot_inspect", field=field) from None
    return parts, replace(steps, origin="search") if searched or call.prefix_tokens else steps, record


def _part_of(inspection: Inspection) -> tuple[str | Frames, int]:
    """Return the part of the text to inspect, or the frames of a file, and the number of parts."""
    source, settings, translator = inspection.source, inspection.settings, inspection.translator
    checkpoint = translator.checkpoint
    if isinstance(source, Frames):
        window = translator.config.data.source.window
        if window and len(source.values) > window:
            expected = f"expected at most {window:,}, one window; inspect parts of it"
            raise field_error("file", f"found {len(source.values):,} frames, {expected}", code="file_too_long")
        return source, 1
    call = inspection.call
    assert isinstance(call, InspectRequest)  # with a text
    tokenizer, reading = checkpoint.source_tokenizer, Reading.from_settings(checkpoint, settings)
    sentences = Paragraphs.from_text(source, split_language(inspection.served, call.split)).lines
    lines = [Line(number=0, text=text) for text in sentences if tokenizer.encode(text)]
    if not reading.cuts_lines:
        reading = replace(reading, keep="none")
    parts = [piece.text for plan in plan_lines(lines, tokenizer, reading) for piece in plan.pieces]
    if not parts:
        raise field_error("text", "found a blank text, expected one to translate")
    if call.part >= len(parts):
        raise field_error("part", f"found {call.part}, expected 0 to {len(parts) - 1}, a part of the text")
    return parts[call.part], len(parts)


def _target(inspection: Inspection, source: str | Frames) -> str | TextHypothesis | None:
    """Return the given target, or the completion of a given prefix; None for the model's own translation."""
    call, translator = inspection.call, inspection.translator
    if "translation" in call.model_fields_set:
        return call.translation
    field, tokens = "prefix_tokens", call.prefix_tokens
    if not tokens:
        field, tokens = "target_tokens", call.target_tokens
    if not tokens:
        return None
    tokenizer = translator.checkpoint.target_tokenizer
    known = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    for place, token in enumerate(tokens):
        if token not in known:
            reason = "no such token, expected tokens as /v1/translate returns them"
            raise field_error(f"{field}[{place}]", reason, code="unknown_token")
    ids = tuple(known[token] for token in tokens)
    refuse_more(field, len(ids), "", translator.config.model.max_positions, status=422)
    if call.prefix_tokens:
        ids = SentenceSearch.from_source(translator, source, inspection.settings).best(ids).tokens
    ended = ids[-1] == tokenizer.specials.eos
    return TextHypothesis(
        text=tokenizer.decode(ids[:-1] if ended else ids),
        tokens=tuple(tokenizer.tokens(ids)),
        ids=ids,
        log_prob=0.0,
        score=0.0,
        finished_by="eos" if ended else "length",
    )


def _positions(inspection: Inspection, source: str | Frames) -> int:
    """Return the number of positions that the encoder reads."""
    checkpoint = inspection.translator.checkpoint
    if isinstance(source, str):
        reading = Reading.from_settings(checkpoint, inspection.settings)
        return len(reading.cut_line(checkpoint.source_tokenizer.encode(source))[0]) + 1
    (plan,) = inspection.translator.plans([Line(number=0, text="", given=source)], inspection.settings)
    return len(plan.pieces[0].ids)


def _reject_costly(inspection: Inspection, source: str | Frames, target: str | TextHypothesis, limits: Limits) -> None:
    """Raise RequestError (413) if the trace would read too many tokens or return too much attention."""
    show, translator = inspection.call.show, inspection.translator
    model, tokenizer = translator.config.model, translator.checkpoint.target_tokenizer
    length = len(tokenizer.encode(target)) + 1 if isinstance(target, str) else len(target.ids)
    size = _positions(inspection, source)
    passes = 1 + sum({"prior": 1, "input-gradient": length}.get(part, 0) for part in show)
    passes += size * sum(part.startswith("occlusion") for part in show)
    encoder = model.encoder_layers * model.attention_heads * size * size
    if encoder > MAX_WEIGHTS:
        encoder = 0  # the trace leaves it out
    weights = encoder + model.decoder_layers * model.attention_heads * length * (length + size)
    for count, maximum, what, cure in (
        ((size + length) * passes, limits.inspected_tokens, "its passes read {} tokens", "show fewer parts"),
        (
            weights if "attention" in show else 0,
            limits.inspected_numbers,
            "attention has {} numbers",
            "show all parts but attention",
        ),
    ):
        if count > maximum:
            reason = f"{what.format(f'{count:,}')}, expected at most {maximum:,}; {cure}"
            raise field_error("show", reason, 413, "too_much_to_inspect")
