"""JSON documents follow the published schema and can be read back unchanged."""

import json
from pathlib import Path

import pytest

import translume
from translume.inspection.values import SCHEMAS

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "trace.schema.json"
SOURCE = "the cat sat."


def problems(value, schema, definitions, place="$"):
    """Violations of a schema by a JSON value, for the keywords that our schemas use."""
    known = {"$ref", "anyOf", "oneOf", "const", "enum", "type", "items", "properties", "required", "default"}
    assert set(schema) <= known | {"additionalProperties", "description", "title", "$schema", "$defs"}
    if "$ref" in schema:
        return problems(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, place)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            each = [problems(value, other, definitions, place) for other in schema[word]]
            fit = sum(not found for found in each)
            return [] if fit == 1 or (word == "anyOf" and fit) else [f"{place}: fits {fit}", *min(each, key=len)]
    if "const" in schema:
        return [] if value == schema["const"] else [f"{place}: {value!r}"]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{place}: {value!r}"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = [isinstance(value, kinds[kind]) if kind != "number" else isinstance(value, float) for kind in wanted]
    if not any(fits) or (isinstance(value, bool) and "boolean" not in wanted):
        return [f"{place}: {type(value).__name__}, expected {wanted}"]
    if isinstance(value, list):
        return [
            p for i, each in enumerate(value) for p in problems(each, schema["items"], definitions, f"{place}[{i}]")
        ]
    if isinstance(value, dict):
        assert schema["additionalProperties"] is False
        inner = schema["properties"].items()
        wrong = [f"{place}: {name}" for name in {*value} - {*schema["properties"]} | {*schema["required"]} - {*value}]
        return wrong + [p for n, s in inner if n in value for p in problems(value[n], s, definitions, f"{place}.{n}")]
    return []


@pytest.fixture(scope="module")
def documents(make):
    translator = make()
    found = translator.translate(SOURCE).text
    return [
        translume.trace(
            translator, SOURCE, show=("attention", "lens", "prior", "terms", "occlusion", "input-gradient")
        ),
        translume.trace(make(options=("decoding.min_length=9",)), SOURCE, "le chat", show=()),
        translume.record_beam(translator, SOURCE, reference="le chat"),
        translume.record_beam(make(options=("decoding.min_length=9",)), SOURCE, reference="le chat"),
        translume.force_token(translator, SOURCE, 0, "q"),
        translume.why_not(translator, SOURCE, "le chat"),
        translume.why_not(translator, SOURCE, found),
        translume.edit_source(translator, SOURCE, "the dog sat."),
    ]


def test_every_document_follows_the_published_schema_and_is_read_back(documents):
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    kinds = set()
    for document in documents:
        content = json.loads(json.dumps(document.to_dict(), allow_nan=False))
        assert problems(content, schema, schema["$defs"]) == []
        assert problems({**content, "schema": "trace/0"}, schema, schema["$defs"])
        assert type(document).from_dict(content) == document
        kinds.add(type(document))
    _, published = SCHEMAS["trace.schema.json"]
    assert kinds == set(published) - {translume.ClassTrace}, "which is held to it in test_classification"


def test_a_trace_of_every_head_follows_the_schema_and_is_read_back(translator_of_every_head):
    show = ("attention", "lens", "prior", "terms", "occlusion", "input-gradient")
    trace = translume.trace(translator_of_every_head, SOURCE, "le chat!", show=show)
    content = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert problems(content, schema, schema["$defs"]) == []
    assert translume.Trace.from_dict(content) == trace
    assert all(len(term["values"]) == len(trace.steps) for term in content["terms"])
