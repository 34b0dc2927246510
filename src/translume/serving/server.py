"""What all routes share: models, the scheduler, limits; and how a request waits for its texts."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from translume.serving.limits import Limits
from translume.serving.metrics import Metrics
from translume.serving.models import Models
from translume.serving.request_error import RequestError
from translume.serving.scheduler import Scheduler, Work
from translume.serving.texts import Texts
from translume.serving.work import Translating
from translume.translator import Translation

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Server:
    """A server's parts. To be closed."""

    models: Models
    limits: Limits = field(default_factory=Limits)
    scheduler: Scheduler = field(init=False)
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(lambda: self.scheduler.waiting, self.limits.batch_tokens)
        self.scheduler = Scheduler(
            queue=self.limits.queue, batch_tokens=self.limits.batch_tokens, told=self.metrics.batch
        )

    async def translated(self, request: Request, work: Translating, texts: Texts) -> list[Translation]:
        """The translation of each text; errors are those of `done`, and 413 for too many lines."""
        split = texts.split(self.limits)
        done = await self.done(request, work, split.parts, texts.timeout_seconds, split.names)
        return split.join(done, work.settings.nbest)

    def one_by_one(
        self, request: Request, work: Work, items: Sequence[Any], timeout_seconds: float, names: Sequence[str]
    ) -> AsyncIterator[Any]:
        """The result of each item, in order, as soon as it and all before it are there; errors are those of `done`.

        That there is no room is said here; what comes later, by the iterator.
        """
        request.scope.get("translume.note", {})["lines"] = len(items)
        futures = self.scheduler.submit(work, items, timeout_seconds) if items else []
        return _in_order(request, futures, timeout_seconds, names)

    async def done(
        self, request: Request, work: Work, items: Sequence[Any], timeout_seconds: float, names: Sequence[str] = ()
    ) -> list[Any]:
        """The result of each item.

        names: what an error of each item is about: a field of the request, and perhaps a line in it.
        Raises RequestError for the first item that cannot be done, where the client has gone (499), at the deadline
        (504), and where there is no room (503). Then the others are not begun any more.
        """
        request.scope.get("translume.note", {})["lines"] = len(items)
        if not items:
            return []
        futures = self.scheduler.submit(work, items, timeout_seconds)
        waiting = asyncio.gather(*map(asyncio.wrap_future, futures))
        gone = asyncio.ensure_future(_gone(request))
        try:
            return await _unless_gone(waiting, gone, timeout_seconds, time.monotonic() + timeout_seconds)
        except RequestError as error:
            raise _placed(error, futures, names) from None
        finally:
            gone.cancel()
            waiting.cancel()
            for future in futures:
                future.cancel()

    def close(self) -> bool:
        """Finish what waits, within the limit for it, and stop; whether it was finished."""
        return self.scheduler.close(self.limits.drain_seconds)


async def _in_order(
    request: Request, futures: "Sequence[Future[Any]]", timeout_seconds: float, names: Sequence[str]
) -> AsyncIterator[Any]:
    deadline = time.monotonic() + timeout_seconds
    gone = asyncio.ensure_future(_gone(request))
    try:
        for future in futures:
            yield await _unless_gone(asyncio.wrap_future(future), gone, timeout_seconds, deadline)
    except RequestError as error:
        raise _placed(error, futures, names) from None
    finally:
        gone.cancel()
        for future in futures:
            future.cancel()


async def _unless_gone(
    waiting: "asyncio.Future[T]", gone: "asyncio.Future[None]", timeout_seconds: float, deadline: float
) -> T:
    """The result that is waited for; RequestError where the client goes (499) or the deadline comes (504) first."""
    left = max(0.0, deadline - time.monotonic())
    await asyncio.wait((waiting, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    if gone.done():
        raise RequestError(499, "the client went before its answer was there")
    raise RequestError(504, f"not done after {timeout_seconds:g} s, the request's deadline")


async def _gone(request: Request) -> None:
    """Ends when the client has closed its connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _placed(error: RequestError, futures: Sequence[Any], names: Sequence[str]) -> RequestError:
    """The error with the name of the item that raised it."""
    place = next((i for i, each in enumerate(futures) if each.done() and _raised(each) is error), None)
    if place is None or error.status != 422 or not names:
        return error
    return RequestError(422, f"{names[place]}: {error}", code=error.code, field=names[place].partition(":")[0])


def _raised(future: Any) -> BaseException | None:
    return None if future.cancelled() else future.exception()
