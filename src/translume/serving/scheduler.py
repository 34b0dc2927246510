"""A bounded, fair queue before the searches of a server.

Each request is one or several items (lines, pairs, texts) of one kind of work: the same operation, model and settings.
Threads, called lanes, take the work whose item is due first. The items of that work share a batch, whichever requests
they belong to, and more of them enter while it runs, up to a budget of tokens.

The queue is fair by self-clocked fair queueing (Golestani, 1994): an item is due when its size in tokens is used up
after the items before it of its request, counted from the due time of the item that was started last. The first items
of a client's requests follow each other in the same way. So a short request overtakes a long one, and a client with
many requests waits for itself.
"""

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from translume.errors import TranslumeError
from translume.serving.api.errors import REQUEST, RequestError, stopped, was_cancelled
from translume.translator.search import CancelCheck

if TYPE_CHECKING:
    from translume.serving.metrics import Metrics

RECENT_RUNS: Final = 64
"""Number of runs of batches over which throughput is measured."""
PAUSE: Final = 3
"""Times as long as entering has taken, no more items enter a batch: few at a time would cost more than their search."""
QUEUE_FRACTION: Final = 0.5
"""Fraction of an item's timeout that may be spent in the queue. The rest is for processing and for misestimates."""
MAX_RETRY_SECONDS: Final = 60
"""Largest Retry-After value for a refused client."""

log = logging.getLogger("translume.serving")


class Batch(Protocol):
    """Items that are processed together, by numbers. `Cohort` is one, of lines."""

    def enter(self, items: Mapping[int, Any]) -> None:
        """Add items."""

    def remove(self, number: int) -> None:
        """Remove an item whose result is not needed any more."""

    def run(self, unneeded: Callable[[], Collection[int]]) -> Mapping[int, Any]:
        """Take some steps, and return the results of items that are done: a TranslumeError for one that failed.

        unneeded: the numbers of items whose results are not needed any more.
        """

    def close(self) -> None:
        """Release what the batch holds, when it is empty."""


class Work(Protocol):
    """An operation on items, such as translating lines with certain settings. Items of equal works share batches."""

    def size(self, item: Any) -> int:
        """Return the tokens an item counts for in a batch. Raises TranslumeError for an invalid item."""

    def begin(self) -> Batch:
        """Return an empty batch. Results do not depend on the other items in it."""


class WholeBatch:
    """A batch whose items are all done after one run."""

    def __init__(self, function: Callable[[Sequence[Any], CancelCheck], Sequence[Any]]) -> None:
        """function: returns the result of each item, in order. Its second argument raises if none is needed."""
        self._function = function
        self._items: dict[int, Any] = {}

    def enter(self, items: Mapping[int, Any]) -> None:
        """Add items."""
        self._items |= items

    def remove(self, number: int) -> None:
        """Remove an item."""
        self._items.pop(number, None)

    def run(self, unneeded: Callable[[], Collection[int]]) -> Mapping[int, Any]:
        """Process all items."""
        items, self._items = self._items, {}

        def check_cancelled() -> None:
            if items.keys() <= set(unneeded()):
                raise was_cancelled()

        return dict(zip(items, self._function(list(items.values()), check_cancelled), strict=True))

    def close(self) -> None:
        """Do nothing."""


class ItemFuture(Future[Any]):
    """A future that also records a cancellation that came too late, after its item was started."""

    abandoned = False

    def __init__(self, on_cancel: Callable[[], object]) -> None:
        """on_cancel: called if the future is cancelled before its item was started."""
        super().__init__()
        self._on_cancel = on_cancel

    def cancel(self) -> bool:
        """Give up the result; return whether the item will not be started."""
        self.abandoned = True
        already = self.cancelled()
        if (cancelled := super().cancel()) and not already:
            self._on_cancel()
        return cancelled


@dataclass(slots=True, kw_only=True, eq=False)
class _Item:
    """An item in the queue.  queued, deadline: times of `time.monotonic`.  due: in tokens.

    retried: whether the item was in a batch that failed, so that it is tried once more, alone.
    """

    value: Any
    size: int
    due: float
    queued: float
    deadline: float
    future: ItemFuture
    retried: bool = False
    request: str = field(default_factory=REQUEST.get)
    """The id of the request, for the log."""


Key = tuple[Work, int]
"""A work, and 0; or the number of an item that is tried once more, alone."""


class Scheduler:
    """Takes items from any thread and returns futures. Call `close` at the end.

    If a batch fails unexpectedly, each of its items is tried once more, alone; only items that fail again are reported
    as failed.
    """

    def __init__(self, *, queue: int, batch_tokens: int, lanes: int = 1, observer: "Metrics | None" = None) -> None:
        """queue: capacity in items.  batch_tokens: largest batch, unless one item alone has more.

        observer: what counts the items, from any thread.
        """
        self._capacity, self._batch_tokens, self._lanes, self._observer = queue, batch_tokens, lanes, observer
        self._heaps: dict[Key, list[tuple[float, int, _Item]]] = {}
        self._count = 0  # items in the queue, without cancelled ones
        self._tokens = 0  # of these items
        self._now = 0.0  # due time of the item that was started last
        self._clients: dict[str, float] = {}  # due time of the first item of each client's last request
        self._order = itertools.count(1)
        self._idle = 0  # lanes that wait
        self._changed = threading.Condition()
        self._closing = False
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_RUNS)  # seconds and tokens
        self._threads = [
            threading.Thread(target=self._serve, name=f"translume-lane-{number}", daemon=True)
            for number in range(lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of items in the queue, without cancelled ones."""
        return self._count

    def submit(
        self, works: Sequence[tuple[Work, Any]], sizes: Sequence[int], timeout_seconds: float, client: str = ""
    ) -> list["Future[Any]"]:
        """Queue the items of a request, and return a future for each. Cancel one whose result is no longer needed.

        works: each item with its work.  sizes: what `Work.size` returned for them.
        timeout_seconds: an item that is still in the queue after this time fails with RequestError (504).
        client: whose requests follow each other; empty if it is unknown.
        Raises RequestError (503) if the queue cannot take all items, if the first would wait too long (see
        `QUEUE_FRACTION`), and if the scheduler is closing.
        """
        now = time.monotonic()
        futures: list[Future[Any]] = []
        with self._changed:
            due = max(self._now, self._clients.get(client, 0.0) if client else 0.0)
            if (refused := self._refusal(sizes, due, timeout_seconds)) is not None:
                raise refused
            if client and sizes:
                if len(self._clients) > self._capacity:
                    self._clients = {name: due for name, due in self._clients.items() if due > self._now}
                self._clients[client] = due + sizes[0]
            for (work, value), size in zip(works, sizes, strict=True):
                due += size
                item = _Item(
                    value=value,
                    size=size,
                    due=due,
                    queued=now,
                    deadline=now + timeout_seconds,
                    future=ItemFuture(partial(self._count_item, -1, -size)),
                )
                self._push((work, 0), item)
                futures.append(item.future)
            self._changed.notify(len(futures))
        return futures

    def refusal(self, timeout_seconds: float) -> RequestError | None:
        """Return the error with which one small item with this timeout would be refused now; None if it is taken."""
        with self._changed:
            return self._refusal([1], self._now, timeout_seconds)

    def close(self, seconds: float | None = None) -> bool:
        """Take no more items, finish those in the queue, and stop. Return False if that took more than `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        done = not any(thread.is_alive() for thread in self._threads)
        if not done:
            with self._changed:
                left = [item for heap in self._heaps.values() for _, _, item in heap]
                self._heaps.clear()
                self._count = self._tokens = 0
            for item in left:
                _fail(item, stopped())
        return done

    def _refusal(self, sizes: Sequence[int], due: float, timeout_seconds: float) -> RequestError | None:
        if self._closing:
            return stopped()
        if self._count + len(sizes) > self._capacity:
            lines = f"{self._count:,} lines waiting, {len(sizes):,} new, at most {self._capacity:,}"
            reason = f"the queue is full: {lines}; try later"
            return RequestError(503, reason, code="queue_full", retry_after=self._retry_seconds())
        most = QUEUE_FRACTION * timeout_seconds
        if sizes and (wait := self._wait_seconds(due + sizes[0], most)) > most:
            reason = (
                f"the wait is about {wait:.3g} s, expected at most {most:g} s, half of the request's timeout; try later"
            )
            return RequestError(503, reason, code="queue_full", retry_after=self._retry_seconds())
        return None

    def _push(self, key: Key, item: _Item) -> None:
        heapq.heappush(self._heaps.setdefault(key, []), (item.due, next(self._order), item))
        self._count_item(1, item.size)

    def _count_item(self, items: int, tokens: int) -> None:
        """Change the counts. A cancelled item stays in its heap, and is passed over later."""
        with self._changed:
            self._count += items
            self._tokens += tokens
            if self._observer is not None:
                self._observer.count_waiting(self._count)

    def _wait_seconds(self, due: float, enough: float) -> float:
        """Estimate how long an item with this due time would wait, from recent throughput.

        If the whole queue takes at most `enough` seconds, return that bound. Otherwise count only the items before it.
        """
        most = self._tokens * self._seconds_per_token
        if most <= enough:
            return most
        before = (entry[2] for heap in self._heaps.values() for entry in heap if entry[0] <= due)
        return sum(item.size for item in before if not item.future.cancelled()) * self._seconds_per_token

    @property
    def _seconds_per_token(self) -> float:
        """Mean over the recent runs; 0 before the first item is done."""
        recent = tuple(self._recent)
        tokens = sum(each[1] for each in recent)
        return sum(each[0] for each in recent) / tokens / self._lanes if tokens else 0.0

    def _retry_seconds(self) -> int:
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(self._tokens * self._seconds_per_token)))

    def _serve(self) -> None:
        """Form batches and run them, until the scheduler is closed and the queue is empty."""
        while True:
            with self._changed:
                self._idle += 1
                while not self._heaps and not self._closing:
                    self._changed.wait()
                self._idle -= 1
                if not self._heaps:
                    return
                key = self._first()
            self._process(key)
            del key  # while this thread waits, it must not keep a model alive that was replaced

    def _first(self) -> Key:
        """Return the work whose item is due first."""
        return min(self._heaps, key=lambda each: self._heaps[each][0][:2])

    def _take(self, key: Key, running: Mapping[int, _Item]) -> dict[int, _Item]:
        """Take the items of a work that are due first, up to the token budget.

        More enter a running batch only if no other work is due before them, and idle lanes get their share.
        """
        taken: dict[int, _Item] = {}
        late: list[_Item] = []
        room = self._batch_tokens - sum(item.size for item in running.values())
        now = time.monotonic()
        with self._changed:
            share = self._count // (1 + self._idle)
            while (heap := self._heaps.get(key)) is not None:
                due, number, item = heap[0]
                wanted = item.retried or not item.future.cancelled()
                full = item.size > room or len(taken) >= share
                if wanted and (taken or running) and (full or (running and self._first() != key)):
                    break
                heapq.heappop(heap)
                if not heap:
                    del self._heaps[key]
                if not (item.retried or item.future.set_running_or_notify_cancel()):
                    continue  # it was cancelled, and is not counted any more
                self._count_item(-1, -item.size)
                if item.deadline <= now:
                    late.append(item)
                else:
                    self._now = max(self._now, due)
                    taken[number] = item
                    room -= item.size
        for item in late:
            _fail(item, RequestError(504, "the text was still in the queue at its deadline", code="deadline_exceeded"))
        return taken

    def _process(self, key: Key) -> None:
        """Run a batch of a work, until it is empty. The items of one that fails are queued once more."""
        running = self._take(key, {})
        try:
            if running:
                self._run(key, running)
        except BaseException as error:  # the thread must go on
            self._retry(key[0], list(running.values()), error)

    def _run(self, key: Key, running: dict[int, _Item]) -> None:
        """Run a batch of these items, which more may enter. Items that are done are removed from `running`."""
        batch, entering, paused_until = key[0].begin(), dict(running), 0.0

        def unneeded() -> list[int]:
            return [number for number, item in running.items() if item.future.abandoned]

        while running:
            begun = time.monotonic()
            if entering:
                self._report(entering.values(), running.values(), begun)
                batch.enter({number: item.value for number, item in entering.items()})
                paused_until = time.monotonic() + PAUSE * (time.monotonic() - begun)
            for number in unneeded():
                batch.remove(number)
                _fail(running.pop(number), was_cancelled())
            if running:
                done = [(running.pop(number), result) for number, result in batch.run(unneeded).items()]
                self._recent.append((time.monotonic() - begun, sum(item.size for item, _ in done)))
                for item, result in done:
                    _resolve(item, result)
            entering = self._take(key, running) if running and time.monotonic() >= paused_until else {}
            running |= entering
        batch.close()

    def _report(self, taken: Collection[_Item], running: Collection[_Item], now: float) -> None:
        if self._observer is not None:
            waited = [now - item.queued for item in taken]
            tokens = sum(item.size for item in taken)
            self._observer.count_entered(waited, tokens, len(running), sum(item.size for item in running))

    def _retry(self, work: Work, items: Sequence[_Item], error: BaseException) -> None:
        """Queue the items of a failed batch once more, each to run alone; fail those that have failed before."""
        public = public_error(error, {item.request for item in items})
        for item in items:
            if item.future.abandoned:
                _fail(item, was_cancelled())
            elif item.retried or (public is error and len(items) == 1):
                _fail(item, public)
            else:
                item.retried = True
                with self._changed:
                    self._push((work, next(self._order)), item)
                    self._changed.notify()


def _resolve(item: _Item, result: Any) -> None:
    if isinstance(result, TranslumeError):
        item.future.set_exception(result)
    else:
        item.future.set_result(result)


def _fail(item: _Item, error: TranslumeError) -> None:
    """Let a future raise an error, unless it was cancelled just now."""
    if item.future.running() or item.future.set_running_or_notify_cancel():
        item.future.set_exception(error)


def public_error(error: BaseException, requests: Collection[str]) -> TranslumeError:
    """Return the error for the client. An unexpected one is logged with the ids of its requests.

    The log does not have its message, which may quote a text.
    """
    if isinstance(error, TranslumeError):
        return error
    known = {"request_id": ", ".join(sorted(filter(None, requests)))} if any(requests) else {}
    log.error("work failed", exc_info=error, extra={"fields": known})
    return RequestError(500, f"the server failed at this text ({type(error).__name__}); its log says where")
