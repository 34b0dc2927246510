"""Events as lines of JSON, for a run that is watched from another process."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from translume.data import Account
from translume.training.events import (
    Event,
    Finished,
    Interrupted,
    Preparing,
    Progress,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
)

KINDS: tuple[type[Event], ...] = (
    Preparing,
    Started,
    Resumed,
    Warned,
    Progress,
    Validated,
    Saved,
    Interrupted,
    Finished,
)
_NAMED = {kind.__name__.lower(): kind for kind in KINDS}


def to_line(event: Event) -> str:
    """One object without a line break, which `from_values` reads back once it is parsed."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return json.dumps({"event": type(event).__name__.lower(), **values}, default=_plain)


def from_values(values: dict[str, Any]) -> Event | None:
    """The event that `to_line` wrote; None for an object that is no event."""
    kind = _NAMED.get(values.get("event", ""))
    if kind is None:
        return None
    rest = {name: value for name, value in values.items() if name != "event"}
    if "folder" in rest:
        rest["folder"] = Path(rest["folder"])
    if kind is Started:
        rest |= {name: Account.from_dict(rest[name]) for name in ("training", "validation")}
    return kind(**rest)


def _plain(value: object) -> object:
    return value.to_dict() if isinstance(value, Account) else str(value)
