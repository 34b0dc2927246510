"""What all routes share: models, the scheduler, limits; and how a request waits for its texts."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from translume.serving.access.admission import ACCESS, ADMITTED, Access
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.api.texts import Texts
from translume.serving.background import Aside
from translume.serving.drift import Drift
from translume.serving.metrics import Metrics
from translume.serving.workers.models import Models
from translume.serving.workers.reloaded import Reloaded
from translume.serving.workers.scheduler import Scheduler, Work
from translume.serving.workers.waiting import client_gone, unless_gone
from translume.serving.workers.work import Translating
from translume.translator import Translation

PACE_SECONDS = 0.04
"""Shortest time between two looks at work that goes on: news that nobody could read one by one come as one."""


@dataclass(slots=True, kw_only=True)
class Server:
    """A server's parts. To be closed."""

    models: Models
    limits: Limits = field(default_factory=Limits)
    access: Access | None = None
    """Who may ask; None: whoever reaches the server."""
    cors_origins: tuple[str, ...] = ()
    public_address: str = ""
    log_text: bool = False
    reloaded: Reloaded | None = None
    """What became of the last reload; None: there was none."""
    scheduler: Scheduler = field(init=False)
    metrics: Metrics = field(init=False)
    aside: Aside = field(init=False)
    drift: Drift = field(init=False)

    def __post_init__(self) -> None:
        self.aside = Aside(room=self.limits.inspections)
        self.metrics = Metrics(lambda: self.scheduler.waiting, self.limits.batch_tokens)
        self.drift = Drift(self.metrics, self.aside)
        self.scheduler = Scheduler(
            queue=self.limits.queue,
            batch_tokens=self.limits.batch_tokens,
            told=self.metrics.batch,
            workers=self.limits.workers,
        )

    async def admit(self, request: Request, secret: object) -> None:
        """Count a request for the key that its body has, unless its head had one; RequestError where it may not be."""
        access: Access | None = request.scope.get(ACCESS)
        if access is not None and ADMITTED not in request.scope:
            await access.admit(request.scope, secret if isinstance(secret, str) else "")

    async def accept(self, request: Request, texts: Iterable[str]) -> None:
        """Count texts for the key of who asked, before they are worked on; RequestError where that may not be."""
        given = tuple(texts)
        if self.log_text:
            request.scope.get("translume.note", {})["texts"] = given
        access: Access | None = request.scope.get(ACCESS)
        if access is not None:
            await access.charge(request.scope, sum(map(len, given)))

    async def translated(self, request: Request, work: Translating, texts: Texts) -> list[Translation]:
        """The translation of each text; errors are those of `done`, and 413 for too many lines."""
        split = texts.split(self.limits)
        done = await self.done(request, work, split.parts, texts.timeout_seconds, split.names)
        return split.join(done, work.settings.nbest)

    def looks(
        self,
        request: Request,
        work: Work,
        items: Sequence[Any],
        changed: asyncio.Event,
        timeout_seconds: float,
        names: Sequence[str],
    ) -> AsyncIterator[list[Any]]:
        """The results so far, None where there is none yet, whenever one came or `changed` was set; in the end all.

        No two looks are nearer than `PACE_SECONDS`, but the last. Errors are those of `done`: that there is no room is
        said here, what comes later by the iterator.
        """
        request.scope.get("translume.note", {})["lines"] = len(items)
        futures = self.scheduler.submit(work, items, timeout_seconds) if items else []
        self.drift.watch(work, futures)
        self.metrics.watch(futures)
        return _looks(request, futures, changed, timeout_seconds, names)

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
        self.drift.watch(work, futures)
        self.metrics.watch(futures)
        waiting = _all_of([asyncio.wrap_future(future) for future in futures])
        gone = asyncio.ensure_future(client_gone(request))
        try:
            return await unless_gone(waiting, gone, timeout_seconds, time.monotonic() + timeout_seconds)
        except RequestError as error:
            raise _placed(error, futures, names) from None
        finally:
            gone.cancel()
            waiting.cancel()
            for future in futures:
                future.cancel()

    def close(self) -> bool:
        """Finish what waits, within the limit for it, and stop; whether it was finished."""
        self.aside.close()
        return self.scheduler.close(self.limits.drain_seconds)


async def _looks(
    request: Request,
    futures: "Sequence[Future[Any]]",
    changed: asyncio.Event,
    timeout_seconds: float,
    names: Sequence[str],
) -> AsyncIterator[list[Any]]:
    deadline = time.monotonic() + timeout_seconds
    gone = asyncio.ensure_future(client_gone(request))
    waiting = [asyncio.wrap_future(future) for future in futures]
    for each in waiting:
        each.add_done_callback(lambda _: changed.set())
    all_done = _all_of(waiting)
    try:
        while not all_done.done():
            news = asyncio.ensure_future(changed.wait())
            either = asyncio.ensure_future(asyncio.wait((all_done, news), return_when=asyncio.FIRST_COMPLETED))
            try:
                await unless_gone(either, gone, timeout_seconds, deadline)
            finally:
                news.cancel()
            changed.clear()
            if not all_done.done():
                yield [each.result() if each.done() and _raised(each) is None else None for each in futures]
                await asyncio.wait((all_done,), timeout=PACE_SECONDS)
        yield all_done.result()
    except RequestError as error:
        raise _placed(error, futures, names) from None
    finally:
        gone.cancel()
        all_done.cancel()
        for future in futures:
            future.cancel()


def _all_of(waiting: "Sequence[asyncio.Future[Any]]") -> "asyncio.Future[list[Any]]":
    """All results, or the first error; cancelled when nobody waits any more, it has nothing to complain of."""
    whole = asyncio.gather(*waiting)
    whole.add_done_callback(lambda done: done.cancelled() or done.exception())
    return whole


def _placed(error: RequestError, futures: Sequence[Any], names: Sequence[str]) -> RequestError:
    """The error with the name of the item that raised it."""
    place = next((i for i, each in enumerate(futures) if each.done() and _raised(each) is error), None)
    if place is None or error.status != 422 or not names:
        return error
    return RequestError(422, f"{names[place]}: {error}", code=error.code, field=names[place].partition(":")[0])


def _raised(future: Any) -> BaseException | None:
    return None if future.cancelled() else future.exception()
