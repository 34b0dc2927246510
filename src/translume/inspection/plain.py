"""Values to what JSON knows and back, and the JSON schema of it: all three read the same types, so they agree."""

import math
import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from translume.errors import DataError

V = TypeVar("V")
_NAMES = {int: "integer", str: "string", bool: "boolean"}


def plain(value: Any) -> Any:
    """What JSON knows: objects, lists and numbers; −inf, an impossible token's log-probability, becomes null."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        # Rows of numbers are most of what there is.
        return [each if type(each) is float and each - each == 0.0 else plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        if value != -math.inf:
            raise ValueError(f"{value} is no number that a value of an inspection may hold")
        return None
    return value


def from_plain(kind: type[V], content: object, place: str = "") -> V:
    """The value of a dataclass that `plain` made `content` of; DataError, beginning with its place, for all else."""
    value: V = _read(kind, content, place or kind.__name__)
    return value


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what `plain` makes of a dataclass; the ones it holds stand in `$defs`."""
    found: dict[str, Any] = {}
    top = _schema(kind, found)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": dict(sorted(found.items()))}


def schema_of_any(kinds: tuple[type, ...], title: str) -> dict[str, Any]:
    """The JSON schema of what `plain` makes of any one of some dataclasses."""
    found: dict[str, Any] = {}
    each = [_schema(kind, found) for kind in kinds]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, "oneOf": each, "$defs": dict(sorted(found.items()))}


@cache
def _types(kind: type) -> dict[str, Any]:
    """The type of each field, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _read(kind: Any, content: Any, place: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if content is None else _read(_other_than_none(inner), content, place)
    if origin is Literal:
        if content not in inner:
            raise DataError(f"{place}: found {content!r}, wanted {' or '.join(map(repr, inner))}")
        return content
    if origin is tuple:
        if not isinstance(content, list):
            raise DataError(f"{place}: found {type(content).__name__}, wanted a list")
        return tuple(_read(inner[0], each, f"{place}[{index}]") for index, each in enumerate(content))
    if is_dataclass(kind):
        return _read_object(kind, content, place)
    if kind is float:
        return _read_number(content, place)
    if type(content) is not kind:
        raise DataError(f"{place}: found {type(content).__name__}, wanted {_NAMES[kind]}")
    return content


def _read_object(kind: Any, content: Any, place: str) -> Any:
    if not isinstance(content, dict):
        raise DataError(f"{place}: found {type(content).__name__}, wanted an object")
    wanted = _types(kind)
    for name in wanted:
        if name not in content:
            raise DataError(f"{place}: '{name}' is missing")
    for name in content:
        if name not in wanted:
            raise DataError(f"{place}: found '{name}', which no such value has")
    return kind(**{name: _read(type_, content[name], f"{place}.{name}") for name, type_ in wanted.items()})


def _read_number(content: Any, place: str) -> float:
    if content is None:
        return -math.inf
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise DataError(f"{place}: found {type(content).__name__}, wanted a number")
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
            found[kind.__name__] = {}  # its place is taken, should it hold itself
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
    """The type of an optional one."""
    (other,) = (each for each in inner if each is not types.NoneType)
    return other
