"""Dataclasses as JSON and back, by pydantic.

JSON has no infinite numbers: null stands for −inf, the log-probability of something impossible.
"""

import json
import math
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from translume.errors import DataError

LogProb = Annotated[
    float,
    BeforeValidator(lambda value: -math.inf if value is None else value),
    WithJsonSchema({"type": ["number", "null"]}),
]
"""A log-probability in nats: a number, or −inf, which is null in JSON."""


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def to_bytes(value: object) -> bytes:
    """Return dataclasses, tuples, paths and so on as compact JSON in UTF-8; null for numbers that are not finite."""
    return _ANY.dump_json(value)


def to_values(value: object) -> Any:
    """Return the JSON values of `to_bytes`."""
    return json.loads(to_bytes(value))


def to_json(value: object) -> str:
    """Return `to_values(value)` as one line of JSON, with a space after commas and colons."""
    return json.dumps(to_values(value), ensure_ascii=False, allow_nan=False)


class JsonValue:
    """Base of dataclasses that are written as JSON and read back, strictly and without unknown fields."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the value as a JSON object."""
        values: dict[str, Any] = to_values(self)
        return values

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """Read what `to_dict` wrote; raise DataError, which names the place, for anything else."""
        kind: Any = cls
        try:
            value: Self = adapter(kind).validate_json(json.dumps(content))
        except ValidationError as error:
            raise DataError(_explain(cls.__name__, error)) from None
        return value


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader and writer of a type, which takes milliseconds to make."""
    return TypeAdapter(kind)


def _explain(name: str, error: ValidationError) -> str:
    """Return the first fault as one line: the path, what was found there and what was expected."""
    fault = error.errors(include_url=False)[0]
    place = name + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{place}: missing"
    if fault["type"] == "unexpected_keyword_argument":
        return f"{place}: unknown field"
    return f"{place}: found {fault['input']!r:.60}, expected {fault['msg'].removeprefix('Input should be ')}"


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(*kinds: type, title: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) that matches what `to_dict` of any one of some dataclasses returns."""
    references, definitions = TypeAdapter.json_schemas(
        [(kind.__name__, "serialization", adapter(kind)) for kind in kinds],
        title=title,
        schema_generator=_WithoutTitles,
    )
    return {"$schema": GenerateJsonSchema.schema_dialect, **definitions, "oneOf": [*references.values()]}


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Return the dict, list or any object, as `kind` says, in a JSON file.

    Raises FileNotFoundError, and DataError if it is damaged.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = "object" if kind is dict else "array"
        raise DataError(f"{path}: found {type(value).__name__}, expected a JSON {wanted}")
    return value
