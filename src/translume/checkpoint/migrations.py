"""Migrate the settings of older model folders while they are read, with one pure function per format.

A step takes the settings of format n as nested tables and returns those of format n + 1. The folder is not changed.
Settings that were removed since are dropped. Formats differ in more than settings: in format 1 the files of the
tokenizers had the names that the library's files have since (`own_file` in loading.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

from translume.checkpoint.folder import FORMAT
from translume.errors import ModelFolderError

Tables = dict[str, Any]

STEPS: Mapping[int, Callable[[Tables], Tables]] = {1: dict}
"""From a format to the function that migrates to the next one; the first format is 1."""


REMOVED: Mapping[str, frozenset[str]] = {"decoding": frozenset({"speculation", "draft_length"})}
"""Settings of format 1, by table, that no longer exist. Saved settings list every default, so reading ignores them."""


def migrate(
    tables: Tables,
    place: str,
    steps: Mapping[int, Callable[[Tables], Tables]] = STEPS,
    newest: int = FORMAT,
) -> Tables:
    """Return the settings in the newest format. Raises ModelFolderError for an unknown format."""
    found = tables.get("format", newest)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ModelFolderError(f"{place}: format: found {found!r}, expected a number from 1 to {newest}")
    if found > newest:
        raise ModelFolderError(
            f"{place}: format {found} is newer than format {newest}, the newest this Translume reads; upgrade Translume"
        )
    for step in range(found, newest):
        tables = {**steps[step](tables), "format": step + 1}
    return {name: _without(REMOVED.get(name, frozenset()), value) for name, value in tables.items()}


def _without(removed: frozenset[str], value: Any) -> Any:
    """Return a table without its removed settings; other values are returned unchanged."""
    if not removed or not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if name not in removed}
