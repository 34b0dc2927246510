"""Requests of the HTTP API: models that validate bodies, and that /openapi.json describes."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from translume.config import DecodingSettings
from translume.config.base import documentation
from translume.errors import nearest
from translume.inspection.tracing import DEFAULT_PARTS, FRAME_PARTS, PARTS, Part
from translume.serving.api.body import FORM, JSON, LIMITS, URL_ENCODED
from translume.serving.api.errors import RequestError, field_error, refuse_more, shown
from translume.serving.settings import Limits

WITHHELD: Final = frozenset(
    {"max_tokens", "vocabulary", "terminology", "utility_model", "draft", "draft_tokens", "rules", "options"}
)
"""Settings of [decoding] that a request cannot set: the server forms the batches, reads no files and loads no models
for clients, and chooses the parts from outside."""
DECODING_FIELDS: Final = tuple(name for name in DecodingSettings.model_fields if name not in (*WITHHELD, "split"))
"""Settings of [decoding] that a request can set."""
LONGEST_NAME: Final = 200
SHOWABLE: Final = tuple(part for part in PARTS if part != "integrated-gradients")
"""Parts of a trace that a request can select; integrated gradients take too long."""
TARGET_FIELDS: Final = ("translation", "prefix_tokens", "target_tokens")
"""Fields of an inspection that give the target. A request has at most one of them."""


def check_texts(value: Any, field: str, limits: Limits) -> None:
    """Raise RequestError unless a value is a string, or a list of strings, within the limits."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise field_error(field, f"found {shown(value)}, expected a string or a list of strings")
    refuse_more(field, len(texts), " texts", limits.texts, "too_many_texts")
    for number, text in enumerate(texts):
        place = field if isinstance(value, str) else f"{field}[{number}]"
        if not isinstance(text, str):
            raise field_error(place, f"found {shown(text)}, expected a string")
        refuse_more(place, len(text), " characters", limits.characters, "text_too_long")


def _checked_texts(value: Any, info: ValidationInfo) -> Any:
    check_texts(value, info.field_name or "", LIMITS.get())
    return value


def _at_most(limit: str) -> AfterValidator:
    """Return a validator that compares a number, or the length of a list, with the limit of a name."""

    def check(value: Any) -> Any:
        maximum = getattr(LIMITS.get(), limit)
        if not (len(value) if isinstance(value, list) else value) <= maximum:
            raise ValueError(f"expected at most {maximum:,.10g}")
        return value

    return AfterValidator(check)


def _checked_file(file: Any) -> Any:
    """Return an uploaded file; RequestError if it is none, or too large (413)."""
    if not getattr(file, "filename", ""):
        raise RequestError(400, "Invalid request: missing file parameter", code="missing_field", field="file")
    refuse_more("file", file.size, " bytes", LIMITS.get().file_bytes, "file_too_large")
    return file


def _checked_parts(value: Any) -> Any:
    """Check the names of a trace's parts, and return each once."""
    if not isinstance(value, list):
        raise field_error("show", f"found {shown(value)}, expected a list of parts")
    for place, part in enumerate(value):
        if not isinstance(part, str) or part not in SHOWABLE:
            hint = nearest(part, SHOWABLE) if isinstance(part, str) and len(part) <= 40 else ""
            hint = hint or f", expected one of: {', '.join(SHOWABLE)}"
            raise field_error(f"show[{place}]", f"no such part{hint}")
    return list(dict.fromkeys(value))


File = Annotated[Any, AfterValidator(_checked_file), WithJsonSchema({"type": "string", "format": "binary"})]
TextOrTexts = Annotated[str | list[str], BeforeValidator(_checked_texts)]
Text = Annotated[str, AfterValidator(_checked_texts)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Code = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME, to_lower=True)]
Seconds = Annotated[float, Field(gt=0), _at_most("timeout_seconds")]
Tokens = Annotated[list[str], FailFast(), Field(min_length=1), _at_most("characters")]
Parts = Annotated[
    list[Part], BeforeValidator(_checked_parts), WithJsonSchema({"type": "array", "items": {"enum": [*SHOWABLE]}})
]
"""Parts of a trace."""


class RequestBody(BaseModel):
    """The body of a request. Unknown fields are rejected with the nearest known one; values are never converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
    example: ClassVar[dict[str, Any]] = {}
    """An example in /openapi.json."""
    kinds: ClassVar[tuple[str, ...]] = (JSON,)
    """Media types of the body. With `URL_ENCODED`, for clients of other servers, the query string is read too."""

    @classmethod
    def read(cls, values: Any) -> Self:
        """Return the request with the fields of a body; RequestError for the first fault that pydantic finds."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
        name, *inside = fault["loc"]
        place = "".join([str(name), *(f"[{each}]" for each in inside if isinstance(each, int))])
        if fault["type"] in ("missing", "string_too_short", "too_short"):
            if cls.kinds == (JSON,):
                raise field_error(place, "found nothing, expected a value")
            raise RequestError(400, f"Invalid request: missing {place} parameter", code="missing_field", field=place)
        if fault["type"] == "string_too_long":
            expected = f"expected at most {fault['ctx']['max_length']:,}"
            raise field_error(place, f"found {len(fault['input']):,} characters, {expected}")
        message = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, expected ")
        if message == fault["msg"]:
            raise field_error(place, f"{message[:1].lower()}{message[1:]}")
        raise field_error(place, f"found {shown(fault['input'])}, expected {message}")

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_fields(cls, values: Any) -> Any:
        if not isinstance(values, dict) or cls.model_config.get("extra") == "ignore":
            return values
        known = [field.alias or name for name, field in cls.model_fields.items()]
        known += DECODING_FIELDS if issubclass(cls, SettingsRequest) else ()
        for name in values:
            if name in WITHHELD and name not in known:
                raise field_error(name, "a request cannot set it; the model's own setting holds")
            if name not in known:
                short = name if len(name) <= 40 else f"{name[:39]}…"
                raise field_error(short, f"no such field{nearest(short, known)}", code="unknown_field")
        return values


class TimedRequest(RequestBody):
    """A request that waits for a model."""

    model: Name = ""
    """Name of a model; may be left out if the server has only one of its kind."""
    timeout_seconds: Seconds = 0.0
    """Time limit of the request; by default, and at most, the server's."""

    @property
    def seconds(self) -> float:
        """The time limit of the request."""
        return self.timeout_seconds or LIMITS.get().timeout_seconds


class PairRequest(TimedRequest):
    """A request that may choose its model by languages."""

    source: Name = ""
    """Code of the source language; `source` and `target` may be given instead of `model`."""
    target: Name = ""
    """Code of the target language."""


def _add_decoding_fields(schema: dict[str, Any]) -> None:
    """Add the settings of [decoding] to the JSON schema of a request, without defaults: those are the model's."""
    decoding, texts = DecodingSettings.model_json_schema()["properties"], documentation(DecodingSettings)
    for name in DECODING_FIELDS:
        facts = {key: value for key, value in decoding[name].items() if key not in ("title", "default")}
        schema["properties"][name] = {"description": texts[name], **facts}
    schema["additionalProperties"] = False


class SettingsRequest(RequestBody):
    """A request that may replace settings of [decoding]; they are validated with the model's own settings."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_add_decoding_fields)

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        return dict(self.model_extra or {})


class DecodingRequest(PairRequest, SettingsRequest):
    """A request for a translation."""

    split: Literal["", "auto", "always", "never", "sentences", "lines"] = ""
    """Whether to translate sentence by sentence, by default as the model's `decoding.split` says.

    `sentences` means `always`, and `lines` means `never`.
    """


class TranslateRequest(DecodingRequest):
    """The body of /v1/translate."""

    example: ClassVar[dict[str, Any]] = {"text": "a man", "beam": 4}

    text: TextOrTexts
    """A string or a list of strings."""
    constraints: Annotated[Any, WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "array"}]})] = []
    """Words and phrases that the translation must contain; for a list of texts, a list for each text."""
    detail: bool = False
    """Whether to return tokens, their log-probabilities, the terms of scores, and alignments."""


class ScoreRequest(PairRequest):
    """The body of /v1/score."""

    example: ClassVar[dict[str, Any]] = {"sources": "a man", "targets": "ein mann"}

    sources: TextOrTexts
    """A string or a list of strings."""
    targets: TextOrTexts
    """A target for each source."""

    @model_validator(mode="after")
    def _has_pairs(self) -> "ScoreRequest":
        sources, targets = as_list(self.sources), as_list(self.targets)
        if len(sources) != len(targets):
            raise field_error("targets", f"found {len(targets):,} for {len(sources):,} sources, expected as many")
        return self


class ClassifyRequest(TimedRequest):
    """The body of /v1/classify."""

    example: ClassVar[dict[str, Any]] = {"text": "what is a tree ?", "nbest": 3}

    text: TextOrTexts
    """A string or a list of strings."""
    nbest: Annotated[int, Field(ge=1)] = 0
    """Number of labels to return for each text; by default all."""


class GenerateRequest(TimedRequest, SettingsRequest):
    """The body of /v1/generate."""

    example: ClassVar[dict[str, Any]] = {"prompt": "a man", "strategy": "sampling", "max_length": 20}

    prompt: TextOrTexts
    """A prompt or a list of prompts; an empty one begins a document."""
    stream: bool = False
    """Whether to send the texts as server-sent events while they are generated."""
    detail: bool = False
    """Whether to return tokens and their log-probabilities."""


class InspectionFields(TimedRequest, SettingsRequest):
    """The fields of an inspection, whatever the source is."""

    translation: Text = ""
    """A target to inspect instead of the model's own translation."""
    target_tokens: Tokens = []
    """The same as tokens, exactly as /v1/translate returned them."""
    prefix_tokens: Tokens = []
    """Tokens that the target begins with; the model completes them."""
    k: Annotated[int, Field(ge=1), _at_most("listed")] = 5
    """Number of candidate tokens listed at each step."""
    show: Parts = list(DEFAULT_PARTS)
    """Parts of the trace."""
    search: bool = False
    """Whether to record every hypothesis of the beam search."""
    reference: Text = ""
    """With `search`: a translation to look for, to distinguish a search error from a model error."""

    @model_validator(mode="after")
    def _targets_and_search_fit(self) -> "InspectionFields":
        targets = [name for name in TARGET_FIELDS if name in self.model_fields_set]
        if len(targets) > 1:
            raise RequestError(422, f"{targets[1]} cannot be combined with {targets[0]}", field=targets[1])
        if "reference" in self.model_fields_set and not self.search:
            raise field_error("reference", 'expected "search": true with it')
        return self


class InspectRequest(InspectionFields, DecodingRequest):
    """The body of /v1/inspect."""

    example: ClassVar[dict[str, Any]] = {"text": "a man", "k": 3, "show": ["prior"]}

    text: Text
    """One sentence, or a text that is translated in parts."""
    part: Annotated[int, Field(ge=0), _at_most("lines")] = 0
    """The part of the text to inspect, counted from 0."""


class FormBody(RequestBody):
    """A form with a file. Values of its other fields are strings, in JSON unless the field is a string."""

    model_config = ConfigDict(strict=False)
    kinds: ClassVar[tuple[str, ...]] = (FORM,)

    file: File
    """The file."""

    @model_validator(mode="before")
    @classmethod
    def _parsed(cls, values: Any) -> Any:
        return {name: _form_value(cls, name, value) for name, value in values.items() if value != ""}


def _form_value(model: type[RequestBody], name: str, value: Any) -> Any:
    """Return the value of a field of a form: JSON, such as a number, unless the field is a string."""
    fields = {**DecodingSettings.model_fields, **model.model_fields}
    if not isinstance(value, str) or (
        name in fields and isinstance(fields[name].get_default(call_default_factory=True), str | None)
    ):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


class FileRequest(FormBody):
    """The form of /v1/files."""

    model_config = ConfigDict(extra="ignore")
    example: ClassVar[dict[str, Any]] = {"file": "@notes.txt", "source": "en", "target": "de"}

    model: Name = ""
    """Name of a model; may be left out if the server has only one."""
    source: Name = ""
    """Code of the source language, or `auto`; `source` and `target` may be given instead of `model`."""
    target: Name = ""
    """Code of the target language."""


class UploadRequest(FormBody, TimedRequest, SettingsRequest):
    """The form of a request with a recording, an image or an array."""

    model_config = ConfigDict(strict=False)

    source: Name = ""
    """Code of the language of a recording, for Whisper; by default it is detected."""
    target: Name = ""
    """Code of the language to write: that of the recording, the default, or `en`, for Whisper."""

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        return {"from_": self.source, "to": self.target, **super().decoding}


class TranscribeRequest(UploadRequest):
    """The form of /v1/transcribe."""

    example: ClassVar[dict[str, Any]] = {"file": "@talk.wav", "format": "json", "beam": 4}

    format: Literal["json", "txt", "srt", "vtt"] = "json"
    """Format of the response: JSON, plain text, or subtitles, which need a model that writes times."""
    detail: bool = False
    """Whether to return tokens and their log-probabilities."""

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of [decoding] that the request replaces."""
        return {**({"timestamps": True} if self.format in ("srt", "vtt") else {}), **super().decoding}


class InspectFileRequest(InspectionFields, UploadRequest):
    """The form of /v1/inspect with a recording, an image or an array."""

    example: ClassVar[dict[str, Any]] = {"file": "@digits.wav", "k": 3}

    show: Parts = [part for part in FRAME_PARTS if not part.startswith("occlusion")]
    """Parts of the trace. Each position of the file is a pass of the model for "occlusion-mask"."""


class SpeechRequest(FormBody):
    """The form of OpenAI's /v1/audio/transcriptions and /v1/audio/translations."""

    example: ClassVar[dict[str, Any]] = {"file": "@talk.wav", "model": "whisper"}

    model: Name
    """Name of a model."""
    language: Name = ""
    """Code of the language of the recording; by default it is detected."""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    """Format of the response; `verbose_json` has segments with times."""
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Above 0, samples."""
    prompt: Literal[""] = ""
    """Must be empty: prompts are not supported."""
    timestamp_granularities: Annotated[Literal["segment"], Field(alias="timestamp_granularities[]")] = "segment"
    """Only segments have times."""

    def transcription(self, *, to_english: bool) -> TranscribeRequest:
        """Return the same request for /v1/transcribe."""
        form = {"text": "txt", "verbose_json": "json"}.get(self.response_format, self.response_format)
        values: dict[str, Any] = {"file": self.file, "model": self.model, "source": self.language, "format": form}
        if to_english:
            values["target"] = "en"
        if self.response_format == "verbose_json":
            values["timestamps"] = True
        if self.temperature:
            values |= {"strategy": "sampling", "temperature": self.temperature}
        return TranscribeRequest.model_validate(values)


class LibreTranslateBody(RequestBody):
    """The fields of all requests of LibreTranslate. Fields that are not listed are ignored."""

    model_config = ConfigDict(extra="ignore")
    kinds: ClassVar[tuple[str, ...]] = (JSON, URL_ENCODED)

    api_key: Annotated[Any, WithJsonSchema({"type": "string"})] = ""
    """An API key, if the server requires one."""


class LibreTranslatePair(LibreTranslateBody):
    """The fields of requests of LibreTranslate that translate."""

    source: Code
    """Code of the source language; `auto` detects it."""
    target: Code
    """Code of the target language."""


class LibreTranslateFileRequest(FormBody, LibreTranslatePair):
    """The form of LibreTranslate's /translate_file."""

    example: ClassVar[dict[str, Any]] = FileRequest.example


class DetectRequest(LibreTranslateBody):
    """The body of LibreTranslate's /detect, JSON or a form."""

    example: ClassVar[dict[str, Any]] = {"q": "a man"}

    q: Annotated[TextOrTexts, Field(min_length=1)]
    """A string or a list of strings of one language."""


class LibreTranslateRequest(LibreTranslatePair, DetectRequest):
    """The body of LibreTranslate's /translate, JSON or a form."""

    model_config = ConfigDict(strict=False)
    example: ClassVar[dict[str, Any]] = {"q": "a man", "source": "en", "target": "de"}

    format: Annotated[Literal["text", "html"], BeforeValidator(lambda value: value or "text")] = "text"
    alternatives: Annotated[int, AfterValidator(lambda number: max(0, number))] = 0
    """Number of alternative translations to return; negative numbers count as 0."""
    refuse_unknown: bool = False
    """With `auto`, whether to refuse a text in a language that the server does not have, and not only to warn."""

    @model_validator(mode="after")
    def _alternatives_fit(self) -> "LibreTranslateRequest":
        refuse_more("alternatives", self.alternatives, "", LIMITS.get().width - 1, "too_wide", 400)
        return self


class DeepLBody(RequestBody):
    """The languages of requests of DeepL. Fields that are not listed are ignored."""

    model_config = ConfigDict(extra="ignore")
    kinds: ClassVar[tuple[str, ...]] = (JSON, URL_ENCODED)

    target_lang: Annotated[Name, Field(min_length=1)]
    """Code of the target language."""
    source_lang: Name = ""
    """Code of the source language; by default it is detected, unless only one language has a model to the target."""


class GlossaryRequest(DeepLBody):
    """The body of DeepL's /v2/glossaries, JSON or a form."""

    example: ClassVar[dict[str, Any]] = {
        "name": "animals",
        "source_lang": "EN",
        "target_lang": "DE",
        "entries": "dog,Hund",
        "entries_format": "csv",
    }

    name: Annotated[Name, Field(min_length=1)]
    """Name of the glossary."""
    source_lang: Annotated[Name, Field(min_length=1)]
    """Code of the source language."""
    entries: Annotated[str, Field(min_length=1)]
    """A source and a target term a line."""
    entries_format: Literal["tsv", "csv"] = "tsv"
    """Whether a tab or a comma is between them."""


class DeepLDocumentRequest(FormBody, DeepLBody):
    """The form of DeepL's /v2/document."""

    example: ClassVar[dict[str, Any]] = {"file": "@notes.txt", "target_lang": "DE"}

    glossary_id: Literal[""] = ""
    """Must be empty: glossaries are not supported."""
    output_format: Literal[""] = ""
    """Must be empty: a document keeps its format."""


class DeepLRequest(DeepLBody):
    """The body of DeepL's /v2/translate, JSON or a form."""

    example: ClassVar[dict[str, Any]] = {"text": ["a man"], "target_lang": "DE"}

    text: Annotated[list[str], BeforeValidator(_checked_texts), Field(min_length=1)]
    """A list of strings."""
    tag_handling: Literal["", "html", "xml"] = ""
    """`html` or `xml` if the texts have markup, which the translations keep. XML is read by the rules of HTML."""
    split_sentences: Literal["0", "1", "nonewlines"] = "1"
    """`0` if each text is one sentence."""
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"
    """Read for DeepL's clients; it changes nothing: the models have one style."""
    glossary_id: Name = ""
    """A glossary of `source_lang`, whose terms the translations must contain."""
    auth_key: str = ""
    """An API key, if the server requires one."""

    @model_validator(mode="after")
    def _glossary_has_a_source(self) -> "DeepLRequest":
        if self.glossary_id and not self.source_lang:
            raise field_error("source_lang", "found nothing, expected a code with glossary_id", 400)
        return self

    @model_validator(mode="before")
    @classmethod
    def _texts_are_a_list(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        present = {name: value for name, value in values.items() if value is not None}
        return present | {name: [value] for name, value in present.items() if name == "text" and isinstance(value, str)}


def as_list(value: str | list[str]) -> list[str]:
    """Return a text, or several, as a list."""
    return [value] if isinstance(value, str) else value
