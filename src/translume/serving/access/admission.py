"""Who may ask for what: a key in each request, and what it has left."""

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
from translume.serving.api.errors import RequestError
from translume.serving.settings import KeySettings

OPEN: Final = frozenset(
    {
        *("/", "/docs", "/health", "/health/live", "/health/ready", "/openapi.json"),
        *("/languages", "/frontend/settings", "/v1/models", "/v1/info"),
    }
)
"""Addresses for which nobody needs a key: they tell what the server is, and translate nothing that one gives."""
OPEN_BELOW: Final = ("/page/", "/download_file/")
"""Beginnings of such addresses: parts of the page; translated files, by ids that only who sent them was told."""
IN_BODY: Final = frozenset({"/translate", "/detect", "/translate_file"})
"""Addresses of LibreTranslate's, whose clients put the key into the body."""
ACCESS: Final = "translume.access"
"""Where a request's scope has the `Access` that it came under, which a reload does not change; None for none."""
ADMITTED: Final = "translume.key"
"""Where it has its key; None for what needs none. What has neither is not worked on."""
CHARGED: Final = "translume.charged"
"""Where it has how many characters were counted."""
UNFINISHED: Final = (499, 504)
"""Statuses of answers that failed after they may have been worked on, by no fault of the server's."""

T = TypeVar("T")


class Access:
    """Keys, and what each has used. A value, replaced as a whole; `usage` is closed by who made it."""

    def __init__(self, keys: Keys, usage: Usage, settings: KeySettings) -> None:
        self.keys, self.usage, self.settings = keys, usage, settings

    async def admit(self, scope: Scope, secret: str) -> None:
        """Count the request for its key, if it asks for work; RequestError for no key (401), for one too many (429)."""
        if not secret:
            raise RequestError(401, "found no key, wanted 'Authorization: Bearer KEY'", code="no_key")
        key = self.keys.find(secret)
        if key is None:
            raise RequestError(401, "the key is not one of this server's", code="unknown_key")
        works = scope["method"] == "POST"
        if works and (wait := await self._counted(lambda: self.usage.take(key.id, self._requests(key), 1))):
            raise RequestError(
                429,
                f"the key has no request left, and {self._requests(key).most:,.0f} at once at most; try later",
                code="too_many_requests",
                retry_after=math.ceil(wait),
            )
        scope[ADMITTED] = key

    async def charge(self, scope: Scope, characters: int) -> None:
        """Count characters before they are worked on; RequestError where the key has too few left (429), or ever (403).

        Also where nobody has admitted the request (401).
        """
        key = self.owner(scope)
        if key is None or not characters:
            return
        bucket = self._characters(key)
        wait = await self._counted(lambda: self.usage.take(key.id, bucket, characters))
        if math.isinf(wait):
            raise RequestError(
                403, f"found {characters:,} characters, and the key has {bucket.most:,.0f} a day", code="over_quota"
            )
        if wait:
            raise RequestError(
                429,
                f"found {characters:,} characters, and the key has fewer left of {bucket.most:,.0f} a day; try later",
                code="quota_used_up",
                retry_after=math.ceil(wait),
            )
        scope[CHARGED] = characters

    async def give_back(self, key: Key, characters: int) -> None:
        """Count off what was charged."""
        await self._counted(lambda: self.usage.give_back(key.id, self._characters(key), characters))

    def owner(self, scope: Scope) -> Key | None:
        """The key of a request; None for one that needs none."""
        if ADMITTED not in scope:
            raise RequestError(401, "found no key, wanted 'Authorization: Bearer KEY'", code="no_key")
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
        begun = time.monotonic()

        def in_time() -> T:
            # Where another server holds the file, those behind it would wait for each other, one lock time apiece.
            if time.monotonic() - begun > LOCK_SECONDS:
                raise UsageError(f"{self.usage.path}: usage cannot be counted: waited too long")
            return count()

        try:
            return await asyncio.get_running_loop().run_in_executor(self.usage.thread, in_time)
        except UsageError:
            raise RequestError(
                503, "what keys have used cannot be counted now; try later", code="usage_unavailable", retry_after=10
            ) from None


def bearer(scope: Scope) -> str:
    """The key in a request's head; empty for none. RequestError (401) for a head that holds another kind of thing."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        return ""
    head: bytes = given[0]
    kind, _, secret = head.decode("latin-1").strip().partition(" ")
    if len(given) > 1 or kind.lower() != "bearer" or not secret.strip():
        raise RequestError(401, "authorization: wanted 'Bearer KEY'", code="no_key", field="authorization")
    return secret.strip()


def is_open(path: str) -> bool:
    """Whether nobody needs a key for an address."""
    return path in OPEN or path.startswith(OPEN_BELOW)


def with_keys(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document that says which addresses take a key; where the server asks for none, it may be left out."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["key"] = {"type": "http", "scheme": "bearer", "description": "Where the server asks for keys."}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if not is_open(path):
                operation["security"] = [{"key": []}, {}]
    return document


async def admit_by_head(scope: Scope) -> None:
    """Admit a request by its head, unless its address is open to all, or its key may still come in the body."""
    access: Access | None = scope[ACCESS]
    if access is None:
        return
    path = scope["path"]
    if is_open(path):
        scope[ADMITTED] = None
        return
    if b"api_key=" in unquote_to_bytes(scope["query_string"]):
        # An address is written into logs on its way, and kept by browsers.
        raise RequestError(400, "api_key: found in the address, wanted it in the body or head", code="key_in_address")
    secret = bearer(scope)
    if secret or path not in IN_BODY:
        await access.admit(scope, secret)


async def settle(scope: Scope, status: int) -> None:
    """Count off what a request was charged that was refused or failed, unless its client did not wait for it."""
    if scope.get(CHARGED) and status >= 400 and status not in UNFINISHED:
        with suppress(RequestError):
            await scope[ACCESS].give_back(scope[ADMITTED], scope[CHARGED])
