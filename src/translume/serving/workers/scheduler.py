"""Work of many requests, put together: a bounded queue, batches by token budget, workers that do them."""

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from translume.errors import TranslumeError
from translume.serving.api.errors import RequestError
from translume.serving.workers.failures import note, told_as
from translume.serving.workers.thread import Worker

PACE_SECONDS = 0.01
"""How much later than the one before it each item of a request is due, at least."""
SHARE = 0.5
"""Share of the workers that a long request may take for itself; the more that wait, the less."""
RECENT = 16
"""Batches by which it is judged how fast work is done."""
WAITING = 0.5
"""Share of its time that an item may expect to wait for its turn; the rest is for its turn, and for misjudgement."""
AHEAD = 64
"""Items that wait whose tokens are counted at a time: to have another thread do it takes longer than to count."""
LONGEST_WAIT_SECONDS = 60
"""Most that a refused client is told to wait."""
PATIENCE_SECONDS = 300.0
"""After how long a batch is held for lost: long after the last of its requests was told to wait no more."""


class Work(Protocol):
    """What is done to items. Hashable: items of equal works are done together."""

    def size(self, item: Any) -> int:
        """Tokens that an item counts for in a batch; TranslumeError where the item cannot be worked on at all."""

    def run(self, items: Sequence[Any]) -> Sequence[Any]:
        """A result for each item, in order: a TranslumeError where it has none. What items give is theirs alone."""


GoOn = Callable[[], None]
"""Called between the parts of a piece of work; raises where nobody waits for it any more."""


@runtime_checkable
class LongWork(Work, Protocol):
    """Work that leaves off where nobody waits for any of its items any more."""

    def run_while(self, items: Sequence[Any], go_on: GoOn) -> Sequence[Any]:
        """As `run`, asking in between whether to go on."""


class Answer(Future[Any]):
    """A future that knows, even where it is too late to cancel it, that nobody waits for it."""

    unwanted = False

    def __init__(self, gone: Callable[[], object]) -> None:
        """gone: is called when it is cancelled."""
        super().__init__()
        self._gone = gone

    def cancel(self) -> bool:
        """Say that nobody waits; whether its item will not be begun."""
        self.unwanted = True
        if cancelled := super().cancel():
            self._gone()
        return cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """What is told of a batch that was done. waited: seconds of each item in the queue.  seconds: of the work."""

    items: int
    tokens: int
    waited: tuple[float, ...]
    seconds: float


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """An item in the queue. size None: not yet known; times are those of `time.monotonic`.

    due: when its turn is.  tried: whether it was in a batch that failed, so that it is done alone, once more.
    """

    work: Work
    item: Any
    came: float
    due: float
    deadline: float
    future: Answer
    size: int | None = None
    tried: bool = False


class Scheduler:
    """Takes items from any thread and gives futures; refuses at once what it cannot keep. To be closed.

    Where work fails in a way that nobody foresaw, or its thread is lost, a new thread does each of its items once more,
    alone, so that only those fail that fail again.
    """

    def __init__(
        self,
        *,
        queue: int,
        batch_tokens: int,
        told: Callable[[BatchDone], None] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        workers: int = 1,
    ) -> None:
        """queue: most items that wait.  batch_tokens: most tokens worked on at once, unless one item has more.

        told: is called with each batch that was done, in the worker's thread.
        patience_seconds: after which a batch that does not come back is given up.  workers: batches done at a time.
        """
        self._room, self._batch_tokens, self._told = queue, batch_tokens, told
        self._heaps: dict[Work, list[tuple[float, int, _Waiting]]] = {}
        self._count = 0
        self._order = itertools.count()
        self._cancelled = threading.Event()  # set where items that wait may have been
        self._changed = threading.Condition()
        self._closing = False
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)  # seconds and items of the last batches
        # What others wrote runs in a worker, and so cannot end the thread that plans for it, whatever it raises.
        self._workers = [Worker("translume-work", patience_seconds) for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name="translume-scheduler", daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

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
        Raises RequestError (503) where not all items fit into the queue, where so many wait that these would not have
        their turn in time, and where the scheduler is closing. What has no chance takes no time from what has one.
        """
        now = time.monotonic()
        with self._changed:
            if (refused := self._refused(len(items), timeout_seconds, now)) is not None:
                raise refused
            pace, end, answer = self._pace(len(items)), now + timeout_seconds, partial(Answer, self._cancelled.set)
            taken = [
                _Waiting(work=work, item=item, came=now, due=now + place * pace, deadline=end, future=answer())
                for place, item in enumerate(items)
            ]
            for each in taken:
                self._put(each)
            self._changed.notify_all()
        return [each.future for each in taken]

    def refusal(self, timeout_seconds: float) -> RequestError | None:
        """Why not even one item would be taken now, if it had so long; None where one would be."""
        with self._changed:
            return self._refused(1, timeout_seconds, time.monotonic())

    def close(self, seconds: float | None = None) -> bool:
        """Take no more, finish what waits, and stop; False where that was not done within `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        done = not any(thread.is_alive() for thread in self._threads)
        if not done:
            with self._changed:
                left = [each for heap in self._heaps.values() for _, _, each in heap]
                self._heaps.clear()
                self._count = 0
            for each in left:
                _fail(each, RequestError(503, "the server was stopped before the text's turn", code="shutting_down"))
        for worker in self._workers:
            worker.close()
        return done

    def _refused(self, count: int, timeout_seconds: float, now: float) -> RequestError | None:
        if self._closing:
            return RequestError(503, "the server is shutting down, wanted another one", code="shutting_down")
        if self._count + count > self._room:
            self._forget_cancelled()
        if self._count + count > self._room:
            reason = f"{self._count:,} lines wait and {count:,} came, wanted at most {self._room:,}; try later"
            return RequestError(503, reason, code="queue_full", retry_after=self._retry_seconds())
        most = WAITING * timeout_seconds
        if (wait := self._wait_seconds(now, most)) > most:
            reason = f"about {wait:.3g} s of lines wait, wanted at most {most:g}, half of the request's time; try later"
            return RequestError(503, reason, code="queue_full", retry_after=self._retry_seconds())
        return None

    def _pace(self, count: int) -> float:
        """Seconds between the turns of a request's items: they are spread over the time that all that waits will take.

        Nobody is slower for it where nobody else comes: what is due first is done, however early.
        """
        share = SHARE * count / max(1, self._count + count)
        return max(PACE_SECONDS, self._seconds_per_item / share) if count else PACE_SECONDS

    def _put(self, each: _Waiting) -> None:
        heapq.heappush(self._heaps.setdefault(each.work, []), (each.due, next(self._order), each))
        self._count += 1

    def _forget_cancelled(self) -> None:
        """Take what was cancelled out of the queue; looked through only where there may be such, for thousands wait."""
        if not self._cancelled.is_set():
            return
        self._cancelled.clear()  # what is cancelled from now on is found the next time
        for work, heap in list(self._heaps.items()):
            kept = [entry for entry in heap if not entry[2].future.cancelled()]
            self._count -= len(heap) - len(kept)
            heapq.heapify(kept)
            if kept:
                self._heaps[work] = kept
            else:
                del self._heaps[work]

    def _wait_seconds(self, now: float, enough: float) -> float:
        """How long it may take until an item has its turn that is due now, going by how fast others were of late.

        Counted exactly only where it may be more than `enough`: those that are due later do not stand before it.
        """
        most = self._count * self._seconds_per_item
        if most <= enough:
            return most
        self._forget_cancelled()
        return sum(entry[0] <= now for heap in self._heaps.values() for entry in heap) * self._seconds_per_item

    @property
    def _seconds_per_item(self) -> float:
        """Over the last batches, full ones weighing most; 0 before anything was done."""
        recent = tuple(self._recent)
        return sum(each[0] for each in recent) / max(1, sum(each[1] for each in recent)) / len(self._workers)

    def _retry_seconds(self) -> int:
        return max(1, min(LONGEST_WAIT_SECONDS, math.ceil(self._count * self._seconds_per_item)))

    def _serve(self, worker: Worker) -> None:
        while True:
            with self._changed:
                while not self._heaps and not self._closing:
                    self._changed.wait()
                if not self._heaps:
                    return
                work = min(self._heaps, key=lambda each: self._heaps[each][0][:2])
            batch = self._gather(worker, work)
            if batch:
                self._do(worker, work, batch)
            # A model that was replaced meanwhile ends with the last that holds it.
            del work, batch

    def _gather(self, worker: Worker, work: Work) -> list[_Waiting]:
        """The items of a work that are due first, as many as the budget takes and are still wanted."""
        batch: list[_Waiting] = []
        tokens = 0
        while (entry := self._next(work)) is not None:
            each = entry[2]
            size = self._size(worker, each)
            if size is None:
                continue
            if batch and (each.tried or tokens + size > self._batch_tokens):
                with self._changed:
                    heapq.heappush(self._heaps.setdefault(work, []), entry)
                    self._count += 1
                    self._changed.notify()  # another worker may have found nothing to do just now
                break
            if each.tried and each.future.unwanted:
                _fail(each, _unwanted())
                continue
            # One that was tried is running for whoever waits, and cannot be cancelled any more.
            if each.tried or each.future.set_running_or_notify_cancel():
                batch.append(each)
                tokens += size
            if each.tried:
                break
        return batch

    def _size(self, worker: Worker, each: _Waiting) -> int | None:
        """Tokens of an item that is still wanted and can be worked on; None, its owner being told, for others."""
        if each.future.cancelled():
            return None
        if each.deadline <= time.monotonic():
            late = RequestError(504, "the text waited for its turn until its deadline", code="deadline_exceeded")
            _fail(each, late)
            return None
        if each.size is None:
            with self._changed:
                next_ones = [entry[2] for entry in self._heaps.get(each.work, ())[:AHEAD]]
            error = worker.outcome(partial(_measure, each, next_ones)).exception()
            if error is not None and not isinstance(error, TranslumeError):
                note(error)
                error = worker.outcome(partial(_measure, each)).exception()
            if error is not None:
                _fail(each, told_as(error))
                return None
        return each.size

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

    def _do(self, worker: Worker, work: Work, batch: list[_Waiting]) -> None:
        begun = time.monotonic()
        done = worker.outcome(partial(_run, work, batch))
        error = done.exception()
        if error is not None and self._again(batch, error):
            return
        if error is None:
            for each, result in zip(batch, done.result(), strict=True):
                _resolve(each, result)
        else:
            _fail(batch[0], told_as(error))
        seconds = time.monotonic() - begun
        self._recent.append((seconds, len(batch)))
        if self._told is not None:
            waited = tuple(begun - each.came for each in batch)
            tokens = sum(each.size or 0 for each in batch)
            counts = BatchDone(items=len(batch), tokens=tokens, waited=waited, seconds=seconds)
            untold = worker.outcome(partial(self._told, counts)).exception()
            if untold is not None:
                note(untold)

    def _again(self, batch: Sequence[_Waiting], error: BaseException) -> bool:
        """Whether a batch that failed is to be done once more, each item alone; then that is arranged."""
        if batch[0].tried or (len(batch) == 1 and isinstance(error, TranslumeError)):
            return False
        if not isinstance(error, TranslumeError):
            note(error)
        with self._changed:
            for each in batch:
                each.tried = True
                self._put(each)
            self._changed.notify_all()
        return True


def _measure(first: _Waiting, others: Sequence[_Waiting] = ()) -> None:
    """Count the tokens of an item, which may raise; then of others, each of which is told its own error at its turn."""
    first.size = first.work.size(first.item)
    for each in others:
        if each.size is None:
            with suppress(TranslumeError):
                each.size = each.work.size(each.item)


def _run(work: Work, batch: Sequence[_Waiting]) -> Sequence[Any]:
    items = [each.item for each in batch]

    def go_on() -> None:
        if all(each.future.unwanted for each in batch):
            raise _unwanted()

    results = work.run_while(items, go_on) if isinstance(work, LongWork) else work.run(items)
    if len(results) != len(items):
        raise RuntimeError(f"{len(results)} results came of {len(items)} items")
    return results


def _unwanted() -> RequestError:
    return RequestError(499, "nobody waits for the answer any more")


def _resolve(each: _Waiting, result: Any) -> None:
    if isinstance(result, TranslumeError):
        each.future.set_exception(result)
    else:
        each.future.set_result(result)


def _fail(each: _Waiting, error: TranslumeError) -> None:
    """Have a future raise, unless its owner has cancelled it just now."""
    if each.future.running() or each.future.set_running_or_notify_cancel():
        each.future.set_exception(error)
