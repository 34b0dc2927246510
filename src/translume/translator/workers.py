"""Several processes that translate one input together: one thread each does more than many threads for one process."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Literal, Self

from translume.config import DecodingSettings
from translume.errors import TranslationError
from translume.translator.batching import windows
from translume.translator.numbering import numbered_lines
from translume.translator.plan import Line
from translume.translator.translator import Translator, load_translator
from translume.translator.values import Translation

SHARE = 256
"""Lines that a worker takes at a time."""
WORTH_WORKERS = 4.0
"""Seconds of work after which what is left is shared: about twice what workers take to begin, so that they cost at most
as much as they could have saved."""

EngineDtype = Literal["fp32", "bf16", "int8"]
PlainDtype = Literal["fp32", "bf16"]
Done = tuple[list[Translation], str]
"""Translations, and the error that ended them; empty for none."""


class Workers:
    """`count` processes, each with the model of a folder on one thread. To be closed, best by `with`."""

    def __init__(
        self, folder: Path | str, count: int, dtype: EngineDtype | None = None, plain: PlainDtype = "fp32"
    ) -> None:
        """dtype: of each worker's engine; None is the plain model.  plain: of the model itself; engines want fp32."""
        self.count = count
        # Not forked: a copy of a process with threads may hang.
        self._pool = ProcessPoolExecutor(
            count, mp_context=get_context("spawn"), initializer=_begin, initargs=(str(folder), dtype, plain)
        )

    def translate_all(
        self, texts: Iterable[str], settings: DecodingSettings, constraints: Iterable[Iterable[str]] | None = None
    ) -> Iterator[Translation]:
        """What `Translator.translate_all` gives, in order; texts are read some hundred a worker ahead.

        Raises TranslationError as it does, or where a worker died.
        """
        return self.translate_parts(windows(numbered_lines(texts, constraints), lines=SHARE), settings)

    def translate_parts(self, parts: Iterable[list[Line]], settings: DecodingSettings) -> Iterator[Translation]:
        """The same for consecutive lines, as many at a time as a worker shall take."""
        waiting: deque[Future[Done]] = deque()
        given = 0
        for window in parts:
            given = given or window[0].number - 1
            with _uninterrupted():
                waiting.append(self._pool.submit(_work, window, settings))
            if len(waiting) > 2 * self.count:
                for each in _result(waiting.popleft(), given):
                    given += 1
                    yield each
        while waiting:
            for each in _result(waiting.popleft(), given):
                given += 1
                yield each

    def close(self) -> None:
        """Let the processes go; what they were asked and have not begun is not done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def translate_shared(
    translator: Translator,
    begin: Callable[[], Workers],
    texts: Iterable[str],
    settings: DecodingSettings,
    constraints: Iterable[Iterable[str]] | None = None,
) -> Iterator[Translation]:
    """What `Translator.translate_all` gives, by the translator itself, and by workers once that has taken a while.

    begin: makes the workers, who are to translate as the translator does.
    """
    parts, busy = windows(numbered_lines(texts, constraints), lines=SHARE), 0.0
    for part in parts:
        if busy > WORTH_WORKERS:
            with begin() as workers:
                yield from workers.translate_parts(chain([part], parts), settings)
            return
        began = time.monotonic()
        done = translator.translate_lines(part, settings)
        first = list(islice(done, 1))  # all of them are translated before the first is given back
        busy += time.monotonic() - began
        yield from chain(first, done)


def _result(future: "Future[Done]", given: int) -> Iterator[Translation]:
    try:
        done, error = future.result()
    except BrokenProcessPool:
        raise TranslationError(
            f"a worker died after line {given}, perhaps for want of memory, wanted it to go on; try fewer --workers"
        ) from None
    yield from done
    if error:
        raise TranslationError(error)


_translators: list[Translator] = []
"""The one translator of a worker process."""


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits, here for a moment and for good in a process that begins here: the terminal sends it to all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_with(parent: BaseProcess | None) -> None:
    """End this process when the one that gives the work is gone, killed perhaps: it would wait for work for ever."""
    if parent is not None:
        parent.join()
        os._exit(1)


def _begin(folder: str, dtype: EngineDtype | None, plain: PlainDtype) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the work
    Thread(target=_leave_with, args=(parent_process(),), daemon=True).start()
    translator = load_translator(folder, device="cpu", dtype=plain, threads=1)
    _translators.append(translator if dtype is None else translator.compile(dtype))


def _work(lines: list[Line], settings: DecodingSettings) -> Done:
    done: list[Translation] = []
    try:
        done.extend(_translators[0].translate_lines(lines, settings))
    except TranslationError as error:
        return done, str(error)
    return done, ""
