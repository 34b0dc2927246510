"""Limits of requests, the queue and files."""

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from translume.config import Settings


class Limits(Settings):
    """[limits]: sizes of requests, the queue and files, checked before any work is done. All must be above 0."""

    body_bytes: int = 1_000_000
    """Most bytes of a request's body."""
    texts: int = 256
    """Most texts of a request."""
    lines: int = 1024
    """Most lines or sentences of all texts of a request."""
    characters: int = 20_000
    """Most characters of a text."""
    width: int = 16
    """Most hypotheses per sentence: `beam`, `nbest` and `samples`."""
    target_tokens: int = 500_000
    """Most target tokens that a request may make: hypotheses per sentence times its longest target, summed."""
    requests: int = 512
    """Most requests in progress."""
    connections: int = 1024
    """Most open connections; beyond them, idle ones are closed. Fewer if the process cannot open as many files."""
    connections_per_address: int = 128
    """Most open connections of an IPv4 address or an IPv6 network (/64), except `proxies`."""
    queue: int = 2048
    """Most lines in the queue."""
    batch_tokens: int = 2048
    """Most tokens of a batch, with up to 2 hypotheses per sentence; fewer with more hypotheses."""
    workers: int = Field(default=1, le=256)
    """Worker processes, at most 256. Each has all models and runs `lanes` searches at a time."""
    inspections: int = 32
    """Most inspections that wait or run."""
    inspected_tokens: int = 30_000
    """Most source and target tokens that all passes of an inspection read."""
    inspected_numbers: int = 1_000_000
    """Most attention weights that an inspection returns."""
    listed: int = 50
    """Most candidate tokens that an inspection lists at a step."""
    file_bytes: int = 5_000_000
    """Most bytes of an uploaded file."""
    unpacked_bytes: int = 100_000_000
    """Most bytes to which an uploaded archive of arrays unpacks."""
    seconds: float = 600.0
    """Most seconds of an uploaded recording; a model may read less."""
    pixels: int = 50_000_000
    """Most pixels of an uploaded image."""
    file_characters: int = 1_000_000
    """Most characters of an uploaded file's text."""
    document_seconds: float = 20.0
    """Time limit for reading or writing an uploaded file."""
    files: int = 8
    """Most files that wait or are being translated."""
    file_seconds: float = 3600.0
    """Time limit for translating a file, including its wait."""
    kept_seconds: float = 1800.0
    """How long a translated file is kept."""
    kept_bytes: int = 200_000_000
    """Most bytes of all translated files; the oldest are deleted first."""
    timeout_seconds: float = 30.0
    """Default and largest time limit of a request, from its last byte on."""
    read_seconds: float = 10.0
    """Time limit for receiving the headers of a request, and for receiving its body."""
    drain_seconds: float = 30.0
    """Time limit for finishing requests in progress at shutdown."""

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
        """Return the limits as JSON values."""
        return self.model_dump()
