"""The state that all routes share, and how a request waits for its results."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from translume.errors import TranslumeError
from translume.serving.access.quotas import ACCESS, Access, check_share, client_of
from translume.serving.api.errors import RequestError
from translume.serving.files.storage import PrivateFolder, needing_space
from translume.serving.metrics import Metrics
from translume.serving.models import ServedModels
from translume.serving.scheduler import Scheduler, Work
from translume.serving.settings import Limits, ServeSettings
from translume.serving.work import Inspecting, Translating
from translume.translator.search import CancelCheck

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


UPDATE_SECONDS: Final = 0.04
"""Shortest time between two partial results: readers could not follow more of them."""
MEASURED_AT_ONCE: Final = 16
"""Items of a request whose sizes are measured in the event loop; those of more, in a thread."""


@dataclass(slots=True, kw_only=True)
class Server:
    """Models, limits, queue and metrics of a server. Call `close` at the end."""

    models: ServedModels
    settings: ServeSettings = field(default_factory=ServeSettings)
    """Those that apply. A reload replaces them."""
    access: Access | None = None
    """API keys and quotas; None if no key is required."""
    lanes: int = 1
    """Searches at a time, each in a thread."""
    files: PrivateFolder = field(default_factory=PrivateFolder)
    """What holds the folder of files and glossaries."""
    reloaded: Mapping[str, Any] | None = None
    """The outcome of the last reload, for clients; None if there was none."""
    scheduler: Scheduler = field(init=False)
    metrics: Metrics = field(init=False)
    inspecting: list[str] = field(init=False, default_factory=list)
    """The clients of the inspections that wait or run."""
    _inspections: Scheduler = field(init=False)
    _wakeups: Wakeups = field(init=False, default_factory=Wakeups)

    def __post_init__(self) -> None:
        self._inspections = Scheduler(queue=self.limits.inspections, batch_tokens=1)
        self.metrics = Metrics(self.limits.batch_tokens)
        self.scheduler = Scheduler(
            queue=self.limits.queue, batch_tokens=self.limits.batch_tokens, lanes=self.lanes, observer=self.metrics
        )

    @property
    def limits(self) -> Limits:
        """The limits of requests."""
        return self.settings.limits

    @property
    def folder(self) -> Path:
        """The folder of files and glossaries; RequestError (507) if there is no space for it."""
        with needing_space("no folder for translated files", "try later"):
            return self.files.path

    async def accept(self, request: Request, texts: Iterable[str], more: int = 0, others: int = 0) -> None:
        """Charge texts to the client's key before they are processed; RequestError if its quota is used up.

        more: characters that the texts count for beyond their own; see `characters_to_charge`.
        others: characters that other sources count for.
        """
        given = tuple(texts)
        if self.settings.log_text:
            request.scope.get("translume.note", {})["texts"] = given
        own = sum(map(len, given)) + others
        access: Access | None = request.scope.get(ACCESS)
        if access is not None:
            await access.charge(request.scope, own + more)

    async def partial_results(
        self,
        request: Request,
        work: Work,
        items: Sequence[Any],
        changed: asyncio.Event,
        timeout_seconds: float,
        names: Sequence[str],
    ) -> AsyncIterator[list[Any]]:
        """Return an iterator of the results so far, None for unfinished items; at last of all.

        It yields after each result and when `changed` is set.

        At least `UPDATE_SECONDS` pass between two of them, except before the last. Errors are those of `results`; a
        full queue is reported by this call, later errors by the iterator.
        """
        futures = await self._submit(self.scheduler, request, work, items, timeout_seconds)
        return self._results(request, futures, timeout_seconds, names, changed)

    async def results(
        self,
        request: Request | None,
        work: Work,
        items: Sequence[Any],
        timeout_seconds: float,
        names: Sequence[str] = (),
    ) -> list[Any]:
        """Return the result of each item.

        request: None for work that no client waits for.
        names: of the items in error messages: a field of the request, and perhaps a line in it.
        Raises RequestError for the first item that fails, and if the client disconnects (499), the deadline passes
        (504) or the queue is full (503). Then the items that wait are cancelled.
        """
        futures = await self._submit(self.scheduler, request, work, items, timeout_seconds)
        (done,) = [each async for each in self._results(request, futures, timeout_seconds, names)]
        return done

    async def inspect(self, request: Request, task: Callable[[CancelCheck], Any], timeout_seconds: float) -> Any:
        """Return the result of an inspection. They run one at a time, and not in the queue of other work.

        Raises RequestError as `results`, and if too many of all clients or of this one wait (503).
        """
        client = client_of(request.scope)
        check_share(self.inspecting, client, self.limits.inspections, "inspections", retry_after=1)
        self.inspecting.append(client)
        try:
            futures = await self._submit(self._inspections, request, Inspecting(task), [client], timeout_seconds)
            ((result,),) = [each async for each in self._results(request, futures, timeout_seconds)]
            return result
        finally:
            self.inspecting.remove(client)

    def close(self) -> bool:
        """Finish waiting requests within `drain_seconds`, and stop. Return whether all were finished."""
        done = self.scheduler.close(self.limits.drain_seconds)
        self.files.close()
        return self._inspections.close(1.0) and done  # their requests have ended

    async def _results(
        self,
        request: Request | None,
        futures: "Sequence[Future[Any]]",
        timeout_seconds: float,
        names: Sequence[str] = (),
        changed: asyncio.Event | None = None,
    ) -> AsyncIterator[list[Any]]:
        """Yield the results of futures: see `partial_results`; without `changed` once, of all."""
        deadline, whole = time.monotonic() + timeout_seconds, self._wakeups.gather(futures, changed)
        try:
            while changed is not None and not whole.done():
                news = asyncio.ensure_future(changed.wait())
                either = asyncio.ensure_future(asyncio.wait((whole, news), return_when=asyncio.FIRST_COMPLETED))
                try:
                    await wait_for_result(request, either, timeout_seconds, deadline)
                finally:
                    news.cancel()
                changed.clear()
                if not whole.done():
                    yield [each.result() if each.done() and error_of(each) is None else None for each in futures]
                    await asyncio.wait((whole,), timeout=UPDATE_SECONDS)
            yield await wait_for_result(request, whole, timeout_seconds, deadline)
        except RequestError as error:
            raise _named(error, futures, names, request) from None
        finally:
            whole.cancel()
            for future in futures:
                future.cancel()

    async def _submit(
        self, queue: Scheduler, request: Request | None, work: Work, items: Sequence[Any], timeout_seconds: float
    ) -> "list[Future[Any]]":
        """Queue items. Those whose size cannot be measured get a future with the error."""
        if request is not None:
            request.scope.get("translume.note", {})["lines"] = len(items)
        if not items:
            return []
        works = work.shared(items) if isinstance(work, Translating) else [(work, item) for item in items]

        def measure() -> list[int | TranslumeError]:
            return [_size(*each) for each in works]

        sizes = measure() if len(works) <= MEASURED_AT_ONCE else await run_in_threadpool(measure)
        valid = [(pair, size) for pair, size in zip(works, sizes, strict=True) if isinstance(size, int)]
        client = "" if request is None else client_of(request.scope)
        queued = iter(queue.submit([pair for pair, _ in valid], [size for _, size in valid], timeout_seconds, client))
        futures = [next(queued) if isinstance(size, int) else _failed(size) for size in sizes]
        self.metrics.watch(futures)
        return futures


def _size(work: Work, item: Any) -> int | TranslumeError:
    try:
        return work.size(item)
    except TranslumeError as error:
        return error


def _failed(error: TranslumeError) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _named(error: RequestError, futures: Sequence[Any], names: Sequence[str], request: Request | None) -> RequestError:
    """Return the error with the name of the item that raised it, and with hints only if the client can follow them."""
    place = next((i for i, each in enumerate(futures) if error_of(each) is error), None)
    if place is None or error.status != 422 or not names:
        return error
    # Hints follow a semicolon, and name fields of this server's own API.
    own = request is not None and request.url.path.startswith("/v1/")
    reason = str(error) if own else str(error).partition("; ")[0]
    return RequestError(422, f"{names[place]}: {reason}", code=error.code, field=names[place].partition(":")[0])
