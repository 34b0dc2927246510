"""Work beside translating: one piece at a time in a thread of its own, few that wait, given up when nobody waits."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request

from translume.serving.api.errors import RequestError
from translume.serving.workers.failures import told_as
from translume.serving.workers.waiting import client_gone, unless_gone

T = TypeVar("T")
GoOn = Callable[[], None]
"""Called between the parts of a piece of work; raises where nobody waits for it any more."""


class Aside:
    """Does what would keep translations waiting. To be closed."""

    def __init__(self, *, room: int) -> None:
        """room: most pieces of work that wait or are done."""
        self._room, self._count = room, 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="translume-aside")

    @property
    def waiting(self) -> int:
        """How many pieces of work wait or are done now."""
        return self._count

    async def done(self, request: Request, work: Callable[[GoOn], T], timeout_seconds: float) -> T:
        """What `work` gives, done in another thread.

        Raises RequestError where there is no room (503), where the client has gone (499) and at the deadline (504);
        then work that waits is not begun, and work that was begun ends when it asks whether to go on.
        """
        left = threading.Event()
        future = self._submit(work, left)
        gone = asyncio.ensure_future(client_gone(request))
        try:
            deadline = time.monotonic() + timeout_seconds
            return await unless_gone(asyncio.wrap_future(future), gone, timeout_seconds, deadline)
        finally:
            gone.cancel()
            left.set()
            future.cancel()

    def spare(self, work: Callable[[GoOn], None]) -> None:
        """Do `work`, which nobody waits for, if there is nothing else to do."""
        if not self._count:
            with suppress(RequestError):
                self._submit(work, threading.Event())

    def close(self) -> None:
        """Take no more, and give up what waits."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[[GoOn], T], left: threading.Event) -> "Future[T]":
        with self._lock:
            if self._closing.is_set():
                raise _stopped()
            if self._count >= self._room:
                raise RequestError(
                    503,
                    f"{self._count:,} inspections wait, wanted at most {self._room:,}; try later",
                    code="queue_full",
                    retry_after=1,
                )
            self._count += 1

        def go_on() -> None:
            if left.is_set() or self._closing.is_set():
                raise RequestError(499, "nobody waits for the answer any more")

        def run() -> T:
            go_on()
            return work(go_on)

        told: Future[T] = Future()
        begun = self._pool.submit(run)
        begun.add_done_callback(lambda done: self._settle(done, told))
        told.add_done_callback(lambda done: begun.cancel() if done.cancelled() else None)
        return told

    def _settle(self, done: "Future[T]", told: "Future[T]") -> None:
        """Hand on what became of a piece of work, with no more of an error than is meant for people."""
        with self._lock:
            self._count -= 1
        if not told.set_running_or_notify_cancel():
            return
        if done.cancelled():
            told.set_exception(_stopped())
        elif (error := done.exception()) is not None:
            told.set_exception(told_as(error))
        else:
            told.set_result(done.result())


def _stopped() -> RequestError:
    return RequestError(503, "the server is shutting down, wanted another one", code="shutting_down")
