"""What pydantic finds wrong with settings, in one line."""

import re
from typing import get_args

from pydantic import BaseModel, ValidationError

from translume.errors import nearest


def explain(root: type[BaseModel], error: ValidationError, table: str = "") -> str:
    """The first fault of a pydantic error as one line: path, what was found, what was wanted.

    table: where `root` stands among the settings, such as "decoding"; empty for a whole tree.
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
    return f"{path}: found {found!r}, wanted {wanted}"


def _without_kinds(root: type[BaseModel], parts: list[str]) -> list[str]:
    """The path as users write it: pydantic puts the kind of a group that has several behind the group's name."""
    for place in range(1, len(parts)):
        if parts[place] in _kinds(root, parts[:place]):
            return parts[:place] + parts[place + 1 :]
    return parts


def _kind_in(whole: tuple[str | int, ...], parts: list[str]) -> str:
    """The kind that `_without_kinds` left out of `whole`; empty if it left out nothing."""
    return next((str(word) for word, part in zip(whole, [*parts, ""], strict=False) if str(word) != part), "")


def _kinds(root: type[BaseModel], parts: list[str]) -> dict[str, type[BaseModel]]:
    """The classes that a group may be of, by kind; empty where there is one class only."""
    group = _group(root, parts[:-1])
    field = group.model_fields.get(parts[-1]) if group else None
    members = get_args(field.annotation) if field else ()
    if not any(isinstance(member, type) and issubclass(member, BaseModel) for member in members):
        return {}
    return {member.model_fields["kind"].default: member for member in members}


def _group(root: type[BaseModel], parts: list[str], kind: str = "") -> type[BaseModel] | None:
    group: type[BaseModel] = root
    for place, part in enumerate(parts):
        field = group.model_fields.get(part)
        if field is None:
            return None
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            group = field.annotation
            continue
        kinds = _kinds(root, parts[: place + 1])
        if kind not in kinds:
            return None
        group = kinds[kind]
    return group
