"""What surrounds every request: an id, bounds, headers that keep browsers from harm, one line in the log."""

import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from translume.serving.access.admission import ACCESS, admit_by_head, settle
from translume.serving.api.cors import cors_headers, is_preflight
from translume.serving.api.errors import RequestError
from translume.serving.api.responses import error_answer
from translume.serving.server import Server

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer that has no other: none is kept, framed, sniffed, or read by another origin."""
QUEUED = frozenset({"/v1/translate", "/v1/translate/stream", "/v1/score", "/v1/classify", "/translate"})
"""Addresses whose work waits in the queue: where not even a line would be taken, they are refused unread."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger("translume.serving")


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server, self._metrics = app, server, server.metrics
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        note: dict[str, Any] = {"request_id": _id(scope), "status": 0, "code": ""}
        scope["translume.note"] = note
        told = {**HEADERS, **cors_headers(scope, self._server.cors_origins), "X-Request-Id": note["request_id"]}
        streams = False

        async def answer(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                note["status"] = note.get("gone") or message["status"]
                fields = {name.lower().encode(): value.encode() for name, value in told.items()}
                own = message.get("headers", ())
                # A page's own policy holds instead.
                rest = fields.keys() - {name for name, _ in own}
                message = {**message, "headers": [*own, *((name, fields[name]) for name in fields if name in rest)]}
                streams = any(name == b"content-type" and kind.startswith(b"text/event-stream") for name, kind in own)
            elif streams and message.get("body"):
                streams = False
                self._metrics.first.observe(time.monotonic() - begun)
            await send(message)

        self._open += 1
        self._metrics.open.inc()
        try:
            try:
                await self._answered(scope, receive, answer)
            finally:
                await settle(scope, note["status"] or 500)
        finally:
            self._open -= 1
            self._metrics.open.dec()
            self._tell(scope, note, time.monotonic() - begun)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer, unless the request is one too many or nobody's who may ask."""
        most = self._server.limits.requests
        if is_preflight(scope) and self._server.cors_origins:
            await Response(status_code=204)(scope, receive, send)
            return
        try:
            if self._open > most:
                raise RequestError(
                    503, f"{most:,} requests are being answered already; try later", code="too_many_open", retry_after=1
                )
            if scope["path"] in QUEUED and scope["method"] == "POST":
                # To read a body, understand it and refuse it then costs ten times as much, just when there is no time.
                refused = self._server.scheduler.refusal(self._server.limits.timeout_seconds)
                if refused is not None:
                    raise refused
            scope[ACCESS] = self._server.access
            await admit_by_head(scope)
        except RequestError as error:
            await error_answer(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _tell(self, scope: Scope, note: MutableMapping[str, Any], seconds: float) -> None:
        known = scope["path"] if scope["path"] in QUEUED else "unknown"
        route = getattr(scope.get("route"), "path", "") or known
        status = note["status"] or 500
        self._metrics.answered(route, status, note["code"], seconds)
        # The path itself is left out: whoever mistypes an address may have put a text into it.
        fields = {"method": scope["method"], "route": route, "seconds": round(seconds, 6), **note, "status": status}
        log.info("answered", extra={"fields": {name: value for name, value in fields.items() if value != ""}})


def _id(scope: Scope) -> str:
    """The id that a client or a proxy gave, if it is a plain word, else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class JsonLines(logging.Formatter):
    """Log records as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's message and fields; of an exception, its kind and where it came from, not its words."""
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
    """Have the server's log written, one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("translume.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "translume.serving" else logging.WARNING)
