"""The outermost ASGI application: request ids, admission, security headers, CORS, metrics and the log.

CORS is ours and not Starlette's middleware, which would fix the origins at startup: a reload may change them. It would
also answer preflights from unknown origins with an error, and leave Cross-Origin-Resource-Policy alone.
"""

import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from translume.serving.access.admission import ACCESS, ADMITTED, admit_by_headers, refund_if_failed
from translume.serving.access.clients import client_address
from translume.serving.access.origins import HEALTH, check_framing, check_host, check_site, header
from translume.serving.api.errors import RequestError
from translume.serving.api.responses import error_response
from translume.serving.server import Server

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of every response: it is not cached, framed, sniffed, or read by other origins."""
CORS_METHODS: Final = "GET, POST, DELETE"
CORS_REQUEST_HEADERS: Final = "Authorization, Content-Type, X-Request-Id"
CORS_RESPONSE_HEADERS: Final = "Retry-After, X-Request-Id"
"""Response headers that a page can read, besides those that every page can."""
CORS_MAX_AGE_SECONDS: Final = 600
QUEUED: Final = frozenset(
    {
        "/v1/translate",
        "/v1/translate/stream",
        "/v1/score",
        "/v1/classify",
        "/v1/generate",
        "/v1/transcribe",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/chat/completions",
        "/translate",
        "/v2/translate",
    }
)
"""Paths whose work goes through the queue. While the queue is full, they are refused without reading the body."""
_REPEATED: Final = re.compile("/{2,}")
"""Slashes that clients write twice after a base URL that ends in one."""
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger("translume.serving")


class Guard:
    """An ASGI application around the application of a server."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server, self._metrics = app, server, server.metrics
        self._open = 0
        self._without_key: list[Scope] = []
        """Scopes of open requests whose key is expected in their bodies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        scope["path"] = _REPEATED.sub("/", scope["path"]).removesuffix("/") or "/"
        note: dict[str, Any] = {"request_id": _request_id(scope), "status": 0, "code": ""}
        scope["translume.note"] = note
        headers = {**HEADERS, **_cors_headers(scope, self._server.cors_origins), "X-Request-Id": note["request_id"]}
        streams = False

        async def respond(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                note["status"] = note.get("gone") or message["status"]
                fields = {name.lower().encode(): value.encode() for name, value in headers.items()}
                own = message.get("headers", ())
                # Headers of the response itself, such as a page's policy, replace the defaults.
                rest = fields.keys() - {name for name, _ in own}
                message = {**message, "headers": [*own, *((name, fields[name]) for name in fields if name in rest)]}
                streams = any(name == b"content-type" and kind.startswith(b"text/event-stream") for name, kind in own)
            elif streams and message.get("body"):
                streams = False
                self._metrics.first.observe(time.monotonic() - started)
            await send(message)

        counted = scope["path"] not in HEALTH
        self._open += counted
        self._metrics.open.inc()
        try:
            try:
                await self._handle(scope, receive, respond)
            finally:
                await refund_if_failed(scope, note["status"] or 500)
        finally:
            self._open -= counted
            self._metrics.open.dec()
            self._record(scope, note, time.monotonic() - started)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, unless it is refused: too many requests, a full queue, or no access."""
        server, most = self._server, self._server.limits.requests
        try:
            check_framing(scope)
            check_host(scope, server.host_names)
            check_site(scope, server.cors_origins, server.public_address)
            if _is_preflight(scope) and server.cors_origins:
                await Response(status_code=204)(scope, receive, send)
                return
            if self._open > most and scope["path"] not in HEALTH:
                raise RequestError(
                    503, f"{most:,} requests are in progress already; try later", code="too_many_open", retry_after=1
                )
            if scope["path"] in QUEUED and scope["method"] == "POST":
                # Reading and parsing the body first would cost ten times as much, and the server is overloaded.
                refused = server.scheduler.refusal(server.limits.timeout_seconds)
                if refused is not None:
                    raise refused
            scope[ACCESS] = server.access
            await admit_by_headers(scope)
            self._check_keyless(scope)
        except RequestError as error:
            response = error_response(error, scope)
            if error.code == "two_lengths":
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
        else:
            if not self._expects_key(scope):
                await self._app(scope, receive, send)
                return
            self._without_key.append(scope)
            try:
                await self._app(scope, receive, send)
            finally:
                self._without_key = [each for each in self._without_key if each is not scope]

    def _check_keyless(self, scope: Scope) -> None:
        """Raise RequestError (503) if too many requests without a key are being read.

        Without this limit, clients without a key could keep out those that have one.
        """
        if not self._expects_key(scope):
            return
        most = max(1, self._server.limits.requests // 4)
        reading = [client_address(each) for each in self._without_key if self._expects_key(each)]
        if len(reading) >= most or reading.count(client_address(scope)) >= max(1, most // 2):
            raise RequestError(
                503,
                "too many requests without the header 'Authorization: Bearer KEY' are being read; try later",
                code="too_many_open",
                retry_after=1,
            )

    @staticmethod
    def _expects_key(scope: Scope) -> bool:
        """Return whether the key of a request may be in its body, which has not been read."""
        return scope[ACCESS] is not None and ADMITTED not in scope

    def _record(self, scope: Scope, note: MutableMapping[str, Any], seconds: float) -> None:
        known = scope["path"] if scope["path"] in QUEUED else "unknown"
        route = getattr(scope.get("route"), "path", "") or known
        status = note["status"] or 500
        self._metrics.count_request(route, status, note["code"], seconds)
        # The path itself is not logged: a mistyped one may contain a text.
        fields = {"method": scope["method"], "route": route, "seconds": round(seconds, 6), **note, "status": status}
        if self._server.log_clients:
            key = scope.get(ADMITTED)
            fields |= {"client": (scope.get("client") or [""])[0], "key": key.id if key is not None else ""}
        log.info("answered", extra={"fields": {name: value for name, value in fields.items() if value != ""}})


def _request_id(scope: Scope) -> str:
    """Return the X-Request-Id of the client or a proxy if it is a plain word, otherwise a new id."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _is_preflight(scope: Scope) -> bool:
    """Return whether a request is a CORS preflight."""
    return scope["method"] == "OPTIONS" and bool(header(scope, b"access-control-request-method"))


def _cors_headers(scope: Scope, origins: Sequence[str]) -> dict[str, str]:
    """Return the CORS headers of a response. Credentials, such as cookies, are never allowed."""
    if not origins:
        return {}
    vary = {} if "*" in origins else {"Vary": "Origin"}
    origin = header(scope, b"origin")
    if not origin or not ("*" in origins or origin in origins):
        return vary
    headers = {
        **vary,
        "Access-Control-Allow-Origin": "*" if "*" in origins else origin,
        "Access-Control-Expose-Headers": CORS_RESPONSE_HEADERS,
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if _is_preflight(scope):
        headers |= {
            "Access-Control-Allow-Methods": CORS_METHODS,
            "Access-Control-Allow-Headers": CORS_REQUEST_HEADERS,
            "Access-Control-Max-Age": str(CORS_MAX_AGE_SECONDS),
        }
    return headers


class JsonLines(logging.Formatter):
    """Formats log records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's message and fields; for an exception its type and traceback, but not its message."""
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and (error := record.exc_info[1]) is not None:
            places = "".join(traceback.format_tb(error.__traceback__))
            fields |= {"error": type(error).__name__, "traceback": places}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        whole = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
            **fields,
        }
        return json.dumps(whole, ensure_ascii=False)


def log_to_stderr() -> None:
    """Write the server's log to stderr, one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("translume.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "translume.serving" else logging.WARNING)
