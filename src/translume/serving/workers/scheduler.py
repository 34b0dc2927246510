"""A bounded request queue that forms batches by token budget and dispatches them to workers.

Each request is one or several items (lines, pairs, texts) of one kind of work: the same operation, model and settings.
Items wait in one heap per kind of work, ordered by due time. A thread per worker takes the work whose first item is
due first, and fills a batch with the items of that work, from whichever requests, up to the token budget.
"""

import heapq
import itertools
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from translume.errors import TranslumeError
from translume.processes import ProcessLostError, UnexpectedChildError
from translume.serving.api.errors import RequestError
from translume.translator.search import CancelCheck

MIN_SPACING_SECONDS: Final = 0.01
"""Minimum spacing between the due times of consecutive items of a request."""
MAX_REQUEST_SHARE: Final = 0.5
"""Share of the workers that one long request may use; less while other items wait."""
LATE_SECONDS: Final = 0.25
"""Seconds by which a request may exceed its share before its waiting items become due later."""
RECENT_BATCHES: Final = 16
"""Number of batches over which throughput is measured."""
QUEUE_FRACTION: Final = 0.5
"""Fraction of an item's timeout that may be spent in the queue. The rest is for processing and for misestimates."""
MAX_RETRY_SECONDS: Final = 60
"""Largest Retry-After value for a refused client."""

log = logging.getLogger("translume.serving")


class Work(Protocol):
    """An operation on items, such as translating lines with certain settings. Items of equal works share batches."""

    def size(self, item: Any) -> int:
        """Return the tokens an item counts for in a batch. Raises TranslumeError for an invalid item."""

    def run(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return a result per item, in order; a TranslumeError where it failed. Results do not depend on the batch."""


@runtime_checkable
class CancellableWork(Work, Protocol):
    """Work that can be cancelled while it runs."""

    def run_cancellable(self, items: Sequence[Any], check_cancelled: CancelCheck) -> Sequence[Any]:
        """Do the same as `run`, calling `check_cancelled` regularly."""


@runtime_checkable
class SeparateWork(Work, Protocol):
    """Work that gives back each item as soon as it is done."""

    def run_each(self, items: Sequence[Any], unneeded: Callable[[], Collection[int]]) -> Iterator[tuple[int, Any]]:
        """Yield the place of each item and what `run` returns for it, in any order.

        unneeded: called regularly; the places of items whose results are not needed any more. They may be left out.
        """


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
        if cancelled := super().cancel():
            self._on_cancel()
        return cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """Metrics of a finished batch.  waited: seconds of each item in the queue.  seconds: of processing."""

    items: int
    tokens: int
    waited: tuple[float, ...]
    seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Submission:
    """The items of one request.  queued: time.  used: seconds of the workers.  done: items that used them.

    payer: see `Scheduler.submit`.
    """

    queued: float
    payer: str = ""
    used: float = 0.0
    done: int = 0


@dataclass(slots=True, kw_only=True)
class _Item:
    """An item in the queue. Times are those of `time.monotonic`; size is None until it was measured.

    retried: whether the item was in a batch that failed, so that it is tried once more, alone.
    """

    work: Work
    value: Any
    request: _Submission
    queued: float
    due: float
    deadline: float
    future: ItemFuture
    size: int | None = None
    retried: bool = False


class Scheduler:
    """Takes items from any thread and returns futures. Call `close` at the end.

    If a batch fails unexpectedly, for example because a worker process ended, each of its items is tried once more,
    alone; only items that fail again are reported as failed.
    """

    def __init__(
        self,
        *,
        queue: int,
        batch_tokens: int,
        on_batch: Callable[[BatchDone], None] | None = None,
        workers: int = 1,
    ) -> None:
        """queue: capacity in items.  batch_tokens: largest batch, unless one item alone has more.

        on_batch: called with each finished batch, in the thread of its worker.  workers: batches processed at a time.
        """
        self._capacity, self._batch_tokens, self._on_batch, self._workers = queue, batch_tokens, on_batch, workers
        self._heaps: dict[Work, list[tuple[float, int, _Item]]] = {}
        self._count = 0
        self._order = itertools.count()
        self._cancelled = threading.Event()  # set if items in the queue may have been cancelled
        self._changed = threading.Condition()
        self._closing = False
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=RECENT_BATCHES)  # seconds, items and tokens
        self._paid_until: dict[str, float] = {}
        """For each payer, the time until which its items use up its share of the workers."""
        self._threads = [
            threading.Thread(target=self._serve, name="translume-scheduler", daemon=True) for _ in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of items in the queue, without cancelled ones."""
        with self._changed:
            self._remove_cancelled()
            return self._count

    @property
    def closing(self) -> bool:
        """Whether the scheduler takes no more items."""
        return self._closing

    def submit(self, work: Work, items: Sequence[Any], timeout_seconds: float, payer: str = "") -> list["Future[Any]"]:
        """Queue items, and return a future for each. Cancel a future whose result is no longer needed.

        timeout_seconds: an item that is still in the queue after this time fails with RequestError (504).
        payer: the client of a request that costs more than usual. Each of its items is due when the time that it is
        expected to take fits into the client's share, after the client's other costly items.
        Raises RequestError (503) if the queue cannot take all items, if the items would wait too long (see
        `QUEUE_FRACTION`), and if the scheduler is closing.
        """
        now = time.monotonic()
        with self._changed:
            if (refused := self._refused(len(items), timeout_seconds, now)) is not None:
                raise refused
            spacing, deadline = self._spacing(len(items)), now + timeout_seconds
            request = _Submission(queued=now, payer=payer)
            queued = [
                _Item(
                    work=work,
                    value=item,
                    request=request,
                    queued=now,
                    due=now + place * spacing,
                    deadline=deadline,
                    future=ItemFuture(self._cancelled.set),
                )
                for place, item in enumerate(items)
            ]
            for each in queued:
                self._push(each)
            self._changed.notify()  # a thread that leaves some of them wakes the next one
        return [each.future for each in queued]

    def refusal(self, timeout_seconds: float) -> RequestError | None:
        """Return the error with which one item with this timeout would be refused now; None if it would be taken."""
        with self._changed:
            return self._refused(1, timeout_seconds, time.monotonic())

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
                self._count = 0
            for item in left:
                _fail(item, RequestError(503, "the server stopped before it processed the text", code="shutting_down"))
        return done

    def _refused(self, count: int, timeout_seconds: float, now: float) -> RequestError | None:
        if self._closing:
            return RequestError(503, "the server is shutting down; use another one", code="shutting_down")
        if self._count + count > self._capacity:
            self._remove_cancelled()
        if self._count + count > self._capacity:
            lines = f"{self._count:,} lines waiting, {count:,} new, at most {self._capacity:,}"
            reason = f"the queue is full: {lines}; try later"
            return RequestError(503, reason, code="queue_full", retry_after=self._retry_seconds())
        most = QUEUE_FRACTION * timeout_seconds
        if (wait := self._wait_seconds(now, most)) > most:
            reason = (
                f"the wait is about {wait:.3g} s, expected at most {most:g} s, half of the request's timeout; try later"
            )
            return RequestError(503, reason, code="queue_full", retry_after=self._retry_seconds())
        return None

    def _spacing(self, count: int) -> float:
        """Return the seconds between the due times of a request's items.

        They are spread over the time in which everything in the queue will be done, so that short requests overtake a
        long one. This delays nothing: if workers are free, an item is started before it is due.
        """
        share = MAX_REQUEST_SHARE * count / max(1, self._count + count)
        return max(MIN_SPACING_SECONDS, self._seconds_per_item / share) if count else MIN_SPACING_SECONDS

    def _push(self, item: _Item) -> None:
        heapq.heappush(self._heaps.setdefault(item.work, []), (item.due, next(self._order), item))
        self._count += 1

    def _remove_cancelled(self) -> None:
        """Remove cancelled items from the queue. Skipped if there are none, since the queue may be long."""
        if not self._cancelled.is_set():
            return
        self._cancelled.clear()  # later cancellations are handled next time
        for work, heap in list(self._heaps.items()):
            kept = [entry for entry in heap if not entry[2].future.cancelled()]
            self._count -= len(heap) - len(kept)
            heapq.heapify(kept)
            if kept:
                self._heaps[work] = kept
            else:
                del self._heaps[work]

    def _wait_seconds(self, now: float, enough: float) -> float:
        """Estimate how long an item that is due now would wait, from recent throughput.

        If the whole queue takes at most `enough` seconds, return that bound. Otherwise count only the items that are
        due before it.
        """
        most = self._count * self._seconds_per_item
        if most <= enough:
            return most
        self._remove_cancelled()
        return sum(entry[0] <= now for heap in self._heaps.values() for entry in heap) * self._seconds_per_item

    @property
    def _seconds_per_item(self) -> float:
        """Mean over the recent batches; 0 before the first."""
        recent = tuple(self._recent)
        return sum(each[0] for each in recent) / max(1, sum(each[1] for each in recent)) / self._workers

    @property
    def _seconds_per_token(self) -> float:
        """Mean over the recent batches; 0 before the first."""
        recent = tuple(self._recent)
        return sum(each[0] for each in recent) / max(1, sum(each[2] for each in recent)) / self._workers

    def _retry_seconds(self) -> int:
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(self._count * self._seconds_per_item)))

    def _serve(self) -> None:
        """Form batches and run them, until the scheduler is closed and the queue is empty."""
        while True:
            with self._changed:
                while not self._heaps and not self._closing:
                    self._changed.wait()
                if not self._heaps:
                    return
                work = min(self._heaps, key=lambda each: self._heaps[each][0][:2])
            batch = self._form_batch(work)
            if batch:
                self._run(work, batch)
            # While this thread waits, it must not keep a model alive that was replaced.
            del work, batch

    def _form_batch(self, work: Work) -> list[_Item]:
        """Take the items of a work that are due first, up to the token budget. Drop those no longer needed."""
        batch: list[_Item] = []
        tokens = 0
        while (entry := self._pop(work)) is not None:
            item = entry[2]
            measured = item.size is None
            size = self._size(item)
            if size is None:
                continue
            if measured and self._postpone(item, entry):
                if batch:
                    continue
                break  # other work may be due before
            if batch and (item.retried or tokens + size > self._batch_tokens):
                with self._changed:
                    heapq.heappush(self._heaps.setdefault(work, []), entry)
                    self._count += 1
                    self._changed.notify()  # another thread may have found the queue empty just now
                break
            if item.retried and item.future.abandoned:
                _fail(item, _cancelled())
                continue
            # The future of a retried item is running already.
            if item.retried or item.future.set_running_or_notify_cancel():
                batch.append(item)
                tokens += size
            if item.retried:
                break
        return batch

    def _postpone(self, item: _Item, entry: tuple[float, int, _Item]) -> bool:
        """Queue a costly item again, due after the others of its client; return whether it is costly."""
        if not item.request.payer:
            return False
        with self._changed:
            if not self._heaps:
                return False
            now = time.monotonic()
            self._paid_until = {name: until for name, until in self._paid_until.items() if until > now}
            seconds = (item.size or 0) * self._seconds_per_token / MAX_REQUEST_SHARE
            item.due = self._paid_until[item.request.payer] = (
                max(item.due, self._paid_until.get(item.request.payer, now)) + seconds
            )
            heapq.heappush(self._heaps.setdefault(item.work, []), (item.due, entry[1], item))
            self._count += 1
            self._changed.notify()
        return True

    def _pop(self, work: Work) -> tuple[float, int, _Item] | None:
        with self._changed:
            heap = self._heaps.get(work)
            if heap is None:
                return None
            entry = heapq.heappop(heap)
            self._count -= 1
            if not heap:
                del self._heaps[work]
            return entry

    def _size(self, item: _Item) -> int | None:
        """Return the tokens of an item. None if it was cancelled, is late or cannot be done; its future then fails."""
        if item.future.cancelled():
            return None
        if item.deadline <= time.monotonic():
            _fail(item, RequestError(504, "the text was still in the queue at its deadline", code="deadline_exceeded"))
            return None
        if item.size is None:
            try:
                item.size = item.work.size(item.value)
            except BaseException as error:  # the thread must go on
                _fail(item, public_error(error))
                return None
        return item.size

    def _run(self, work: Work, batch: list[_Item]) -> None:
        """Run a batch, and resolve the futures of its items or queue them once more."""
        started = time.monotonic()
        try:
            for item, result in _results(work, batch):
                _resolve(item, result)
        except BaseException as error:  # the thread must go on
            for item in batch:
                if item.future.abandoned and not item.future.done():
                    _fail(item, _cancelled())  # no client waits for it, so it is not tried again
            left = [item for item in batch if not item.future.done()]
            if left and self._retry(left, error):
                return
            for item in left:
                _fail(item, public_error(error))
        seconds = time.monotonic() - started
        self._recent.append((seconds, len(batch), sum(item.size or 1 for item in batch)))
        self._delay_costly(batch, seconds)
        if self._on_batch is not None:
            waited = tuple(started - item.queued for item in batch)
            tokens = sum(item.size or 0 for item in batch)
            try:
                self._on_batch(BatchDone(items=len(batch), tokens=tokens, waited=waited, seconds=seconds))
            except BaseException as error:  # the thread must go on
                log_error(error)

    def _delay_costly(self, batch: Sequence[_Item], seconds: float) -> None:
        """Make the waiting items of a request due later if its items took more time than their spacing foresaw.

        Otherwise the items of requests that arrive meanwhile would wait for all of them.
        """
        tokens = sum(item.size or 1 for item in batch)
        late = set()
        for item in batch:
            request = item.request
            request.used += seconds * (item.size or 1) / tokens / self._workers
            request.done += 1
            if request.queued + request.used / MAX_REQUEST_SHARE > item.due + LATE_SECONDS:
                late.add(request)
        if not late:
            return
        with self._changed:
            due = {each: each.queued + each.used / MAX_REQUEST_SHARE for each in late}
            for heap in self._heaps.values():
                for place, (_, order, item) in enumerate(sorted(heap)):
                    request = item.request
                    if request in due:
                        item.due = max(item.due, due[request]) if request.payer else due[request]
                        due[request] += request.used / MAX_REQUEST_SHARE / request.done
                    heap[place] = (item.due, order, item)
                heapq.heapify(heap)

    def _retry(self, batch: Sequence[_Item], error: BaseException) -> bool:
        """Queue the items of a failed batch once more, each to run alone. Return False if that is pointless."""
        if batch[0].retried or (len(batch) == 1 and isinstance(error, TranslumeError)):
            return False
        if not isinstance(error, TranslumeError):
            log_error(error)
        with self._changed:
            for item in batch:
                item.retried = True
                self._push(item)
            self._changed.notify_all()
        return True


def _results(work: Work, batch: Sequence[_Item]) -> Iterator[tuple[_Item, Any]]:
    """Yield the result of each item, as soon as the work gives it back."""
    values = [item.value for item in batch]

    def check_cancelled() -> None:
        if all(item.future.abandoned for item in batch):
            raise _cancelled()

    def unneeded() -> list[int]:
        return [place for place, item in enumerate(batch) if item.future.abandoned]

    if isinstance(work, SeparateWork):
        for place, result in work.run_each(values, unneeded):
            yield batch[place], result
        for item in batch:
            if not item.future.done():
                if not item.future.abandoned:
                    raise RuntimeError("no result for an item")
                yield item, _cancelled()
        return
    results = work.run_cancellable(values, check_cancelled) if isinstance(work, CancellableWork) else work.run(values)
    if len(results) != len(values):
        raise RuntimeError(f"{len(results)} results for {len(values)} items")
    yield from zip(batch, results, strict=True)


def _cancelled() -> RequestError:
    return RequestError(499, "the request was cancelled")


def _resolve(item: _Item, result: Any) -> None:
    if isinstance(result, TranslumeError):
        item.future.set_exception(result)
    else:
        item.future.set_result(result)


def _fail(item: _Item, error: TranslumeError) -> None:
    """Let a future raise an error, unless it was cancelled just now."""
    if item.future.running() or item.future.set_running_or_notify_cancel():
        item.future.set_exception(error)


def public_error(error: BaseException) -> TranslumeError:
    """Return the error for the client. An unexpected error is logged, and its message withheld."""
    if isinstance(error, TranslumeError):
        return error
    log_error(error)
    if isinstance(error, ProcessLostError):
        return RequestError(500, f"{error}, at this text, for the second time; the log says more", code="worker_lost")
    name = error.kind if isinstance(error, UnexpectedChildError) else type(error).__name__
    return RequestError(500, f"the server failed at this text ({name}); its log says where")


def log_error(error: BaseException) -> None:
    """Log where an error was raised, without its message, which may quote a text."""
    if isinstance(error, UnexpectedChildError):
        fields = {"error": error.kind, "traceback": error.trace}
    else:
        fields = {"error": type(error).__name__, "traceback": "".join(traceback.format_tb(error.__traceback__))}
    log.error("work failed", extra={"fields": fields})
