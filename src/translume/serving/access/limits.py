"""How much a server takes on."""

from typing import Any, Self

from pydantic import field_validator, model_validator

from translume.config import Settings


class Limits(Settings):
    """[limits]: what a request may ask for, and how many may wait; checked before any work is done. All are above 0."""

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
    """Most tokens that are translated at once, for up to 2 targets per sentence; fewer for more."""
    workers: int = 1
    """Processes that translate, a batch at a time, each with all models and as many processors as `--threads` says."""
    inspections: int = 32
    """Most inspections that wait or are done."""
    inspected_tokens: int = 30_000
    """Most tokens that all passes of one inspection read, source and target."""
    inspected_numbers: int = 1_000_000
    """Most numbers of attention that an inspection answers with."""
    listed: int = 50
    """Most tokens that an inspection lists at a step."""
    file_bytes: int = 5_000_000
    """Most bytes of a file that is to be translated."""
    file_characters: int = 1_000_000
    """Most characters of its text."""
    files: int = 8
    """Most files that wait or are worked on."""
    file_seconds: float = 3600.0
    """How long a file may take, its wait included."""
    kept_seconds: float = 1800.0
    """How long a translated file is kept."""
    kept_bytes: int = 200_000_000
    """Most bytes of all translated files that are kept; the oldest go first."""
    timeout_seconds: float = 30.0
    """How long a request may take from its last byte on, and the most that it may ask for."""
    read_seconds: float = 10.0
    """How long a client may take to send a request's head, and to send its body."""
    drain_seconds: float = 30.0
    """How long what was begun may take after the server was told to stop."""

    @field_validator("*")
    @classmethod
    def _is_above_zero(cls, value: float) -> float:
        if value <= 0:
            raise ValueError(f"found {value}, expected more than 0")
        return value

    @model_validator(mode="after")
    def _a_request_fits(self) -> Self:
        if not self.texts <= self.lines <= self.queue:
            raise ValueError(
                f"found lines = {self.lines}, expected at least texts, {self.texts}, and at most queue, {self.queue}"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """The limits as JSON knows them."""
        return self.model_dump()
