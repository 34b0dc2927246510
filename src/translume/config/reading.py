"""Settings from TOML text: variables replaced, values overridden, the first fault told in one line."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from translume.config.base import Settings
from translume.errors import DataError, SettingsError, nearest

Tree = TypeVar("Tree", bound=Settings)


def read_text(path: Path) -> str:
    """The text of a file; DataError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark before it
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DataError(f"{path}: cannot be read: {reason}") from None


def values_in(text: str, place: str) -> dict[str, Any]:
    """What TOML text holds; `${NAME}` and `${NAME:-default}` in strings are replaced from the environment."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{place}: not TOML: {error}") from None
    expanded: dict[str, Any] = _expanded(values, place)
    return expanded


def build(root: type[Tree], values: Mapping[str, Any], overrides: Iterable[str], place: str) -> Tree:
    """Settings of nested mappings, changed by `path=value` overrides; SettingsError naming the first that is wrong."""
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for assignment in overrides:
        override(tree, assignment)
    try:
        return root.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(f"{place}: {_explain(root, error)}") from None


def override(tree: dict[str, Any], assignment: str) -> None:
    """Apply one `dotted.path=value`; the value is read as TOML, and as plain text where it is not TOML."""
    path, equals, text = assignment.partition("=")
    if not equals or not all(part.strip() for part in path.split(".")):
        raise SettingsError(f"--set {assignment}: wanted PATH=VALUE, such as training.updates=8000")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *tables, key = path.strip().split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise SettingsError(f"--set {assignment}: '{table}' is a setting, not a table")
    tree[key] = value


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _expanded(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match, place), value)
    if isinstance(value, list):
        return [_expanded(item, place) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item, place) for key, item in value.items()}
    return value


def _variable(match: re.Match[str], place: str) -> str:
    name, default = match.group(1), match.group(2)
    found = os.environ.get(name, default)
    if found is None:
        raise SettingsError(f"{place}: ${{{name}}}: no such environment variable; give a default as ${{{name}:-value}}")
    return found


def _explain(root: type[Settings], error: ValidationError) -> str:
    """The first fault of a pydantic error as one line: path, what was found, what was wanted."""
    fault = error.errors(include_url=False)[0]
    parts = _without_kinds(root, [str(part) for part in fault["loc"]])
    path = ".".join(parts)
    found = fault["input"]
    if fault["type"] == "extra_forbidden":
        group = _group(root, parts[:-1], _kind_in(fault["loc"], parts))
        above = ".".join(parts[:-1])
        known = [f"{above}.{name}" if above else name for name in group.model_fields] if group else []
        return f"{path}: no such setting{nearest(path, known)}"
    if fault["type"] == "value_error":
        return f"{path}: {fault['ctx']['error']}"
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
    return f"{path}: found {found!r}, wanted {wanted}"


def _without_kinds(root: type[Settings], parts: list[str]) -> list[str]:
    """The path as users write it: pydantic puts the kind of a group that has several behind the group's name."""
    for place in range(1, len(parts)):
        if parts[place] in _kinds(root, parts[:place]):
            return parts[:place] + parts[place + 1 :]
    return parts


def _kind_in(whole: tuple[str | int, ...], parts: list[str]) -> str:
    """The kind that `_without_kinds` left out of `whole`; empty if it left out nothing."""
    return next((str(word) for word, part in zip(whole, [*parts, ""], strict=False) if str(word) != part), "")


def _kinds(root: type[Settings], parts: list[str]) -> dict[str, type[Settings]]:
    """The classes that a group may be of, by kind; empty where there is one class only."""
    group = _group(root, parts[:-1])
    field = group.model_fields.get(parts[-1]) if group else None
    members = get_args(field.annotation) if field else ()
    if not any(isinstance(member, type) and issubclass(member, Settings) for member in members):
        return {}
    return {member.model_fields["kind"].default: member for member in members}


def _group(root: type[Settings], parts: list[str], kind: str = "") -> type[Settings] | None:
    group: type[Settings] = root
    for place, part in enumerate(parts):
        field = group.model_fields.get(part)
        if field is None:
            return None
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            group = field.annotation
            continue
        kinds = _kinds(root, parts[: place + 1])
        if kind not in kinds:
            return None
        group = kinds[kind]
    return group
