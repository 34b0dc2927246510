"""The outermost ASGI application: request ids, admission, security headers, CORS, metrics and the log.

The hosts that requests may name are checked here and not by Starlette's middleware, which knows no IP addresses, no
paths for load balancers, and one answer only. With DNS rebinding, a page of evil.example reaches a server on localhost
as http://evil.example; its requests then name that host. Without it, a page can still send forms to other sites,
though not read the responses.
"""

import ipaddress
import logging
import re
import time
from collections.abc import Collection
from functools import lru_cache
from random import getrandbits
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from translume.serving.access.quotas import ACCESS, ADMITTED, admit_by_headers, client_address
from translume.serving.api.errors import REQUEST, RequestError, error_response, field_error
from translume.serving.connections import STREAMS
from translume.serving.settings import host_name

if TYPE_CHECKING:
    from translume.serving.server import Server

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of every response: it is not cached, framed, sniffed, or embedded by other origins."""
HEALTH: Final = frozenset({"/health", "/health/live", "/health/ready"})
"""Paths for load balancers, which name a server in their own ways. Their responses contain no secrets."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that change nothing, and that pages of other sites may send."""
QUEUED: Final = frozenset(
    {
        *("/v1/translate", "/v1/translate/stream", "/v1/score", "/v1/classify", "/v1/generate"),
        *("/v1/transcribe", "/v1/audio/transcriptions", "/v1/audio/translations", "/translate", "/v2/translate"),
    }
)
"""Paths whose work goes through the queue. While the queue is full, they are refused without reading the body."""
_REPEATED: Final = re.compile("/{2,}")
"""Slashes that clients write twice after a base URL that ends in one."""
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger("translume.serving")


class Guard:
    """An ASGI application around the application of a server."""

    def __init__(self, app: ASGIApp, server: "Server") -> None:
        self._app, self._server = app, server
        self._open = 0
        self._keyless: dict[int, Scope] = {}
        """Open requests whose key is expected in their bodies."""
        self._with_cors = lru_cache(1)(self._make_cors)  # a reload may change the origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, method = time.monotonic(), scope["method"]
        if method == "HEAD":  # as GET; uvicorn, which keeps the original, leaves out the body
            scope = {**scope, "method": "GET"}
        metrics = self._server.metrics
        scope["path"] = _REPEATED.sub("/", scope["path"]).removesuffix("/") or "/"
        sent_id = Headers(scope=scope).get("x-request-id", "")
        # The id of the client or a proxy, if it is a plain word.
        request_id = sent_id if REQUEST_ID.fullmatch(sent_id) else f"{getrandbits(128):032x}"
        REQUEST.set(request_id)
        note: dict[str, Any] = {"request_id": request_id, "status": 0, "code": ""}
        scope["translume.note"] = note
        streams = False

        async def respond(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                note["status"] = note.get("gone") or message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "X-Request-Id": request_id}.items():
                    headers.setdefault(name, value)  # responses may have their own, such as a page's policy
                streams = scope[STREAMS] = headers.get("content-type", "").startswith("text/event-stream")
            elif streams and message.get("body"):
                streams = False
                metrics.first.observe(time.monotonic() - started)
            await send(message)

        counted = scope["path"] not in HEALTH
        self._open += counted
        metrics.open.inc()
        origins = self._server.settings.cors_origins
        try:
            await (self._with_cors(origins) if origins else self._handle)(scope, receive, respond)
        finally:
            self._open -= counted
            self._keyless.pop(id(scope), None)
            metrics.open.dec()
            self._record(scope, {"method": method, **note}, time.monotonic() - started)

    def _make_cors(self, origins: tuple[str, ...]) -> ASGIApp:
        return CORSMiddleware(
            self._handle,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, unless it is refused."""
        try:
            await self._admit(scope)
        except RequestError as error:
            await error_response(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Raise RequestError if there are too many requests or lines in the queue, or the request has no access."""
        server, maximum = self._server, self._server.limits.requests
        check_framing(scope)
        check_host(scope, server.settings.hosts)
        check_site(scope, server.settings.cors_origins, server.settings.public_address)
        if self._open > maximum and scope["path"] not in HEALTH:
            reason = f"{maximum:,} requests are in progress already; try later"
            raise RequestError(503, reason, code="too_many_open", retry_after=1)
        if scope["path"] in QUEUED and scope["method"] == "POST":
            # Reading and parsing the body first would cost ten times as much, and the server is overloaded.
            refused = server.scheduler.refusal(server.limits.timeout_seconds)
            if refused is not None:
                raise refused
        scope[ACCESS] = server.access
        await admit_by_headers(scope)
        if server.access is not None and ADMITTED not in scope:
            self._check_keyless(scope, max(1, maximum // 4))

    def _check_keyless(self, scope: Scope, maximum: int) -> None:
        """Raise RequestError (503) if too many requests without a key are being read.

        Without this limit, clients without a key could keep out those that have one.
        """
        reading = [client_address(each) for each in self._keyless.values() if ADMITTED not in each]
        if len(reading) >= maximum or reading.count(client_address(scope)) >= max(1, maximum // 2):
            reason = "too many requests without the header 'Authorization: Bearer KEY' are being read; try later"
            raise RequestError(503, reason, code="too_many_open", retry_after=1)
        self._keyless[id(scope)] = scope

    def _record(self, scope: Scope, note: dict[str, Any], seconds: float) -> None:
        known = scope["path"] if scope["path"] in QUEUED else "unknown"
        route = getattr(scope.get("route"), "path", "") or known
        status = note["status"] or 500
        self._server.metrics.count_request(route, status, note["code"], seconds)
        # The path itself is not logged: a mistyped one may contain a text.
        fields = {"route": route, "seconds": round(seconds, 6), **note, "status": status}
        if self._server.settings.log_clients:
            key = scope.get(ADMITTED)
            fields |= {"client": (scope.get("client") or [""])[0], "key": key.id if key is not None else ""}
        log.info("answered", extra={"fields": {name: value for name, value in fields.items() if value != ""}})


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Raise RequestError (421) unless the Host header has one of the names, a loopback name or an IP address.

    names: in lower case; "*" allows all.  A page of another site cannot have an IP address as its host.
    """
    headers = Headers(scope=scope)
    name = host_name(headers.get("host", ""))
    # HTTP 1.0 needs no Host header.
    if "host" not in headers or "*" in names or scope["path"] in HEALTH or name in names or _is_local(name):
        return
    reason = "found a name that this server does not have; its operator can add it: translume serve --host-name NAME"
    raise field_error("host", reason, 421)


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_site(scope: Scope, cors_origins: Collection[str], public_address: str) -> None:
    """Raise RequestError (403) if a page of another site sent a request that is not only for reading.

    Browsers send Sec-Fetch-Site, but over plain HTTP only to localhost; without it, the host in Origin is compared.
    """
    headers = Headers(scope=scope)
    origin = headers.get("origin", "")
    if scope["method"] in READING or (origin and ("*" in cors_origins or origin in cors_origins)):
        return
    site = headers.get("sec-fetch-site", "").lower()
    if site:
        foreign = site not in ("same-origin", "none")
    else:
        own = {host_name(headers.get("host", "")), host_name(public_address.partition("://")[2])}
        foreign = bool(origin) and host_name(origin.partition("://")[2]) not in own - {""}
    if foreign:
        raise RequestError(
            403,
            "a page of another site sent this request; the operator can allow it with the setting cors_origins",
            code="cross_site",
        )


def check_framing(scope: Scope) -> None:
    """Raise RequestError (400) for a body with two lengths: a proxy before this server may have used the other one.

    RFC 9112, section 6.3: request smuggling.
    """
    if {"content-length", "transfer-encoding"} <= set(Headers(scope=scope).keys()):
        raise RequestError(
            400, "found Content-Length and Transfer-Encoding, expected one of them", code="two_lengths", field="body"
        )
