"""How requests wait for the results of threads, until their client disconnects or their deadline passes."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

from starlette.requests import Request

from translume.serving.api.errors import RequestError

T = TypeVar("T")


class Wakeups:
    """Passes results from threads to the event loop of requests, with one wake-up for all that end together.

    `asyncio.wrap_future` wakes the loop for every future, which costs more than translating a short line.
    """

    def __init__(self) -> None:
        self._done = deque[Callable[[], None]]()
        self._waking = False

    def gather(self, futures: "Sequence[Future[T]]", news: asyncio.Event | None = None) -> "asyncio.Future[list[T]]":
        """Return a future of all results, or of the first error. Cancelling it leaves the others as they are.

        news: set when one of them is done.
        """
        loop = asyncio.get_running_loop()
        whole: asyncio.Future[list[T]] = loop.create_future()
        # asyncio logs an error that is never read, as when the client has disconnected.
        whole.add_done_callback(lambda done: done.cancelled() or done.exception())
        left = count(len(futures) - 1, -1)

        def update() -> None:
            if news is not None:
                news.set()
            if whole.done():
                return
            if (error := next(filter(None, map(error_of, futures)), None)) is not None:
                whole.set_exception(error)
            elif all(each.done() for each in futures):
                whole.set_result([each.result() for each in futures])

        def ended(future: "Future[T]") -> None:
            if not next(left) or news is not None or error_of(future) is not None:
                self._post(loop, update)

        for future in futures:
            future.add_done_callback(ended)
        if not futures:
            update()
        return whole

    def _post(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Call a function in the event loop."""
        self._done.append(call)
        if not self._waking:
            self._waking = True
            try:
                loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed: the server was stopped meanwhile
                self._waking = False

    def _wake(self) -> None:
        self._waking = False  # first, so that what is added from now on wakes the loop again
        while self._done:
            self._done.popleft()()


def error_of(future: "Future[Any]") -> BaseException | None:
    """Return the error of a future that has failed; None for others."""
    return future.exception() if future.done() and not future.cancelled() else None


async def wait_for_result(
    request: Request | None, result: "asyncio.Future[T]", timeout_seconds: float, deadline: float | None = None
) -> T:
    """Return a result. Raises RequestError if the client disconnects (499) or the deadline passes (504) before.

    request: None if no client waits.  deadline: by default after `timeout_seconds`.
    """
    left = timeout_seconds if deadline is None else max(0.0, deadline - time.monotonic())
    gone = asyncio.ensure_future(client_disconnected(request))
    try:
        await asyncio.wait((result, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if result.done():
        return result.result()
    result.cancel()
    if gone.done():
        raise RequestError(499, "the client disconnected before the response")
    raise RequestError(504, f"not done after {timeout_seconds:g} s, the request's deadline")


async def client_disconnected(request: Request | None) -> None:
    """Return once the client has closed its connection; never without a request.

    The body of the request must have been read before.
    """
    if request is None:
        await asyncio.Event().wait()
        return
    while (await request.receive())["type"] != "http.disconnect":
        pass
