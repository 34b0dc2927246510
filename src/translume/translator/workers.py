"""Translate one input with several single-threaded processes, which is faster than one multi-threaded process."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Literal, Self

from translume.config import DecodingSettings
from translume.errors import TranslationError, TranslumeError
from translume.processes import ChildProcess, ProcessLostError, Request, serve_requests
from translume.translator.messages import (
    TRANSLATIONS,
    decode_lines,
    decode_settings,
    encode_lines,
    encode_settings,
    encode_translations,
)
from translume.translator.planning import Line, numbered_lines, windows
from translume.translator.results import Translation
from translume.translator.translator import Translator, load_translator

LINES_PER_REQUEST: Final = 256
START_WORKERS_SECONDS: Final = 4.0
"""Seconds of work after which the rest of an input is shared. About twice the time that workers take to start, so that
they cost at most as much as they could have saved."""
HANG_TIMEOUT_SECONDS: Final = 3600.0
"""A worker that has not finished a request after so long is killed."""

EngineDtype = Literal["fp32", "bf16", "int8"]
PlainDtype = Literal["fp32", "bf16"]
Result = tuple[list[Translation], TranslumeError | None]
"""Translations, and the error after them."""


class Workers:
    """`count` processes, each with the model of a folder on one thread. To be closed, best by `with`."""

    def __init__(
        self, folder: Path | str, count: int, dtype: EngineDtype | None = None, plain: PlainDtype = "fp32"
    ) -> None:
        """dtype: of each worker's engine; None selects the plain model.  plain: dtype of the model; engines need fp32.

        Raises TranslationError if the system cannot start so many processes.
        """
        self.count = count
        self._model = {"folder": str(folder), "dtype": dtype, "plain": plain}
        self._children: list[ChildProcess] = []
        self._idle: SimpleQueue[ChildProcess] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="translume-workers")
        with ExitStack() as failed:
            failed.callback(self.close)
            for _ in range(count):
                try:
                    child = ChildProcess(__name__)
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

    def translate_all(
        self, texts: Iterable[str], settings: DecodingSettings, constraints: Iterable[Iterable[str]] | None = None
    ) -> Iterator[Translation]:
        """Yield what `Translator.translate_all` yields, in order. Reads a few hundred texts ahead per worker.

        Raises TranslationError as `Translator.translate_all` does, and if a worker process ends or hangs.
        """
        return self.translate_windows(windows(numbered_lines(texts, constraints), lines=LINES_PER_REQUEST), settings)

    def translate_windows(self, lines: Iterable[list[Line]], settings: DecodingSettings) -> Iterator[Translation]:
        """Translate consecutive lines, one list per request."""
        waiting: deque[Future[Result]] = deque()
        done = 0
        for window in lines:
            done = done or window[0].number - 1
            waiting.append(self._threads.submit(self._translate, window, settings))
            if len(waiting) > 2 * self.count:
                for each in _translations(waiting.popleft(), done):
                    done += 1
                    yield each
        while waiting:
            for each in _translations(waiting.popleft(), done):
                done += 1
                yield each

    def close(self) -> None:
        """End the processes. Requests in progress are lost."""
        for child in self._children:
            child.shutdown()
        for child in self._children:
            child.close()
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _translate(self, lines: list[Line], settings: DecodingSettings) -> Result:
        done: list[Translation] = []
        child = self._idle.get()
        try:
            values = {"model": self._model, "lines": encode_lines(lines), "settings": encode_settings(settings)}
            for message in child.request("translate", values).responses(HANG_TIMEOUT_SECONDS):
                done += TRANSLATIONS.validate_json(message.body)
        except TranslumeError as error:
            return done, error
        finally:
            self._idle.put(child)
        return done, None


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
    parts, busy = windows(numbered_lines(texts, constraints), lines=LINES_PER_REQUEST), 0.0
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


def _translations(future: "Future[Result]", done: int) -> Iterator[Translation]:
    """Yield the translations of a request, then raise its error.  done: number of the line before its first."""
    try:
        translations, error = future.result()
    except ProcessLostError as lost:
        raise TranslationError(
            f"after line {done}: {lost}, perhaps because memory ran out; try fewer --workers"
        ) from None
    yield from translations
    if error is not None:
        raise error


@cache
def _load(folder: str, dtype: EngineDtype | None, plain: PlainDtype) -> Translator:
    translator = load_translator(folder, device="cpu", dtype=plain, threads=1, engine="plain")
    return translator if dtype is None else translator.compile(dtype)


def _handle(request: Request) -> None:
    """Handle a request in a worker process."""
    if request.method == "load":
        _load(**request.values)
        return
    translator = _load(**request.values["model"])
    lines, settings = decode_lines(request.values["lines"]), decode_settings(request.values["settings"])
    for chunk in encode_translations(translator.translate_lines(lines, settings)):
        request.respond(body=chunk)


def main() -> None:
    """Run a worker process."""
    serve_requests(_handle, shield=(signal.SIGINT,))
