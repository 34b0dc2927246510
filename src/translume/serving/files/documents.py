"""Read and write uploaded files in processes of their own, with a deadline and a limit of memory."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np

from translume.documents.segments import Segment
from translume.errors import DataError, TranslumeError
from translume.parallel import ProcessLostError, WorkerPool
from translume.serving.api.errors import RequestError, field_error, refuse_more
from translume.serving.files import parsing
from translume.serving.settings import Limits
from translume.sources import Frames, describe

AT_ONCE: Final = 2
"""Files that are read or written at a time. Others wait."""
REUSED_SECONDS: Final = 0.5
"""A process whose last file took longer is not used again: it may hold much memory."""
DOCUMENTS, FRAMES = "translume.documents.files", "translume.sources.headers"
"""The modules that processes import for documents and for other files."""


class _Process:
    """A process that reads files. Call `end` at the end."""

    def __init__(self, module: str) -> None:
        self._pool = WorkerPool(1, partial(parsing.start, module))
        self._id = self._pool.submit(parsing.process_id, None)()

    def run(self, function: Callable[[int, Any], Any], item: Any) -> Any:
        """Return what a function of `parsing` returns; ProcessLostError if the process ends before."""
        return self._pool.submit(function, item)()

    def end(self) -> None:
        """End the process, even in the middle of native code."""
        with suppress(ProcessLookupError):
            os.kill(self._id, signal.SIGKILL)
        self._pool.close()


class DocumentProcesses:
    """Processes that read and write files for the requests of an event loop. Call `close` at the end.

    Methods raise RequestError: 422 if a file takes too long or ends its process, and 503 if others take too long.
    """

    def __init__(self, seconds: float) -> None:
        """seconds: time limit of a file."""
        self._seconds = seconds
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._idle: dict[str, _Process] = {}

    async def read(
        self, suffix: str, content: bytes, maximum: int, language: str = ""
    ) -> tuple[list[Segment], list[str]]:
        """Return the segments of a document with at most `maximum` characters, and what a user should know about it.

        Raises DocumentError for an invalid one, and RequestError (413) for too much text.
        """
        result = await self._run(DOCUMENTS, parsing.read_document, (suffix, content, language, maximum))
        if isinstance(result, int):
            refuse_more("file", result, " characters", maximum, "text_too_long")
        segments, warnings = result
        return segments, warnings

    async def write(
        self, suffix: str, content: bytes, runs: Sequence[Sequence[str]], languages: tuple[str, str] = ("", "")
    ) -> bytes:
        """Return a document with other texts: the runs of each segment.  languages: of the texts before and after."""
        written: bytes = await self._run(DOCUMENTS, parsing.write_document, (suffix, content, *languages, runs))
        return written

    async def read_frames(self, served: Any, content: bytes, limits: Limits) -> Frames:
        """Return the frames of a file for a model. Raises RequestError if it is too large (413) or invalid (422)."""
        seconds = min(limits.seconds, served.facts["reads"].get("seconds", limits.seconds))
        source = served.model.config.data.source.within(seconds=seconds, pixels=limits.pixels)
        try:
            values = await self._run(FRAMES, parsing.read_frames, (source, content, limits.unpacked_bytes))
        except DataError as error:
            reason, _, setting = str(error).removeprefix(f"{describe(content)}: ").partition(" (data.source.")
            status, code = (413, "file_too_large") if setting.startswith("max_") else (422, "invalid_file")
            raise field_error("file", reason, status, code) from None
        return Frames(np.asarray(values, np.float32))

    async def _run(self, module: str, function: Callable[[int, Any], Any], item: Any) -> Any:
        """Return what a function of `parsing` returns. The process is used again if that took a short time."""
        try:
            await asyncio.wait_for(self._turns.acquire(), self._seconds)
        except TimeoutError:
            raise RequestError(503, "other files are being read; try later", code="queue_full", retry_after=5) from None
        in_thread = partial(asyncio.get_running_loop().run_in_executor, None)
        process: Any = None
        reusable, started = False, time.monotonic()
        try:
            process = self._idle.pop(module) if module in self._idle else await in_thread(_Process, module)
            started = time.monotonic()
            result = await asyncio.wait_for(in_thread(process.run, function, item), self._seconds)
            reusable = True
            return result
        except TranslumeError:  # the file is invalid
            reusable = True
            raise
        except TimeoutError:
            raise field_error("file", f"not processed after {self._seconds:g} s", code="file_too_complex") from None
        except ProcessLostError:
            raise field_error("file", "the process that read it ended", code="file_too_complex") from None
        finally:
            self._turns.release()
            if reusable and time.monotonic() - started < REUSED_SECONDS and module not in self._idle:
                self._idle[module] = process
            elif process is not None:
                in_thread(process.end)

    def close(self) -> None:
        """End all idle processes; others end with their file."""
        while self._idle:
            self._idle.popitem()[1].end()
