"""Everything that was taken is answered, alone or in company; what cannot be taken is refused at once."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.errors import TranslumeError
from translume.serving.request_error import RequestError
from translume.serving.scheduler import BatchDone, Scheduler


@dataclass(eq=False)
class Doubling:
    """Doubles numbers; a number is its own size. -1 cannot be measured, -2 cannot be doubled, -3 breaks everything."""

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
        assert self.open.wait(10)
        if -3 in items:
            raise RuntimeError("a secret")
        return [RequestError(422, "minus two") if item == -2 else 2 * item for item in items]


def opened() -> Doubling:
    work = Doubling()
    work.open.set()
    return work


@contextmanager
def scheduler(queue: int = 100, batch_tokens: int = 10, told: list[BatchDone] | None = None) -> Iterator[Scheduler]:
    made = Scheduler(queue=queue, batch_tokens=batch_tokens, told=None if told is None else told.append)
    try:
        yield made
    finally:
        made.close(10)


@given(requests=st.lists(st.lists(st.integers(-3, 12), max_size=7), max_size=9))
def test_every_item_gets_its_own_answer_and_no_batch_exceeds_the_budget(requests: list[list[int]]) -> None:
    work, told = opened(), list[BatchDone]()
    with scheduler(told=told) as made:
        futures = [made.submit(work, items, 60) for items in requests]
        for items, found in zip(requests, futures, strict=True):
            for item, future in zip(items, found, strict=True):
                if item >= 0:
                    assert future.result(10) == 2 * item
                    continue
                with pytest.raises(RequestError) as caught:
                    future.result(10)
                wanted = {-1: "minus one", -2: "minus two"}
                broken = "the server failed at this text (RuntimeError); its log says where"
                assert str(caught.value) == wanted.get(item, broken)
    assert all(len(batch) == 1 or sum(map(abs, batch)) <= 10 for batch in work.batches)
    assert sum(each.items for each in told) == sum(item != -1 for items in requests for item in items)
    assert all(seconds >= 0 for each in told for seconds in each.waited)


def test_items_of_unlike_works_are_done_apart_and_of_like_works_together() -> None:
    first, second, gate = opened(), opened(), Doubling()
    with scheduler() as made:
        made.submit(gate, [1], 60)
        gate.begun.wait(10)
        for number in range(4):
            made.submit(first if number % 2 else second, [number], 60)
        gate.open.set()
    assert (first.batches, second.batches) == ([[1, 3]], [[0, 2]])


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    work = Doubling()
    with scheduler(queue=5) as made:
        running = made.submit(work, [1], 60)
        work.begun.wait(10)
        made.submit(work, [1, 2, 3], 60)
        begun = time.monotonic()
        with pytest.raises(RequestError) as caught:
            made.submit(work, [4, 5, 6], 60)
        assert time.monotonic() - begun < 1
        assert (caught.value.status, caught.value.code) == (503, "queue_full")
        assert str(caught.value) == "3 lines wait and 3 came, wanted at most 5; try later"
        assert caught.value.headers == {"Retry-After": "1"}
        taken = made.submit(work, [4, 5], 60)
        work.open.set()
        assert [future.result(10) for future in running + taken] == [2, 8, 10]


def test_what_is_cancelled_is_not_worked_on_and_leaves_its_place() -> None:
    work = Doubling()
    with scheduler(queue=3) as made:
        made.submit(work, [1], 60)
        work.begun.wait(10)
        for future in made.submit(work, [2, 3, 4], 60):
            assert future.cancel()
        kept = made.submit(work, [5, 6], 60)
        assert made.waiting == 2
        assert kept[0].cancel()
        work.open.set()
        assert kept[1].result(10) == 12
    assert work.batches == [[1], [6]]


def test_what_waits_past_its_deadline_is_given_up_unworked() -> None:
    work = Doubling()
    with scheduler() as made:
        made.submit(work, [1], 60)
        work.begun.wait(10)
        late, timely = made.submit(work, [2], 0.01), made.submit(work, [3], 60)
        time.sleep(0.02)
        work.open.set()
        with pytest.raises(RequestError, match=r"^the text waited for its turn until its deadline$") as caught:
            late[0].result(10)
        assert caught.value.status == 504
        assert timely[0].result(10) == 6
    assert work.batches == [[1], [3]]


def test_short_requests_come_before_the_rest_of_a_long_one() -> None:
    work = Doubling()
    with scheduler(batch_tokens=3) as made:
        made.submit(work, [1], 60)
        work.begun.wait(10)
        made.submit(work, [2] * 50, 60)
        time.sleep(0.02)
        made.submit(work, [3], 60)
        work.open.set()
    assert [3] in work.batches[1:7]


def test_closing_finishes_what_waits_and_takes_no_more() -> None:
    work = Doubling()
    made = Scheduler(queue=9, batch_tokens=1)
    futures = made.submit(work, [1, 2, 3], 60)
    closer = threading.Thread(target=made.close)
    closer.start()
    while not made.closing:
        time.sleep(0.001)
    with pytest.raises(RequestError, match=r"^the server is shutting down, wanted another one$") as caught:
        made.submit(work, [4], 60)
    assert (caught.value.status, caught.value.code) == (503, "shutting_down")
    work.open.set()
    closer.join(10)
    assert [future.result(0) for future in futures] == [2, 4, 6]
    assert made.close(1)


def test_closing_in_haste_tells_those_who_wait() -> None:
    work = Doubling()
    made = Scheduler(queue=9, batch_tokens=1)
    running, waiting = made.submit(work, [1], 60), made.submit(work, [2], 60)
    work.begun.wait(10)
    assert not made.close(0.01)
    with pytest.raises(RequestError, match=r"^the server was stopped before the text's turn$"):
        waiting[0].result(10)
    work.open.set()
    assert running[0].result(10) == 2


def test_what_an_error_said_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    work = opened()
    with scheduler() as made, pytest.raises(RequestError):
        made.submit(work, [-3], 60)[0].result(10)
    assert "work failed" in caplog.text
    assert "secret" not in caplog.text
