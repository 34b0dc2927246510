"""How much a server takes on."""

from dataclasses import dataclass
from typing import Any

from translume.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for, and how many may wait. Every one is checked before any work is done for it."""

    body_bytes: int = 1_000_000
    """Most bytes of a request's body."""
    texts: int = 256
    """Most texts of a request."""
    lines: int = 1024
    """Most lines of all texts of a request."""
    characters: int = 20_000
    """Most characters of a text."""
    width: int = 16
    """Most targets searched per sentence: `beam`, `nbest` and `samples`."""
    requests: int = 512
    """Most requests that are being read, waited for or answered at a time."""
    queue: int = 2048
    """Most lines that wait."""
    batch_tokens: int = 2048
    """Most tokens that are translated at once, for up to 8 targets per sentence; fewer for more."""
    timeout_seconds: float = 30.0
    """How long a request may take from its last byte on, and the most that it may ask for."""
    read_seconds: float = 10.0
    """How long a client may take to send a body."""
    drain_seconds: float = 30.0
    """How long what was begun may take after the server was told to stop."""

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if value <= 0:
                raise SettingsError(f"limits.{name}: found {value}, wanted more than 0")
        if not self.texts <= self.lines <= self.queue:
            raise SettingsError(
                f"limits.lines: found {self.lines}, wanted at least limits.texts, {self.texts}, "
                f"and at most limits.queue, {self.queue}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The limits as JSON knows them."""
        return {name: getattr(self, name) for name in self.__slots__}
