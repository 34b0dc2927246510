"""Read and write documents in processes of their own, with a deadline."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from translume.documents.segments import Segment
from translume.documents.worker import decode_segment
from translume.processes import ChildProcess, Message, ProcessLostError
from translume.serving.api.errors import RequestError

AT_ONCE: Final = 2
"""Documents that are read or written at a time. Others wait."""
REUSED_SECONDS: Final = 0.5
"""A process whose last document took longer is not used again: it may hold much memory."""
MODULE: Final = "translume.documents.worker"

Poll = Callable[[], object]


class DocumentProcesses:
    """Processes that read and write documents. Threads may share it. Call `close` at the end."""

    def __init__(self, seconds: float) -> None:
        """seconds: time limit of a document."""
        self._seconds = seconds
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._closed = False

    def read(self, suffix: str, data: bytes, most: int, poll: Poll = lambda: None) -> list[Segment]:
        """Return the segments of a document with at most `most` characters.

        poll: called several times a second; may raise.
        Raises DocumentError for an invalid one, and RequestError: 413 for too much text, 422 if it takes too long or
        ends its process, and 503 if others take too long.
        """
        found: list[Segment] = []
        for message in self._responses("read", {"suffix": suffix}, data, poll):
            characters = message.values.get("characters", 0)
            if characters > most:
                reason = f"file: found {characters:,} characters, expected at most {most:,}"
                raise RequestError(413, reason, code="text_too_long", field="file")
            found += map(decode_segment, message.values.get("segments", ()))
        return found

    def write(self, suffix: str, data: bytes, runs: Sequence[Sequence[str]], poll: Poll = lambda: None) -> bytes:
        """Return a document with other texts: the runs of each segment. Errors are those of `read`."""
        written = b""
        for message in self._responses("write", {"suffix": suffix, "runs": runs}, data, poll):
            written = message.body
        return written

    def close(self) -> None:
        """End all idle processes; others end with their document."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def _responses(self, method: str, values: dict[str, object], data: bytes, poll: Poll) -> Iterator[Message]:
        with self._turn(poll), self._leased() as child:
            deadline = time.monotonic() + self._seconds

            def check() -> None:
                poll()
                if time.monotonic() > deadline:
                    raise RequestError(
                        422, f"file: not processed after {self._seconds:g} s", code="file_too_complex", field="file"
                    )

            try:
                yield from child.request(method, values, data).responses(poll=check)
            except ProcessLostError:
                raise RequestError(
                    422, "file: the process that read it ended", code="file_too_complex", field="file"
                ) from None

    @contextmanager
    def _turn(self, poll: Poll) -> Iterator[None]:
        until = time.monotonic() + self._seconds
        while not self._turns.acquire(timeout=0.05):
            poll()
            if time.monotonic() > until:
                raise RequestError(503, "other files are being read; try later", code="queue_full", retry_after=5)
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def _leased(self) -> Iterator[ChildProcess]:
        """Yield an idle process or a new one. After an error or a large document it is killed."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is None or child.ended:
            child = ChildProcess(MODULE)
        started, keep = time.monotonic(), False
        try:
            yield child
            keep = time.monotonic() - started < REUSED_SECONDS
        finally:
            with self._lock:
                keep = keep and not self._closed and not self._idle
                if keep:
                    self._idle.append(child)
            if not keep:
                child.kill()
                child.wait()
