"""Admission of requests by API key, and charging of characters to a key's quota."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from translume.serving.access.keys import Key, Keys
from translume.serving.access.usage import LOCK_SECONDS, Bucket, Usage, UsageError
from translume.serving.api.errors import DEEPL, RequestError
from translume.serving.settings import KeySettings

OPEN: Final = frozenset(
    {
        *("/", "/docs", "/health", "/health/live", "/health/ready", "/openapi.json"),
        *("/languages", "/v2/languages", "/frontend/settings", "/v1/models", "/v1/info"),
    }
)
"""Paths that need no key: they describe the server and process no text."""
OPEN_BELOW: Final = ("/page/", "/download_file/")
"""Prefixes of further paths that need no key: files of the web page, and translated files under secret ids."""
OVER_QUOTA: Final = 456
"""DeepL's status if the quota of a key is used up."""
IN_BODY: Final = frozenset({"/translate", "/detect", "/translate_file", "/v2/translate"})
"""Paths of LibreTranslate and DeepL, whose clients send the key in the body."""
ACCESS: Final = "translume.access"
"""Scope entry: the `Access` when the request arrived, which a reload does not change; None if no key is required."""
ADMITTED: Final = "translume.key"
"""Scope entry: the key of an admitted request; None if its path needs no key. It is missing until admission."""
CHARGED: Final = "translume.charged"
"""Scope entry: the number of characters charged."""
STILL_CHARGED: Final = (499, 504)
"""Statuses of failed requests that stay charged: work may have been done, and the server is not at fault."""

T = TypeVar("T")


class Access:
    """API keys and their usage. A reload replaces it as a whole; the caller closes `usage`."""

    def __init__(self, keys: Keys, usage: Usage, settings: KeySettings) -> None:
        self.keys, self.usage, self.settings = keys, usage, settings

    async def admit(self, scope: Scope, secret: str) -> None:
        """Admit a request, and count it if it is a POST.

        Raises RequestError if the key is missing or unknown (401, or the status of LibreTranslate or DeepL at their
        paths), or its requests are used up (429).
        """
        path = scope["path"]
        libretranslate = path in IN_BODY
        if path.startswith(DEEPL) and (not secret or self.keys.find(secret) is None):
            expected = "expected 'Authorization: DeepL-Auth-Key KEY'"
            found = "the key is unknown to this server" if secret else "found no key"
            raise RequestError(403, f"{found}, {expected}", code="unknown_key" if secret else "no_key")
        if not secret:
            if libretranslate:
                reason = "Please contact the server operator to get an API key, and send it in the field api_key"
                raise RequestError(400, reason, code="no_key", field="api_key")
            raise RequestError(401, "found no key, expected 'Authorization: Bearer KEY'", code="no_key")
        key = self.keys.find(secret)
        if key is None:
            if libretranslate:
                raise RequestError(403, "Invalid API key", code="unknown_key", field="api_key")
            raise RequestError(401, "the key is unknown to this server", code="unknown_key")
        works = scope["method"] == "POST"
        if works and (wait := await self._counted(lambda: self.usage.take(key.id, self._requests(key), 1))):
            raise RequestError(
                429,
                f"the key's requests are used up, at most {self._requests(key).most:,.0f} at once; try later",
                code="too_many_requests",
                retry_after=math.ceil(wait),
            )
        scope[ADMITTED] = key

    async def charge(self, scope: Scope, characters: int) -> None:
        """Charge characters before they are processed.

        Raises RequestError if the quota is used up (429) or never enough (403), at the paths of DeepL 456, or if the
        request is not admitted (401).
        """
        key = self.owner(scope)
        if key is None or not characters:
            return
        bucket = self._characters(key)
        wait = await self._counted(lambda: self.usage.take(key.id, bucket, characters))
        deepl = scope["path"].startswith(DEEPL)
        if math.isinf(wait):
            raise RequestError(
                OVER_QUOTA if deepl else 403,
                f"found {characters:,} characters, expected at most {bucket.most:,.0f}, the key's daily quota",
                code="over_quota",
            )
        if wait:
            raise RequestError(
                OVER_QUOTA if deepl else 429,
                f"found {characters:,} characters, more than is left of the key's {bucket.most:,.0f} a day; try later",
                code="quota_used_up",
                retry_after=math.ceil(wait),
            )
        scope[CHARGED] = characters

    async def used(self, key: Key) -> tuple[int, int]:
        """Return how many characters of a key's quota are used, and the quota; without one, those of today and 0."""
        bucket = self._characters(key)
        used = await self._counted(lambda: self.usage.used(key.id, bucket))
        return math.ceil(used), 0 if math.isinf(bucket.most) else int(bucket.most)

    async def give_back(self, key: Key, characters: int) -> None:
        """Refund a charge."""
        await self._counted(lambda: self.usage.give_back(key.id, self._characters(key), characters))

    def owner(self, scope: Scope) -> Key | None:
        """Return the key of an admitted request; None if it needs no key."""
        if ADMITTED not in scope:
            raise RequestError(401, "found no key, expected 'Authorization: Bearer KEY'", code="no_key")
        key: Key | None = scope[ADMITTED]
        return key

    def _requests(self, key: Key) -> Bucket:
        own = self.settings
        burst = key.burst if key.burst is not None else own.burst
        rate = key.requests_per_minute if key.requests_per_minute is not None else own.requests_per_minute
        return Bucket(what="requests", most=burst, per_second=rate / 60)

    def _characters(self, key: Key) -> Bucket:
        own = self.settings.characters_per_day if key.characters_per_day is None else key.characters_per_day
        return Bucket(what="characters", most=own or math.inf, per_second=own / 86400)

    async def _counted(self, count: Callable[[], T]) -> T:
        started = time.monotonic()

        def in_time() -> T:
            # While another server holds the lock, queued calls would wait one lock timeout each.
            if time.monotonic() - started > LOCK_SECONDS:
                raise UsageError(f"{self.usage.path}: usage cannot be counted: timed out")
            return count()

        try:
            return await asyncio.get_running_loop().run_in_executor(self.usage.thread, in_time)
        except UsageError:
            raise RequestError(
                503, "the usage of keys cannot be counted now; try later", code="usage_unavailable", retry_after=10
            ) from None


def bearer(scope: Scope) -> str:
    """Return the key in the Authorization header; empty if there is none.

    Raises RequestError for a malformed header (401, at the paths of DeepL 403).
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        return ""
    head: bytes = given[0]
    kind, _, secret = head.decode("latin-1").strip().partition(" ")
    if len(given) > 1 or kind.lower() not in ("bearer", "deepl-auth-key") or not secret.strip():
        deepl = scope["path"].startswith(DEEPL)
        status, expected = (403, "'DeepL-Auth-Key KEY'") if deepl else (401, "'Bearer KEY'")
        raise RequestError(status, f"authorization: expected {expected}", code="no_key", field="authorization")
    return secret.strip()


def is_open(path: str) -> bool:
    """Return whether a path needs no key."""
    return path in OPEN or path.startswith(OPEN_BELOW)


def with_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Add to an OpenAPI document which paths take a key. It is optional, as the server may not require one."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["key"] = {"type": "http", "scheme": "bearer", "description": "An API key, if the server requires one."}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if not is_open(path):
                operation["security"] = [{"key": []}, {}]
    return document


async def admit_by_headers(scope: Scope) -> None:
    """Admit a request by its headers, unless its path needs no key or its key may be in the body."""
    access: Access | None = scope[ACCESS]
    if access is None:
        return
    path = scope["path"]
    if is_open(path):
        scope[ADMITTED] = None
        return
    query = unquote_to_bytes(scope["query_string"])
    for name in ("api_key", "auth_key"):
        if f"{name}=".encode() in query:
            # URLs appear in the logs of proxies and in browser histories.
            reason = f"{name}: found in the URL, expected in the body or the Authorization header"
            raise RequestError(400, reason, code="key_in_address")
    secret = bearer(scope)
    if secret or path not in IN_BODY:
        await access.admit(scope, secret)


async def refund_if_failed(scope: Scope, status: int) -> None:
    """Refund the charge of a request that failed, unless its status is in `STILL_CHARGED`."""
    if scope.get(CHARGED) and status >= 400 and status not in STILL_CHARGED:
        with suppress(RequestError):
            await scope[ACCESS].give_back(scope[ADMITTED], scope[CHARGED])
