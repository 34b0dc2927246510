"""JSON documents follow the published schema and can be read back unchanged."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import translume
from translume.errors import DataError
from translume.inspection.json_values import from_json_values, schema_of, to_json_values
from translume.inspection.schema import DOCUMENTS

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "trace.schema.json"
SOURCE = "the cat sat."


def problems(value, schema, definitions, place="$"):
    """Violations of a schema by a JSON value, for the keywords that our schemas use."""
    known = {"$ref", "anyOf", "oneOf", "const", "enum", "type", "items", "properties", "required"}
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
        wrong = [f"{place}: {name}" for name in {*value} ^ {*schema["required"]}]
        inner = schema["properties"].items()
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


def test_every_document_follows_the_published_schema(documents):
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    kinds = set()
    for document in documents:
        content = json.loads(json.dumps(document.to_dict(), allow_nan=False))
        assert problems(content, schema, schema["$defs"]) == []
        assert problems({**content, "schema": "trace/0"}, schema, schema["$defs"])
        kinds.add(type(document))
    assert kinds == set(DOCUMENTS) - {translume.ClassTrace}, "which is held to it in test_classes"


def test_every_document_is_read_back_unchanged(documents):
    for document in documents:
        content = json.loads(json.dumps(document.to_dict()))
        assert type(document).from_dict(content) == document


@dataclass(frozen=True)
class Inner:
    """An inner value."""

    log_p: float
    gain: float | None


@dataclass(frozen=True)
class Outer:
    """An
    outer value."""

    kind: Literal["a", "b"]
    count: int
    rows: tuple[tuple[float, ...], ...]
    inner: tuple[Inner, ...]
    first: Inner | None


OUTER = Outer("a", 3, ((1.0, -math.inf),), (Inner(-math.inf, None), Inner(-1.5, 2.0)), None)
CONTENT = {
    "kind": "a",
    "count": 3,
    "rows": [[1.0, None]],
    "inner": [{"log_p": None, "gain": None}, {"log_p": -1.5, "gain": 2.0}],
    "first": None,
}


def test_an_impossible_log_probability_is_written_as_null_and_read_back():
    assert to_json_values(OUTER) == CONTENT
    assert from_json_values(Outer, CONTENT) == OUTER


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_nan_and_positive_infinity_raise_value_error(number):
    with pytest.raises(ValueError, match="expected a finite number or -inf"):
        to_json_values(Inner(number, 1.0))


def test_a_schema_worked_by_hand():
    assert schema_of(Outer) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/Outer",
        "$defs": {
            "Inner": {
                "type": "object",
                "description": "An inner value.",
                "properties": {"log_p": {"type": ["number", "null"]}, "gain": {"type": ["number", "null"]}},
                "required": ["log_p", "gain"],
                "additionalProperties": False,
            },
            "Outer": {
                "type": "object",
                "description": "An outer value.",
                "properties": {
                    "kind": {"enum": ["a", "b"]},
                    "count": {"type": "integer"},
                    "rows": {"type": "array", "items": {"type": "array", "items": {"type": ["number", "null"]}}},
                    "inner": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
                    "first": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}]},
                },
                "required": ["kind", "count", "rows", "inner", "first"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, "Outer.kind: found 'c', expected 'a' or 'b'"),
        ({"count": 3.5}, "Outer.count: found float, expected integer"),
        ({"count": True}, "Outer.count: found bool, expected integer"),
        ({"rows": 4}, "Outer.rows: found int, expected a list"),
        ({"rows": [["x"]]}, "Outer.rows[0][0]: found str, expected a number"),
        ({"first": []}, "Outer.first: found list, expected an object"),
        ({"first": {"log_p": 1.0}}, "Outer.first: 'gain' is missing"),
        ({"more": 1}, "Outer: found 'more', an unknown field"),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(change, message):
    with pytest.raises(DataError) as error:
        from_json_values(Outer, {**CONTENT, **change})
    assert str(error.value) == message


def test_a_trace_of_every_head_follows_the_schema_and_is_read_back(translator_of_every_head):
    show = ("attention", "lens", "prior", "terms", "occlusion", "input-gradient")
    trace = translume.trace(translator_of_every_head, SOURCE, "le chat!", show=show)
    content = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert problems(content, schema, schema["$defs"]) == []
    assert translume.Trace.from_dict(content) == trace
    assert all(len(term["values"]) == len(trace.steps) for term in content["terms"])
