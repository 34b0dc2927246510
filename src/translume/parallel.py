"""Work shared among processes of this machine, in order and in bounded memory."""

import faulthandler
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
W = TypeVar("W")


class ProcessLostError(RuntimeError):
    """A process ended before it finished its work."""


class LaterError:
    """A context manager that keeps an error of its block, such as one of a caller's generator, to be raised later."""

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):  # neither Ctrl-C nor the end of a generator
            self.error = error
        return self.error is not None

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error


def in_order(submit: Callable[[T], Callable[[], R]], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Yield the result of each item, in order, with at most `ahead` others in progress or waiting.

    submit: starts the work on an item and returns what waits for its result.
    An error of `items` is raised after the results of the items before it.
    """
    waiting: deque[Callable[[], R]] = deque()
    iterator, end = iter(items), object()
    while True:
        item: Any = end
        with LaterError() as failed:
            item = next(iterator, end)
        if item is end:
            break
        waiting.append(submit(item))
        if len(waiting) > ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()
    failed.raise_error()


class Closing(ABC):
    """Base class of what is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class WorkerPool(Closing, Generic[W]):
    """Processes that start when there is work for them, each with a value of its own. To be closed, best by `with`.

    They ignore Ctrl-C, and end when the pool is closed or this process ends, even in the middle of their work.
    """

    def __init__(self, count: int, load: Callable[[], W]) -> None:
        """load: returns the value of a process, when it begins its first work; sent as a pickle, like all work."""
        self.count, self._load = count, load
        self._start()

    def _start(self) -> None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        self._theirs, self._ours = multiprocessing.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self.count, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(self._theirs, self._load)
        )

    def restart(self) -> None:
        """Replace the processes, of which one ended. Work in progress is lost."""
        self.close()
        self._start()

    def submit(self, function: Callable[[W, T], R], item: T) -> Callable[[], R]:
        """Start `function(value, item)` in a process, and return what waits for its result or raises its error.

        Both raise ProcessLostError if a process ended before.
        """
        with _lost():
            future = self._pool.submit(_run, function, item)
        return partial(_result, future)

    def map(self, function: Callable[[W, T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield `function(value, item)` for each item, in order; see `in_order`."""
        return in_order(partial(self.submit, function), items, 2 * self.count)

    def close(self) -> None:
        """End the processes. Work in progress is lost."""
        self._ours.close()
        self._pool.shutdown(cancel_futures=True)
        self._theirs.close()


@contextmanager
def _lost() -> Iterator[None]:
    from concurrent.futures import BrokenExecutor

    try:
        yield
    except BrokenExecutor:
        raise ProcessLostError("a worker process ended in the middle of its work") from None


def _result(future: "Future[R]") -> R:
    with _lost():
        return future.result()


_loading: list[Callable[[], Any]] = []
"""In a worker process: what returns its value."""


def _begin(connection: "Connection", load: Callable[[], Any]) -> None:
    """Prepare a worker process.  connection: closed when the pool is closed or its process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets a terminal's Ctrl-C as well
    faulthandler.enable()  # where native code crashed goes to stderr

    def end() -> None:
        with suppress(EOFError, OSError):
            connection.recv()
        os._exit(0)

    threading.Thread(target=end, name="translume-parent", daemon=True).start()
    _loading.append(load)


@cache
def _value() -> Any:
    return _loading[0]()


def _run(function: Callable[[Any, T], R], item: T) -> R:
    return function(_value(), item)
