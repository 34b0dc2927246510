"""Usage of keys, counted in SQLite by all servers that share the file.

Each limit is a bucket that holds `most`; usage is taken out, and it refills at a constant rate (a leaky bucket, Turner
1986). Time is the machine's monotonic clock, which all processes share, so setting the date has no effect. After a
reboot a bucket never holds more than it would have held.
"""

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translume.errors import DataError

LOCK_SECONDS = 2.0
"""Time to wait for the lock of another server."""

_TABLES = """
CREATE TABLE IF NOT EXISTS bucket (
    key TEXT NOT NULL, what TEXT NOT NULL, level REAL NOT NULL, at REAL NOT NULL, PRIMARY KEY (key, what)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (
    key TEXT NOT NULL, day TEXT NOT NULL, requests INTEGER NOT NULL, characters INTEGER NOT NULL, PRIMARY KEY (key, day)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A limit of a key.  what: "requests" or "characters".  most: capacity.  per_second: rate at which it refills.

    With infinite capacity, usage is only counted.
    """

    what: str
    most: float
    per_second: float


class UsageError(DataError):
    """Usage cannot be read or written."""


class Usage:
    """The usage of keys, by their ids. Thread-safe. Call `close` at the end."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Raises UsageError if the file cannot be written or is not such a database."""
        self.path, self._now = path, now
        self._lock = threading.Lock()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="translume-usage")
        """Runs the calls that wait for the disk or for another server's lock."""
        try:
            # SQLite would create the file readable by all users.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._base = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        except OSError as error:
            raise UsageError(f"{path}: usage cannot be counted: {error.strerror}") from None
        try:
            self._base.execute("PRAGMA journal_mode = WAL")
            # A power cut can lose the last transactions, but not corrupt the file.
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.executescript(_TABLES)
        except sqlite3.Error as error:
            self._base.close()
            raise UsageError(f"{path}: usage cannot be counted: {error}") from None

    def take(self, key: str, bucket: Bucket, amount: float) -> float:
        """Take `amount` from a key's bucket and return 0; or take nothing and return the seconds until it is available.

        Returns infinity if the bucket never holds that much. Raises UsageError.
        """
        if amount > bucket.most:
            return math.inf
        with self._lock:
            return float(self._whole(lambda: self._take(key, bucket, amount)))

    def give_back(self, key: str, bucket: Bucket, amount: float) -> None:
        """Refund an amount."""
        with self._lock:
            self._whole(lambda: self._put(key, bucket, min(bucket.most, self._level(key, bucket) + amount), -amount))

    def used(self, key: str, bucket: Bucket) -> float:
        """Return what is missing in a key's bucket; if its capacity is infinite, what was used today (UTC)."""
        with self._lock:
            return float(self._whole(lambda: self._used(key, bucket)))

    def close(self) -> None:
        """Close the database and end the thread."""
        self.thread.shutdown()
        with self._lock:
            self._base.close()

    def _take(self, key: str, bucket: Bucket, amount: float) -> float:
        level = self._level(key, bucket)
        if level < amount:
            return (amount - level) / bucket.per_second
        self._put(key, bucket, level - amount, amount)
        return 0.0

    def _used(self, key: str, bucket: Bucket) -> float:
        if not math.isinf(bucket.most):
            return bucket.most - self._level(key, bucket)
        column = "requests" if bucket.what == "requests" else "characters"
        rows = self._rows(f"SELECT {column} FROM used WHERE key = ? AND day = ?", key, _today())
        return float(rows[0][0]) if rows else 0.0

    def _level(self, key: str, bucket: Bucket) -> float:
        if math.isinf(bucket.most):
            return bucket.most
        rows = self._rows("SELECT level, at FROM bucket WHERE key = ? AND what = ?", key, bucket.what)
        if not rows:
            return bucket.most
        level, at = rows[0]
        now = self._now()
        if at > now:
            # The clock restarted with the machine. The time that passed meanwhile is unknown.
            self._base.execute("UPDATE bucket SET at = ? WHERE key = ? AND what = ?", (now, key, bucket.what))
            at = now
        return float(min(bucket.most, level + (now - at) * bucket.per_second))

    def _put(self, key: str, bucket: Bucket, level: float, used: float) -> None:
        if not math.isinf(level):
            self._base.execute(
                "INSERT INTO bucket VALUES (?, ?, ?, ?) "
                "ON CONFLICT (key, what) DO UPDATE SET level = excluded.level, at = excluded.at",
                (key, bucket.what, level, self._now()),
            )
        counts = (used, 0) if bucket.what == "requests" else (0, used)
        self._base.execute(
            "INSERT INTO used VALUES (?, ?, ?, ?) ON CONFLICT (key, day) "
            "DO UPDATE SET requests = requests + excluded.requests, characters = characters + excluded.characters",
            (key, _today(), *map(int, counts)),
        )

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._base.execute(query, values).fetchall()

    def _whole(self, change: Callable[[], Any]) -> Any:
        """Run a change as one transaction, and return its result."""
        try:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                result = change()
                self._base.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._base.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise UsageError(f"{self.path}: usage cannot be counted: {error}") from None
        return result


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def totals_in(path: Path) -> dict[str, tuple[int, int]]:
    """Return the total requests and characters of each key id in a file; empty if it does not exist."""
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=LOCK_SECONDS, uri=True)) as base:
            rows = base.execute("SELECT key, sum(requests), sum(characters) FROM used GROUP BY key").fetchall()
    except sqlite3.Error as error:
        raise UsageError(f"{path}: usage cannot be read: {error}") from None
    return {key: (requests, characters) for key, requests, characters in rows}
