"""A thread that does one thing after another, for somebody who does not wait for ever; replaced where it fails."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from translume.errors import TranslumeError

T = TypeVar("T")
Inbox = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

LOOK_SECONDS = 1.0
"""How often a worker that takes long is looked after."""
MOST_LOST = 2
"""Most threads that were given up and still run; with so many of them, whoever waits must go on waiting."""


class WorkerLostError(RuntimeError):
    """A thread that has ended, or has not come back, in the middle of its work."""


class Worker:
    """Does things in a thread of its own. For one caller at a time; to be closed.

    After an error that nobody foresaw, the next thing is done by a new thread: what such an error leaves behind in one,
    nobody knows. A thread that does not come back is given up, for none can be ended; nobody waits for its result.
    """

    def __init__(self, name: str, patience_seconds: float) -> None:
        """patience_seconds: after which a thread that has not come back is given up."""
        self._name, self._patience = name, patience_seconds
        self._lost: list[threading.Thread] = []
        self._begin()

    def outcome(self, do: Callable[[], T]) -> "Future[T]":
        """The finished future of what `do` gave or raised; a WorkerLostError where its thread was lost.

        What is no TranslumeError was not foreseen.
        """
        future: Future[T] = Future()
        try:
            if not self._thread.is_alive():
                self._begin()
        except RuntimeError as none_left:
            # The machine has no more threads just now.
            future.set_exception(none_left)
            time.sleep(LOOK_SECONDS)
            return future
        self._inbox.put((future, do))
        begun = time.monotonic()
        while not future.done():
            left = self._patience - (time.monotonic() - begun)
            wait([future], timeout=min(left, LOOK_SECONDS) if left > 0 else LOOK_SECONDS)
            late = time.monotonic() - begun >= self._patience and self._may_lose()
            lost = "ended" if not self._thread.is_alive() else "did not come back" if late else ""
            if lost and not future.done():
                future = Future()
                future.set_exception(WorkerLostError(f"the worker {lost}"))
        error = future.exception()
        if error is not None and not isinstance(error, TranslumeError):
            self._lose()
        return future

    def close(self) -> None:
        """Let the thread end when it has done what it does; nobody waits for it."""
        self._inbox.put(None)

    def _begin(self) -> None:
        self._inbox: Inbox = queue.SimpleQueue()
        # A thread that is stuck does not keep the process from ending.
        self._thread = threading.Thread(target=_serve, args=(self._inbox,), name=self._name, daemon=True)
        self._thread.start()

    def _lose(self) -> None:
        """Let the thread go; the next thing that is to be done begins another one."""
        self._inbox.put(None)
        self._lost = [thread for thread in (*self._lost, self._thread) if thread.is_alive()]
        self._thread = threading.Thread()

    def _may_lose(self) -> bool:
        return sum(thread.is_alive() for thread in self._lost) < MOST_LOST


def _serve(inbox: Inbox) -> None:
    while (job := inbox.get()) is not None:
        future, do = job
        try:
            result = do()
        except BaseException as error:
            # Whoever waits is told of everything, of what would end the thread too.
            future.set_exception(error)
        else:
            future.set_result(result)
