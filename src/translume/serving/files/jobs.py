"""Files that are translated in the background, one after another, and kept for a while.

What was sent is in memory and nowhere else; a result is a file in a folder that nobody else may read. It
goes when its time is over, when newer ones need the room, when its client deletes it, and when the server ends.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from translume.atomic import replace_file
from translume.documents.files import FORMATS
from translume.documents.sheet import Sheet
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError, as_request_error
from translume.serving.files.private_folder import PrivateFolder
from translume.serving.workers.failures import told_as
from translume.serving.workers.scheduler import Scheduler, Work
from translume.serving.workers.work import Part
from translume.translator import Translation

GROUP: Final = 64
"""Segments that are put together at a time."""
AT_ONCE: Final = 16
"""Sentences of a file that are translated at a time: whoever else asks waits no longer than these take.

With 64, a Multi30k model of 2.6 M parameters needs 12 % less processor time (none less in the fast engine), and holds
others up for 0.6 s instead of 0.2 s.
"""
RETRY_SECONDS: Final = 0.2
"""After how long a full queue is tried again, and how often work looks whether anybody still waits for it."""
SWEEP_SECONDS: Final = 5.0
"""How often results are looked over."""
MOST_KEPT: Final = 1000
"""Finished jobs that are remembered."""

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A file, and what is to be done to it.  language: of its text.

    work: by whether sentences have marks, what translates them.
    """

    name: str
    suffix: str
    data: bytes
    language: str
    work: Callable[[bool], Work]


@dataclass(slots=True, kw_only=True)
class Job:
    """A file on its way.  lines, done: sentences in all, None before that is known, and translated ones.

    finished: is cancelled where nobody wants the file any more.  kept_until: of `time.monotonic`, 0 before the end.
    """

    id: str
    name: str
    suffix: str
    deadline: float
    finished: "Future[None]" = field(default_factory=Future)
    lines: int | None = None
    done: int = 0
    kept_until: float = 0.0
    size: int = 0

    @property
    def status(self) -> str:
        """waiting, working, done or failed."""
        if not self.finished.done():
            return "waiting" if self.lines is None else "working"
        return "done" if not self.finished.cancelled() and self.finished.exception() is None else "failed"

    @property
    def error(self) -> RequestError | None:
        """Why the job failed."""
        if not self.finished.done() or self.finished.cancelled():
            return None
        error = self.finished.exception()
        return as_request_error(error) if isinstance(error, Exception) else None


class Jobs:
    """Takes orders from any thread; one thread works on them, another forgets them in time. To be closed."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        parent: Path | None = None,
        watch: "Callable[[Sequence[Future[Any]]], None]" = lambda futures: None,
    ) -> None:
        """parent: where the folder of results is made when the first file comes; the system's for temporary files.

        watch: is given all that will become translations.
        """
        self._scheduler, self._limits, self._parent, self._watch = scheduler, limits, parent, watch
        self._folder: PrivateFolder | None = None
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="translume-files")
        self._sweeper = threading.Thread(target=self._sweep, name="translume-sweep", daemon=True)

    def take(self, order: Order) -> Job:
        """A job that waits for its turn; RequestError (503) where too many do."""
        deadline = time.monotonic() + self._limits.file_seconds
        job = Job(id=secrets.token_urlsafe(24), name=order.name, suffix=order.suffix, deadline=deadline)
        with self._lock:
            if self._closing.is_set():
                raise _stopped()
            waiting = sum(not each.finished.done() for each in self._jobs.values())
            if waiting >= self._limits.files:
                raise RequestError(
                    503,
                    f"{waiting} files wait already, wanted at most {self._limits.files}; try later",
                    code="queue_full",
                    retry_after=10,
                )
            self._open()
            self._jobs[job.id] = job
            begun = self._pool.submit(self._do, job, order)
        begun.add_done_callback(lambda done: self._settle(job, done))
        job.finished.add_done_callback(lambda done: begun.cancel() if done.cancelled() else None)
        return job

    def find(self, name: str) -> Job:
        """The job of an id; RequestError (404) where there is none, or none any more."""
        with self._lock:
            job = self._jobs.get(name)
        if job is None or job.finished.cancelled() or 0 < job.kept_until <= time.monotonic():
            raise RequestError(404, "no such file, or none any more", code="unknown_file")
        return job

    def result(self, job: Job) -> Path:
        """Where the translated file of a job is; RequestError: why there is none, or (409) none yet."""
        if not job.finished.done():
            raise RequestError(409, "the file is not translated yet", code="not_finished")
        if (error := job.error) is not None:
            # A copy: each time that one is raised, its traceback grows.
            raise RequestError(error.status, str(error), code=error.code, field=error.field)
        return self._path(job)

    def delete(self, job: Job) -> None:
        """Give a job up, and forget its result."""
        job.finished.cancel()
        self._forget(job)

    def close(self) -> None:
        """Give up what waits and what is worked on, and delete all results."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            self._sweeper.join()
            self._folder.close()

    def _open(self) -> None:
        """Make what the first file needs; RequestError (507) where there is no room for a folder."""
        if self._folder is not None:
            return
        try:
            self._folder = PrivateFolder(self._parent)
        except OSError as error:
            log.error("no folder for translated files", extra={"fields": {"error": error.strerror or ""}})
            raise _no_room("try later") from None
        self._sweeper.start()

    def _path(self, job: Job) -> Path:
        assert self._folder is not None
        return self._folder.path / job.id

    def _do(self, job: Job, order: Order) -> None:
        """Translate a file and keep the result."""
        document = FORMATS[order.suffix].read(order.data)
        segments = document.segments
        sheets = [Sheet.of(segments[begin : begin + GROUP], order.language) for begin in range(0, len(segments), GROUP)]
        job.lines = sum(len(sheet.lines) for sheet in sheets)
        runs: list[tuple[str, ...]] = []
        for sheet in sheets:
            runs += sheet.joined(self._translated(job, order.work(sheet.marked), sheet.lines))
        self._keep(job, document.with_runs(runs))

    def _translated(self, job: Job, work: Work, lines: Sequence[str]) -> list[Translation]:
        """The translations of some sentences; RequestError naming the one that has none by its number in the file."""
        found: list[Translation] = []
        for begin in range(0, len(lines), AT_ONCE):
            futures = self._submitted(job, work, lines[begin : begin + AT_ONCE])
            try:
                for future in futures:
                    found.append(_slim(self._waited(job, future)))
                    job.done += 1
            finally:
                for future in futures:
                    future.cancel()
        return found

    def _submitted(self, job: Job, work: Work, lines: Sequence[str]) -> "list[Future[Any]]":
        """The futures of sentences, as soon as the queue has room for them."""
        parts = [Part(text=line) for line in lines]
        while True:
            self._go_on(job)
            try:
                futures = self._scheduler.submit(work, parts, job.deadline - time.monotonic()) if parts else []
            except RequestError as error:
                if error.code != "queue_full":
                    raise
                time.sleep(RETRY_SECONDS)
            else:
                self._watch(futures)
                return futures

    def _waited(self, job: Job, future: "Future[Any]") -> Translation:
        while True:
            self._go_on(job)
            try:
                found: Translation = future.result(timeout=RETRY_SECONDS)
            except TimeoutError:
                continue
            except RequestError as error:
                if error.status != 422:
                    raise
                reason = f"file: sentence {job.done + 1:,}: {str(error).partition('; ')[0]}"
                raise RequestError(422, reason, code=error.code, field="file") from None
            return found

    def _go_on(self, job: Job) -> None:
        """Raise RequestError where the job is to end."""
        if self._closing.is_set():
            raise _stopped()
        if job.finished.done():
            raise RequestError(499, "nobody waits for the file any more")
        if time.monotonic() > job.deadline:
            raise RequestError(504, f"the file was not done after {self._limits.file_seconds:g} s, the most there are")

    def _keep(self, job: Job, written: bytes) -> None:
        """Write a result whole or not at all, and let older ones go for it; RequestError (507) without room."""
        most = self._limits.kept_bytes
        if len(written) > most:
            raise _no_room(f"it has {len(written):,} bytes, wanted at most {most:,}")
        with self._lock:
            kept = sorted((each for each in self._jobs.values() if each.size), key=lambda each: each.kept_until)
            size = sum(each.size for each in kept) + len(written)
            for each in kept:
                if size > most:
                    size -= each.size
                    self._forget(each)
            self._go_on(job)
            job.size = len(written)
        whole = self._path(job)
        try:
            replace_file(whole, written, synced=False, permissions=0o600)
        except OSError as error:
            job.size = 0
            log.error("a translated file was not written", extra={"fields": {"error": error.strerror or ""}})
            raise _no_room("try a smaller one, or later") from None

    def _settle(self, job: Job, done: "Future[None]") -> None:
        """Tell what became of a job; no more of an error than is meant for people."""
        job.kept_until = time.monotonic() + self._limits.kept_seconds
        if not job.finished.set_running_or_notify_cancel():
            self._forget(job)
        elif done.cancelled():
            job.finished.set_exception(_stopped())
        elif (error := done.exception()) is not None:
            told = told_as(error)
            # Frames of a traceback hold the file that was sent, as long as the job is remembered.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            job.finished.set_exception(told)
        else:
            job.finished.set_result(None)

    def _sweep(self) -> None:
        while not self._closing.wait(SWEEP_SECONDS):
            with self._lock:
                ended = sorted((job for job in self._jobs.values() if job.kept_until), key=lambda job: -job.kept_until)
            now = time.monotonic()
            for place, job in enumerate(ended):
                if place >= MOST_KEPT or job.kept_until <= now:
                    self._forget(job)

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.pop(job.id, None)
            job.size = 0
            with contextlib.suppress(OSError):
                self._path(job).unlink(missing_ok=True)


def _slim(translation: Translation) -> Translation:
    """What is needed of a translation of thousands: its text, and which words belong together."""
    best = translation.hypotheses[:1]
    if not best or best[0].alignment is None:
        return Translation(source="", text=translation.text)
    alignment = replace(best[0].alignment, weights=(), source_tokens=())
    kept = replace(best[0], alignment=alignment, tokens=(), ids=(), token_log_probs=())
    return Translation(source="", text=translation.text, hypotheses=(kept,))


def _stopped() -> RequestError:
    return RequestError(503, "the server is shutting down, wanted another one", code="shutting_down")


def _no_room(reason: str) -> RequestError:
    return RequestError(507, f"there is no room for the translated file: {reason}", code="no_space")
