"""Admission of requests by API key, and the limits of each key.

The requests of a minute and the characters of a day are counted in storages of the library `limits`, or in a file.
"""

import logging
import math
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope

from translume.errors import DataError
from translume.serving.access.keys import LARGEST, Key, Keys
from translume.serving.api.errors import DEEPL, RequestError, field_error
from translume.serving.connections import address_block
from translume.serving.settings import KeySettings

if TYPE_CHECKING:
    from limits.storage import Storage

OPEN: Final = frozenset(
    {
        *("/", "/docs", "/health", "/health/live", "/health/ready", "/openapi.json"),
        *("/languages", "/v2/languages", "/frontend/settings", "/v1/models", "/v1/info"),
    }
)
"""Paths that need no key: they describe the server and process no text."""
OPEN_BELOW: Final = ("/page/", "/download_file/")
"""Prefixes of further paths that need no key: files of the web page, and translated files under secret ids."""
IN_BODY: Final = frozenset({"/translate", "/detect", "/translate_file", "/v2/translate"})
"""Paths of LibreTranslate and DeepL, whose clients send the key in the body."""
OVER_QUOTA: Final = 456
"""DeepL's status if the quota of a key is used up."""
ACCESS: Final = "translume.access"
"""Scope entry: the `Access` when the request arrived, which a reload does not change; None if no key is required."""
ADMITTED: Final = "translume.key"
"""Scope entry: the key of an admitted request; None if its path needs no key. It is missing until admission."""
MINUTE: Final = 60
DAY: Final = 86_400
LOCK_SECONDS: Final = 2.0
"""Time to wait for the lock of another server."""


class CountFile:
    """Counts in an SQLite file, which all servers of a machine share."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        if os.path.exists(path) and not os.path.getsize(path):
            logging.getLogger("translume.serving").warning("%s: is empty; usage is counted from 0", path)
        # SQLite would create the file readable by all users.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._base = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        self._base.create_function("crc", 3, lambda *row: zlib.crc32(repr(row).encode()), deterministic=True)
        # A power cut can lose the last counts, but not corrupt the file.
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE):
            self._base.execute(statement)
        with suppress(sqlite3.OperationalError):  # it has the column, unless an earlier version made it
            self._base.execute("ALTER TABLE counts ADD COLUMN sum INTEGER")
        (fault,) = self._base.execute("PRAGMA quick_check").fetchone()
        if fault != "ok" or self._base.execute("SELECT 1 FROM counts WHERE sum != crc(key, amount, until)").fetchall():
            raise sqlite3.DatabaseError("damaged; restore it from a copy, or delete it to count from 0")

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add to a count, which begins at 0 when it is new or expired, and return it."""
        values = {"key": key, "seconds": expiry, "amount": amount, "now": time.time()}
        with self._lock:
            return int(self._base.execute(_COUNT, values).fetchall()[0][0])

    def get_expiry(self, key: str) -> float:
        """Return the Unix time at which a count expires."""
        with self._lock:
            return float(self._base.execute("SELECT until FROM counts WHERE key = ?", (key,)).fetchall()[0][0])


_TABLE: Final = """
CREATE TABLE IF NOT EXISTS counts
    (key TEXT PRIMARY KEY, amount INTEGER NOT NULL, until REAL NOT NULL, sum INTEGER) WITHOUT ROWID
"""
# The date may have been set back: then a count must not last for years, but for twice its time at most. Servers that
# wait for one another come with slightly older times, which must not begin a new count.
_GOES_ON: Final = "until > :now AND until <= excluded.until + :seconds"
_AMOUNT: Final = f"excluded.amount + iif({_GOES_ON}, amount, 0)"
_UNTIL: Final = f"iif({_GOES_ON}, until, excluded.until)"
_COUNT: Final = f"""
INSERT INTO counts VALUES (:key, :amount, :now + :seconds, crc(:key, :amount, :now + :seconds))
ON CONFLICT (key) DO UPDATE SET amount = {_AMOUNT}, until = {_UNTIL}, sum = crc(key, {_AMOUNT}, {_UNTIL})
RETURNING amount
"""


def open_counts(place: str) -> "CountFile | Storage":
    """Open a file, or an address such as "redis://localhost"; DataError if that fails."""
    from limits.errors import ConfigurationError, StorageError
    from limits.storage import Storage, storage_from_string

    try:
        if "://" not in place:
            return CountFile(place)
        storage = storage_from_string(place, wrap_exceptions=True)
        assert isinstance(storage, Storage)
        storage.check()
    except (OSError, sqlite3.Error, ConfigurationError, StorageError, AssertionError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise DataError(f"{place}: usage cannot be counted: {reason}") from None
    return storage


def open_access(settings: KeySettings, before: "Access | None" = None) -> "Access | None":
    """Open the API keys and counts of the settings; None if no key is required. Raises DataError.

    before: its counts are kept if they are in the same place.
    """
    if not settings.file:
        return None
    keys = Keys.read(Path(settings.file))
    if before is not None and before.settings.counted_in == settings.counted_in:
        return Access(keys, settings, before.counts)
    return Access(keys, settings, open_counts(settings.counted_in))


class Access:
    """API keys and the counts of their usage. A reload replaces it as a whole."""

    def __init__(self, keys: Keys, settings: KeySettings, counts: "CountFile | Storage") -> None:
        self.keys, self.settings, self.counts = keys, settings, counts

    async def admit(self, scope: Scope, secret: str) -> None:
        """Admit a request, and count it if it is a POST.

        Raises RequestError if the key is missing or unknown (401, or the status of LibreTranslate or DeepL at their
        paths), or its requests are used up (429).
        """
        key = self.keys.find(secret)
        if key is None:
            raise _refusal(scope["path"], secret)
        maximum = key.requests_per_minute or self.settings.requests_per_minute
        if scope["method"] == "POST" and (wait := await self._count(key, "requests", 1, maximum, MINUTE)):
            reason = f"the key's requests are used up, at most {maximum:,} a minute; try later"
            raise RequestError(429, reason, code="too_many_requests", retry_after=wait)
        scope[ADMITTED] = key

    async def charge(self, scope: Scope, characters: int) -> None:
        """Count characters before they are processed.

        Raises RequestError if the quota is used up (429) or never enough (403), at the paths of DeepL 456, or if the
        request is not admitted (401).
        """
        key = self.owner(scope)
        if key is None or not characters:
            return
        maximum = self._quota(key)
        deepl = OVER_QUOTA if scope["path"].startswith(DEEPL) else 0
        if characters > maximum:
            reason = f"found {characters:,} characters, expected at most {maximum:,}, the key's daily quota"
            raise RequestError(deepl or 403, reason, code="over_quota")
        if wait := await self._count(key, "characters", characters, maximum, DAY):
            reason = f"found {characters:,} characters, more than is left of the key's {maximum:,} a day; try later"
            raise RequestError(deepl or 429, reason, code="quota_used_up", retry_after=wait)

    async def used(self, key: Key) -> tuple[int, int]:
        """Return how many characters of a key's quota are used, and the quota; 0 if it is unlimited."""
        quota = self._quota(key)
        used = await _counted(lambda: used_of(self.counts, key)[1])
        return used, quota if quota < LARGEST else 0

    def owner(self, scope: Scope) -> Key | None:
        """Return the key of an admitted request; None if it needs no key."""
        if ADMITTED not in scope:
            raise RequestError(401, "found no key, expected 'Authorization: Bearer KEY'", code="no_key")
        key: Key | None = scope[ADMITTED]
        return key

    def _quota(self, key: Key) -> int:
        quota = self.settings.characters_per_day if key.characters_per_day is None else key.characters_per_day
        return quota or LARGEST

    async def _count(self, key: Key, what: str, amount: int, maximum: int, seconds: int) -> int:
        """Count usage and return 0; or count nothing and return the seconds until the count begins again."""

        def count() -> int:
            name = f"{key.id}/{what}"
            if self.counts.incr(name, seconds, amount) <= maximum:
                return 0
            self.counts.incr(name, seconds, -amount)
            return max(1, math.ceil(self.counts.get_expiry(name) - time.time()))

        return await _counted(count)


async def _counted(count: Callable[[], int]) -> int:
    """Return the result of a call that may wait for a lock or for another machine; RequestError (503) if it fails."""
    from limits.errors import StorageError

    try:
        return await run_in_threadpool(count)
    except (sqlite3.Error, StorageError):
        reason = "the usage of keys cannot be counted now; try later"
        raise RequestError(503, reason, code="usage_unavailable", retry_after=10) from None


def used_of(counts: "CountFile | Storage", key: Key) -> tuple[int, int]:
    """Return how many requests in this minute and how many characters in this day a key has used."""
    return counts.incr(f"{key.id}/requests", MINUTE, 0), counts.incr(f"{key.id}/characters", DAY, 0)


def _refusal(path: str, secret: str) -> RequestError:
    """Return the error for a key that is missing or unknown, as the clients of a path expect it."""
    code = "unknown_key" if secret else "no_key"
    reason = "the key is unknown to this server" if secret else "found no key"
    if path.startswith(DEEPL):
        return RequestError(403, f"{reason}, expected 'Authorization: DeepL-Auth-Key KEY'", code=code)
    if path in IN_BODY:
        ask = "Please contact the server operator to get an API key, and send it in the field api_key"
        status, reason = (403, "Invalid API key") if secret else (400, ask)
        return RequestError(status, reason, code=code, field="api_key")
    return RequestError(401, reason if secret else f"{reason}, expected 'Authorization: Bearer KEY'", code=code)


def bearer(scope: Scope) -> str:
    """Return the key in the Authorization header; empty if there is none.

    Raises RequestError for a malformed header (401, at the paths of DeepL 403).
    """
    values = Headers(scope=scope).getlist("authorization")
    if not values:
        return ""
    kind, _, secret = values[0].strip().partition(" ")
    if len(values) > 1 or kind.lower() not in ("bearer", "deepl-auth-key") or not secret.strip():
        deepl = scope["path"].startswith(DEEPL)
        status, expected = (403, "'DeepL-Auth-Key KEY'") if deepl else (401, "'Bearer KEY'")
        raise field_error("authorization", f"expected {expected}", status, "no_key")
    return secret.strip()


def is_open(path: str) -> bool:
    """Return whether a path needs no key."""
    return path in OPEN or path.startswith(OPEN_BELOW)


async def admit_by_headers(scope: Scope) -> None:
    """Admit a request by its headers, unless its path needs no key or its key may be in the body."""
    access: Access | None = scope[ACCESS]
    if access is None:
        return
    if is_open(scope["path"]):
        scope[ADMITTED] = None
        return
    for name in ("api_key", "auth_key"):
        if f"{name}=".encode() in unquote_to_bytes(scope["query_string"]):
            # URLs appear in the logs of proxies and in browser histories.
            reason = f"{name}: found in the URL, expected in the body or the Authorization header"
            raise RequestError(400, reason, code="key_in_address")
    if (secret := bearer(scope)) or scope["path"] not in IN_BODY:
        await access.admit(scope, secret)


def client_address(scope: Scope) -> str:
    """Return the address of a request's client, as a trusted proxy names it; empty if it is unknown."""
    return address_block((scope.get("client") or [""])[0])


def client_of(scope: Scope) -> str:
    """Return the client of a request: its key, or else its address."""
    key = scope.get(ADMITTED)
    return f"key {key.id}" if key is not None else client_address(scope)


def check_share(waiting: Sequence[str], client: str, capacity: int, what: str, retry_after: int) -> None:
    """Raise RequestError (503) if all places of a queue are taken, or three quarters of them by this client.

    waiting: the clients of the items in the queue.  client: empty for one that is unknown.  what: the items.
    """
    share = capacity - capacity // 4 if client else capacity
    if (count := len(waiting)) >= capacity:
        reason = f"{count:,} {what} are waiting, expected at most {capacity:,}; try later"
    elif (count := waiting.count(client)) >= share:
        reason = f"{count:,} of your {what} are waiting, expected at most {share:,}; try later"
    else:
        return
    raise RequestError(503, reason, code="queue_full", retry_after=retry_after)
