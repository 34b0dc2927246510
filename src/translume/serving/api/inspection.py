"""Inspection of a served model: a trace of one sentence's translation, by the plain model, within a bounded cost."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

from translume.config import DecodingSettings
from translume.drawing import trace_page
from translume.errors import TranslationError, TranslumeError
from translume.inspection import BeamRecord, Trace, record_beam, trace
from translume.inspection.inputs import SentenceSearch
from translume.inspection.tracing import MOST_WEIGHTS
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import ResolvedInspection
from translume.serving.workers.work import Paragraphs
from translume.sources import Frames
from translume.translator import TextHypothesis, Translator
from translume.translator.planning import Line, LineError, Reading, plan_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The result of an inspection.  parts: number of parts in which the text is translated."""

    parts: int
    trace: Trace
    search: BeamRecord | None


def inspect(call: ResolvedInspection, limits: Limits, form: str, check_cancelled: Callable[[], None]) -> str:
    """Inspect a model of this process, and return the result as text.

    form: "json" or "page" (HTML).  check_cancelled: raises if the client has disconnected.
    """
    found = _inspected(call, limits, check_cancelled)
    check_cancelled()
    return FORMS[form](call, found)


def entropies(translator: Translator, source: str, target: TextHypothesis, settings: DecodingSettings) -> list[float]:
    """Return the entropy in nats of the predicted distribution at each step; empty if the target cannot be traced."""
    try:
        found = trace(translator, source, target, k=1, settings=settings, show=())
    except TranslationError:
        # A line that was truncated to the model's maximum length cannot be traced as a whole.
        return []
    return [step.entropy for step in found.steps]


def _json(call: ResolvedInspection, found: Inspected) -> str:
    search = {} if found.search is None else {"search": found.search.to_dict()}
    response = {"model": call.served.name, "part": call.part, "parts": found.parts}
    # Traces contain only finite numbers.
    text = json.dumps({**response, "trace": found.trace.to_dict(), **search}, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def _html(call: ResolvedInspection, found: Inspected) -> str:
    return trace_page(found.trace, beam=found.search)


FORMS: Final = {"json": _json, "page": _html}


def _inspected(call: ResolvedInspection, limits: Limits, check_cancelled: Callable[[], None]) -> Inspected:
    """Inspect; RequestError if the model cannot do it or the cost would exceed the limits."""
    translator = _local(call)
    try:
        text, parts = _part_of(call) if call.frames is None else ("", 1)
        source = text if call.frames is None else _window(call, call.frames)
        target = _target(call, source)
        given = target is not None and not call.prefix
        if target is None:
            line = Line(number=0, text=text, given=call.frames)
            (searched,) = translator.translate_lines([line], call.settings, None, check_cancelled)
            if not searched.hypotheses:
                reason = "file: found digital silence, expected speech"
                raise RequestError(422, reason, code="cannot_inspect", field="file")
            target = searched.hypotheses[0]
        check_cancelled()
        _refuse_costly(call, source, target, limits)
        found = trace(translator, source, target, k=call.k, settings=call.settings, show=call.show)
        check_cancelled()
        search = (
            record_beam(translator, source, reference=call.reference, settings=call.settings) if call.search else None
        )
    except LineError as error:
        reason = str(error).removeprefix("text: ").partition("; decoding.")[0]
        raise RequestError(422, f"text: {reason}", code="text_too_long", field="text") from None
    except RequestError:
        raise
    except TranslumeError as error:
        raise RequestError(422, str(error), code="cannot_inspect", field=_field(str(error), call)) from None
    return Inspected(parts=parts, trace=found if given else replace(found, origin="search"), search=search)


def _local(call: ResolvedInspection) -> Translator:
    """Return the translator, whose model is in this process."""
    return cast(Translator, call.served.model)


def _part_of(call: ResolvedInspection) -> tuple[str, int]:
    """Return the part of the text to inspect, and the number of parts."""
    checkpoint = _local(call).checkpoint
    tokenizer, reading = checkpoint.source_tokenizer, Reading.of(checkpoint, call.settings)
    sentences = Paragraphs.of(call.text, call.language).lines
    lines = [Line(number=0, text=text) for text in sentences if tokenizer.encode(text)]
    if not reading.cuts_lines:
        reading = replace(reading, keep="none")
    plans = plan_lines(lines, tokenizer, reading)
    parts = [piece.text for plan in plans for piece in plan.pieces]
    if not parts:
        raise RequestError(422, "text: found a blank text, expected one to translate", field="text")
    if call.part >= len(parts):
        reason = f"part: found {call.part}, expected 0 to {len(parts) - 1}, a part of the text"
        raise RequestError(422, reason, field="part")
    return parts[call.part], len(parts)


def _window(call: ResolvedInspection, frames: Frames) -> Frames:
    """Return the frames of a file; RequestError if they are more than one window of a model that reads windows."""
    window = _local(call).config.data.source.window
    if window and len(frames.values) > window:
        reason = (
            f"file: found {len(frames.values):,} frames, expected at most {window:,}, one window; inspect parts of it"
        )
        raise RequestError(422, reason, code="file_too_long", field="file")
    return frames


def _target(call: ResolvedInspection, source: str | Frames) -> str | TextHypothesis | None:
    """Return the given target, or the completion of a given prefix; None for the model's own translation."""
    if call.translation is not None:
        return call.translation
    if not call.prefix and not call.target:
        return None
    translator = _local(call)
    tokenizer = translator.checkpoint.target_tokenizer
    known = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    field, tokens = ("prefix_tokens", call.prefix) if call.prefix else ("target_tokens", call.target)
    for place, token in enumerate(tokens):
        if token not in known:
            reason = f"{field}[{place}]: no such token, expected tokens as /v1/translate returns them"
            raise RequestError(422, reason, code="unknown_token", field=f"{field}[{place}]")
    ids = tuple(known[token] for token in tokens)
    if len(ids) > translator.config.model.max_positions:
        reason = f"{field}: found {len(ids):,}, expected at most {translator.config.model.max_positions:,}"
        raise RequestError(422, reason, field=field)
    if call.prefix:
        ids = SentenceSearch.of(translator, source, call.settings).best(ids).tokens
    ended = ids[-1] == tokenizer.specials.eos
    return TextHypothesis(
        text=tokenizer.decode(ids[:-1] if ended else ids),
        tokens=tuple(tokenizer.tokens(ids)),
        ids=ids,
        log_prob=0.0,
        score=0.0,
        finished_by="eos" if ended else "length",
    )


def _positions(translator: Translator, source: str | Frames, settings: DecodingSettings) -> int:
    """Return the number of positions that the encoder reads."""
    if isinstance(source, str):
        reading = Reading.of(translator.checkpoint, settings)
        return len(reading.cut_line(translator.checkpoint.source_tokenizer.encode(source))[0]) + 1
    (plan,) = translator.plans([Line(number=0, text="", given=source)], settings)
    return len(plan.pieces[0].ids)


def _refuse_costly(
    call: ResolvedInspection, source: str | Frames, target: str | TextHypothesis, limits: Limits
) -> None:
    """Raise RequestError (413) if the trace would read too many tokens or return too much attention."""
    translator = _local(call)
    checkpoint, model = translator.checkpoint, translator.config.model
    length = len(checkpoint.target_tokenizer.encode(target)) + 1 if isinstance(target, str) else len(target.ids)
    size = _positions(translator, source, call.settings)
    passes = 1 + sum({"prior": 1, "input-gradient": length}.get(part, 0) for part in call.show)
    passes += size * sum(part.startswith("occlusion") for part in call.show)
    if (tokens := (size + length) * passes) > limits.inspected_tokens:
        raise RequestError(
            413,
            f"show: its passes read {tokens:,} tokens, expected at most {limits.inspected_tokens:,}; show fewer parts",
            code="too_much_to_inspect",
            field="show",
        )
    encoder, decoder, cross = (
        each * model.attention_heads
        for each in (
            model.encoder_layers * size * size,
            model.decoder_layers * length * length,
            model.decoder_layers * length * size,
        )
    )
    if call.frames is not None and encoder > MOST_WEIGHTS:
        encoder = 0  # the trace leaves it out
    numbers = encoder + decoder + cross if "attention" in call.show else 0
    if numbers > limits.inspected_numbers:
        raise RequestError(
            413,
            f"show: attention has {numbers:,} numbers, expected at most {limits.inspected_numbers:,}; "
            "show all parts but attention",
            code="too_much_to_inspect",
            field="show",
        )


def _field(reason: str, call: ResolvedInspection) -> str:
    """Return the field of the request that an error of an inspection is about; empty if it is about none."""
    place = reason.partition(":")[0]
    own = "text" if call.frames is None else "file"
    return {"source": own, "show": "show", "target": "translation", "reference": "reference"}.get(place, "")
