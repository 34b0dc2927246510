"""Dataclasses as JSON and back: null for −inf, strict types, and a schema worked by hand."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from translume.errors import DataError
from translume.json_values import JsonValue, LogProb, schema_of, to_json


@dataclass(frozen=True, slots=True)
class Inner:
    """An inner value."""

    log_p: LogProb
    gain: float | None


@dataclass(frozen=True, slots=True)
class Outer(JsonValue):
    """An outer value."""

    kind: Literal["a", "b"]
    count: int
    rows: tuple[tuple[LogProb, ...], ...]
    inner: tuple[Inner, ...]
    first: Inner | None
    words: tuple[str, ...] = ()


OUTER = Outer("a", 3, ((1.0, -math.inf),), (Inner(-math.inf, None), Inner(-1.5, 2.0)), None)
CONTENT = {
    "kind": "a",
    "count": 3,
    "rows": [[1.0, None]],
    "inner": [{"log_p": None, "gain": None}, {"log_p": -1.5, "gain": 2.0}],
    "first": None,
    "words": [],
}


def test_an_impossible_log_probability_is_null_and_read_back() -> None:
    assert OUTER.to_dict() == CONTENT
    assert Outer.from_dict(CONTENT) == OUTER
    assert Outer.from_dict({name: value for name, value in CONTENT.items() if name != "words"}) == OUTER


def test_any_value_is_one_line_of_json() -> None:
    line = to_json({"ü": [OUTER, Path("a/b")], "more": math.inf})
    assert line == f'{{"ü": [{json.dumps(CONTENT)}, "a/b"], "more": null}}'


def test_a_schema_worked_by_hand() -> None:
    number, null = {"type": "number"}, {"type": "null"}
    log_p = {"type": ["number", "null"]}
    assert schema_of(Outer, title="Values") == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values",
        "oneOf": [{"$ref": "#/$defs/Outer"}],
        "$defs": {
            "Inner": {
                "title": "Inner",
                "type": "object",
                "description": "An inner value.",
                "properties": {"log_p": log_p, "gain": {"anyOf": [number, null]}},
                "required": ["log_p", "gain"],
                "additionalProperties": False,
            },
            "Outer": {
                "title": "Outer",
                "type": "object",
                "description": "An outer value.",
                "properties": {
                    "kind": {"enum": ["a", "b"], "type": "string"},
                    "count": {"type": "integer"},
                    "rows": {"type": "array", "items": {"type": "array", "items": log_p}},
                    "inner": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
                    "first": {"anyOf": [{"$ref": "#/$defs/Inner"}, null]},
                    "words": {"default": [], "type": "array", "items": {"type": "string"}},
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
        ({"count": 3.5}, "Outer.count: found 3.5, expected a valid integer"),
        ({"count": True}, "Outer.count: found True, expected a valid integer"),
        ({"rows": 4}, "Outer.rows: found 4, expected a valid array"),
        ({"rows": [["x"]]}, "Outer.rows[0][0]: found 'x', expected a valid number"),
        ({"first": []}, "Outer.first: found [], expected an object"),
        ({"first": {"log_p": 1.0}}, "Outer.first.gain: missing"),
        ({"more": 1}, "Outer.more: unknown field"),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError) as error:
        Outer.from_dict({**CONTENT, **change})
    assert str(error.value) == message
