"""history.jsonl, written from events: one JSON object a line for what a run did, in order of updates."""

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from translume.checkpoint.history import NAME, append_history
from translume.data import Account
from translume.training.events import Event, Preparing, Progress, Saved

_LEFT_OUT = ("logged", "seconds_left", "folder")


class History:
    """The log of one folder. It may be longer than the last commit; what is longer is cut off when a run goes on."""

    def __init__(self, folder: Path, *, keep_bytes: int) -> None:
        """What stands after `keep_bytes` belongs to updates that will be done again, and goes."""
        self._folder = folder
        path = folder / NAME
        if path.exists() and path.stat().st_size > keep_bytes:
            os.truncate(path, keep_bytes)

    def add(self, event: Event, *, elapsed: float) -> None:
        """Write an event; of Progress only the logged ones.  elapsed: seconds of the run so far."""
        if isinstance(event, Preparing | Saved) or (isinstance(event, Progress) and not event.logged):
            return
        line = {"event": type(event).__name__.lower(), "elapsed": round(elapsed, 3)}
        append_history(self._folder, {**line, **_plain(event)})

    def size(self) -> int:
        """Its length in bytes, all of it on the disk."""
        path = self._folder / NAME
        if not path.exists():
            return 0
        with path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size


def _plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses and mappings as objects."""
    if isinstance(value, Account):
        return value.to_dict()
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name not in _LEFT_OUT}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
