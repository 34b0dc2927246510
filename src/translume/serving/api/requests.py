"""Requests of the HTTP API: models that validate bodies and describe them in /openapi.json.

A model checks a body against the server's limits, its validation context. `resolve_translation` and
`resolve_inspection` then find the model that a request means and check its decoding settings.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast
from weakref import WeakKeyDictionary

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from translume.config import Config, DecodingSettings
from translume.decoding import resolve_strategy, strategy_from
from translume.errors import SettingsError, nearest
from translume.inspection.tracing import DEFAULT_PARTS, FRAME_PARTS, PARTS, Part
from translume.serving.access.limits import Limits
from translume.serving.api.body import parse_json
from translume.serving.api.errors import Expected, RequestError, shown, validation_error
from translume.serving.api.texts import RequestTexts
from translume.serving.workers.models import Served, ServedGenerator, ServedModels, ServedTranscriber
from translume.sources import Frames
from translume.translator.constraints import refuse_constraints
from translume.translator.planning import splits_sentences

WITHHELD: Final = frozenset({"max_tokens", "vocabulary", "terminology"})
"""Settings of [decoding] that a request cannot set: the server forms the batches, and reads no files for clients."""
DECODING_FIELDS: Final = tuple(name for name in DecodingSettings.model_fields if name not in (*WITHHELD, "split"))
"""Settings of [decoding] that a request can set."""
LARGEST_NUMBER: Final = 1e6
"""Largest number in a decoding setting, so that everything a search computes from it is finite."""
MOST_GENERATED: Final = 4096
"""Most tokens that a request may generate for a prompt."""
MESSAGES: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
        "required": ["content"],
        "additionalProperties": False,
    },
}
"""JSON schema of the messages of a chat."""
LARGEST: Final = {"length_penalty": 10.0, "max_length_ratio": 100.0, "coverage_penalty": 100.0, "diversity": 1000.0}
"""Smaller bounds of some settings."""
SMALLEST_TEMPERATURE: Final = 1e-3
LONGEST_REASON: Final = 300
"""Most characters of an error message that quotes a value."""
LONGEST_NAME: Final = 200
MOST_BANNED: Final = 2000
"""Most characters of all banned phrases, and of a prefix: building their tables takes time that grows with it."""
KNOWN_SETTINGS: Final = 1000
"""Most settings of requests that are kept for a model."""
_KNOWN: Final = WeakKeyDictionary[Any, dict[tuple[str, Limits], DecodingSettings]]()
"""For each model, the valid settings of earlier requests by what they changed, and by the limits."""
MOST_CONSTRAINTS, LONGEST_CONSTRAINT = 16, 200
"""Most constraints of a text, and most characters of one: the beam grows with the length of all constraints."""
SHOWABLE: Final = tuple(part for part in PARTS if part != "integrated-gradients")
"""Parts of a trace that a request can select; integrated gradients take too long."""
TARGET_FIELDS: Final = ("translation", "prefix_tokens", "target_tokens")
"""Fields of an inspection that give the target. A request has at most one of them."""


Decoding = Served | ServedTranscriber | ServedGenerator
"""Models whose requests may replace settings of [decoding]."""


def check_length(text: str, place: str, limits: Limits) -> None:
    """Raise RequestError (413) if a text is too long.  place: where it is in the request."""
    if len(text) > limits.characters:
        reason = f"{place}: found {len(text):,} characters, expected at most {limits.characters:,}"
        raise RequestError(413, reason, code="text_too_long", field=place)


def check_texts(value: Any, field: str, limits: Limits) -> None:
    """Raise RequestError unless a value is a text, or a list of texts, within the limits."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise RequestError(422, f"{field}: found {shown(value)}, expected a text or a list of texts", field=field)
    if len(texts) > limits.texts:
        reason = f"{field}: found {len(texts):,} texts, expected at most {limits.texts:,}"
        raise RequestError(413, reason, code="too_many_texts", field=field)
    for number, text in enumerate(texts):
        place = field if isinstance(value, str) else f"{field}[{number}]"
        if not isinstance(text, str):
            raise RequestError(422, f"{place}: found {shown(text)}, expected a text", field=place)
        check_length(text, place, limits)


def _limits(info: ValidationInfo) -> Limits:
    assert isinstance(info.context, Limits)
    return info.context


def _checked_texts(value: Any, info: ValidationInfo) -> Any:
    check_texts(value, info.field_name or "", _limits(info))
    return value


def _checked_text(value: str, info: ValidationInfo) -> str:
    check_length(value, info.field_name or "", _limits(info))
    return value


def _checked_timeout(value: Any, info: ValidationInfo) -> float:
    most = _limits(info).timeout_seconds
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        reason = f"timeout_seconds: found {shown(value)}, expected a number above 0 and at most {most:g}"
        raise RequestError(422, reason, field="timeout_seconds")
    return float(value)


def _whole_number(least: int, limit: str) -> Callable[[Any, ValidationInfo], int]:
    """Return a validator of whole numbers from `least` to the limit of a name."""

    def check(value: Any, info: ValidationInfo) -> int:
        field, most = info.field_name, getattr(_limits(info), limit)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            reason = f"{field}: found {shown(value)}, expected a whole number from {least} to {most}"
            raise RequestError(422, reason, field=field or "")
        return value

    return check


def _checked_tokens(tokens: list[str], info: ValidationInfo) -> list[str]:
    field, most = info.field_name, _limits(info).characters
    if len(tokens) > most:
        raise RequestError(413, f"{field}: found {len(tokens):,} tokens, expected at most {most:,}", field=field or "")
    return tokens


def _checked_parts(value: Any) -> Any:
    """Check the names of a trace's parts, and return each once."""
    if not isinstance(value, list):
        raise RequestError(422, f"show: found {shown(value)}, expected a list of parts", field="show")
    for place, each in enumerate(value):
        if not isinstance(each, str) or each not in SHOWABLE:
            hint = nearest(each, SHOWABLE) if isinstance(each, str) and len(each) <= 40 else ""
            hint = hint or f", expected one of: {', '.join(SHOWABLE)}"
            raise RequestError(422, f"show[{place}]: no such part{hint}", field=f"show[{place}]")
    return list(dict.fromkeys(value))


Parts = Annotated[
    list[Part], BeforeValidator(_checked_parts), WithJsonSchema({"type": "array", "items": {"enum": [*SHOWABLE]}})
]
"""Parts of a trace."""


def _checked_messages(value: Any) -> Any:
    """Check that a value is a list of objects with a role and a content."""
    if not isinstance(value, list) or not value:
        raise RequestError(422, f"messages: found {shown(value)}, expected a list of messages", field="messages")
    for place, each in enumerate(value):
        if not isinstance(each, dict) or not isinstance(each.get("content"), str) or set(each) - {"role", "content"}:
            name = f"messages[{place}]"
            raise RequestError(
                422, f"{name}: found {shown(each)}, expected an object with role and content", field=name
            )
    return value


TextOrTexts = Annotated[str | list[str], BeforeValidator(_checked_texts), Expected("a text or a list of texts")]
Text = Annotated[str, AfterValidator(_checked_text), Expected("a text")]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Seconds = Annotated[float, BeforeValidator(_checked_timeout), Field(gt=0)]
SPLIT: Final = {"sentences": "always", "lines": "never"}
"""Earlier values of a request's `split`, and the values of `decoding.split` that they mean."""
Split = Annotated[
    Literal["auto", "always", "never", "sentences", "lines"], Expected("one of: auto, always, never, sentences, lines")
]
Tokens = Annotated[
    list[str],
    Field(min_length=1),
    AfterValidator(_checked_tokens),
    Expected("a list of tokens, at least one"),
]


class RequestBody(BaseModel):
    """The body of a request. Unknown fields are refused with the nearest known one; values are never converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
    example: ClassVar[dict[str, Any]] = {}
    """An example in /openapi.json."""

    @classmethod
    def parse(cls, values: Mapping[str, Any], limits: Limits) -> Self:
        """Validate a JSON object; RequestError that names the first field that is wrong."""
        try:
            return cls.model_validate(dict(values), context=limits)
        except ValidationError as error:
            raise validation_error(cls, error) from None

    @classmethod
    def known_fields(cls) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, values: dict[str, Any]) -> dict[str, Any]:
        if cls.model_config.get("extra") == "ignore":
            return values
        known = cls.known_fields()
        for name in values:
            if name in WITHHELD and name not in known:
                raise RequestError(422, f"{name}: a request cannot set it; the model's own setting holds", field=name)
            if name not in known:
                short = name if len(name) <= 40 else f"{name[:39]}…"
                reason = f"{short}: no such field{nearest(short, known)}"
                raise RequestError(422, reason, code="unknown_field", field=short)
        return values


@cache
def _decoding_properties() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of the settings of [decoding], without defaults: those are the model's."""
    decoding = DecodingSettings.model_json_schema()["properties"]
    return {
        name: {key: value for key, value in decoding[name].items() if key not in ("title", "default")}
        for name in DECODING_FIELDS
    }


def _add_decoding_fields(schema: dict[str, Any]) -> None:
    """Add the settings of [decoding] to the JSON schema of a request."""
    schema["properties"].update(_decoding_properties())
    schema["additionalProperties"] = False


class SettingsRequest(RequestBody):
    """A request that may replace settings of [decoding]; they are validated with the model's own settings."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_add_decoding_fields)

    @classmethod
    def known_fields(cls) -> tuple[str, ...]:
        """The names of all fields, those of [decoding] last."""
        return (*cls.model_fields, *DECODING_FIELDS)

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        return dict(self.model_extra or {})


class DecodingRequest(SettingsRequest):
    """A request for a translation."""

    model: Name = ""
    """Name of a model; may be left out if the server has only one."""
    source: Name = ""
    """Code of the source language; `source` and `target` may be given instead of `model`."""
    target: Name = ""
    """Code of the target language."""
    timeout_seconds: Seconds = 0.0
    """Time limit of the request; by default, and at most, the server's."""
    split: Split = "auto"
    """Whether to translate sentence by sentence, by default as the model's `decoding.split` says.

    `sentences` means `always`, and `lines` means `never`.
    """

    def sentence_language(self, served: Served) -> str | None:
        """Return the language whose rules split texts into sentences; None if they are split into lines only."""
        return split_language(served, self.split if "split" in self.model_fields_set else None)


class TranslateRequest(DecodingRequest):
    """The body of /v1/translate."""

    example: ClassVar[dict[str, Any]] = {"text": "a man", "beam": 4}

    text: TextOrTexts
    """A text or a list of texts."""
    constraints: Annotated[Any, WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "array"}]})] = []
    """Words and phrases that the translation must contain; for a list of texts, a list for each text."""
    detail: bool = False
    """Whether to return tokens, their log-probabilities, the terms of scores, and alignments."""


class ScoreRequest(RequestBody):
    """The body of /v1/score."""

    example: ClassVar[dict[str, Any]] = {"sources": "a man", "targets": "ein mann"}

    sources: TextOrTexts
    """A text or a list of texts."""
    targets: TextOrTexts
    """A target for each source."""
    model: Name = ""
    """Name of a model; may be left out if the server has only one."""
    source: Name = ""
    """Code of the source language; `source` and `target` may be given instead of `model`."""
    target: Name = ""
    """Code of the target language."""
    timeout_seconds: Seconds = 0.0
    """Time limit of the request; by default, and at most, the server's."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of source and target; RequestError if there are not as many targets as sources."""
        sources, targets = as_list(self.sources), as_list(self.targets)
        if len(sources) != len(targets):
            reason = f"targets: found {len(targets):,} for {len(sources):,} sources, expected as many"
            raise RequestError(422, reason, field="targets")
        return list(zip(sources, targets, strict=True))


class ClassifyRequest(RequestBody):
    """The body of /v1/classify."""

    example: ClassVar[dict[str, Any]] = {"text": "what is a tree ?", "nbest": 3}

    text: TextOrTexts
    """A text or a list of texts."""
    model: Name = ""
    """Name of a classifier; may be left out if the server has only one."""
    nbest: Annotated[int, Field(ge=1), Expected("a whole number above 0")] = 0
    """Number of labels to return for each text; by default all."""
    timeout_seconds: Seconds = 0.0
    """Time limit of the request; by default, and at most, the server's."""


class GenerateRequest(SettingsRequest):
    """The body of /v1/generate."""

    example: ClassVar[dict[str, Any]] = {"prompt": "a man", "strategy": "sampling", "max_length": 20}

    prompt: TextOrTexts
    """A prompt or a list of prompts; an empty one begins a document."""
    model: Name = ""
    """Name of a language model; may be left out if the server has only one."""
    stream: bool = False
    """Whether to send the texts as server-sent events while they are generated."""
    detail: bool = False
    """Whether to return tokens and their log-probabilities."""
    timeout_seconds: Seconds = 0.0
    """Time limit of the request; by default, and at most, the server's."""


class ChatRequest(RequestBody):
    """The body of /v1/chat/completions, the part of OpenAI's API that a plain language model can serve."""

    example: ClassVar[dict[str, Any]] = {"messages": [{"role": "user", "content": "a man"}], "max_tokens": 20}

    messages: Annotated[Any, BeforeValidator(_checked_messages), WithJsonSchema(MESSAGES)]
    """Joined by line breaks, their contents are the prompt; roles are not read."""
    model: Name = ""
    """Name of a language model; may be left out if the server has only one."""
    stream: bool = False
    """Whether to send the text as server-sent events while it is generated."""
    max_tokens: Annotated[int, Field(ge=1), Expected("a whole number above 0")] = 0
    """Maximum number of tokens after the prompt; by default the model's."""
    temperature: float | None = None
    """Above 0, and with `top_p` or `seed`, chooses strategy `sampling`; 0 chooses `greedy`."""
    top_p: float | None = None
    """The nucleus to sample from."""
    seed: int | None = None
    """Seed of sampling."""

    def prompt(self, limits: Limits) -> str:
        """The contents of the messages; RequestError (413) if they are too long."""
        text = "\n".join(message["content"] for message in self.messages)
        check_length(text, "messages", limits)
        return text

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.temperature == 0:
            found = {"strategy": "greedy"}
        elif found:
            found["strategy"] = "sampling"
        return {**found, "max_length": self.max_tokens} if self.max_tokens else found


class InspectionFields(SettingsRequest):
    """The fields of an inspection, whatever the source is."""

    translation: Text = ""
    """A target to inspect instead of the model's own translation."""
    target_tokens: Tokens = []
    """The same as tokens, exactly as /v1/translate returned them."""
    prefix_tokens: Tokens = []
    """Tokens that the target begins with; the model completes them."""
    k: Annotated[int, BeforeValidator(_whole_number(1, "listed")), Field(ge=1)] = 5
    """Number of candidate tokens listed at each step."""
    show: Parts = list(DEFAULT_PARTS)
    """Parts of the trace."""
    search: bool = False
    """Whether to record every hypothesis of the beam search."""
    reference: Text = ""
    """With `search`: a translation to look for, to distinguish a search error from a model error."""

    @model_validator(mode="after")
    def _targets_and_search_fit(self) -> Self:
        given = [name for name in TARGET_FIELDS if name in self.model_fields_set]
        if len(given) > 1:
            reason = f"{given[1]}: found {given[0]} as well, expected only one of them"
            raise RequestError(422, reason, field=given[1])
        if "reference" in self.model_fields_set and not self.search:
            raise RequestError(422, 'reference: expected "search": true with it', field="reference")
        return self


class InspectRequest(InspectionFields, DecodingRequest):
    """The body of /v1/inspect."""

    example: ClassVar[dict[str, Any]] = {"text": "a man", "k": 3, "show": ["prior"]}

    text: Text
    """One sentence, or a text that is translated in parts."""
    part: Annotated[int, BeforeValidator(_whole_number(0, "lines")), Field(ge=0)] = 0
    """The part of the text to inspect, counted from 0."""


class FileRequest(RequestBody):
    """The form fields of /v1/files, except the file."""

    model_config = ConfigDict(extra="ignore")
    example: ClassVar[dict[str, Any]] = {"file": "@notes.txt", "source": "en", "target": "de"}

    model: Name = ""
    """Name of a model; may be left out if the server has only one."""
    source: Name = ""
    """Code of the source language, or `auto`; `source` and `target` may be given instead of `model`."""
    target: Name = ""
    """Code of the target language."""


class UploadRequest(SettingsRequest):
    """The form fields of a request with a recording, an image or an array, except the file."""

    model: Name = ""
    """Name of a model; may be left out if the server has only one that reads files."""
    source: Name = ""
    """Code of the language of a recording, for Whisper; by default it is detected."""
    target: Name = ""
    """Code of the language to write: that of the recording, the default, or `en`, for Whisper."""
    timeout_seconds: Seconds = 0.0
    """Time limit of the request; by default, and at most, the server's."""

    @classmethod
    def form_values(cls, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of the fields of a form. A value that is not for a text is read as JSON."""
        return {name: _form_value(cls, name, text) for name, text in fields.items()}

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        return {"from_": self.source, "to": self.target, **super().decoding}


class TranscribeRequest(UploadRequest):
    """The form fields of /v1/transcribe, except the file."""

    example: ClassVar[dict[str, Any]] = {"file": "@talk.wav", "format": "json", "beam": 4}

    format: Annotated[Literal["json", "txt", "srt", "vtt"], Expected("one of: json, txt, srt, vtt")] = "json"
    """Format of the response: JSON, plain text, or subtitles, which need a model that writes times."""
    detail: bool = False
    """Whether to return tokens and their log-probabilities."""

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        timed = {"timestamps": True} if self.format in ("srt", "vtt") else {}
        return {**timed, **super().decoding}


class InspectFileRequest(InspectionFields, UploadRequest):
    """The form fields of /v1/inspect with a recording, an image or an array, except the file."""

    example: ClassVar[dict[str, Any]] = {"file": "@digits.wav", "k": 3}

    show: Parts = [part for part in FRAME_PARTS if not part.startswith("occlusion")]
    """Parts of the trace. Each position of the file is a pass of the model for "occlusion-mask"."""


class SpeechRequest(RequestBody):
    """The form fields of OpenAI's /v1/audio/transcriptions and /v1/audio/translations, except the file."""

    example: ClassVar[dict[str, Any]] = {"file": "@talk.wav", "model": "whisper"}

    model: Name
    """Name of a model."""
    language: Name = ""
    """Code of the language of the recording; by default it is detected."""
    response_format: Annotated[
        Literal["json", "text", "srt", "verbose_json", "vtt"], Expected("one of: json, text, srt, verbose_json, vtt")
    ] = "json"
    """Format of the response; `verbose_json` has segments with times."""
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Above 0, samples."""
    prompt: Annotated[Literal[""], Expected("none: prompts are not supported")] = ""
    """Must be empty."""

    @classmethod
    def parse_form(cls, fields: Mapping[str, str], limits: Limits) -> Self:
        """Validate the fields of a form."""
        return cls.parse({name: _form_value(cls, name, text) for name, text in fields.items()}, limits)

    def transcription(self, *, to_english: bool) -> TranscribeRequest:
        """Return the same request for /v1/transcribe."""
        form = {"text": "txt", "verbose_json": "json"}.get(self.response_format, self.response_format)
        more: dict[str, Any] = {"timestamps": True} if self.response_format == "verbose_json" else {}
        if self.temperature:
            more |= {"strategy": "sampling", "temperature": self.temperature}
        values = {"model": self.model, "source": self.language, "target": "en" if to_english else "", "format": form}
        return TranscribeRequest.model_validate({**values, **more}, context=Limits())


def _form_value(model: type[RequestBody], name: str, text: str) -> Any:
    """Return the value of a field of a form: JSON, such as a number, unless the field is a text."""
    fields = {**DecodingSettings.model_fields, **model.model_fields}
    if name in fields and isinstance(fields[name].get_default(call_default_factory=True), str | None):
        return text
    try:
        return parse_json(text.encode())
    except RequestError:
        return text


class LibreTranslateFileRequest(RequestBody):
    """The form fields of LibreTranslate's /translate_file, except the file."""

    model_config = ConfigDict(extra="ignore")
    example: ClassVar[dict[str, Any]] = FileRequest.example

    source: Name
    """Code of the source language, or `auto`."""
    target: Name
    """Code of the target language."""
    api_key: str = ""
    """An API key, if the server requires one."""

    @model_validator(mode="before")
    @classmethod
    def _have_languages(cls, values: dict[str, Any]) -> dict[str, Any]:
        refuse_missing(values, "source", "target")
        return values


class DetectRequest(RequestBody):
    """The body of LibreTranslate's /detect, JSON or a form."""

    model_config = ConfigDict(extra="ignore")
    example: ClassVar[dict[str, Any]] = {"q": "a man"}

    q: Annotated[Any, WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})]
    """A text or a list of texts of one language."""
    api_key: Annotated[Any, WithJsonSchema({"type": "string"})] = ""
    """An API key, if the server requires one."""

    @model_validator(mode="before")
    @classmethod
    def _has_text(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if values.get("q") in (None, "", []):
            raise missing_parameter("q")
        _refuse_long(cls.joined(values["q"]), _limits(info).characters)
        return values

    @staticmethod
    def joined(q: Any) -> str:
        """Return all texts as one; a value of another type as it is written."""
        return " ".join(q) if isinstance(q, list) and all(isinstance(each, str) for each in q) else str(q)


class LibreTranslateRequest(RequestBody):
    """The body of LibreTranslate's /translate, JSON or a form."""

    model_config = ConfigDict(extra="ignore")
    example: ClassVar[dict[str, Any]] = {"q": "a man", "source": "en", "target": "de"}

    q: str | list[str]
    """A text or a list of texts."""
    source: Name
    """Code of the source language; `auto` detects it."""
    target: Name
    """Code of the target language."""
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0
    """Number of alternative translations to return."""
    api_key: Annotated[Any, WithJsonSchema({"type": "string"})] = ""
    """An API key, if the server requires one."""

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Check in LibreTranslate's order, which decides which error comes first, and in its words."""
        limits = _limits(info)
        refuse_missing(values, "q", "source", "target")
        q = values["q"]
        texts = q if isinstance(q, list) else [q]
        if not all(isinstance(text, str) for text in texts):
            raise RequestError(400, "Invalid request: q parameter is not a text or a list of texts", field="q")
        for name in ("source", "target"):
            if not isinstance(values[name], str):
                raise RequestError(400, f"Invalid request: {name} parameter is not a text", field=name)
        alternatives = _alternatives(values.get("alternatives", 0), limits.width - 1)
        if len(texts) > limits.texts:
            reason = f"Invalid request: request ({len(texts)}) exceeds text limit ({limits.texts})"
            raise RequestError(400, reason, code="too_many_texts", field="q")
        for text in texts:
            _refuse_long(text, limits.characters)
        format_ = values.get("format") or "text"
        if format_ not in ("text", "html"):
            name = format_ if isinstance(format_, str) and len(format_) <= 40 else "this"
            raise RequestError(400, f"{name} format is not supported", code="unsupported_format", field="format")
        languages = {name: values[name].lower() for name in ("source", "target")}
        return {"q": q, **languages, "format": format_, "alternatives": alternatives}


class DeepLRequest(RequestBody):
    """The body of DeepL's /v2/translate, JSON or a form. Fields that are not listed here are ignored."""

    model_config = ConfigDict(extra="ignore")
    example: ClassVar[dict[str, Any]] = {"text": ["a man"], "target_lang": "DE"}

    text: Annotated[list[str], BeforeValidator(_checked_texts), Expected("a list of texts")]
    """A list of texts."""
    target_lang: Name
    """Code of the target language."""
    source_lang: Name = ""
    """Code of the source language; by default it is detected, unless only one language has a model to the target."""
    tag_handling: Annotated[Literal["", "html"], Expected("html, the only markup that is supported")] = ""
    """`html` if the texts are HTML."""
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], Expected("one of: 0, 1, nonewlines")] = "1"
    """`0` if each text is one sentence."""
    formality: Annotated[
        Literal["default", "prefer_more", "prefer_less"],
        Expected("one of: default, prefer_more, prefer_less (which change nothing: the models have one style)"),
    ] = "default"
    """Read for DeepL's clients; it changes nothing."""
    glossary_id: Annotated[Literal[""], Expected("none: glossaries are not supported")] = ""
    """Must be empty."""
    auth_key: str = ""
    """An API key, if the server requires one."""

    @model_validator(mode="before")
    @classmethod
    def _have_texts(cls, values: dict[str, Any]) -> dict[str, Any]:
        refuse_missing(values, "text", "target_lang")
        given = {name: value for name, value in values.items() if value is not None}
        if isinstance(given["text"], str):
            given["text"] = [given["text"]]
        return given


def refuse_missing(values: Mapping[str, Any], *names: str) -> None:
    """Raise RequestError (400), in LibreTranslate's words, for the first field that is missing or empty."""
    for name in names:
        if not values.get(name):
            raise missing_parameter(name)


def missing_parameter(name: str) -> RequestError:
    """Return the error for a missing field, in LibreTranslate's words."""
    return RequestError(400, f"Invalid request: missing {name} parameter", code="missing_field", field=name)


def _refuse_long(text: str, most: int) -> None:
    if len(text) > most:
        reason = f"Invalid request: request ({len(text)}) exceeds text limit ({most})"
        raise RequestError(400, reason, code="text_too_long", field="q")


def _alternatives(value: Any, most: int) -> int:
    """Return the number of alternatives, which forms give as text; negative numbers count as 0."""
    reason = "Invalid request: alternatives parameter is not a number"
    not_a_number = RequestError(400, reason, code="invalid_value", field="alternatives")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise not_a_number
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise not_a_number
    number = int(value)
    if number > most:
        reason = f"Invalid request: alternatives parameter must be <= {most}"
        raise RequestError(400, reason, code="too_wide", field="alternatives")
    return max(number, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTranslation:
    """A validated request to translate, with its model and settings."""

    texts: RequestTexts
    served: Served
    settings: DecodingSettings
    detail: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedInspection:
    """A validated request to inspect, with its model and settings. Tokens are not checked yet.

    text: empty for a file, whose frames are `frames`.
    language: of the text's sentences; None if the text is split into lines.
    part: index of the part to inspect.
    translation, prefix, target: at most one of them is given.
    """

    served: Served | ServedTranscriber
    settings: DecodingSettings
    text: str = ""
    frames: Frames | None = None
    language: str | None = None
    part: int = 0
    translation: str | None
    prefix: tuple[str, ...]
    target: tuple[str, ...]
    k: int
    show: tuple[Part, ...]
    search: bool
    reference: str | None
    timeout_seconds: float


def resolve_translation(values: Mapping[str, Any], models: ServedModels, limits: Limits) -> ResolvedTranslation:
    """Validate a JSON object as a `TranslateRequest`; RequestError that names the first field that is wrong."""
    request = TranslateRequest.parse(values, limits)
    texts = tuple(as_list(request.text))
    served = models.choose(request.model, request.source, request.target)
    alignment = {"alignment": True} if request.detail and not served.translator.config.without_tokens else {}
    settings = settings_with(served, {**alignment, **request.decoding}, limits)
    return ResolvedTranslation(
        texts=RequestTexts(
            texts=texts,
            field="text",
            several=isinstance(request.text, list),
            timeout_seconds=request.timeout_seconds or limits.timeout_seconds,
            language=request.sentence_language(served),
            constraints=_constraints(request, len(texts), settings),
        ),
        served=served,
        settings=settings,
        detail=request.detail,
    )


def resolve_inspection(values: Mapping[str, Any], models: ServedModels, limits: Limits) -> ResolvedInspection:
    """Validate a JSON object as an `InspectRequest`; RequestError that names the first field that is wrong."""
    request = InspectRequest.parse(values, limits)
    served = models.choose(request.model, request.source, request.target)
    found = _resolved(request, served, request.timeout_seconds, limits)
    return replace(found, text=request.text, language=request.sentence_language(served), part=request.part)


def resolve_file_inspection(
    values: Mapping[str, Any], models: ServedModels, limits: Limits, frames: Frames | None = None
) -> ResolvedInspection:
    """Validate the values of a form as an `InspectFileRequest`; RequestError that names the first wrong field.

    frames: of the file, if it was read already.
    """
    request = InspectFileRequest.parse(values, limits)
    found = _resolved(request, models.transcriber(request.model), request.timeout_seconds, limits)
    return replace(found, frames=frames)


def _resolved(
    request: InspectionFields, served: Served | ServedTranscriber, timeout_seconds: float, limits: Limits
) -> ResolvedInspection:
    given = request.model_fields_set
    settings = settings_with(served, request.decoding, limits)
    if request.search and settings.strategy not in ("beam", "greedy"):
        reason = f"search: found strategy '{settings.strategy}', expected 'beam' or 'greedy' to record"
        raise RequestError(422, reason, field="search")
    return ResolvedInspection(
        served=served,
        settings=settings.model_copy(update={"nbest": 1}),
        translation=request.translation if "translation" in given else None,
        prefix=tuple(request.prefix_tokens),
        target=tuple(request.target_tokens),
        k=request.k,
        show=tuple(request.show),
        search=request.search,
        reference=request.reference if "reference" in given else None,
        timeout_seconds=timeout_seconds or limits.timeout_seconds,
    )


def split_language(served: Served, split: str | None = None) -> str | None:
    """Return the language whose rules split texts for a model; None if texts are split into lines only.

    split: of a request; by default the model's own.
    """
    chosen = split or served.translator.config.decoding.split
    splits = splits_sentences(served.translator.checkpoint, cast(Any, SPLIT.get(chosen, chosen)))
    return served.source if splits else None


def settings_with(served: Decoding, changes: Mapping[str, Any], limits: Limits) -> DecodingSettings:
    """Return a model's [decoding] with changes; RequestError (422) for a value that is not allowed.

    The server splits texts before they are translated, so `split` is "never". Results are kept.
    """
    if any(isinstance(value, list | dict) for value in changes.values()):
        return _settings_with(served, changes, limits)
    known = _KNOWN.setdefault(served.model, {})
    key = json.dumps([dict(served.direction), dict(changes)], sort_keys=True), limits
    if (found := known.get(key)) is None:
        found = _settings_with(served, changes, limits)
        if len(known) >= KNOWN_SETTINGS:
            known.clear()
        known[key] = found
    return found


def _settings_with(served: Decoding, changes: Mapping[str, Any], limits: Limits) -> DecodingSettings:
    for name, value in changes.items():
        _refuse_extreme(name, value, limits)
    _refuse_long_rules(changes)
    own = served.model.config.decoding
    given = {**changes, "ban": _escaped(changes["ban"])} if "ban" in changes else changes
    try:
        changed = Config.build(
            {"decoding": {**own.model_dump(), **served.direction, **given}}, place="request"
        ).decoding
        settings = resolve_strategy(changed, changes)
        width = strategy_from(settings).width
        served.model.check(settings)
    except SettingsError as error:
        reason = str(error).removeprefix("request: ").removeprefix("decoding.")
        field = reason.partition(":")[0].partition(".")[0]
        short = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"
        raise RequestError(422, short, field=field if field in DECODING_FIELDS else "") from None
    if width > limits.width:
        reason = f"found {width} hypotheses per sentence, expected at most {limits.width}"
        raise RequestError(422, reason, code="too_wide")
    # The server splits texts itself, and a language model has no split.
    return settings if isinstance(served, ServedGenerator) else settings.model_copy(update={"split": "never"})


def as_list(value: str | Sequence[str]) -> list[str]:
    """Return a text, or several, as a list."""
    return [value] if isinstance(value, str) else list(value)


def _constraints(request: TranslateRequest, count: int, settings: DecodingSettings) -> tuple[tuple[str, ...], ...]:
    """Return the constraints of each of `count` texts; an empty tuple if the request has none."""
    value = request.constraints
    each = value if isinstance(request.text, list) else [value]
    if not isinstance(each, list) or (value and len(each) != count):
        found = f"{len(each):,} for {count:,} texts" if isinstance(each, list) else "no list"
        raise _constraint_error(f"found {found}, expected a text or a list of texts for each")
    constraints = tuple(_phrases(one, place) for place, one in enumerate(each))
    if not any(constraints):
        return ()
    try:
        refuse_constraints(settings)
    except SettingsError as error:
        raise _constraint_error(str(error).removeprefix("decoding.")) from None
    return constraints


def _phrases(value: Any, place: int) -> tuple[str, ...]:
    phrases = [value] if isinstance(value, str) else value
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise _constraint_error(f"found another value for text {place}, expected a text or a list of texts")
    if len(phrases) > MOST_CONSTRAINTS:
        raise _constraint_error(f"found {len(phrases):,} for text {place}, expected at most {MOST_CONSTRAINTS}")
    for phrase in cast(list[str], phrases):
        if not phrase.strip():
            raise _constraint_error(f"found a blank one for text {place}, expected a word or a phrase")
        if len(phrase) > LONGEST_CONSTRAINT:
            raise _constraint_error(f"found {len(phrase):,} characters in one, expected at most {LONGEST_CONSTRAINT}")
    return tuple(phrases)


def _constraint_error(reason: str) -> RequestError:
    return RequestError(422, f"constraints: {reason}", field="constraints")


def _refuse_long_rules(changes: Mapping[str, Any]) -> None:
    for name in ("ban", "prefix"):
        value = changes.get(name, "")
        size = sum(map(len, [value] if isinstance(value, str) else value if isinstance(value, list) else ()))
        if size > MOST_BANNED:
            reason = f"{name}: found {size:,} characters in all, expected at most {MOST_BANNED:,}"
            raise RequestError(413, reason, code="text_too_long", field=name)


def _escaped(ban: str | list[str]) -> list[str]:
    """Return banned phrases as settings take them, where a leading "@" would name a file."""
    return [f"@{text}" if text.startswith("@") else text for text in as_list(ban)]


def _refuse_extreme(name: str, value: Any, limits: Limits) -> None:
    """Raise RequestError for a value that settings allow but that is too expensive or too large for a server."""
    if isinstance(value, str):
        check_length(value, name, limits)
        return
    if isinstance(value, list):
        check_texts(value, name, limits)
        return
    if name == "ban":
        raise RequestError(422, f"ban: found {shown(value)}, expected a text or a list of texts", field="ban")
    if isinstance(value, dict) or value is None:
        raise RequestError(422, f"{name}: found {shown(value)}, expected a number, a text, true or false", field=name)
    if isinstance(value, bool) or name == "seed":
        return
    most = LARGEST.get(name, LARGEST_NUMBER)
    if abs(value) > most or not math.isfinite(value):
        raise RequestError(422, f"{name}: found {shown(value)}, expected at most {most:,.10g}", field=name)
    if name == "temperature" and 0 < value < SMALLEST_TEMPERATURE:
        raise RequestError(422, f"{name}: found {shown(value)}, expected at least {SMALLEST_TEMPERATURE}", field=name)
