"""Base class of all settings: immutable groups with strict types, one-line errors, and output as TOML."""

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    field_validator,
    model_validator,
)

from translume.errors import SettingsError, check_known, nearest
from translume.parts import find, names, option_class

Part = TypeVar("Part", bound="Settings")


def explain(root: type[BaseModel], error: ValidationError, table: str = "") -> str:
    """Return the first fault of a pydantic error as one line: path, value found, value expected.

    table: the path of `root` in the settings, such as "decoding"; empty for the whole tree.
    """
    fault = error.errors(include_url=False)[0]
    parts = [str(part) for part in fault["loc"]]
    above = [table] if table else []
    path = ".".join([*above, *parts])
    value = fault["input"]
    if fault["type"] == "extra_forbidden":
        group = _group(root, parts[:-1])
        known = [".".join([*above, *parts[:-1], name]) for name in group.model_fields] if group else []
        return f"{path}: no such setting{nearest(path, known)}"
    if fault["type"] == "missing":
        return f"{path}: missing"
    if fault["type"] == "value_error":
        return f"{path}: {fault['ctx']['error']}" if path else str(fault["ctx"]["error"])
    if fault["type"] == "literal_error":
        names = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        hint = nearest(str(value), names) if isinstance(value, str) else f"; known: {', '.join(names)}"
        return f"{path}: found {value!r}{hint}"
    wanted = fault["msg"].removeprefix("Input should be ")
    if fault["type"] in ("model_type", "model_attributes_type"):
        wanted = "a table"
    if fault["type"] == "tuple_type":
        wanted = "a list"
    if fault["type"] == "too_short":
        wanted = f"at least {fault['ctx']['min_length']}"
    return f"{path}: found {value!r}, expected {wanted}"


def _group(root: type[BaseModel], parts: list[str]) -> type[BaseModel] | None:
    group: type[BaseModel] = root
    for part in parts:
        if part.isdecimal():
            continue  # the place in a list of tables
        annotation = field.annotation if (field := group.model_fields.get(part)) else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            group = annotation
        elif member := _member(annotation):
            group = member
        else:
            return None
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


class Options(dict[str, "SerializeAsAny[Settings]"]):
    """Settings of parts from outside, by the names of the parts. Nothing changes them."""

    def __hash__(self) -> int:  # type: ignore[override]  # as of all settings
        return hash(tuple(self.items()))


OptionTables = Annotated[Options, WithJsonSchema({"type": "object"})]


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

    @field_validator("options", mode="plain", check_fields=False)
    @classmethod
    def _options_are_of_parts(cls, tables: Any) -> Options:
        if not isinstance(tables, dict):
            raise ValueError(f"found {tables!r}, expected tables")
        classes = {name: option_class(f"{cls.table}.options.{name}") for name in tables}
        return Options({name: each.model_validate(tables[name]) for name, each in classes.items()})

    def option(self, kind: type[Part]) -> Part:
        """Return the settings of a part from outside, by their class; its defaults if there are none."""
        tables: dict[str, Settings] = getattr(self, "options", {})
        return next((each for each in tables.values() if isinstance(each, kind)), None) or kind()

    def stated(self) -> dict[str, Any]:
        """Return the settings that were given a value, as nested mappings, without those that have their defaults."""
        values: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Options):
                if value:
                    values[name] = {part: options.stated() for part, options in value.items()}
                continue
            if not isinstance(value, Settings):
                if name in self.model_fields_set:
                    values[name] = value
                continue
            inner = value.stated()
            if isinstance(value, OfKind) and (inner or value != field.get_default(call_default_factory=True)):
                inner = {"kind": value.kind, **inner}
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


class OfKind(Settings):
    """A table with a class of its own for each `kind`: the parts of a kind in `parts.KINDS`."""

    part: ClassVar[str]
    """The kind of part."""
    usual: ClassVar[str]
    """The `kind` of a table that does not name one."""
    kind: str

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Return the classes by `kind`."""
        return {name: find(cls.part, name) for name in names(cls.part)}

    @classmethod
    def choose(cls, value: Any) -> Any:
        """Return the settings of a table, or of the `kind` alone, as an object of the class of its kind."""
        if isinstance(value, cls):
            return value
        values = {"kind": value} if isinstance(value, str) else value
        if not isinstance(values, dict):
            raise ValueError(f"found {value!r}, expected a table")
        kind = values.get("kind", cls.usual)
        check_known(f"{cls.table}.kind", kind, names(cls.part))
        return find(cls.part, kind).model_validate({"kind": kind, **values})


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
    """A validator that allows only the names that `function`, given as "package.module:function", returns.

    arguments: of the function.
    """

    function: str
    arguments: tuple[str, ...] = ()

    def allowed(self) -> list[str]:
        """Return the names."""
        allowed: list[str] = resolve_name(self.function)(*self.arguments)
        return allowed

    def __call__(self, value: str) -> str:
        known = self.allowed()
        if value not in known:
            raise ValueError(f"found {value!r}{nearest(value, known)}")
        return value


def part_name(kind: str) -> OneOf:
    """Return the validator of the name of a part of a kind."""
    return OneOf("translume.parts:names", (kind,))


def part_names(kind: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return the validator of several names of parts of a kind."""
    return lambda values: tuple(map(part_name(kind), values))


Numbers = Annotated[tuple[float, ...], BeforeValidator(as_tuple)]
"""A list of numbers."""


def to_toml(settings: Settings, *, comments: bool = False, stated: bool = False, table: str = "") -> str:
    """Return TOML that reads back to equal settings.

    comments: each key has its documentation above it.  stated: settings that were given no value are left out.
    """
    lines: list[str] = []
    tables: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings | Options):
            path = f"{table}.{name}" if table else name
            groups = {path: value} if isinstance(value, Settings) else {f"{path}.{part}": value[part] for part in value}
            for place, group in groups.items():
                body = to_toml(group, comments=comments, stated=stated, table=place)
                if body.strip() or not stated:
                    tables.append(f"\n[{place}]\n{body}".rstrip("\n"))
            continue
        if stated and name not in settings.model_fields_set:
            continue
        if isinstance(value, tuple) and value and isinstance(value[0], Settings):
            path = f"{table}.{name}" if table else name
            bodies = (to_toml(each, comments=comments, stated=stated, table=path) for each in value)
            tables += [f"\n[[{path}]]\n{body}".rstrip("\n") for body in bodies]
            continue
        if comments and (text := documentation(type(settings)).get(name)):
            lines.append(f"# {' '.join(text.split())}")
        lines.append(f"{name} = {literal(value)}")
    return "\n".join([*lines, *tables]).lstrip("\n") + "\n"


@cache
def documentation(kind: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each setting of a group. Pydantic would read the sources at every import."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__[: kind.__mro__.index(BaseModel)]):
        (statement,) = ast.parse(dedent(getsource(each))).body
        assert isinstance(statement, ast.ClassDef)
        for field, text in pairwise(statement.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = cleandoc(str(text.value.value))
    return texts


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
