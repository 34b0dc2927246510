"""Jobs that translate files in the background, one after another in each process.

An uploaded file exists only in memory. The status of a job and its result lie in a private folder that all processes of
a server read. They are deleted after `kept_seconds`, when newer results need the space, when the client deletes them,
or when the server ends.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from translume import atomic
from translume.atomic import replace_file
from translume.documents import FORMATS
from translume.documents.sentences import SplitSegments
from translume.errors import TranslumeError
from translume.locks import lock
from translume.serving.access.quotas import check_share
from translume.serving.api.decoding import loaded, settings_with, split_language
from translume.serving.api.errors import RequestError, as_request_error, stopped
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.storage import is_locked, locked, needing_space, no_space, read_record, write_record
from translume.serving.server import Server
from translume.serving.work import Part, Translating
from translume.translator import Translation

GROUP: Final = 64
"""Segments that are split into sentences at a time."""
AT_ONCE: Final = 16
"""Sentences of a file that are in the queue at a time, which other requests wait for.

With 64, a Multi30k model of 2.6 M parameters takes 12 % less processor time (no less in the fast engine), but other
requests wait up to 0.6 s instead of 0.2 s.
"""
RETRY_SECONDS: Final = 0.2
"""Interval between attempts while the queue is full."""
SWEEP_SECONDS: Final = 5.0
"""Interval between deletions of expired results."""
MAX_KEPT: Final = 1000
"""Maximum number of finished jobs that are kept."""
MAX_WARNINGS: Final = 20
"""Maximum number of warnings about a file that are kept."""
_ID: Final = re.compile("[A-Za-z0-9_-]{32}")

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An uploaded document.  name: without its suffix.  texts: of its segments.  client: empty if it is unknown."""

    name: str
    suffix: str
    content: bytes
    texts: tuple[str, ...] = ()
    client: str = ""


@dataclass(slots=True, kw_only=True)
class Job:
    """A file that is being translated, as it is stored in status.json.

    sentences, done: number of sentences (None until the file has been read), and of translated ones.
    characters: of its text.
    until: when its result is deleted, or its deadline, in seconds since 1970.  size, digest: of the result, in bytes
    and SHA-256.
    error: of a failed job: the arguments of `RequestError`; empty for others.  warnings: about the file.
    """

    id: str
    name: str
    suffix: str
    client: str
    until: float
    status: str = "waiting"
    sentences: int | None = None
    done: int = 0
    size: int = 0
    digest: str = ""
    characters: int = 0
    error: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the job is done or failed."""
        return self.status in ("done", "failed")

    def fail(self, error: RequestError) -> None:
        """Record the error of the job."""
        names = ("status", "code", "field", "retry_after")
        self.status, self.error = "failed", {"reason": str(error), **{name: getattr(error, name) for name in names}}


class Jobs:
    """The jobs of a server, to be used in its event loop. Call `close` at the end."""

    def __init__(self, server: Server, documents: DocumentProcesses) -> None:
        self._server, self._limits, self._documents = server, server.limits, documents
        self._turn = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closing = False

    async def submit(self, upload: Upload, served: Any) -> tuple[Job, asyncio.Task[None]]:
        """Return a new job and the task that ends with it, or fails; RequestError (503) if too many wait.

        served: the model; None to return the file unchanged.
        """
        if self._closing:
            raise stopped()
        suffix = FORMATS[upload.suffix].written or upload.suffix
        name = f"{upload.name}{upload.suffix}" if served is None else f"{upload.name}_{served.target}{suffix}"
        job = Job(
            id=secrets.token_urlsafe(24),
            name=name,
            suffix=suffix,
            client=upload.client,
            until=time.time() + self._limits.file_seconds,
            characters=sum(map(len, upload.texts)),
        )
        held = await run_in_threadpool(self._add, job)
        task = self._tasks[job.id] = asyncio.create_task(self._translate(job, upload, served))
        task.add_done_callback(lambda done: self._finish(job, held, done))
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        return job, task

    def find(self, name: str) -> Job:
        """Return the job of an id; RequestError (404) if it is unknown or was deleted."""
        job = self._read(self._server.folder / name) if _ID.fullmatch(name) else None
        if job is None or (job.ended and job.until <= time.time()):
            raise _unknown()
        if not job.ended and not is_locked(self._server.folder / name):
            reason = "the process that translated the file ended; send it again"
            job.fail(RequestError(503, reason, code="worker_lost", retry_after=1))
        return job

    def result(self, job: Job) -> tuple[Path, os.stat_result]:
        """Return the path and the status of a job's result.

        Raises RequestError if the job failed, is not finished (409), or its result is lost (404).
        """
        if job.error:
            raise RequestError(**job.error)
        if job.status != "done":
            raise RequestError(409, "the file is not translated yet", code="not_finished")
        path = self._server.folder / job.id / "result"
        with contextlib.suppress(OSError):  # deleted meanwhile
            if atomic.digest(path) == job.digest:
                return path, path.stat()
            log.error("a translated file is damaged", extra={"fields": {"file": f"{job.id}/result"}})
        raise _unknown()

    def delete(self, job: Job) -> None:
        """Cancel a job, and delete its result. Another process that translates it notices soon."""
        shutil.rmtree(self._server.folder / job.id, ignore_errors=True)
        if (task := self._tasks.get(job.id)) is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)  # the sweep runs in another thread

    async def close(self) -> None:
        """End all jobs. What other processes read has time to end."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._tasks and self._server.files.shared is not None:
            await asyncio.wait([*self._tasks.values()], timeout=self._limits.drain_seconds)
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()])

    def _all(self) -> list[Job]:
        return [job for path in self._server.folder.iterdir() if (job := self._read(path)) is not None]

    def _locked(self) -> AbstractContextManager[None]:
        """Keep out other threads and processes that add or delete jobs."""
        path = self._server.folder / "lock"
        with needing_space("a file was not stored", "try later"):
            path.touch(0o600)
        return locked(path)

    def _add(self, job: Job) -> int:
        """Store a new job, and return the lock that is held until it ends."""
        folder = self._server.folder
        with self._locked():
            waiting = [other.client for other in self._all() if not other.ended and is_locked(folder / other.id)]
            check_share(waiting, job.client, self._limits.files, "files", retry_after=10)
            with needing_space("a file was not stored", "try later"):
                (folder / job.id).mkdir(mode=0o700)
                held = os.open(folder / job.id, os.O_RDONLY)
                lock(held, wait=True)
                self._write(job)
        return held

    def _read(self, path: Path) -> Job | None:
        return read_record(path / "status.json", Job)

    def _write(self, job: Job) -> None:
        """Store the status of a job; RequestError (499) if it was deleted."""
        folder = self._server.folder / job.id
        if not folder.exists():
            raise RequestError(499, "the file was cancelled")
        with needing_space("the status of a file was not written"):
            write_record(folder / "status.json", job)

    async def _translate(self, job: Job, upload: Upload, served: Any) -> None:
        """Translate a file and store the result."""
        async with asyncio.timeout(self._limits.file_seconds), self._turn:
            content = upload.content if served is None else await self._translated(job, upload, served)
            await run_in_threadpool(self._store, job, content)

    async def _translated(self, job: Job, upload: Upload, served: Any) -> bytes:
        limit = self._limits.file_characters
        segments, warnings = await self._documents.read(upload.suffix, upload.content, limit, served.source)
        job.warnings = warnings[:MAX_WARNINGS]
        await loaded(served)
        language = split_language(served)

        def split() -> list[SplitSegments]:
            groups = (segments[begin : begin + GROUP] for begin in range(0, len(segments), GROUP))
            return [SplitSegments.from_segments(group, language) for group in groups]

        splits = await run_in_threadpool(split)
        job.status, job.sentences = "working", sum(len(group.lines) for group in splits)
        self._write(job)
        runs, history = list[tuple[str, ...]](), list[tuple[str, str]]()
        for group in splits:
            # Alignment takes another pass, and only sentences with markup need it.
            aligned = group.marked and not served.model.config.without_tokens
            settings = await settings_with(served, {"nbest": 1, "alignment": aligned}, self._limits)
            done = await self._translations(job, Translating(served.model, settings), group.lines, history)
            runs += await run_in_threadpool(lambda: [*group.join(done)])  # noqa: B023 - called here
        return await self._documents.write(upload.suffix, upload.content, runs, (served.source, served.target))

    async def _translations(
        self, job: Job, work: Translating, lines: Sequence[str], history: list[tuple[str, str]]
    ) -> list[Translation]:
        """Return the translations of sentences; RequestError with the number of the sentence that failed.

        history: the last sentences of the file and their translations, if the model reads them as context.
        """
        translations: list[Translation] = []
        context = work.translator.config.data.context
        at_once = 1 if context.used else AT_ONCE
        for begin in range(0, len(lines), at_once):
            parts = [Part(text=line, before=tuple(history)) for line in lines[begin : begin + at_once]]
            names = [f"file: sentence {job.done + number:,}" for number in range(1, len(parts) + 1)]
            while True:
                try:
                    results = await self._server.results(None, work, parts, max(0.1, job.until - time.time()), names)
                    break
                except RequestError as error:
                    if error.code != "queue_full":
                        raise
                    await asyncio.sleep(RETRY_SECONDS)
            translations += map(_compact, results)
            if context.used:
                history[:] = [*history, (parts[0].text, results[0].text)][-max(context.source, context.target) :]
            job.done += len(parts)
            self._write(job)
        return translations

    def _store(self, job: Job, content: bytes) -> None:
        """Write a result atomically, after deleting older ones if space is needed; RequestError (507) without space."""
        maximum = self._limits.kept_bytes
        if len(content) > maximum:
            raise no_space(f"it has {len(content):,} bytes, expected at most {maximum:,}")
        job.size, job.digest = len(content), hashlib.sha256(content).hexdigest()
        with self._locked():
            kept = [*(other for other in self._all() if other.size and other.id != job.id), job]
            for other in jobs_to_delete(kept, lambda each: each.size, maximum, spared=job):
                self.delete(other)
            try:
                with needing_space("a translated file was not written"):
                    self._write(job)
                    replace_file(self._server.folder / job.id / "result", content, synced=False, permissions=0o600)
            except RequestError:
                job.size = 0
                raise

    def _finish(self, job: Job, held: int, done: "asyncio.Task[None]") -> None:
        """Store the outcome of a job; internal errors become RequestError without their message."""
        del self._tasks[job.id]
        job.until = time.time() + self._limits.kept_seconds
        error = stopped() if done.cancelled() else done.exception()
        if error is None:
            job.status = "done"
        elif isinstance(error, TimeoutError):
            limit = f"{self._limits.file_seconds:g} s, the time limit"
            job.fail(RequestError(504, f"the file was not finished after {limit}"))
        else:
            if not isinstance(error, TranslumeError):
                log.error("a file was not translated", exc_info=error)
            job.fail(as_request_error(error))
        with contextlib.suppress(RequestError):  # it was deleted, or there is no space
            self._write(job)
        os.close(held)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await run_in_threadpool(self._delete_expired)

    def _delete_expired(self) -> None:
        jobs, now = self._all(), time.time()
        ended = [job for job in jobs if job.ended]
        expired = [job for job in jobs if job.until + (0 if job.ended else self._limits.kept_seconds) <= now]
        for job in (*expired, *jobs_to_delete(ended, lambda job: 1, MAX_KEPT)):
            self.delete(job)


def jobs_to_delete(
    jobs: Iterable[Job], weight: Callable[[Job], int], maximum: int, spared: Job | None = None
) -> list[Job]:
    """Return what to delete so that the weight of all is at most `maximum`: first the oldest job of the largest client.

    So a client with many files deletes its own results and not those of others.  spared: a job that stays.
    """
    of_client: dict[str, deque[Job]] = {}
    totals: Counter[str] = Counter()
    for job in sorted(jobs, key=lambda job: job.until):
        totals[job.client] += weight(job)
        if job is not spared:
            of_client.setdefault(job.client, deque()).append(job)
    deleted = []
    while totals.total() > maximum and of_client:
        client = max(of_client, key=totals.__getitem__)
        deleted.append(of_client[client].popleft())
        totals[client] -= weight(deleted[-1])
        if not of_client[client]:
            del of_client[client]
    return deleted


def _compact(translation: Translation) -> Translation:
    """Return a translation with only its text and word alignment, to save memory."""
    best = translation.hypotheses[:1]
    if not best or best[0].alignment is None:
        return Translation(source="", text=translation.text)
    alignment = replace(best[0].alignment, weights=(), source_tokens=())
    kept = replace(best[0], alignment=alignment, tokens=(), ids=(), token_log_probs=())
    return Translation(source="", text=translation.text, hypotheses=(kept,))


def _unknown() -> RequestError:
    return RequestError(404, "no such file, or it was deleted", code="unknown_file")
