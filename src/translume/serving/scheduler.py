"""Work of many requests, put together: a bounded queue, batches by token budget, one thread that does them."""

import heapq
import itertools
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from translume.errors import TranslumeError
from translume.serving.request_error import RequestError

PACE_SECONDS = 0.01
"""How much later than the one before it each item of a request is due: a long list lets short requests in between."""
LONGEST_WAIT_SECONDS = 60
"""Most that a refused client is told to wait."""

log = logging.getLogger("translume.serving")


class Work(Protocol):
    """What is done to items. Hashable: items of equal works are done together."""

    def size(self, item: Any) -> int:
        """Tokens that an item counts for in a batch; TranslumeError where the item cannot be worked on at all."""

    def run(self, items: Sequence[Any]) -> Sequence[Any]:
        """A result for each item, in order: a TranslumeError where it has none. What items give is theirs alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """What is told of a batch. waited: seconds of each item in the queue.  seconds: of the work."""

    items: int
    tokens: int
    waited: tuple[float, ...]
    seconds: float


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """An item in the queue. size None: not yet known; times are those of `time.monotonic`."""

    work: Work
    item: Any
    came: float
    deadline: float
    future: "Future[Any]"
    size: int | None = None


class Scheduler:
    """Takes items from any thread and gives futures; refuses at once what it cannot keep. To be closed."""

    def __init__(self, *, queue: int, batch_tokens: int, told: Callable[[BatchDone], None] | None = None) -> None:
        """queue: most items that wait.  batch_tokens: most tokens worked on at once, unless one item has more.

        told: is called with each batch that was done, in the scheduler's thread.
        """
        self._room, self._batch_tokens, self._told = queue, batch_tokens, told
        self._heaps: dict[Work, list[tuple[float, int, _Waiting]]] = {}
        self._count = 0
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closing = False
        self._seconds_per_item = 0.05
        # What runs in a pool cannot end the thread that plans, whatever it raises.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="translume-work")
        self._thread = threading.Thread(target=self._serve, name="translume-scheduler", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait now."""
        return self._count

    @property
    def closing(self) -> bool:
        """Whether no more items are taken."""
        return self._closing

    def submit(self, work: Work, items: Sequence[Any], timeout_seconds: float) -> list["Future[Any]"]:
        """A future for each item; one that is cancelled in time is not worked on.

        timeout_seconds: after which a waiting item is given up, its future raising a RequestError.
        Raises RequestError (503) where not all items fit into the queue, or where the scheduler is closing.
        """
        now = time.monotonic()
        with self._changed:
            if self._closing:
                raise RequestError(503, "the server is shutting down, wanted another one", code="shutting_down")
            if self._count + len(items) > self._room:
                self._forget_cancelled()
            if self._count + len(items) > self._room:
                raise RequestError(
                    503,
                    f"{self._count:,} lines wait and {len(items):,} came, wanted at most {self._room:,}; try later",
                    code="queue_full",
                    retry_after=self._wait_seconds(),
                )
            taken = [
                _Waiting(work=work, item=item, came=now, deadline=now + timeout_seconds, future=Future())
                for item in items
            ]
            for place, each in enumerate(taken):
                self._put(each, now + place * PACE_SECONDS)
            self._changed.notify()
        return [each.future for each in taken]

    def close(self, seconds: float | None = None) -> bool:
        """Take no more, finish what waits, and stop; False where that was not done within `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        done = not self._thread.is_alive()
        if not done:
            with self._changed:
                left = [each for heap in self._heaps.values() for _, _, each in heap]
                self._heaps.clear()
                self._count = 0
            for each in left:
                _fail(each, RequestError(503, "the server was stopped before the text's turn", code="shutting_down"))
        else:
            self._pool.shutdown()
        return done

    def _put(self, each: _Waiting, due: float) -> None:
        heapq.heappush(self._heaps.setdefault(each.work, []), (due, next(self._order), each))
        self._count += 1

    def _forget_cancelled(self) -> None:
        for work, heap in list(self._heaps.items()):
            kept = [entry for entry in heap if not entry[2].future.cancelled()]
            self._count -= len(heap) - len(kept)
            heapq.heapify(kept)
            if kept:
                self._heaps[work] = kept
            else:
                del self._heaps[work]

    def _wait_seconds(self) -> int:
        """After how long the queue has room, going by how fast it went of late."""
        return max(1, min(LONGEST_WAIT_SECONDS, math.ceil(self._count * self._seconds_per_item)))

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._heaps and not self._closing:
                    self._changed.wait()
                if not self._heaps:
                    return
                work = min(self._heaps, key=lambda each: self._heaps[each][0][:2])
            batch = self._gather(work)
            if batch:
                self._do(work, batch)

    def _gather(self, work: Work) -> list[_Waiting]:
        """The items of a work that are due first, as many as the budget takes and are still wanted."""
        batch: list[_Waiting] = []
        tokens = 0
        while (entry := self._next(work)) is not None:
            due, order, each = entry
            if each.future.cancelled():
                continue
            if each.deadline <= time.monotonic():
                _fail(
                    each, RequestError(504, "the text waited for its turn until its deadline", code="deadline_exceeded")
                )
                continue
            if each.size is None:
                measured = self._pool.submit(work.size, each.item)
                if (error := measured.exception()) is not None:
                    _fail(each, _told_as(error))
                    continue
                each.size = measured.result()
            if batch and tokens + each.size > self._batch_tokens:
                with self._changed:
                    heapq.heappush(self._heaps.setdefault(work, []), (due, order, each))
                    self._count += 1
                break
            if each.future.set_running_or_notify_cancel():
                batch.append(each)
                tokens += each.size
        return batch

    def _next(self, work: Work) -> tuple[float, int, _Waiting] | None:
        with self._changed:
            heap = self._heaps.get(work)
            if heap is None:
                return None
            entry = heapq.heappop(heap)
            self._count -= 1
            if not heap:
                del self._heaps[work]
            return entry

    def _do(self, work: Work, batch: list[_Waiting]) -> None:
        begun = time.monotonic()
        done = self._pool.submit(work.run, [each.item for each in batch])
        error = done.exception()
        if error is None:
            for each, result in zip(batch, done.result(), strict=True):
                _resolve(each, result)
        elif len(batch) == 1:
            _fail(batch[0], _told_as(error))
        else:
            # One of them did it: each alone, so that only that one fails.
            _note(error)
            for each in batch:
                alone = self._pool.submit(work.run, [each.item])
                found = alone.exception()
                _resolve(each, alone.result()[0] if found is None else _told_as(found))
        seconds = time.monotonic() - begun
        self._seconds_per_item += 0.2 * (seconds / len(batch) - self._seconds_per_item)
        if self._told is not None:
            waited = tuple(begun - each.came for each in batch)
            tokens = sum(each.size or 0 for each in batch)
            self._told(BatchDone(items=len(batch), tokens=tokens, waited=waited, seconds=seconds))


def _resolve(each: _Waiting, result: Any) -> None:
    if isinstance(result, TranslumeError):
        each.future.set_exception(result)
    else:
        each.future.set_result(result)


def _fail(each: _Waiting, error: TranslumeError) -> None:
    """Have a future raise, unless its owner has cancelled it just now."""
    if each.future.running() or each.future.set_running_or_notify_cancel():
        each.future.set_exception(error)


def _told_as(error: BaseException) -> TranslumeError:
    """What a client hears of an error: nothing of its inside unless it was meant for people."""
    if isinstance(error, TranslumeError):
        return error
    _note(error)
    return RequestError(500, f"the server failed at this text ({type(error).__name__}); its log says where")


def _note(error: BaseException) -> None:
    """Write where an error came from, without its words, which may quote a text."""
    places = "".join(traceback.format_tb(error.__traceback__))
    log.error("work failed", extra={"fields": {"error": type(error).__name__, "traceback": places}})
