"""Settings as TOML text, with each field's documentation as a comment on demand."""

import json
from pathlib import Path
from typing import Any

from translume.config.base import Settings


def to_toml(settings: Settings, *, comments: bool = False, table: str = "") -> str:
    """TOML that reads back to equal settings; with `comments`, each key's first sentence stands above it."""
    lines: list[str] = []
    tables: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            path = f"{table}.{name}" if table else name
            body = to_toml(value, comments=comments, table=path)
            tables.append(f"\n[{path}]\n{body}".rstrip("\n"))
            continue
        if comments and field.description:
            lines.append(f"# {' '.join(field.description.split())}")
        lines.append(f"{name} = {literal(value)}")
    return "\n".join([*lines, *tables]).lstrip("\n") + "\n"


def literal(value: Any) -> str:
    """One TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(name)} = {literal(each)}' for name, each in value.items())}}}"
    return repr(value)
