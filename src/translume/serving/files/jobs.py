"""Jobs that translate files in the background, one after another.

An uploaded file exists only in memory. Its result is written to a private folder, and deleted after `kept_seconds`,
when newer results need the space, when its client deletes it, or when the server ends.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from translume.atomic import replace_file
from translume.documents.sentences import SplitSegments
from translume.serving.access.clients import check_share
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError, as_request_error
from translume.serving.files.documents import DocumentProcesses
from translume.serving.workers.scheduler import Scheduler, Work, public_error
from translume.serving.workers.work import Part
from translume.translator import Translation

GROUP: Final = 64
"""Segments that are split into sentences at a time."""
AT_ONCE: Final = 16
"""Sentences of a file that are in the queue at a time, which other requests wait for.

With 64, a Multi30k model of 2.6 M parameters takes 12 % less processor time (no less in the fast engine), but other
requests wait up to 0.6 s instead of 0.2 s.
"""
RETRY_SECONDS: Final = 0.2
"""Interval between attempts while the queue is full, and between cancel checks."""
SWEEP_SECONDS: Final = 5.0
"""Interval between deletions of expired results."""
MOST_KEPT: Final = 1000
"""Most finished jobs that are kept."""
FOLDER_PREFIX: Final = "translume-files-"

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A file to be translated.  language: whose rules split its text into sentences; None if it is not split.

    work: returns the scheduler's work for sentences with markup (True) or without; None to return the file unchanged.
    client: who uploaded it; empty if that is unknown.
    """

    name: str
    suffix: str
    data: bytes
    language: str | None = ""
    work: Callable[[bool], Work] | None = None
    client: str = ""


@dataclass(slots=True, kw_only=True)
class Job:
    """A file that is being translated.

    lines, done: number of sentences (None until the file has been read), and of translated ones.
    finished: cancelled when the client gives up.  kept_until: on the clock of `time.monotonic`; 0 until finished.
    """

    id: str
    name: str
    suffix: str
    deadline: float
    client: str = ""
    finished: "Future[None]" = field(default_factory=Future)
    lines: int | None = None
    done: int = 0
    kept_until: float = 0.0
    size: int = 0

    @property
    def status(self) -> str:
        """One of waiting, working, done and failed."""
        if not self.finished.done():
            return "waiting" if self.lines is None else "working"
        return "done" if not self.finished.cancelled() and self.finished.exception() is None else "failed"

    @property
    def error(self) -> RequestError | None:
        """The error of a failed job."""
        if not self.finished.done() or self.finished.cancelled():
            return None
        error = self.finished.exception()
        return as_request_error(error) if isinstance(error, Exception) else None


class Jobs:
    """A queue of jobs: one thread translates, another deletes expired results. Thread-safe. Call `close` at the end."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        parent: Path | None = None,
        watch: "Callable[[Sequence[Future[Any]]], None]" = lambda futures: None,
    ) -> None:
        """parent: of the folder of results, created for the first file; by default the system's temporary folder.

        watch: called with the futures of translations.
        """
        self._scheduler, self._limits, self._parent, self._watch = scheduler, limits, parent, watch
        self.documents = DocumentProcesses(limits.document_seconds)
        self._folder: PrivateFolder | None = None
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="translume-files")
        self._sweeper = threading.Thread(target=self._sweep, name="translume-sweep", daemon=True)

    def submit(self, task: FileTask) -> Job:
        """Return a new job; RequestError (503) if too many wait."""
        deadline = time.monotonic() + self._limits.file_seconds
        job = Job(
            id=secrets.token_urlsafe(24), name=task.name, suffix=task.suffix, deadline=deadline, client=task.client
        )
        with self._lock:
            if self._closing.is_set():
                raise _stopped()
            waiting = [each.client for each in self._jobs.values() if not each.finished.done()]
            check_share(waiting, task.client, self._limits.files, "files", retry_after=10)
            self._open()
            self._jobs[job.id] = job
            running = self._pool.submit(self._translate, job, task)
        running.add_done_callback(lambda done: self._finish(job, done))
        job.finished.add_done_callback(lambda done: running.cancel() if done.cancelled() else None)
        return job

    def find(self, name: str) -> Job:
        """Return the job of an id; RequestError (404) if it is unknown or was deleted."""
        with self._lock:
            job = self._jobs.get(name)
        if job is None or job.finished.cancelled() or 0 < job.kept_until <= time.monotonic():
            raise RequestError(404, "no such file, or it was deleted", code="unknown_file")
        return job

    def result(self, job: Job) -> Path:
        """Return the path of a job's result; RequestError if it failed, or is not finished (409)."""
        if not job.finished.done():
            raise RequestError(409, "the file is not translated yet", code="not_finished")
        if (error := job.error) is not None:
            # A copy: raising the same error again would extend its traceback.
            raise RequestError(error.status, str(error), code=error.code, field=error.field)
        return self._path(job)

    def delete(self, job: Job) -> None:
        """Cancel a job, and delete its result."""
        job.finished.cancel()
        self._delete(job)

    def close(self) -> None:
        """Cancel all jobs and delete all results."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.documents.close()
        if self._folder is not None:
            self._sweeper.join()
            self._folder.close()

    def _open(self) -> None:
        """Create the folder for the first file; RequestError (507) if there is no space."""
        if self._folder is not None:
            return
        try:
            self._folder = PrivateFolder(self._parent)
        except OSError as error:
            log.error("no folder for translated files", extra={"fields": {"error": error.strerror or ""}})
            raise _no_space("try later") from None
        self._sweeper.start()

    def _path(self, job: Job) -> Path:
        assert self._folder is not None
        return self._folder.path / job.id

    def _translate(self, job: Job, task: FileTask) -> None:
        """Translate a file and store the result."""
        if task.work is None:
            self._store(job, task.data)
            return
        check = partial(self._check_cancelled, job)
        segments = self.documents.read(task.suffix, task.data, self._limits.file_characters, check)
        splits = [
            SplitSegments.of(segments[begin : begin + GROUP], task.language) for begin in range(0, len(segments), GROUP)
        ]
        job.lines = sum(len(split.lines) for split in splits)
        runs: list[tuple[str, ...]] = []
        for split in splits:
            runs += split.join(self._translated(job, task.work(split.marked), split.lines))
        self._store(job, self.documents.write(task.suffix, task.data, runs, check))

    def _translated(self, job: Job, work: Work, lines: Sequence[str]) -> list[Translation]:
        """Return the translations of sentences; RequestError with the number of the sentence that failed."""
        found: list[Translation] = []
        for begin in range(0, len(lines), AT_ONCE):
            futures = self._submitted(job, work, lines[begin : begin + AT_ONCE])
            try:
                for future in futures:
                    found.append(_compact(self._wait_for(job, future)))
                    job.done += 1
            finally:
                for future in futures:
                    future.cancel()
        return found

    def _submitted(self, job: Job, work: Work, lines: Sequence[str]) -> "list[Future[Any]]":
        """Submit sentences once the queue has space for them."""
        parts = [Part(text=line) for line in lines]
        while True:
            self._check_cancelled(job)
            try:
                futures = self._scheduler.submit(work, parts, job.deadline - time.monotonic()) if parts else []
            except RequestError as error:
                if error.code != "queue_full":
                    raise
                time.sleep(RETRY_SECONDS)
            else:
                self._watch(futures)
                return futures

    def _wait_for(self, job: Job, future: "Future[Any]") -> Translation:
        while True:
            self._check_cancelled(job)
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

    def _check_cancelled(self, job: Job) -> None:
        """Raise RequestError if the job was cancelled or its time is over."""
        if self._closing.is_set():
            raise _stopped()
        if job.finished.done():
            raise RequestError(499, "the file was cancelled")
        if time.monotonic() > job.deadline:
            raise RequestError(504, f"the file was not finished after {self._limits.file_seconds:g} s, the time limit")

    def _store(self, job: Job, written: bytes) -> None:
        """Write a result atomically, after deleting older ones if space is needed; RequestError (507) without space."""
        most = self._limits.kept_bytes
        if len(written) > most:
            raise _no_space(f"it has {len(written):,} bytes, expected at most {most:,}")
        with self._lock:
            self._check_cancelled(job)
            job.size = len(written)
            kept = [each for each in self._jobs.values() if each.size]
            for each in jobs_to_delete(kept, lambda each: each.size, most, spared=job):
                self._delete(each)
        whole = self._path(job)
        try:
            replace_file(whole, written, synced=False, permissions=0o600)
        except OSError as error:
            job.size = 0
            log.error("a translated file was not written", extra={"fields": {"error": error.strerror or ""}})
            raise _no_space("try a smaller one, or later") from None

    def _finish(self, job: Job, done: "Future[None]") -> None:
        """Record the outcome of a job; internal errors become RequestError without their message."""
        job.kept_until = time.monotonic() + self._limits.kept_seconds
        if not job.finished.set_running_or_notify_cancel():
            self._delete(job)
        elif done.cancelled():
            job.finished.set_exception(_stopped())
        elif (error := done.exception()) is not None:
            known = public_error(error)
            # The frames of its traceback would keep the uploaded file in memory as long as the job.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            job.finished.set_exception(known)
        else:
            job.finished.set_result(None)

    def _sweep(self) -> None:
        while not self._closing.wait(SWEEP_SECONDS):
            with self._lock:
                ended = [job for job in self._jobs.values() if job.kept_until]
            now = time.monotonic()
            expired = [job for job in ended if job.kept_until <= now]
            for job in (*expired, *jobs_to_delete(ended, lambda job: 1, MOST_KEPT)):
                self._delete(job)

    def _delete(self, job: Job) -> None:
        with self._lock:
            self._jobs.pop(job.id, None)
            job.size = 0
            with contextlib.suppress(OSError):
                self._path(job).unlink(missing_ok=True)


def jobs_to_delete(
    jobs: Iterable[Job], weight: Callable[[Job], int], most: int, spared: Job | None = None
) -> list[Job]:
    """Return the jobs to delete so that the weight of all is at most `most`: always the oldest of the largest client.

    So a client with many files deletes its own results and not those of others.  spared: a job that stays.
    """
    of_client: dict[str, deque[Job]] = {}
    totals: Counter[str] = Counter()
    for job in sorted(jobs, key=lambda job: job.kept_until):
        totals[job.client] += weight(job)
        if job is not spared:
            of_client.setdefault(job.client, deque()).append(job)
    deleted = []
    while totals.total() > most and of_client:
        client = max(of_client, key=totals.__getitem__)
        deleted.append(of_client[client].popleft())
        totals[client] -= weight(deleted[-1])
        if not of_client[client]:
            del of_client[client]
    return deleted


class PrivateFolder:
    """A temporary folder that only its owner can read, and that `close` deletes.

    Folders of killed processes are deleted when the next one is created: the operating system releases the lock that
    each process holds.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """parent: by default the system's folder for temporary files (TMPDIR). Raises OSError if there is no space."""
        _delete_abandoned(parent or Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Another process may have deleted the folder before it was locked.
        self.path.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Delete the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _delete_abandoned(parent: Path) -> None:
    """Delete the folders of this user that no process has locked."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            number = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(number)


def _compact(translation: Translation) -> Translation:
    """Return a translation with only its text and word alignment, to save memory."""
    best = translation.hypotheses[:1]
    if not best or best[0].alignment is None:
        return Translation(source="", text=translation.text)
    alignment = replace(best[0].alignment, weights=(), source_tokens=())
    kept = replace(best[0], alignment=alignment, tokens=(), ids=(), token_log_probs=())
    return Translation(source="", text=translation.text, hypotheses=(kept,))


def _stopped() -> RequestError:
    return RequestError(503, "the server is shutting down; use another one", code="shutting_down")


def _no_space(reason: str) -> RequestError:
    return RequestError(507, f"there is no space for the translated file: {reason}", code="no_space")
