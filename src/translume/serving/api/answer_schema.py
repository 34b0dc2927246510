"""How answers are described in /openapi.json: what comes out, and by which statuses a request may be refused."""

from collections.abc import Mapping
from typing import Any, Final

from translume.inspection import BeamRecord, Trace
from translume.inspection.plain import schema_of_any
from translume.serving.access.limits import Limits

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]
"""What FastAPI is told of a route's answers, by status."""

REASONS: Final = {
    400: "The body is no JSON object of whole characters, or no form with what is wanted.",
    401: "There is no key, or none of this server's; where it asks for keys.",
    403: "More characters than the key ever has; or what this server does not offer.",
    404: "There is no such model, pair of languages or file.",
    408: "The body came too slowly.",
    409: "The file is not translated yet.",
    413: "The body, a list or a text is too long, or an inspection would take too much.",
    415: "The body, or the file, is of another type.",
    422: "A field is unknown, missing, or has a value that does not fit; or a sentence is longer than the model reads.",
    429: "The key has no request, or too few characters, left; Retry-After says when to come back.",
    500: "A fault of the server's own; its log says where.",
    501: "This server cannot tell languages.",
    503: "There is no room now, or the server is stopping; Retry-After says when to come back.",
    504: "Not done by the request's deadline.",
    507: "There is no room for a translated file.",
}
ELSEWHERE: Final = (
    "What is at no address is answered with 404, another method with 405, each as an `Error`. A client that goes away "
    "before its answer is there is told nothing; the log has 499 then. docs/serving.md has examples."
)
"""What is true of addresses that the document does not list."""
TAGS: Final = {
    "v1": "Translations, scores, labels and files, and what the model believed.",
    "LibreTranslate": "What programs written for LibreTranslate ask.",
    "operations": "For those who run the server.",
    "page": "For people.",
}
"""Kinds of addresses, and what they are for."""

ALWAYS: Final = (500, 503)
"""Statuses of any address."""
KEYED: Final = (400, 401, *ALWAYS)
"""Of one that asks for keys."""
READ: Final = (403, 408, 413, 429, *KEYED)
"""Of one that reads a body and counts it for a key."""
WORKED: Final = (404, 415, 422, 504, *READ)
"""Of one that has a model of API v1 work."""
FETCHED: Final = (404, 409, 422, 504, 507, *ALWAYS)
"""Of one that gives a translated file, or tells why there is none."""

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
NATS: Final[Schema] = {"type": ["number", "null"], "description": "Nats; null is −∞."}
YES_OR_NO: Final[Schema] = {"type": "boolean"}


def listed(items: Schema, words: str = "") -> Schema:
    """A list of such values."""
    return {"type": "array", "items": items, **({"description": words} if words else {})}


def record(fields: Mapping[str, Schema], *, may: Mapping[str, Schema] | None = None, words: str = "") -> Schema:
    """An object of just these fields.  may: those that it need not have."""
    return {
        "type": "object",
        **({"description": words} if words else {}),
        "required": list(fields),
        "properties": {**fields, **(may or {})},
        "additionalProperties": False,
    }


def table(values: Schema, words: str = "") -> Schema:
    """An object of such values by names that nobody knows beforehand."""
    return {"type": "object", "additionalProperties": values, **({"description": words} if words else {})}


def named(name: str) -> Schema:
    """One of `SCHEMAS`, or of what an inspection writes."""
    return {"$ref": f"#/components/schemas/{name}"}


def answers(
    schema: Schema | None, words: str, *refused: int, kind: str = "application/json", status: int = 200
) -> Responses:
    """What a route answers with, and what it refuses with.  schema: None for bytes of a file."""
    content = {kind: {} if schema is None else {"schema": schema}}
    return {status: {"description": words, "content": content}, **refusals(*refused)}


def refusals(*statuses: int) -> Responses:
    """What a route refuses with."""
    return {status: _refusal(status) for status in sorted(set(statuses))}


def _refusal(status: int) -> dict[str, Any]:
    told = {"description": REASONS[status], "content": {"application/json": {"schema": named("Error")}}}
    if status in (429, 503):
        wait = {"description": "Seconds after which to come back.", "schema": COUNT}
        return {**told, "headers": {"Retry-After": wait}}
    return told


ERROR: Final = record(
    {
        "error": {"type": "string", "description": "One line: what was found, what was wanted."},
        "code": {"type": "string", "description": "A stable word for the kind of error."},
    },
    may={"field": {"type": "string", "description": "What of the request it is about, if it is about one."}},
)
ALIGNMENT: Final = record(
    {
        "source_tokens": listed(TEXT),
        "weights": listed(listed(NUMBER), "How each target token looks at each source token; rows sum to 1."),
        "links": listed({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}, "Words: (source, target)."),
    },
)
HYPOTHESIS: Final = record(
    {"text": TEXT, "log_prob": NATS, "score": {**NATS, "description": "What it was ranked by."}},
    may={
        "tokens": listed(TEXT),
        "token_log_probs": listed(NATS, "The model's own, of each token."),
        "finished_by": {"enum": ["eos", "length"]},
        "terms": record({"total": NATS, "divisor": NUMBER, "coverage": NATS}, words="total / divisor + coverage"),
        "alignment": named("Alignment"),
    },
    words="Without `detail`, only what it is called and ranked by.",
)
TRANSLATION: Final = record(
    {"text": TEXT, "warnings": listed(record({"kind": TEXT, "detail": TEXT}))},
    may={"hypotheses": listed(named("Hypothesis"), "Best first; with `detail`, `nbest` or `alignment`.")},
)
SCORE: Final = record({"log_prob": NATS, "tokens": listed(TEXT), "token_log_probs": listed(NATS)})
CLASSIFICATION: Final = record(
    {
        "label": TEXT,
        "labels": listed(TEXT),
        "probabilities": table(NUMBER, "Of each label, likeliest first."),
        "warnings": listed(TEXT),
        "margin": {**NUMBER, "description": "How far the second is behind; of several labels, the nearest one half."},
    }
)
ENGINE: Final = record(
    {
        "kind": {"enum": ["fast", "plain"]},
        "dtype": TEXT,
        "own_kernels": {**YES_OR_NO, "description": "Whether kernels compiled for this machine are in use."},
    },
    may={
        "difference": {**NUMBER, "description": "Largest one to the plain model, in nats, of likely tokens."},
        "agrees": {**YES_OR_NO, "description": "Whether that is within the tolerance of the dtype."},
        "alone_equals_batched": {"type": ["boolean", "null"], "description": "Whether they were so bit for bit."},
    },
    words="What computes, and what its self-test found.",
)
OFFERS: Final = listed({"enum": ["translate", "score", "inspect", "classify"]}, "What may be asked of it.")
MANIFEST: Final[Schema] = {**TEXT, "pattern": "^[0-9a-f]{64}$", "description": "SHA-256 of the folder's manifest.json."}
MODEL: Final = record(
    {
        "name": TEXT,
        "parameters": COUNT,
        "source_vocabulary": COUNT,
        "max_positions": COUNT,
        "engine": named("Engine"),
        "offers": OFFERS,
    },
    may={
        "manifest_sha256": MANIFEST,
        "source": TEXT,
        "target": TEXT,
        "target_vocabulary": COUNT,
        "decoding": {"type": "object", "description": "[decoding], as it is unless a request says otherwise."},
        "labels": listed(TEXT),
        "several_labels": YES_OR_NO,
    },
)
INFO: Final = record(
    {
        "version": TEXT,
        "versions": record({"translume": TEXT, "torch": TEXT, "python": TEXT}),
        "limits": record(dict.fromkeys(Limits.model_fields, NUMBER)),
        "waiting": {**COUNT, "description": "Lines that wait now."},
        "engines": table(named("Engine"), "By model."),
        "manifests": table(MANIFEST, "By model: which one it is, to the last weight."),
        "offers": table(OFFERS, "By model."),
        "batches": {**TEXT, "description": "What is the same alone and in company."},
    }
)
FILE: Final = record(
    {
        "id": TEXT,
        "name": TEXT,
        "status": {"enum": ["waiting", "working", "done", "failed"]},
        "sentences": {"type": ["integer", "null"], "description": "Null before they are counted."},
        "done": COUNT,
    },
    may={"result": {**TEXT, "description": "Where it is."}, "kept_seconds": COUNT, "error": named("Error")},
)
DETECTED: Final = record({"confidence": {**NUMBER, "minimum": 0, "maximum": 100}, "language": TEXT})
LANGUAGE: Final = record({"code": TEXT, "name": TEXT})
SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": ERROR,
    "Translation": TRANSLATION,
    "Hypothesis": HYPOTHESIS,
    "Alignment": ALIGNMENT,
    "Score": SCORE,
    "Classification": CLASSIFICATION,
    "Engine": ENGINE,
    "Model": MODEL,
    "Info": INFO,
    "File": FILE,
    "Detected": DETECTED,
}

TRANSLATED: Final = record({"model": TEXT, "translations": listed(named("Translation"))})
SCORED: Final = record({"model": TEXT, "scores": listed(named("Score"))})
CLASSIFIED: Final = record({"model": TEXT, "classifications": listed(named("Classification"))})
INSPECTED: Final = record(
    {"model": TEXT, "part": COUNT, "parts": COUNT, "trace": named("Trace")}, may={"search": named("BeamRecord")}
)
EVENT: Final = record(
    {
        "event": {"enum": ["prefix", "done", "error"]},
        "data": {**TEXT, "description": "JSON: {place, text}; what /v1/translate answers; an `Error`."},
    },
    words="Each event; the last one is `done` or `error`.",
)
READY: Final = record(
    {"status": {"const": "ready"}},
    may={"last_reload": record({"at": TEXT, "done": YES_OR_NO, "kept_as_before": listed(TEXT)})},
)
LANGUAGES: Final = listed(record({"code": TEXT, "name": TEXT, "targets": listed(TEXT)}))
FRONTEND: Final = record(
    {
        **dict.fromkeys(("apiKeys", "filesTranslation", "keyRequired", "suggestions"), YES_OR_NO),
        **dict.fromkeys(("charLimit", "frontendTimeout"), COUNT),
        "language": record({"source": LANGUAGE, "target": LANGUAGE}),
        "supportedFilesFormat": listed(TEXT),
    }
)


def one_or_list(schema: Schema, words: str = "") -> Schema:
    """One for a text, a list for a list of texts."""
    return {"anyOf": [schema, listed(schema)], **({"description": words} if words else {})}


LIBRETRANSLATED: Final = record(
    {"translatedText": one_or_list(TEXT)},
    may={
        "detectedLanguage": one_or_list(named("Detected"), "With source=auto."),
        "alternatives": one_or_list(listed(TEXT), "Where they were asked for."),
    },
)


def with_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document with all that its answers name, and without errors of a shape that nobody sends."""
    ours = {**SCHEMAS, **_inspected()}
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(ours)
    for name in set(schemas) - set(ours):
        del schemas[name]
    for operations in document["paths"].values():
        for operation in operations.values():
            told = operation["responses"]
            if "HTTPValidationError" in str(told.get("422")):
                # What FastAPI says of any address with a parameter.
                del told["422"]
    return document


def _inspected() -> dict[str, Schema]:
    """What an inspection writes, as docs/trace.schema.json has it, under the names of an OpenAPI document."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: moved(each) for name, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        return value.replace("#/$defs/", "#/components/schemas/") if isinstance(value, str) else value

    found: dict[str, Schema] = moved(schema_of_any((Trace, BeamRecord), "")["$defs"])
    return found
