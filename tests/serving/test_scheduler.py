"""The scheduler answers every accepted item as if it were alone, and refuses the others immediately."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.errors import TranslumeError
from translume.serving.api.errors import RequestError
from translume.serving.background import Wakeups
from translume.serving.workers.scheduler import BatchDone, ItemFuture, Scheduler


@dataclass(eq=False)
class Doubling:
    """Doubles numbers; the size of a number is its value. -1 has no size, -2 cannot be doubled, -3 breaks the batch."""

    open: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    batches: list[list[int]] = field(default_factory=list)

    def size(self, item: int) -> int:
        if item == -1:
            raise RequestError(422, "minus one")
        return abs(item)

    def run(self, items: Sequence[int]) -> list[int | TranslumeError]:
        self.batches.append(list(items))
        self.begun.set()
        assert self.open.wait(120)
        if -3 in items:
            raise RuntimeError("a secret")
        return [RequestError(422, "minus two") if item == -2 else 2 * item for item in items]


def opened() -> Doubling:
    work = Doubling()
    work.open.set()
    return work


@contextmanager
def scheduler(
    queue: int = 100, batch_tokens: int = 10, batches: list[BatchDone] | None = None, workers: int = 1
) -> Iterator[Scheduler]:
    on_batch = None if batches is None else batches.append
    made = Scheduler(queue=queue, batch_tokens=batch_tokens, on_batch=on_batch, workers=workers)
    try:
        yield made
    finally:
        made.close(10)


@given(requests=st.lists(st.lists(st.integers(-3, 12), max_size=7), max_size=9), workers=st.integers(1, 3))
def test_every_item_gets_its_own_result_and_no_batch_exceeds_the_budget(
    requests: list[list[int]], workers: int
) -> None:
    work, batches = opened(), list[BatchDone]()
    with scheduler(batches=batches, workers=workers) as made:
        futures = [made.submit(work, items, 60) for items in requests]
        for items, found in zip(requests, futures, strict=True):
            for item, future in zip(items, found, strict=True):
                if item >= 0:
                    assert future.result(120) == 2 * item
                    continue
                with pytest.raises(RequestError) as caught:
                    future.result(120)
                wanted = {-1: "minus one", -2: "minus two"}
                broken = "the server failed at this text (RuntimeError); its log says where"
                assert str(caught.value) == wanted.get(item, broken)
    assert all(len(batch) == 1 or sum(map(abs, batch)) <= 10 for batch in work.batches)
    assert sum(each.items for each in batches) == sum(item != -1 for items in requests for item in items)
    assert all(seconds >= 0 for each in batches for seconds in each.waited)


def test_items_of_the_same_work_are_batched_together_and_others_apart() -> None:
    first, second, gate = opened(), opened(), Doubling()
    with scheduler() as made:
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        for number in range(4):
            made.submit(first if number % 2 else second, [number], 60)
        gate.open.set()
    assert (first.batches, second.batches) == ([[1, 3]], [[0, 2]])


def test_an_item_whose_size_cannot_be_computed_fails_alone() -> None:
    class Uncountable(Doubling):
        def size(self, item: int) -> int:
            if item == 7:
                raise RuntimeError
            return super().size(item)

    work = Uncountable()
    work.open.set()
    with scheduler(batch_tokens=100) as made:
        found = made.submit(work, [1, -1, 7, 2, 7, 3], 60)
        errors = [future.exception(10) for future in found]
        assert [future.result(0) for future, error in zip(found, errors, strict=True) if error is None] == [2, 4, 6]
    assert [error.status if isinstance(error, RequestError) else 0 for error in errors] == [0, 422, 500, 0, 500, 0]


def test_a_full_queue_refuses_immediately_with_retry_after() -> None:
    work = Doubling()
    with scheduler(queue=5) as made:
        running = made.submit(work, [1], 60)
        work.begun.wait(120)
        made.submit(work, [1, 2, 3], 60)
        with pytest.raises(RequestError) as caught:  # while the worker is held
            made.submit(work, [4, 5, 6], 60)
        assert (caught.value.status, caught.value.code) == (503, "queue_full")
        assert str(caught.value) == "the queue is full: 3 lines waiting, 3 new, at most 5; try later"
        assert caught.value.headers == {"Retry-After": "1"}
        taken = made.submit(work, [4, 5], 60)
        work.open.set()
        assert [future.result(120) for future in running + taken] == [2, 8, 10]


def test_cancelled_items_are_not_processed_and_free_their_place() -> None:
    work = Doubling()
    with scheduler(queue=3) as made:
        made.submit(work, [1], 60)
        work.begun.wait(120)
        for future in made.submit(work, [2, 3, 4], 60):
            assert future.cancel()
        kept = made.submit(work, [5, 6], 60)
        assert made.waiting == 2
        assert kept[0].cancel()
        work.open.set()
        assert kept[1].result(120) == 12
    assert work.batches == [[1], [6]]


def test_refusing_does_not_scan_a_queue_without_cancelled_items(monkeypatch: pytest.MonkeyPatch) -> None:
    work, looks, cancelled = Doubling(), list[ItemFuture](), ItemFuture.cancelled

    def inspected(future: ItemFuture) -> bool:
        looks.append(future)
        return cancelled(future)

    with scheduler(queue=5) as made:
        made.submit(work, [1], 60)
        assert work.begun.wait(120)
        futures = made.submit(work, [2, 3, 4, 5, 6], 60)
        monkeypatch.setattr(ItemFuture, "cancelled", inspected)
        assert [made.refusal(60) is None for _ in range(3)] == [False] * 3
        assert looks == []
        assert futures[2].cancel()
        assert [made.refusal(60) is None for _ in range(3)] == [True] * 3
        assert sorted(map(id, looks)) == sorted(map(id, futures))
        work.open.set()


@dataclass(eq=False)
class Endless(Doubling):
    """Runs until it is cancelled."""

    def run_cancellable(self, items: Sequence[int], check_cancelled: Callable[[], None]) -> list[int | TranslumeError]:
        self.batches.append(list(items))
        self.begun.set()
        for _ in range(10_000):
            check_cancelled()
            time.sleep(0.002)
        raise AssertionError("somebody seems to wait")


def test_work_is_stopped_when_all_its_requests_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    work, gate = Endless(), Doubling()
    with scheduler() as made:
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        first, second = made.submit(work, [1, 2], 60)
        gate.open.set()
        assert work.begun.wait(120)
        assert not first.cancel()
        time.sleep(0.05)
        assert not second.done()
        second.cancel()
        for each in (first, second):
            with pytest.raises(RequestError, match=r"^the request was cancelled$"):
                each.result(120)
        assert made.submit(opened(), [3], 60)[0].result(120) == 6
    assert work.batches == [[1, 2]]
    assert not caplog.records


class Apart(Doubling):
    """Gives back each item at once, the second only when it is open, or never if it is cancelled before."""

    def run_each(self, items: Sequence[int], unneeded: Callable[[], Any]) -> Iterator[tuple[int, int]]:
        self.batches.append(list(items))
        for place, item in enumerate(items):
            while place == 1 and not self.open.wait(0.01):
                if place in unneeded():
                    break
            else:
                yield place, 2 * item


def test_an_item_is_given_back_before_the_others_of_its_batch_and_cancelled_alone() -> None:
    work, gate = Apart(), Doubling()
    with scheduler() as made:
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        first, second, third = made.submit(work, [1, 2, 3], 60)
        gate.open.set()
        assert first.result(120) == 2
        assert not third.done()
        assert not second.cancel()
        assert third.result(120) == 6
        with pytest.raises(RequestError, match=r"^the request was cancelled$"):
            second.result(120)
    assert work.batches == [[1, 2, 3]]


def test_items_past_their_deadline_are_dropped_unprocessed() -> None:
    work = Doubling()
    with scheduler() as made:
        made.submit(work, [1], 60)
        work.begun.wait(120)
        late, timely = made.submit(work, [2], 0.01), made.submit(work, [3], 60)
        time.sleep(0.02)
        work.open.set()
        with pytest.raises(RequestError, match=r"^the text was still in the queue at its deadline$") as caught:
            late[0].result(120)
        assert caught.value.status == 504
        assert timely[0].result(120) == 6
    assert work.batches == [[1], [3]]


def test_short_requests_are_served_before_the_rest_of_a_long_one() -> None:
    work = Doubling()
    with scheduler(batch_tokens=3) as made:
        made.submit(work, [1], 60)
        work.begun.wait(120)
        made.submit(work, [2] * 50, 60)
        time.sleep(0.02)
        made.submit(work, [3], 60)
        work.open.set()
    assert [3] in work.batches[1:7]


def test_closing_finishes_waiting_items_and_refuses_new_ones() -> None:
    work = Doubling()
    made = Scheduler(queue=9, batch_tokens=1)
    futures = made.submit(work, [1, 2, 3], 60)
    closer = threading.Thread(target=made.close)
    closer.start()
    while not made.closing:
        time.sleep(0.001)
    with pytest.raises(RequestError, match=r"^the server is shutting down; use another one$") as caught:
        made.submit(work, [4], 60)
    assert (caught.value.status, caught.value.code) == (503, "shutting_down")
    work.open.set()
    closer.join(120)
    assert [future.result(0) for future in futures] == [2, 4, 6]
    assert made.close(1)


def test_closing_with_a_timeout_fails_the_waiting_items() -> None:
    work = Doubling()
    made = Scheduler(queue=9, batch_tokens=1)
    running, waiting = made.submit(work, [1], 60), made.submit(work, [2], 60)
    work.begun.wait(120)
    assert not made.close(0.01)
    with pytest.raises(RequestError, match=r"^the server stopped before it processed the text$"):
        waiting[0].result(120)
    work.open.set()
    assert running[0].result(120) == 2


def test_the_text_of_an_unexpected_error_is_not_returned(caplog: pytest.LogCaptureFixture) -> None:
    work = opened()
    with scheduler() as made, pytest.raises(RequestError):
        made.submit(work, [-3], 60)[0].result(120)
    assert "work failed" in caplog.text
    assert "secret" not in caplog.text


@dataclass(eq=False)
class Failing(Doubling):
    """Doubles numbers, but raises each of `errors` first; counts its runs."""

    errors: list[BaseException] = field(default_factory=list)
    runs: int = 0

    def run(self, items: Sequence[int]) -> list[int | TranslumeError]:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return super().run(items)


@pytest.mark.parametrize("error", [RuntimeError("a secret"), MemoryError(), SystemExit(3), KeyboardInterrupt()])
def test_items_of_a_failed_batch_are_retried_alone(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    work = Failing(errors=[error])
    work.open.set()
    with scheduler() as made:
        assert [future.result(120) for future in made.submit(work, [1, 2, 3], 60)] == [2, 4, 6]
    assert work.batches == [[1], [2], [3]]
    assert "secret" not in caplog.text


def test_cancelled_items_of_a_failed_batch_are_not_queued_again() -> None:
    work, waiting = Doubling(), list[int]()
    with scheduler() as made:
        first, second = made.submit(work, [1, -3], 60)
        assert work.begun.wait(10)
        for each in (first, second):
            each.cancel()
            each.add_done_callback(lambda _: waiting.append(made.waiting))
        work.open.set()
        for each in (first, second):
            with pytest.raises(RequestError, match=r"^the request was cancelled$"):
                each.result(10)
    assert waiting == [0, 0]


def test_an_item_that_fails_twice_does_not_fail_the_others() -> None:
    work = Failing(errors=[RuntimeError(), RuntimeError()])
    work.open.set()
    with scheduler() as made:
        one, two = made.submit(work, [1, 2], 60)
        with pytest.raises(RequestError) as caught:
            one.result(120)
        assert (caught.value.status, caught.value.code) == (500, "internal_error")
        assert two.result(120) == 4
    assert work.runs == 3


def test_too_few_results_are_an_internal_error() -> None:
    class Short(Doubling):
        def run(self, items: Sequence[int]) -> list[int | TranslumeError]:
            return super().run(items)[1:]

    work = Short()
    work.open.set()
    with scheduler() as made, pytest.raises(RequestError, match=r"^the server failed at this text \(RuntimeError\)"):
        made.submit(work, [1, 2], 60)[0].result(120)


def test_deadlines_do_not_depend_on_the_system_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Doubling()
    with scheduler() as made:
        made.submit(work, [1], 60)
        work.begun.wait(120)
        timely, late = made.submit(work, [2], 60), made.submit(work, [3], 0.01)
        for jump in (1e9, -1e9):
            monkeypatch.setattr(time, "time", lambda jump=jump: jump)
            time.sleep(0.02)
        work.open.set()
        assert timely[0].result(120) == 4
        with pytest.raises(RequestError, match=r"^the text was still in the queue at its deadline$"):
            late[0].result(120)


def test_an_error_in_the_batch_callback_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    def failing_callback(done: BatchDone) -> None:
        raise ValueError("no")

    made = Scheduler(queue=9, batch_tokens=10, on_batch=failing_callback)
    assert [made.submit(opened(), [number], 60)[0].result(120) for number in (1, 2)] == [2, 4]
    assert made.close(10)
    assert "work failed" in caplog.text


@dataclass(eq=False)
class Slow(Doubling):
    """Takes a tenth of a second for each number."""

    def run(self, items: Sequence[int]) -> list[int | TranslumeError]:
        time.sleep(0.1 * len(items))
        return super().run(items)


def test_items_that_would_miss_their_deadline_are_refused_immediately() -> None:
    slow, gate = Slow(), Doubling()
    slow.open.set()
    with scheduler() as made:
        assert made.submit(slow, [1], 60)[0].result(120) == 2
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        for _ in range(8):
            made.submit(slow, [1], 60)
        with pytest.raises(RequestError) as caught:  # while the worker is held
            made.submit(slow, [2], 1)
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "queue_full", 1)
        assert re.fullmatch(
            r"the wait is about [\d.]+ s, expected at most 0\.5 s, half of the request's timeout; try later",
            str(caught.value),
        )
        refused = made.refusal(1)
        assert refused is not None
        assert refused.status == 503
        assert made.refusal(60) is None
        patient = made.submit(slow, [2], 60)
        gate.open.set()
        assert patient[0].result(120) == 4


def test_a_waiting_long_request_does_not_cause_short_ones_to_be_refused() -> None:
    slow, gate = Slow(), Doubling()
    slow.open.set()
    with scheduler() as made:
        assert made.submit(slow, [1], 60)[0].result(120) == 2
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        long = made.submit(slow, [1] * 90, 60)
        short = made.submit(slow, [2], 4)
        gate.open.set()
        assert short[0].result(120) == 4
        for future in long:
            future.cancel()


def test_a_short_request_behind_long_ones_is_accepted_and_served_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("translume.serving.workers.scheduler.time", SimpleNamespace(monotonic=lambda: clock.now))

    class Timed(Doubling):
        """Processes 20 items a second by a simulated clock."""

        def run(self, items: Sequence[int]) -> list[int | TranslumeError]:
            clock.now += 0.05 * len(items)
            return super().run(items)

    timed, gate = Timed(), Doubling()
    timed.open.set()
    with scheduler(queue=5000) as made:
        assert made.submit(timed, [1], 60)[0].result(120) == 2
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        long = [future for _ in range(3) for future in made.submit(timed, [1] * 1000, 600)]
        clock.now += 10
        short = made.submit(timed, [2], 60)
        gate.open.set()
        assert short[0].result(120) == 4
        done = [item for batch in timed.batches for item in batch]
        assert done.index(2) <= 10 / 0.05
        for future in long:
            future.cancel()


def test_the_costly_requests_of_one_client_wait_for_each_other_and_not_others_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("translume.serving.workers.scheduler.time", SimpleNamespace(monotonic=lambda: clock.now))
    started: list[tuple[int, float]] = []
    arrivals: list[float] = []

    class Timed(Doubling):
        """Processes 100 tokens a second by a simulated clock; a usual item arrives during each costly one."""

        def run(self, items: Sequence[int]) -> list[int | TranslumeError]:
            started.extend((item, clock.now) for item in items)
            if items[0] == 100:
                arrivals.append(clock.now + 0.5)
                clock.now += 0.5
                usual.extend(made.submit(timed, [1], 600))
                clock.now -= 0.5
            clock.now += 0.01 * sum(items)
            return super().run(items)

    timed, gate = Timed(), Doubling()
    usual: list[Any] = []
    timed.open.set()
    with scheduler(queue=5000, batch_tokens=100) as made:
        assert made.submit(timed, [1], 60)[0].result(120) == 2
        made.submit(gate, [1], 60)
        gate.begun.wait(120)
        costly = [future for _ in range(8) for future in made.submit(timed, [100] * 3, 600, "an address")]
        usual.extend(made.submit(timed, [1], 600))
        gate.open.set()
        assert [future.result(120) for future in costly] == [200] * 24
        assert [future.result(120) for future in usual] == [2] * 25
    assert started[1] == (1, started[0][1] + 0.01)  # before all costly ones
    begun = [when for item, when in started if item == 1][2:]
    assert [when - came for when, came in zip(begun, arrivals, strict=True)] == pytest.approx([0.5] * 24)


def test_several_workers_process_batches_in_parallel() -> None:
    first, second = Doubling(), Doubling()
    with scheduler(workers=2) as made:
        futures = made.submit(first, [1], 60) + made.submit(second, [2], 60)
        assert first.begun.wait(120)
        assert second.begun.wait(120)
        quick = made.submit(opened(), [3], 60)
        second.open.set()
        assert futures[1].result(120) == 4
        assert quick[0].result(120) == 6
        first.open.set()
        assert futures[0].result(120) == 2


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
