"""How bodies are described in /openapi.json."""

from typing import Any

from translume.config import DecodingSettings
from translume.serving.asked import KNOBS

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {
        "error": {"type": "string", "description": "One line: what was found, what was wanted."},
        "code": {"type": "string", "description": "A stable word for the kind of error."},
        "field": {"type": "string", "description": "What of the request it is about, if it is about one."},
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "content": {"application/json": {"schema": ERROR}}}
    for status, words in {
        400: "The body is no JSON object of whole characters.",
        413: "The body, a list or a text is too long.",
        415: "The body is of another type.",
        422: "A field is unknown, missing, or has a value that does not fit.",
        503: "There is no room now; Retry-After says when to come back.",
        504: "Not done by the request's deadline.",
    }.items()
}

_TEXTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_CHOICE = {
    "model": {"type": "string", "description": "Name of a model; may be left out where there is only one."},
    "source": {"type": "string", "description": "Code of the source language, with `target` instead of `model`."},
    "target": {"type": "string", "description": "Code of the target language."},
    "timeout_seconds": {"type": "number", "description": "How long the request may take."},
}


def _body(required: list[str], properties: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


def _knobs() -> dict[str, Any]:
    described = DecodingSettings.model_json_schema()["properties"]
    return {name: described[name] for name in KNOBS}


TRANSLATE = _body(
    ["text"],
    {
        "text": {**_TEXTS, "description": "One text or a list of them."},
        **_CHOICE,
        "detail": {"type": "boolean", "description": "Whether to tell tokens and their log-probabilities."},
        **_knobs(),
    },
    {"text": "a man", "beam": 4},
)
SCORE = _body(
    ["sources", "targets"], {"sources": _TEXTS, "targets": _TEXTS, **_CHOICE}, {"sources": "a", "targets": "b"}
)
