"""Convert dataclasses to JSON and back, and write their JSON schema. All three read the same type annotations."""

import math
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from translume.errors import DataError

V = TypeVar("V")
_NAMES = {int: "integer", str: "string", bool: "boolean"}


def to_json_values(value: Any) -> Any:
    """Convert a value to JSON types; −inf, the log-probability of an impossible token, becomes null."""
    if is_dataclass(value):
        return {field.name: to_json_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        # Fast path: most elements are finite numbers.
        return [each if type(each) is float and each - each == 0.0 else to_json_values(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        if value != -math.inf:
            raise ValueError(f"found {value}, expected a finite number or -inf")
        return None
    return value


def from_json_values(kind: type[V], content: object, place: str = "") -> V:
    """Read what `to_json_values` wrote for a dataclass; raise DataError, which names the place, for anything else."""
    value: V = _read(kind, content, place or kind.__name__)
    return value


class Document:
    """Base of the dataclasses that are written as JSON files of their own; see `docs/*.schema.json`."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the value as a JSON object."""
        content: dict[str, Any] = to_json_values(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """Read what `to_dict` wrote; raise DataError for anything else."""
        return from_json_values(cls, content)


def schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a dataclass as `to_json_values` writes it; `$defs` has nested ones."""
    found: dict[str, Any] = {}
    top = _schema(kind, found)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": dict(sorted(found.items()))}


def schema_of_any(kinds: tuple[type, ...], title: str) -> dict[str, Any]:
    """Return the JSON schema that matches any one of some dataclasses."""
    found: dict[str, Any] = {}
    each = [_schema(kind, found) for kind in kinds]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, "oneOf": each, "$defs": dict(sorted(found.items()))}


@cache
def _types(kind: type) -> dict[str, Any]:
    """Return the type of each field, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _optional(kind: type) -> set[str]:
    """Return the fields with a default, which files of earlier versions do not have."""
    return {field.name for field in fields(kind) if field.default is not MISSING}


def _read(kind: Any, content: Any, place: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if content is None else _read(_other_than_none(inner), content, place)
    if origin is Literal:
        if content not in inner:
            raise DataError(f"{place}: found {content!r}, expected {' or '.join(map(repr, inner))}")
        return content
    if origin is tuple:
        if not isinstance(content, list):
            raise DataError(f"{place}: found {type(content).__name__}, expected a list")
        return tuple(_read(inner[0], each, f"{place}[{index}]") for index, each in enumerate(content))
    if is_dataclass(kind):
        return _read_object(kind, content, place)
    if kind is float:
        return _read_number(content, place)
    if type(content) is not kind:
        raise DataError(f"{place}: found {type(content).__name__}, expected {_NAMES[kind]}")
    return content


def _read_object(kind: Any, content: Any, place: str) -> Any:
    if not isinstance(content, dict):
        raise DataError(f"{place}: found {type(content).__name__}, expected an object")
    types_, optional = _types(kind), _optional(kind)
    for name in types_:
        if name not in content and name not in optional:
            raise DataError(f"{place}: '{name}' is missing")
    for name in content:
        if name not in types_:
            raise DataError(f"{place}: found '{name}', an unknown field")
    read = {name: _read(types_[name], value, f"{place}.{name}") for name, value in content.items()}
    return kind(**read)


def _read_number(content: Any, place: str) -> float:
    if content is None:
        return -math.inf
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise DataError(f"{place}: found {type(content).__name__}, expected a number")
    return float(content)


def _schema(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        other = _schema(_other_than_none(inner), found)
        return other if other == {"type": ["number", "null"]} else {"anyOf": [other, {"type": "null"}]}
    if origin is Literal:
        return {"const": inner[0]} if len(inner) == 1 else {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0], found)}
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in found:
            found[kind.__name__] = {}  # reserve the name first, in case the class contains itself
            properties = {name: _schema(type_, found) for name, type_ in _types(kind).items()}
            found[kind.__name__] = {
                "type": "object",
                "description": " ".join((kind.__doc__ or "").split()),
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{kind.__name__}"}
    return {"type": ["number", "null"]} if kind is float else {"type": _NAMES[kind]}


def _other_than_none(inner: tuple[Any, ...]) -> Any:
    """Return T of Optional[T]."""
    (other,) = (each for each in inner if each is not types.NoneType)
    return other
