"""Base class of all settings: immutable groups with strict types, one-line errors, and output as TOML."""

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from translume.errors import SettingsError, nearest


def explain(root: type[BaseModel], error: ValidationError, table: str = "") -> str:
    """Return the first fault of a pydantic error as one line: path, value found, value expected.

    table: the path of `root` in the settings, such as "decoding"; empty for the whole tree.
    """
    fault = error.errors(include_url=False)[0]
    parts = _without_kinds(root, [str(part) for part in fault["loc"]])
    above = [table] if table else []
    path = ".".join([*above, *parts])
    found = fault["input"]
    if fault["type"] == "extra_forbidden":
        group = _group(root, parts[:-1], _kind_in(fault["loc"], parts))
        known = [".".join([*above, *parts[:-1], name]) for name in group.model_fields] if group else []
        return f"{path}: no such setting{nearest(path, known)}"
    if fault["type"] == "missing":
        return f"{path}: missing"
    if fault["type"] == "value_error":
        return f"{path}: {fault['ctx']['error']}" if path else str(fault["ctx"]["error"])
    if fault["type"] == "union_tag_invalid":
        names = re.findall(r"'([^']*)'", fault["ctx"]["expected_tags"])
        return f"{path}.kind: found {fault['ctx']['tag']!r}{nearest(str(fault['ctx']['tag']), names)}"
    if fault["type"] == "literal_error":
        names = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        hint = nearest(str(found), names) if isinstance(found, str) else f"; known: {', '.join(names)}"
        return f"{path}: found {found!r}{hint}"
    wanted = fault["msg"].removeprefix("Input should be ")
    if fault["type"] in ("model_type", "model_attributes_type"):
        wanted = "a table"
    if fault["type"] == "tuple_type":
        wanted = "a list"
    if fault["type"] == "too_short":
        wanted = f"at least {fault['ctx']['min_length']}"
    return f"{path}: found {found!r}, expected {wanted}"


def _without_kinds(root: type[BaseModel], parts: list[str]) -> list[str]:
    """Return the path as users write it, without the kind that pydantic adds after the name of a union."""
    for place in range(1, len(parts)):
        if parts[place] in _kinds(root, parts[:place]):
            return parts[:place] + parts[place + 1 :]
    return parts


def _kind_in(whole: tuple[str | int, ...], parts: list[str]) -> str:
    """Return the kind that `_without_kinds` removed from `whole`, or an empty string."""
    return next((str(word) for word, part in zip(whole, [*parts, ""], strict=False) if str(word) != part), "")


def _kinds(root: type[BaseModel], parts: list[str]) -> dict[str, type[BaseModel]]:
    """Return the classes of a union of groups, by kind; empty for a single class."""
    group = _group(root, parts[:-1])
    field = group.model_fields.get(parts[-1]) if group else None
    members = get_args(field.annotation) if field and not _member(field.annotation) else ()
    if not any(isinstance(member, type) and issubclass(member, BaseModel) for member in members):
        return {}
    return {member.model_fields["kind"].default: member for member in members}


def _group(root: type[BaseModel], parts: list[str], kind: str = "") -> type[BaseModel] | None:
    group: type[BaseModel] = root
    for place, part in enumerate(parts):
        if part.isdecimal():
            continue  # the place in a list of tables
        field = group.model_fields.get(part)
        if field is None:
            return None
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            group = field.annotation
            continue
        if member := _member(field.annotation):
            group = member
            continue
        kinds = _kinds(root, parts[: place + 1])
        if kind not in kinds:
            return None
        group = kinds[kind]
    return group


def _member(annotation: Any) -> type[BaseModel] | None:
    """Return the class of the tables in a list, such as [[data.corpus]]; None for other types."""
    first = next(iter(get_args(annotation)), None) if get_origin(annotation) is tuple else None
    return first if isinstance(first, type) and issubclass(first, BaseModel) else None


LARGEST = 2**53
"""Exclusive limit of integers other than seeds. All TOML and JSON parsers represent smaller ones exactly."""


def _with_plain_numbers(value: Any) -> Any:
    """Return the value with Python's own numbers in place of others that count as such, as NumPy's."""
    if isinstance(value, dict):
        return {name: _with_plain_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_with_plain_numbers, value))
    if getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.ndim == 0:
        return bool(value)
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


RAISE_RAW: Final = "raise_raw"
"""Validation context in which pydantic's ValidationError is raised unchanged, instead of a SettingsError."""


class Settings(BaseModel):
    """A group of settings: immutable, strict about types ("8" is not 8), without unknown keys or infinite numbers.

    Raises SettingsError, in one line, for a value that is not allowed.
    """

    table: ClassVar[str] = ""
    """The name of its table in a TOML file, such as "decoding"."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return pydantic's schema, wrapped so that its multi-line errors become one line."""

        def validate_in_one_line(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
            try:
                return validate(_with_plain_numbers(value))
            except ValidationError as error:
                if info.context == RAISE_RAW:
                    raise
                raise SettingsError(explain(cls, error, cls.table)) from None

        return WrapValidator(validate_in_one_line).__get_pydantic_core_schema__(source, handler)

    def stated(self) -> dict[str, Any]:
        """Return the settings that were given a value, as nested mappings, without those that have their defaults."""
        values: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if not isinstance(value, Settings):
                if name in self.model_fields_set:
                    values[name] = value
                continue
            inner = value.stated()
            one_of_several = not isinstance(field.annotation, type)  # chosen by its kind
            if one_of_several and (inner or value != field.get_default(call_default_factory=True)):
                inner = {"kind": getattr(value, "kind"), **inner}  # noqa: B009  # not all settings have a kind
            if inner:
                values[name] = inner
        return values

    @model_validator(mode="after")
    def _whole_numbers_fit(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name != "seed" and isinstance(value, int) and value >= LARGEST:
                raise ValueError(f"{name} is {value}, expected less than {LARGEST}")
        return self


def as_tuple(value: Any) -> Any:
    """Return one string, or a list, as a tuple; other values unchanged."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Ids = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(as_tuple)]
"""Ids of tokens."""
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
"""Words or paths: one string or a list of strings."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """A validator that allows only the names returned by `function`, given as "package.module:function"."""

    function: str

    def allowed(self) -> list[str]:
        """Return the names."""
        names: list[str] = resolve_name(self.function)()
        return names

    def __call__(self, value: str) -> str:
        names = self.allowed()
        if value not in names:
            raise ValueError(f"found {value!r}{nearest(value, names)}")
        return value


Numbers = Annotated[tuple[float, ...], BeforeValidator(as_tuple)]
"""A list of numbers."""


def to_toml(settings: Settings, *, comments: bool = False, table: str = "") -> str:
    """Return TOML that reads back to equal settings; with `comments`, each key has its documentation above it."""
    lines: list[str] = []
    tables: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            path = f"{table}.{name}" if table else name
            body = to_toml(value, comments=comments, table=path)
            tables.append(f"\n[{path}]\n{body}".rstrip("\n"))
            continue
        if isinstance(value, tuple) and value and isinstance(value[0], Settings):
            path = f"{table}.{name}" if table else name
            bodies = (to_toml(each, comments=comments, table=path) for each in value)
            tables += [f"\n[[{path}]]\n{body}".rstrip("\n") for body in bodies]
            continue
        if comments and (text := documentation(type(settings)).get(name)):
            lines.append(f"# {' '.join(text.split())}")
        lines.append(f"{name} = {literal(value)}")
    return "\n".join([*lines, *tables]).lstrip("\n") + "\n"


@cache
def documentation(kind: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each setting of a group. Pydantic would read the sources at every import."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[: kind.__mro__.index(BaseModel)]):
        (statement,) = ast.parse(dedent(getsource(each))).body
        assert isinstance(statement, ast.ClassDef)
        for field, text in pairwise(statement.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = cleandoc(str(text.value.value))
    return found


def literal(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(name)} = {literal(each)}' for name, each in value.items())}}}"
    return repr(value)
