"""What became of a reload."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """The outcome of a reload.

    at: when, in UTC.  loaded, kept, unloaded: names of models that are new or changed, as they were, and gone.
    problems: by what they are about, "settings", "keys" or a model's name, why that is still as it was before.
    waiting: settings that were changed and hold from the next start on.
    keys: how many keys there are now; None where nobody is asked for one.
    """

    at: str
    loaded: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    problems: Mapping[str, str]
    waiting: tuple[str, ...] = ()
    keys: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The outcome as the log has it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def told(self) -> dict[str, Any]:
        """The outcome as anybody may know it: what failed, but not why, for reasons name files."""
        return {"at": self.at, "done": not self.problems, "kept_as_before": sorted(self.problems)}
