"""What is looked at in a model, and what is told of it; the plain model computes, wherever its weights are.

What it may cost is bounded before it begins.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

from translume.config import DecodingSettings
from translume.drawing.page import page
from translume.errors import TranslationError, TranslumeError
from translume.inspection import BeamRecord, Trace, record_beam, trace
from translume.inspection.inputs import SentenceSearch
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.api.inspection_requests import Inspection
from translume.serving.workers.proxy import RemoteTranslator, Translates
from translume.serving.workers.work import Paragraphs
from translume.translator import TextHypothesis, Translator
from translume.translator.plan import Line, LineError, plan_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What was found.  parts: how many the text is translated in."""

    parts: int
    trace: Trace
    search: BeamRecord | None


def written(wanted: Inspection, limits: Limits, form: str, go_on: Callable[[], None]) -> str:
    """What is told of what a request asks for, of a model in this process: "json", or a "page" of HTML."""
    found = inspected(wanted, limits, go_on)
    go_on()
    return FORMS[form](wanted, found)


def entropies(translator: Translates, source: str, target: TextHypothesis, settings: DecodingSettings) -> list[float]:
    """The entropy of what the model believed at each step of a translation, in nats; none where it cannot be traced."""
    if isinstance(translator, RemoteTranslator):
        return translator.entropies(source, target, settings)
    if len(translator.models) > 1 or translator.fusion is not None:
        return []
    try:
        found = trace(translator, source, target, k=1, settings=settings, show=())
    except TranslationError:
        # A line that was cut to what the model reads cannot be traced as it was given.
        return []
    return [step.entropy for step in found.steps]


def _json(wanted: Inspection, found: Inspected) -> str:
    search = {} if found.search is None else {"search": found.search.to_dict()}
    answer = {"model": wanted.served.name, "part": wanted.part, "parts": found.parts}
    # Traces hold no number that JSON has not.
    text = json.dumps({**answer, "trace": found.trace.to_dict(), **search}, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def _html(wanted: Inspection, found: Inspected) -> str:
    return page(found.trace, beam=found.search)


FORMS: Final = {"json": _json, "page": _html}


def inspected(wanted: Inspection, limits: Limits, go_on: Callable[[], None]) -> Inspected:
    """What was asked for; RequestError for what this model cannot do or what would take too much."""
    translator = _here(wanted)
    try:
        text, parts = _part_of(wanted)
        target = _target(wanted, text)
        given = target is not None and not wanted.prefix
        if target is None:
            target = translator.translate(text, settings=wanted.settings).hypotheses[0]
        go_on()
        _refuse_costly(wanted, text, target, limits)
        found = trace(translator, text, target, k=wanted.k, settings=wanted.settings, show=wanted.show)
        go_on()
        search = (
            record_beam(translator, text, reference=wanted.reference, settings=wanted.settings)
            if wanted.search
            else None
        )
    except LineError as error:
        reason = str(error).removeprefix("text: ").partition("; decoding.")[0]
        raise RequestError(422, f"text: {reason}", code="text_too_long", field="text") from None
    except RequestError:
        raise
    except TranslumeError as error:
        raise RequestError(422, str(error), code="cannot_inspect", field=_field(str(error))) from None
    return Inspected(parts=parts, trace=found if given else replace(found, origin="search"), search=search)


def _here(wanted: Inspection) -> Translator:
    """The translator of a model in this process."""
    return cast(Translator, wanted.served.translator)


def _part_of(wanted: Inspection) -> tuple[str, int]:
    """The part of the text that is looked at, and how many it is translated in."""
    tokenizer = wanted.served.translator.checkpoint.source_tokenizer
    limit = wanted.served.translator.config.model.max_positions - 1
    sentences = Paragraphs.of(wanted.text, wanted.language).lines
    lines = [Line(number=0, text=text) for text in sentences if tokenizer.encode(text)]
    plans = [plan_line(line, tokenizer.encode(line.text), tokenizer, limit, "error") for line in lines]
    parts = [piece.text for plan in plans for piece in plan.pieces]
    if not parts:
        raise RequestError(422, "text: found a blank text, wanted one to translate", field="text")
    if wanted.part >= len(parts):
        raise RequestError(
            422, f"part: found {wanted.part}, wanted 0 to {len(parts) - 1}, a part of the text", field="part"
        )
    return parts[wanted.part], len(parts)


def _target(wanted: Inspection, text: str) -> str | TextHypothesis | None:
    """The target that is given, or found from a given beginning; None for the model's own translation."""
    if wanted.translation is not None:
        return wanted.translation
    if not wanted.prefix and not wanted.target:
        return None
    translator = _here(wanted)
    tokenizer = translator.checkpoint.target_tokenizer
    known = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    field, tokens = ("prefix_tokens", wanted.prefix) if wanted.prefix else ("target_tokens", wanted.target)
    for place, token in enumerate(tokens):
        if token not in known:
            reason = f"{field}[{place}]: wanted tokens as /v1/translate tells them"
            raise RequestError(422, reason, code="unknown_token", field=f"{field}[{place}]")
    ids = tuple(known[token] for token in tokens)
    if len(ids) > translator.config.model.max_positions:
        raise RequestError(
            422, f"{field}: found {len(ids):,}, wanted at most {translator.config.model.max_positions:,}", field=field
        )
    if wanted.prefix:
        ids = SentenceSearch.of(translator, text, wanted.settings).best(ids).tokens
    ended = ids[-1] == tokenizer.specials.eos
    return TextHypothesis(
        text=tokenizer.decode(ids[:-1] if ended else ids),
        tokens=tuple(tokenizer.tokens(ids)),
        ids=ids,
        log_prob=0.0,
        score=0.0,
        finished_by="eos" if ended else "length",
    )


def _refuse_costly(wanted: Inspection, text: str, target: str | TextHypothesis, limits: Limits) -> None:
    """RequestError (413) where the passes of a trace would read, or its attention fill, more than the limits."""
    translator = _here(wanted)
    checkpoint, model = translator.checkpoint, translator.config.model
    length = len(checkpoint.target_tokenizer.encode(target)) + 1 if isinstance(target, str) else len(target.ids)
    size = len(checkpoint.source_tokenizer.encode(text)) + 1
    again = sum({"prior": 1, "input-gradient": length}.get(part, 0) for part in wanted.show)
    again += size * sum(part.startswith("occlusion") for part in wanted.show)
    if (read := (size + length) * (1 + again)) > limits.inspected_tokens:
        raise RequestError(
            413,
            f"show: its passes read {read:,} tokens, wanted at most {limits.inspected_tokens:,}; show fewer parts",
            code="too_much_to_inspect",
            field="show",
        )
    layers = model.encoder_layers * size * size + model.decoder_layers * (length * length + length * size)
    numbers = layers * model.attention_heads if "attention" in wanted.show else 0
    if numbers > limits.inspected_numbers:
        raise RequestError(
            413,
            f"show: attention has {numbers:,} numbers, wanted at most {limits.inspected_numbers:,}; "
            "show all but attention",
            code="too_much_to_inspect",
            field="show",
        )


def _field(reason: str) -> str:
    """The field of the request that an error of an inspection is about; empty where it is about none."""
    place = reason.partition(":")[0]
    return {"source": "text", "target": "translation", "reference": "reference"}.get(place, "")
