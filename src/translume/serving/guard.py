"""What surrounds every request: an id, bounds, headers that keep browsers from harm, one line in the log."""

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from translume.serving.answers import error_answer
from translume.serving.limits import Limits
from translume.serving.metrics import Metrics
from translume.serving.request_error import RequestError

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer: none is kept, framed, sniffed, or read by another origin."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger("translume.serving")


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        note: dict[str, Any] = {"request_id": _id(scope), "status": 0, "code": ""}
        scope["translume.note"] = note

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                note["status"] = note.get("gone") or message["status"]
                told = {**HEADERS, "X-Request-Id": note["request_id"]}
                fields = [(name.lower().encode(), value.encode()) for name, value in told.items()]
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        self._open += 1
        self._metrics.open.inc()
        try:
            if self._open > self._limits.requests:
                await _refuse(scope, receive, answer, self._limits.requests)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._open -= 1
            self._metrics.open.dec()
            self._tell(scope, note, time.monotonic() - begun)

    def _tell(self, scope: Scope, note: MutableMapping[str, Any], seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "") or "unknown"
        status = note["status"] or 500
        self._metrics.answered(route, status, note["code"], seconds)
        # The path itself is left out: whoever mistypes an address may have put a text into it.
        fields = {"method": scope["method"], "route": route, "seconds": round(seconds, 6), **note, "status": status}
        log.info("answered", extra={"fields": {name: value for name, value in fields.items() if value != ""}})


async def _refuse(scope: Scope, receive: Receive, send: Send, most: int) -> None:
    error = RequestError(
        503, f"{most:,} requests are being answered already; try later", code="too_many_open", retry_after=1
    )
    await error_answer(error, scope)(scope, receive, send)


def _id(scope: Scope) -> str:
    """The id that a client or a proxy gave, if it is a plain word, else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class JsonLines(logging.Formatter):
    """Log records as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's message and fields; of an exception, its kind and where it came from, not its words."""
        fields = getattr(record, "fields", {})
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        whole = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
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
