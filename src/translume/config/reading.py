"""Settings from TOML text: variables replaced, values overridden, the first fault told in one line."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from translume.config.base import UNTOLD, Settings
from translume.config.faults import explain
from translume.errors import DataError, SettingsError

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
        return root.model_validate(tree, context=UNTOLD)
    except ValidationError as error:
        raise SettingsError(f"{place}: {explain(root, error)}") from None


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
