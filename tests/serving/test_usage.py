"""Usage of keys: never above the limit, whatever the system clock does, and without locking a key out."""

import math
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.serving.access.usage import Bucket, Usage, UsageError, totals_in


class Clock:
    """A settable clock: seconds since the machine was started."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


REQUESTS = Bucket(what="requests", most=5, per_second=0.5)
CHARACTERS = Bucket(what="characters", most=100, per_second=2.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def usage(tmp_path: Path, clock: Clock) -> Usage:
    return Usage(tmp_path / "keys.usage", clock)


def test_a_full_bucket_can_be_emptied_and_refills(usage: Usage, clock: Clock) -> None:
    assert [usage.take("one", REQUESTS, 1) for _ in range(6)] == [0, 0, 0, 0, 0, 2.0]
    clock.now += 1.5
    assert usage.take("one", REQUESTS, 1) == 0.5
    clock.now += 0.5
    assert usage.take("one", REQUESTS, 1) == 0
    assert usage.take("two", REQUESTS, 5) == 0
    assert usage.take("one", CHARACTERS, 60) == 0
    assert usage.take("one", CHARACTERS, 60) == 10.0
    clock.now += 1e6
    assert usage.take("one", CHARACTERS, 100) == 0


def test_more_than_the_capacity_of_a_bucket_is_never_granted(usage: Usage) -> None:
    assert math.isinf(usage.take("one", CHARACTERS, 101))
    assert usage.take("one", CHARACTERS, 100) == 0


def test_usage_without_a_limit_is_counted(usage: Usage) -> None:
    endless = Bucket(what="characters", most=math.inf, per_second=0.0)
    assert [usage.take("one", endless, 10**6) for _ in range(3)] == [0, 0, 0]
    usage.give_back("one", endless, 10**6)
    assert totals_in(usage.path) == {"one": (0, 2 * 10**6)}
    assert usage.take("one", CHARACTERS, 100) == 0
    assert usage.take("one", endless, 10**6) == 0


def test_usage_of_failed_requests_is_refunded(usage: Usage) -> None:
    usage.take("one", CHARACTERS, 70)
    usage.give_back("one", CHARACTERS, 70)
    assert usage.take("one", CHARACTERS, 100) == 0
    usage.give_back("one", CHARACTERS, 100)
    usage.give_back("one", CHARACTERS, 100)
    assert usage.take("one", CHARACTERS, 100) == 0
    assert usage.take("one", CHARACTERS, 1) == 0.5


@given(
    st.lists(
        st.tuples(
            st.floats(0, 200),
            st.integers(1, 120),
            st.booleans(),
            st.sampled_from(["one", "two"]),
        ),
        max_size=30,
    )
)
def test_no_key_exceeds_its_limit_and_waiting_long_enough_suffices(
    steps: list[tuple[float, int, bool, str]],
) -> None:
    """A step with True restarts the machine, and with it the clock."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        usage = Usage(Path(folder) / "usage", clock)
        elapsed, taken = 0.0, {"one": 0, "two": 0}
        for seconds, amount, restarted, key in steps:
            elapsed += seconds
            clock.now = seconds if restarted else clock.now + seconds
            wait = usage.take(key, CHARACTERS, amount)
            if amount > CHARACTERS.most:
                assert math.isinf(wait)
                continue
            if wait:
                clock.now += wait + 1e-6
                elapsed += wait + 1e-6
                assert usage.take(key, CHARACTERS, amount) == 0
            taken[key] += amount
            assert taken[key] <= CHARACTERS.most + elapsed * CHARACTERS.per_second + 1e-3
        usage.close()


def test_setting_the_date_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(tmp_path / "usage")
    slow = Bucket(what="requests", most=5, per_second=0.001)
    usage.take("one", slow, 5)
    for date in (4e9, 0.0):
        monkeypatch.setattr("time.time", lambda date=date: date)
        assert 900 < usage.take("one", slow, 1) <= 1000


def test_several_servers_share_their_counts(tmp_path: Path, clock: Clock) -> None:
    servers = [Usage(tmp_path / "usage", clock) for _ in range(3)]
    taken: list[float] = []

    def ask(usage: Usage) -> None:
        taken.extend(usage.take("one", CHARACTERS, 7) for _ in range(11))

    threads = [threading.Thread(target=ask, args=(usage,)) for usage in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken)[:14] == [0.0] * 14
    assert all(each > 0 for each in sorted(taken)[14:])
    assert totals_in(tmp_path / "usage") == {"one": (0, 98)}


def test_the_file_is_private_and_outlives_the_server(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "usage"
    first = Usage(path, clock)
    first.take("one", REQUESTS, 5)
    first.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Usage(path, clock).take("one", REQUESTS, 1) == 2.0


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


def test_a_file_that_is_not_a_database_gives_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_text("not a database, but a long enough text to be looked at" * 9)
    assert message_of(lambda: Usage(path)) == f"{path}: usage cannot be counted: file is not a database"
    assert message_of(lambda: totals_in(path)) == f"{path}: usage cannot be read: file is not a database"
    assert message_of(lambda: Usage(tmp_path)) == f"{tmp_path}: usage cannot be counted: Is a directory"
    assert totals_in(tmp_path / "nothing") == {}


def test_a_full_disk_gives_a_one_line_error_and_counts_nothing(usage: Usage) -> None:
    usage.take("one", CHARACTERS, 10)
    # Make SQLite report that the disk is full.
    pages = usage._base.execute("PRAGMA page_count").fetchone()[0]
    usage._base.execute(f"PRAGMA max_page_count = {pages}")
    reason = ""
    for number in range(1000):
        try:
            usage.take(f"key {number} {'x' * 500}", CHARACTERS, 10)
        except UsageError as error:
            reason = str(error)
            break
    assert reason == f"{usage.path}: usage cannot be counted: database or disk is full"
    assert usage.take("one", CHARACTERS, 90) == 0


def test_a_locked_file_is_waited_for_with_a_time_limit(usage: Usage, monkeypatch: pytest.MonkeyPatch) -> None:
    usage._base.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(usage.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert message_of(lambda: usage.take("one", REQUESTS, 1)) == (
            f"{usage.path}: usage cannot be counted: database is locked"
        )
        other.execute("ROLLBACK")
    assert usage.take("one", REQUESTS, 5) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_gives_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.touch(0o400)
    assert message_of(lambda: Usage(path)) == f"{path}: usage cannot be counted: Permission denied"
