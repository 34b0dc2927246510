"""Limits of keys: counted exactly, by all servers that share a file, and never for longer than a day."""

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.serving.conftest import message_of

from translume.serving.access import quotas
from translume.serving.access.keys import Key, Keys
from translume.serving.access.quotas import (
    ADMITTED,
    Access,
    CountFile,
    client_of,
    open_counts,
)
from translume.serving.api.errors import RequestError
from translume.serving.connections import address_block
from translume.serving.settings import KeySettings

KEY = Key(name="a", id="0f", salt="00", digest="11", made="2026-01-01")


class Clock:
    """A settable clock: seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(quotas, "time", clock)
    return clock


def access_to(place: Path | str, **settings: Any) -> Access:
    return Access(Keys((KEY,)), KeySettings(**settings), open_counts(str(place)))


def charge(access: Access, characters: int, path: str = "/v1/translate") -> RequestError | None:
    """Charge characters to the key; return the error if it is refused."""
    try:
        anyio.run(access.charge, {"path": path, ADMITTED: KEY}, characters)
    except RequestError as error:
        return error
    return None


@pytest.mark.parametrize("place", ["usage", "memory://"])
def test_a_quota_is_exact_to_the_character(tmp_path: Path, place: str) -> None:
    access = access_to(place if "://" in place else tmp_path / place, characters_per_day=40)
    assert [charge(access, 30), charge(access, 0)] == [None, None]
    refused = charge(access, 11)
    assert refused is not None
    assert (refused.status, refused.code, str(refused)) == (
        429,
        "quota_used_up",
        "found 11 characters, more than is left of the key's 40 a day; try later",
    )
    assert refused.retry_after is not None
    assert 86_390 <= refused.retry_after <= 86_400
    assert charge(access, 10) is None
    too_many = charge(access, 41)
    assert too_many is not None
    assert (too_many.status, str(too_many)) == (403, "found 41 characters, expected at most 40, the key's daily quota")
    assert anyio.run(access.used, KEY) == (40, 40)
    assert [charge(access, n, "/v2/translate").status for n in (1, 41)] == [456, 456]  # type: ignore[union-attr]


def test_without_a_quota_characters_are_only_counted(tmp_path: Path) -> None:
    access = access_to(tmp_path / "usage", characters_per_day=0)
    assert [charge(access, 10**6) for _ in range(3)] == [None] * 3
    assert anyio.run(access.used, KEY) == (3 * 10**6, 0)


def test_counts_begin_again_after_their_time(tmp_path: Path, clock: Clock) -> None:
    access = access_to(tmp_path / "usage", characters_per_day=40)
    assert charge(access, 40) is None
    clock.now += 86_399
    assert charge(access, 1) is not None
    clock.now += 1
    assert charge(access, 40) is None


def test_a_clock_that_is_set_back_does_not_lock_a_key_out(tmp_path: Path, clock: Clock) -> None:
    access = access_to(tmp_path / "usage", characters_per_day=40)
    assert charge(access, 40) is None
    clock.now -= 1e8
    assert charge(access, 40) is None
    clock.now += 86_400
    assert charge(access, 40) is None


def test_servers_that_share_a_file_never_grant_more_than_the_limit_and_keep_it_when_they_restart(
    tmp_path: Path,
) -> None:
    servers = [CountFile(str(tmp_path / "usage")) for _ in range(3)]
    granted: list[bool] = []

    def take(server: CountFile) -> None:
        for _ in range(11):
            if not (fits := server.incr("a", 60, 7) <= 100):
                server.incr("a", 60, -7)
            granted.append(fits)

    threads = [threading.Thread(target=take, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) <= 14
    assert CountFile(str(tmp_path / "usage")).incr("a", 60, 0) == 7 * sum(granted)
    assert stat.S_IMODE((tmp_path / "usage").stat().st_mode) == 0o600


def test_a_server_that_waited_for_another_does_not_begin_a_new_count(tmp_path: Path, clock: Clock) -> None:
    counts = CountFile(str(tmp_path / "usage"))
    assert counts.incr("a", 60, 7) == 7
    clock.now -= 1.5
    assert counts.incr("a", 60, 7) == 14


def test_places_that_cannot_be_used_give_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_bytes(b"not a database" * 99)
    for place, reason in (
        (str(path), "file is not a database"),
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "no" / "usage"), "No such file or directory"),
        ("nowhere://x", "unknown storage scheme : nowhere://x"),
    ):
        assert message_of(lambda place=place: open_counts(place)) == f"{place}: usage cannot be counted: {reason}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "usage").touch(0o400)
    assert message_of(lambda: open_counts(str(tmp_path / "usage"))).endswith("Permission denied")


def test_requests_get_503_while_another_process_locks_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "LOCK_SECONDS", 0.05)
    access = access_to(tmp_path / "usage")
    with closing(sqlite3.connect(tmp_path / "usage", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = charge(access, 1)
        other.execute("ROLLBACK")
    assert refused is not None
    assert (refused.status, str(refused)) == (503, "the usage of keys cannot be counted now; try later")
    assert charge(access, 1) is None


def test_addresses_are_grouped_by_what_a_client_has() -> None:
    assert address_block("192.0.2.1") == "192.0.2.1"
    assert address_block("::ffff:192.0.2.1") == "192.0.2.1"
    assert address_block("2001:db8::1") == address_block("2001:db8::ffff:1") != address_block("2001:db8:0:1::1")
    assert client_of({"client": ("192.0.2.1", 7)}) == "192.0.2.1"
    assert client_of({"client": None}) == ""
    assert client_of({"client": ("192.0.2.1", 7), ADMITTED: KEY}) == "key 0f"


def test_a_changed_count_is_damage_and_a_file_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "usage"
    with closing(sqlite3.connect(place)) as base:
        base.execute(
            "CREATE TABLE counts (key TEXT PRIMARY KEY, amount INT NOT NULL, until REAL NOT NULL) WITHOUT ROWID"
        )
        base.execute("INSERT INTO counts VALUES ('0f/characters', 5, 4e9)")
        base.commit()
    for expected in (5, 12, 19):
        counts = CountFile(str(place))
        assert counts.incr("0f/characters", 2_000_000_000, 0) == expected
        counts.incr("0f/characters", 2_000_000_000, 7)
        counts._base.close()
    with closing(sqlite3.connect(place)) as base:
        base.execute("UPDATE counts SET amount = 27")
        base.commit()
    reason = "usage cannot be counted: damaged; restore it from a copy, or delete it to count from 0"
    assert message_of(lambda: open_counts(str(place))) == f"{place}: {reason}"
