"""The OpenAPI document: what the request and response models do not say themselves, and how both get into it."""

from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from translume.documents.files import FORMATS
from translume.inspection import BeamRecord, Trace
from translume.inspection.json_values import schema_of_any
from translume.serving.access.limits import Limits
from translume.serving.api.requests import RequestBody
from translume.serving.api.responses import Error, Info, InspectResponse, ResponseBody

Responses = dict[int | str, dict[str, Any]]
"""Descriptions of a route's responses by status, as FastAPI takes them."""

REASONS: Final = {
    400: "The body is not a JSON object or form with valid Unicode text, or a field of a form is missing.",
    401: "The API key is missing or unknown, and the server requires one.",
    403: "The request needs more characters than the key's daily quota, a web page of another site sent it, "
    "or the server does not offer this.",
    404: "No such model, language pair or file.",
    408: "The body arrived too slowly.",
    409: "The file is not translated yet.",
    413: "The body, a list or a text is too long, or an inspection would be too expensive.",
    415: "The body or the file has an unsupported type.",
    421: "The Host header has a name that the server does not have.",
    422: "A field is unknown, missing or invalid, or a sentence is longer than the model's maximum.",
    429: "The key's requests or characters are used up; Retry-After says when to try again.",
    456: "The text has more characters than are left of the key's daily quota.",
    500: "An internal error; the server's log has its traceback.",
    501: "The server cannot detect languages.",
    503: "The server is overloaded or shutting down; Retry-After says when to try again.",
    504: "The request did not finish before its deadline.",
    507: "There is no space for the translated file.",
}
"""Descriptions of the error statuses."""
NOTES: Final = (
    "An unknown path is answered with 404, a wrong method with 405, each with an `Error`. If a client disconnects "
    "before its response, the log records status 499. docs/serving.md has examples."
)
TAGS: Final = {
    "v1": "Translation, transcription, scoring, classification, files, and inspection of the model's predictions.",
    "OpenAI": "The API of OpenAI for recordings, for clients written for it.",
    "LibreTranslate": "The API of LibreTranslate, for clients written for it.",
    "DeepL": "The API of DeepL, for clients written for it.",
    "operations": "Health checks for operators.",
    "page": "Web pages.",
}

ALWAYS: Final = (421, 500, 503)
"""Error statuses of every route."""
KEYED: Final = (400, 401, 403, *ALWAYS)
"""Error statuses of a route that requires a key."""
READ: Final = (408, 413, 429, *KEYED)
"""Error statuses of a route that reads a body and charges it to a key."""
WORKED: Final = (404, 415, 422, 504, *READ)
"""Error statuses of a route of API v1 that uses a model."""
FETCHED: Final = (404, 409, 422, 504, 507, *ALWAYS)
"""Error statuses of a route that returns a translated file."""

JSON: Final = "application/json"
FORM: Final = "multipart/form-data"
UPLOADED: Final = (
    "A recording (WAV, FLAC, Ogg, MP3), an image (PNG, JPEG, …) or an array (.npy, .npz), as the model reads."
)
DOCUMENT: Final = f"A file: {', '.join(FORMATS)}."
TEXT: Final[dict[str, Any]] = {"type": "string"}


class _Schema(GenerateJsonSchema):
    """JSON schemas without titles of fields, and without defaults: a field with a default may be left out."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


def ref(name: str) -> dict[str, Any]:
    """Return a reference to a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def body(model: type[RequestBody], *kinds: str, file: str = "") -> dict[str, Any]:
    """Describe the body of a request.  kinds: media types, JSON by default.  file: what its part `file` is, if any."""
    schema = _schema_of(model)
    required = schema.get("required", [])
    # Required fields first: that is the order in which the page /docs lists them.
    properties = dict(sorted(schema["properties"].items(), key=lambda item: item[0] not in required))
    if file:
        upload = {"type": "string", "format": "binary", "description": file}
        required, properties = ["file", *required], {"file": upload, **properties}
    schema = {**schema, "required": required, "properties": properties}
    content: dict[str, Any] = {kind: {"schema": schema} for kind in kinds or (JSON,)}
    next(iter(content.values()))["example"] = model.example
    return {"requestBody": {"required": True, "content": content}}


@cache
def _schema_of(model: type[RequestBody]) -> dict[str, Any]:
    """Return the JSON schema of a request, which several routes and servers share; do not change it."""
    return model.model_json_schema(schema_generator=_Schema)


def responses(
    model: type[ResponseBody] | dict[str, Any] | None, words: str, *errors: int, kind: str = JSON, status: int = 200
) -> Responses:
    """Describe a route's response and errors.  model: None for the bytes of a file."""
    schema = ref(model.__name__) if isinstance(model, type) else model
    content: dict[str, Any] = {kind: {} if schema is None else {"schema": schema}}
    return {status: {"description": words, "content": content}, **refusals(*errors)}


def with_texts(described: Responses, *kinds: str) -> Responses:
    """Add media types of texts, which a request may choose, to the description of a route's response."""
    described[200]["content"] |= {kind: {"schema": TEXT} for kind in kinds}
    return described


def with_events(described: Responses, schema: dict[str, Any]) -> Responses:
    """Add server-sent events, which a request may choose, to the description of a route's response."""
    described[200]["content"]["text/event-stream"] = {"schema": schema}
    return described


def refusals(*statuses: int) -> Responses:
    """Describe a route's errors."""
    return {status: _refusal(status) for status in sorted(set(statuses))}


def list_of(model: type[ResponseBody]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": ref(model.__name__)}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add every response model to FastAPI's document, and remove FastAPI's validation errors, which are never sent."""
    models: list[type[BaseModel]] = list(ResponseBody.__subclasses__())
    _, definitions = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schema,
    )
    schemas = document.setdefault("components", {})["schemas"] = {**definitions["$defs"], **_traces()}
    # Traces are no pydantic models, and pydantic inlines settings.
    inspected = schemas[InspectResponse.__name__]["properties"]
    inspected["trace"], inspected["search"] = ref(Trace.__name__), ref(BeamRecord.__name__)
    schemas[Info.__name__]["properties"]["limits"] = ref(Limits.__name__)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    return document


def _refusal(status: int) -> dict[str, Any]:
    refusal = {"description": REASONS[status], "content": {JSON: {"schema": ref(Error.__name__)}}}
    if status in (429, 503):
        wait = {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 0}}
        return {**refusal, "headers": {"Retry-After": wait}}
    return refusal


def _traces() -> dict[str, Any]:
    """Return the schemas of docs/trace.schema.json under the names of the OpenAPI document."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: moved(each) for name, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        return value.replace("#/$defs/", "#/components/schemas/") if isinstance(value, str) else value

    found: dict[str, Any] = moved(schema_of_any((Trace, BeamRecord), "")["$defs"])
    return found
