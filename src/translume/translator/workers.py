"""Share the lines of an input among single-threaded processes, which is faster than one multi-threaded process."""

import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from translume.config import DecodingSettings
from translume.errors import TranslationError, TranslumeError
from translume.processes import ChildProcess, ProcessLostError, Request, serve_requests
from translume.translator.classifier import Classifier
from translume.translator.generator import Generator
from translume.translator.jobs import TRANSLATE, Job, find_job
from translume.translator.messages import (
    decode_error,
    decode_lines,
    decode_settings,
    encode_error,
    encode_lines,
    encode_results,
    encode_settings,
)
from translume.translator.planning import Line, LineError, numbered_lines, windows
from translume.translator.results import Translation
from translume.translator.translator import Translator, load

LINES_PER_REQUEST: Final = 256
START_WORKERS_SECONDS: Final = 4.0
"""Seconds of work after which the rest of an input is shared. About twice the time that workers take to start, so that
they cost at most as much as they could have saved."""
AFTER_FAILURE: Final = 16
"""Lines that are given to a model after one that failed, twice as many each time: a failure repeats their encoding."""
HANG_TIMEOUT_SECONDS: Final = 3600.0
"""A worker that has not finished a request after so long is killed."""

EngineDtype = Literal["fp32", "bf16", "int8"]
PlainDtype = Literal["fp32", "bf16"]
R = TypeVar("R")


def outcomes(run: Callable[[list[Line]], Iterable[R]], lines: list[Line]) -> Iterator[R | LineError]:
    """Yield the result of each line or why it has none, in order.

    run: yields results in order; raises LineError after the lines before the one that it names.
    """
    done, most = 0, len(lines)
    while done < len(lines):
        try:
            for result in run(lines[done : done + most]):
                done += 1
                yield result
            most *= 2
        except LineError as error:
            done, most = done + 1, AFTER_FAILURE
            yield error


class WorkerPool(ABC):
    """Workers that share the lines of an input. To be closed, best by `with`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="translume-workers")

    def translate_all(
        self,
        texts: Iterable[str],
        settings: DecodingSettings,
        constraints: Iterable[Iterable[str]] | None = None,
        *,
        frames: bool = False,
    ) -> Iterator[Translation]:
        """Yield what `Translator.translate_all` yields, in order. Reads a few hundred texts ahead per worker.

        frames: see `numbered_lines`; few sources of frames are read ahead.
        Raises TranslationError as `Translator.translate_all` does, and if a worker process ends or hangs.
        """
        lines = numbered_lines(texts, constraints, frames=frames)
        return self.translate_windows(windows(lines, lines=LINES_PER_REQUEST), settings)

    def translate_windows(self, lines: Iterable[list[Line]], settings: DecodingSettings) -> Iterator[Translation]:
        """Translate consecutive lines, one list per request."""
        for each in self._outcomes(TRANSLATE, lines, settings):
            if isinstance(each, LineError):
                raise each
            yield each

    def outcomes(
        self, job: Job[R], lines: Iterable[tuple[Line, int]], settings: DecodingSettings
    ) -> Iterator[R | LineError]:
        """Yield the result of each line or why it has none, in order.

        lines: with their sizes, for `windows`.  Raises TranslationError if a worker process ends or hangs.
        """
        return self._outcomes(job, windows(lines, lines=LINES_PER_REQUEST), settings)

    def close(self) -> None:
        """End the workers. Requests in progress are lost."""
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _request(self, job: Job[R], lines: list[Line], settings: DecodingSettings) -> Iterable[R | LineError]:
        """Return the outcomes of some lines, from an idle worker. Called in a thread of its own."""

    def _outcomes(
        self, job: Job[R], lines: Iterable[list[Line]], settings: DecodingSettings
    ) -> Iterator[R | LineError]:
        waiting: deque[Future[tuple[list[R | LineError], Exception | None]]] = deque()
        parts, done, more = iter(lines), 0, True
        while more or waiting:
            window = next(parts, None) if more else None
            more = window is not None
            if window is not None:
                done = done or window[0].number - 1
                waiting.append(self._threads.submit(self._gathered, job, window, settings))
            if waiting and (not more or len(waiting) > 2 * self.count):
                found, error = waiting.popleft().result()
                yield from found
                done += len(found)
                if isinstance(error, ProcessLostError):
                    raise TranslationError(f"after line {done}: {error}") from None
                if error is not None:
                    raise error

    def _gathered(
        self, job: Job[R], lines: list[Line], settings: DecodingSettings
    ) -> tuple[list[R | LineError], Exception | None]:
        """Return the outcomes before an error, and the error."""
        found: list[R | LineError] = []
        try:
            for each in self._request(job, lines, settings):
                found.append(each)
        except (TranslumeError, ProcessLostError) as error:
            return found, error
        return found, None


class Workers(WorkerPool):
    """`count` processes, each with the model of a folder on one thread."""

    def __init__(
        self, folder: Path | str, count: int, dtype: EngineDtype | None = None, plain: PlainDtype = "fp32"
    ) -> None:
        """dtype: of each worker's engine; None selects the plain model.  plain: dtype of the model; engines need fp32.

        Raises TranslationError if the system cannot start so many processes.
        """
        super().__init__(count)
        self._model = {"folder": str(folder), "dtype": dtype, "plain": plain}
        self._children: list[ChildProcess] = []
        self._idle: SimpleQueue[ChildProcess] = SimpleQueue()
        with ExitStack() as failed:
            failed.callback(self.close)
            for _ in range(count):
                try:
                    child = ChildProcess(__name__, decode_error=decode_error)
                except (OSError, RuntimeError) as error:
                    reason = f"cannot start {count} worker processes: {error}; try fewer --workers"
                    raise TranslationError(reason) from None
                self._children.append(child)
                child.request("load", self._model)
                self._idle.put(child)
            failed.pop_all()

    @property
    def pids(self) -> list[int]:
        """Ids of the worker processes."""
        return [child.pid for child in self._children]

    def close(self) -> None:
        """End the processes. Requests in progress are lost."""
        for child in self._children:
            child.shutdown()
        for child in self._children:
            child.close()
        super().close()

    def _request(self, job: Job[R], lines: list[Line], settings: DecodingSettings) -> Iterator[R | LineError]:
        def run(rest: list[Line]) -> Iterator[R]:
            values = {
                "model": self._model,
                "job": job.name,
                "lines": encode_lines(rest),
                "settings": encode_settings(settings),
            }
            for message in child.request("run", values).responses(HANG_TIMEOUT_SECONDS):
                yield from job.results.validate_json(message.body)

        child = self._idle.get()
        try:
            yield from outcomes(run, lines)
        except ProcessLostError as lost:
            reason = f"{lost}, perhaps because memory ran out; try fewer --workers"
            raise ProcessLostError(reason) from None
        finally:
            self._idle.put(child)


def translate_with_workers(
    translator: Translator,
    start: Callable[[], Workers],
    texts: Iterable[str],
    settings: DecodingSettings,
    constraints: Iterable[Iterable[str]] | None = None,
) -> Iterator[Translation]:
    """Yield what `Translator.translate_all` yields: from the translator itself, and after some seconds from workers.

    start: starts workers with the same model and engine as the translator.
    """
    frames = bool(translator.config.data.source.reader)
    parts, busy = windows(numbered_lines(texts, constraints, frames=frames), lines=LINES_PER_REQUEST), 0.0
    for part in parts:
        if busy > START_WORKERS_SECONDS:
            with start() as workers:
                yield from workers.translate_windows(chain([part], parts), settings)
            return
        begun = time.monotonic()
        translations = translator.translate_lines(part, settings)
        first = list(islice(translations, 1))  # the first one comes when all are translated
        busy += time.monotonic() - begun
        yield from chain(first, translations)


@cache
def load_worker(folder: str, dtype: EngineDtype | None, plain: PlainDtype) -> Translator | Generator:
    """Return the model of a worker process."""
    model = load(folder, device="cpu", dtype=plain, threads=1, engine="plain")
    assert not isinstance(model, Classifier)
    return model if dtype is None else model.compile(dtype)


def _handle(request: Request) -> None:
    """Handle a request in a worker process."""
    if request.method == "load":
        load_worker(**request.values)
        return
    model, job = load_worker(**request.values["model"]), find_job(request.values["job"])
    lines, settings = decode_lines(request.values["lines"]), decode_settings(request.values["settings"])
    for chunk in encode_results(job.results, job.run(model, lines, settings)):
        request.respond(body=chunk)


def main() -> None:
    """Run a worker process."""
    serve_requests(_handle, encode_error=encode_error, shield=(signal.SIGINT,))
