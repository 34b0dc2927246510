"""The scheduler answers every accepted item as if it were alone, fairly, and refuses the others immediately."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.errors import TranslumeError
from translume.serving.api.errors import REQUEST, RequestError
from translume.serving.run import JsonLines
from translume.serving.scheduler import Scheduler, WholeBatch
from translume.serving.server import Wakeups


@dataclass(eq=False)
class Doubling:
    """Doubles numbers; the size of a number is its value. -2 cannot be doubled, -3 breaks the batch."""

    open: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    batches: list[list[int]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    """Raised one after another by the first batches."""

    def size(self, item: int) -> int:
        return abs(item)

    def begin(self) -> WholeBatch:
        return WholeBatch(self.run)

    def run(self, items: Sequence[int], check_cancelled: Callable[[], None]) -> list[int | TranslumeError]:
        self.batches.append(list(items))
        self.begun.set()
        while not self.open.wait(0.005):
            check_cancelled()
        if self.errors:
            raise self.errors.pop(0)
        if -3 in items:
            raise RuntimeError("a secret")
        return [RequestError(422, "minus two") if item == -2 else 2 * item for item in items]


def opened(*errors: BaseException) -> Doubling:
    work = Doubling(errors=list(errors))
    work.open.set()
    return work


class Counts:
    """What a scheduler reports."""

    def __init__(self) -> None:
        self.waiting, self.entered = list[int](), list[tuple[int, int, int, int]]()

    def count_waiting(self, items: int) -> None:
        self.waiting.append(items)

    def count_entered(self, waited: Sequence[float], tokens: int, items_running: int, tokens_running: int) -> None:
        assert all(seconds >= 0 for seconds in waited)
        self.entered.append((len(waited), tokens, items_running, tokens_running))


class Queue(Scheduler):
    """A scheduler to which items of one work are given without their sizes."""

    def put(self, work: Any, items: Sequence[int], seconds: float = 60, client: str = "") -> list[Future[Any]]:
        return self.submit([(work, item) for item in items], [work.size(item) for item in items], seconds, client)

    def hold(self) -> Doubling:
        """Let a lane work until the work that is returned is opened."""
        gate = Doubling()
        self.put(gate, [1])
        assert gate.begun.wait(120)
        return gate


@contextmanager
def scheduler(
    queue: int = 100, batch_tokens: int = 10, lanes: int = 1, observer: Counts | None = None
) -> Iterator[Queue]:
    made = Queue(queue=queue, batch_tokens=batch_tokens, lanes=lanes, observer=observer)
    try:
        yield made
    finally:
        made.close(10)


def error_of(future: Future[Any]) -> tuple[int, str, str]:
    """Return the status, code and text of the error of a future."""
    error = future.exception(120)
    assert isinstance(error, RequestError)
    return error.status, error.code, str(error)


CANCELLED = (499, "client_gone", "the request was cancelled")
FAILED = (500, "internal_error", "the server failed at this text (RuntimeError); its log says where")
LATE = (504, "deadline_exceeded", "the text was still in the queue at its deadline")


@given(requests=st.lists(st.lists(st.integers(-3, 12), max_size=7), max_size=9), lanes=st.integers(1, 3))
def test_every_item_gets_its_own_result_and_no_batch_exceeds_the_budget(requests: list[list[int]], lanes: int) -> None:
    work, counts = opened(), Counts()
    with scheduler(lanes=lanes, observer=counts) as made:
        futures = [made.put(work, items) for items in requests]
        for items, found in zip(requests, futures, strict=True):
            for item, future in zip(items, found, strict=True):
                if item == -2:
                    assert error_of(future) == (422, "invalid_value", "minus two")
                elif item == -3:
                    assert error_of(future) == FAILED
                else:
                    assert future.result(120) == 2 * item
    assert all(len(batch) == 1 or sum(map(abs, batch)) <= 10 for batch in work.batches)
    assert sum(items for items, *_ in counts.entered) == sum(map(len, work.batches))
    assert all(
        (items, tokens) == running for items, tokens, *running_ in counts.entered if (running := tuple(running_))
    )
    assert not requests or not counts.waiting or counts.waiting[-1] == 0


def test_items_of_the_same_work_are_batched_together_and_others_apart() -> None:
    first, second = opened(), opened()
    with scheduler() as made:
        gate = made.hold()
        for number in range(4):
            made.put(first if number % 2 else second, [number])
        gate.open.set()
    assert (first.batches, second.batches) == ([[1, 3]], [[0, 2]])


def test_a_full_queue_refuses_immediately_with_retry_after() -> None:
    work = opened()
    with scheduler(queue=5) as made:
        gate = made.hold()
        made.put(work, [1, 2, 3])
        with pytest.raises(RequestError) as caught:  # while the lane is held
            made.put(work, [4, 5, 6])
        assert (caught.value.status, caught.value.code) == (503, "queue_full")
        assert str(caught.value) == "the queue is full: 3 lines waiting, 3 new, at most 5; try later"
        assert caught.value.headers == {"Retry-After": "1"}
        taken = made.put(work, [4, 5])
        assert made.refusal(60) is not None
        gate.open.set()
        assert [future.result(120) for future in taken] == [8, 10]
        assert made.refusal(60) is None


def test_cancelled_items_are_not_processed_and_free_their_place() -> None:
    work = opened()
    with scheduler(queue=3) as made:
        gate = made.hold()
        for future in made.put(work, [2, 3, 4]):
            assert future.cancel()
            assert future.cancel()  # and is counted once
        kept = made.put(work, [5, 6])
        assert made.waiting == 2
        assert kept[0].cancel()
        assert made.waiting == 1
        gate.open.set()
        assert kept[1].result(120) == 12
        assert made.waiting == 0
    assert work.batches == [[6]]


def test_a_batch_ends_when_all_its_requests_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    work = Doubling()
    with scheduler() as made:
        gate = made.hold()
        first, second = made.put(work, [1, 2])
        gate.open.set()
        assert work.begun.wait(120)
        assert not first.cancel()
        time.sleep(0.05)
        assert not second.done()
        second.cancel()
        assert [error_of(first), error_of(second)] == [CANCELLED] * 2
        assert made.put(opened(), [3])[0].result(120) == 6
    assert work.batches == [[1, 2]]
    assert not caplog.records


class Rounds:
    """A batch that takes a permit for each round, in which one item is done: the one that entered first."""

    def __init__(self, work: "Round") -> None:
        self.work, self.items = work, dict[int, int]()

    def enter(self, items: Mapping[int, int]) -> None:
        self.items |= items
        self.work.entered.append(list(items.values()))

    def remove(self, number: int) -> None:
        self.work.removed.append(self.items.pop(number))

    def run(self, unneeded: Callable[[], Collection[int]]) -> Mapping[int, int]:
        assert self.work.permits.acquire(timeout=120)
        number = next(iter(self.items))
        return {number: 2 * self.items.pop(number)}

    def close(self) -> None:
        assert not self.items
        self.work.closed += 1


class Round(Doubling):
    """A work whose items enter a running batch."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.entered, self.removed, self.closed = list[list[int]](), list[int](), 0

    def begin(self) -> Any:
        return Rounds(self)


def test_items_enter_a_running_batch_are_given_back_alone_and_leave_when_they_are_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("translume.serving.scheduler.PAUSE", 0.0)  # else an entry that was slow keeps others out
    work = Round()
    with scheduler(batch_tokens=6) as made:
        first, second, third = made.put(work, [1, 2, 3])
        work.permits.release()
        assert first.result(120) == 2
        (later,) = made.put(work, [1])
        assert not second.cancel()
        work.permits.release()  # the round that is running, before the second is removed
        work.permits.release(9)
        assert (third.result(120), later.result(120)) == (6, 2)
    assert work.entered == [[1, 2, 3], [1]]
    assert work.removed in ([2], [])
    assert work.closed == 1


def test_no_item_enters_a_running_batch_while_other_work_is_due_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translume.serving.scheduler.PAUSE", 0.0)
    work, other = Round(), opened()
    with scheduler(batch_tokens=9) as made:
        running = made.put(work, [1, 2])
        while not work.entered:
            time.sleep(0.001)
        made.put(other, [1])
        waiting = made.put(work, [5])
        work.permits.release(9)
        assert [future.result(120) for future in running + waiting] == [2, 4, 10]
    assert work.entered == [[1, 2], [5]]
    assert (other.batches, work.closed) == ([[1]], 2)


def test_items_past_their_deadline_are_dropped_whatever_the_system_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    work = opened()
    with scheduler() as made:
        gate = made.hold()
        late, timely = made.put(work, [2], 0.01), made.put(work, [3])
        for jump in (1e9, -1e9):
            monkeypatch.setattr(time, "time", lambda jump=jump: jump)
            time.sleep(0.02)
        gate.open.set()
        assert error_of(late[0]) == LATE
        assert timely[0].result(120) == 6
    assert work.batches == [[3]]


def order(made: Queue, *requests: tuple[str, list[int]]) -> list[int]:
    """Return the order in which the items of requests of clients are started."""
    work = opened()
    gate = made.hold()
    futures = [future for client, items in requests for future in made.put(work, items, client=client)]
    gate.open.set()
    for future in futures:
        future.result(120)
    return [item for batch in work.batches for item in batch]


def test_a_short_request_overtakes_a_long_one_also_of_its_own_client() -> None:
    with scheduler(batch_tokens=1) as made:
        assert order(made, ("a", [2, 2, 2, 2]), ("b", [3])) == [2, 3, 2, 2, 2]
    with scheduler(batch_tokens=1) as made:
        assert order(made, ("a", [2, 2, 2, 2]), ("a", [1])) == [2, 1, 2, 2, 2]


def test_a_client_with_many_requests_waits_for_itself() -> None:
    many = [("a", [2])] * 4
    with scheduler(batch_tokens=1) as made:
        assert order(made, *many, ("b", [1]), ("b", [3])) == [1, 2, 2, 3, 2, 2]
    with scheduler(batch_tokens=1) as made:  # unknown clients are different ones
        assert order(made, *[("", [2])] * 3, ("", [1])) == [1, 2, 2, 2]


def test_costly_items_wait_for_others_of_less_cost() -> None:
    with scheduler(batch_tokens=1) as made:
        assert order(made, ("a", [50, 50]), ("b", [7, 7, 7]), ("c", [20])) == [7, 7, 20, 7, 50, 50]


def test_closing_finishes_waiting_items_and_refuses_new_ones() -> None:
    work = Doubling()
    made = Queue(queue=9, batch_tokens=1)
    futures = made.put(work, [1, 2, 3])
    closer = threading.Thread(target=made.close)
    closer.start()
    while (refused := made.refusal(60.0)) is None or refused.code != "shutting_down":
        time.sleep(0.001)
    with pytest.raises(RequestError, match=r"^the server is shutting down; use another one$") as caught:
        made.put(work, [4])
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "shutting_down", 10)
    work.open.set()
    closer.join(120)
    assert [future.result(0) for future in futures] == [2, 4, 6]
    assert made.close(1)


def test_closing_with_a_timeout_fails_the_waiting_items() -> None:
    made, work = Queue(queue=9, batch_tokens=1), opened()
    gate = made.hold()
    (waiting,) = made.put(work, [2])
    assert not made.close(0.01)
    stopped = "the server is shutting down; use another one"
    assert error_of(waiting) == (503, "shutting_down", stopped)
    gate.open.set()


@pytest.mark.parametrize("error", [RuntimeError("a secret"), MemoryError(), SystemExit(3), KeyboardInterrupt()])
def test_items_of_a_failed_batch_are_tried_again_alone(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    work = opened(error)
    with scheduler() as made:
        gate = made.hold()
        token = REQUEST.set("of-the-client")
        futures = made.put(work, [1, 2, 3])
        REQUEST.reset(token)
        gate.open.set()
        assert [future.result(120) for future in futures] == [2, 4, 6]
    assert work.batches == [[1, 2, 3], [1], [2], [3]]
    assert [record.fields["request_id"] for record in caplog.records] == ["of-the-client"]  # type: ignore[attr-defined]
    written = "".join(map(JsonLines().format, caplog.records))
    assert "work failed" in written
    assert "secret" not in written


def test_cancelled_items_of_a_failed_batch_are_not_tried_again() -> None:
    work = Doubling(errors=[RuntimeError()])
    with scheduler() as made:
        first, second = made.put(work, [1, 2])
        assert work.begun.wait(10)
        first.cancel()
        work.open.set()
        assert (error_of(first), second.result(10)) == (CANCELLED, 4)
    assert work.batches in ([[1, 2], [2]], [[1], [2]])


def test_an_item_that_fails_twice_does_not_fail_the_others() -> None:
    work = opened(RuntimeError(), RuntimeError())
    with scheduler() as made:
        gate = made.hold()
        one, two = made.put(work, [1, 2])
        gate.open.set()
        assert (error_of(one), two.result(120)) == (FAILED, 4)
    assert work.batches == [[1, 2], [1], [2]]


def test_too_few_results_are_an_internal_error() -> None:
    class Short(Doubling):
        def run(self, items: Sequence[int], check_cancelled: Callable[[], None]) -> list[int | TranslumeError]:
            return []

    with scheduler() as made:
        message = "the server failed at this text (ValueError); its log says where"
        assert error_of(made.put(Short(), [1])[0]) == (500, "internal_error", message)


def test_items_that_would_miss_their_deadline_are_refused_immediately() -> None:
    class Slow(Doubling):
        def run(self, items: Sequence[int], check_cancelled: Callable[[], None]) -> list[int | TranslumeError]:
            time.sleep(0.1 * len(items))
            return super().run(items, check_cancelled)

    slow = Slow()
    slow.open.set()
    with scheduler() as made:
        assert made.put(slow, [1])[0].result(120) == 2
        gate = made.hold()
        futures = made.put(slow, [1] * 30)
        with pytest.raises(RequestError, match=r"^the wait is about [\d.]+ s, expected at most 1 s, half of") as caught:
            made.put(slow, [90], 2)
        assert (caught.value.status, caught.value.code) == (503, "queue_full")
        retry_after, wait = caught.value.retry_after, float(str(caught.value).split()[4])
        assert retry_after is not None
        assert wait >= 3  # of 30 items that each take a tenth of a second, or more on a busy machine
        assert retry_after - 1.01 <= wait <= retry_after + 0.01  # rounded up; the message has three digits
        taken = made.put(slow, [1], 2)  # it is due before the others
        for future in futures[1:]:
            future.cancel()
        gate.open.set()
        assert taken[0].result(120) == 2


def test_several_lanes_process_batches_in_parallel_and_share_what_waits() -> None:
    first, second = Doubling(), Doubling()
    with scheduler(lanes=2) as made:
        futures = made.put(first, [1]) + made.put(second, [2])
        assert first.begun.wait(120)
        assert second.begun.wait(120)
        quick = made.put(opened(), [3])
        second.open.set()
        assert futures[1].result(120) == 4
        assert quick[0].result(120) == 6
        first.open.set()
        assert futures[0].result(120) == 2
    work = Doubling()
    with scheduler(lanes=2) as made:
        futures = made.put(work, [1, 2, 3, 4])
        while len(work.batches) < 2:
            time.sleep(0.001)
        work.open.set()
        assert [future.result(120) for future in futures] == [2, 4, 6, 8]
    assert sorted(map(len, work.batches)) in ([1, 3], [2, 2], [1, 1, 2])


def test_results_of_requests_that_end_together_wake_the_event_loop_once() -> None:
    futures = [[Future[int]() for _ in range(3)] for _ in range(2)]

    async def waited() -> tuple[list[Any], list[Any]]:
        loop, wakeups = asyncio.get_running_loop(), Wakeups()
        asked, wake = list[Any](), loop.call_soon_threadsafe
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", lambda call, *more: (asked.append(call), wake(call, *more)))
            both = [wakeups.gather(each) for each in futures]
            for number, each in enumerate(future for own in futures for future in own):
                each.set_result(number)
            found = await asyncio.gather(*both)
        return asked, found

    asked, found = asyncio.run(waited())
    assert found == [[0, 1, 2], [3, 4, 5]]
    assert len(asked) == 1


def test_the_first_error_of_a_request_is_raised_before_its_other_results() -> None:
    first, second = Future[int](), Future[int]()

    async def waited() -> None:
        whole = Wakeups().gather([first, second])
        second.set_exception(RequestError(422, "minus two"))
        with pytest.raises(RequestError, match=r"^minus two$"):
            await whole
        first.set_result(3)

    asyncio.run(waited())


def test_an_error_is_raised_if_the_last_result_overtakes_it() -> None:
    """One thread sets an error, and another the last result, before the first one has woken the event loop."""
    second = Future[int]()

    class Overtaken(Future[int]):
        def cancelled(self) -> bool:
            if self.done() and not second.done():
                second.set_result(3)
            return super().cancelled()

    async def waited() -> None:
        first = Overtaken()
        whole = Wakeups().gather([first, second])
        first.set_exception(RequestError(422, "minus two"))
        with pytest.raises(RequestError, match=r"^minus two$"):
            await asyncio.wait_for(whole, 5)

    asyncio.run(waited())
