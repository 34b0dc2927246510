"""How bodies are described in /openapi.json."""

from typing import Any

from translume.config import DecodingSettings
from translume.documents.files import FORMATS
from translume.serving.api.inspection_requests import SHOWABLE
from translume.serving.api.requests import KNOBS, SPLITS

_TEXTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_CHOICE = {
    "model": {"type": "string", "description": "Name of a model; may be left out where there is only one."},
    "source": {"type": "string", "description": "Code of the source language, with `target` instead of `model`."},
    "target": {"type": "string", "description": "Code of the target language."},
    "timeout_seconds": {"type": "number", "description": "How long the request may take."},
}


_SPLIT = {"enum": list(SPLITS), "description": "What is translated at once; sentences unless given."}


def _body(required: list[str], properties: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


def _knobs() -> dict[str, Any]:
    described = DecodingSettings.model_json_schema()["properties"]
    # What holds unless a request says otherwise is the model's own setting, and no default of ours.
    told = ("title", "default")
    return {name: {word: value for word, value in described[name].items() if word not in told} for name in KNOBS}


TRANSLATE = _body(
    ["text"],
    {
        "text": {**_TEXTS, "description": "One text or a list of them."},
        **_CHOICE,
        "constraints": {
            "oneOf": [{"type": "string"}, {"type": "array"}],
            "description": "Words and phrases that the translation must hold; of a list of texts, a list for each.",
        },
        "split": _SPLIT,
        "detail": {
            "type": "boolean",
            "description": "Whether to tell tokens, their log-probabilities, what scores are made of, alignments.",
        },
        **_knobs(),
    },
    {"text": "a man", "beam": 4},
)
SCORE = _body(
    ["sources", "targets"],
    {"sources": _TEXTS, "targets": _TEXTS, **_CHOICE},
    {"sources": "a man", "targets": "ein mann"},
)

_TOKENS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
INSPECT = _body(
    ["text"],
    {
        "text": {"type": "string", "description": "One sentence, or a text that is translated in parts."},
        **_CHOICE,
        "split": _SPLIT,
        "part": {"type": "integer", "minimum": 0, "description": "Of a text that is translated in parts, from 0."},
        "translation": {"type": "string", "description": "A target to look at instead of the model's own."},
        "target_tokens": {**_TOKENS, "description": "The same as tokens, exactly as they were found."},
        "prefix_tokens": {**_TOKENS, "description": "Tokens that the target begins with; the rest is searched for."},
        "k": {"type": "integer", "minimum": 1, "description": "Tokens listed at a step."},
        "show": {"type": "array", "items": {"enum": list(SHOWABLE)}, "description": "Parts of the trace."},
        "search": {"type": "boolean", "description": "Whether to record all that a beam search looked at."},
        "reference": {"type": "string", "description": "With `search`: did the search miss this, or the model?"},
        **_knobs(),
    },
    {"text": "a man", "k": 3, "show": ["prior"]},
)
CLASSIFY = _body(
    ["text"],
    {
        "text": {**_TEXTS, "description": "One text or a list of them."},
        "model": _CHOICE["model"],
        "timeout_seconds": _CHOICE["timeout_seconds"],
        "nbest": {"type": "integer", "minimum": 1, "description": "Labels told of each text; all unless given."},
    },
    {"text": "what is a tree ?", "nbest": 3},
)


def _form(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    file = {"type": "string", "format": "binary", "description": f"A file: {', '.join(FORMATS)}."}
    schema = {"type": "object", "required": ["file", *required], "properties": {"file": file, **properties}}
    content = {"schema": schema, "example": {"file": "@notes.txt", "source": "en", "target": "de"}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": content}}}


FILES = _form([], {name: _CHOICE[name] for name in ("model", "source", "target")})
_KEY = {"type": "string", "description": "A key, where the server wants one."}
TRANSLATE_FILE = _form(
    ["source", "target"], {"source": {"type": "string"}, "target": {"type": "string"}, "api_key": _KEY}
)


def _either(required: list[str], properties: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """A body as LibreTranslate's clients send it: JSON or a form."""
    json, form = (
        {"type": "object", "required": required, "properties": {**properties, "q": q, "api_key": _KEY}}
        for q in (properties["q"], {"type": "string"})
    )
    kinds = {
        "application/json": {"schema": json, "example": example},
        "application/x-www-form-urlencoded": {"schema": form},
    }
    return {"requestBody": {"required": True, "content": kinds}}


LIBRETRANSLATE = _either(
    ["q", "source", "target"],
    {
        "q": {**_TEXTS, "description": "One text or a list of them."},
        "source": {"type": "string", "description": "Code of the source language; auto: the likeliest."},
        "target": {"type": "string", "description": "Code of the target language."},
        "format": {"enum": ["text", "html"]},
        "alternatives": {"type": "integer", "minimum": 0, "description": "How many other translations are wanted."},
    },
    {"q": "a man", "source": "en", "target": "de"},
)
DETECT = _either(["q"], {"q": _TEXTS}, {"q": "a man"})
