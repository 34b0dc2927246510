"""Connections of the HTTP server: their number is limited, in all and per address, and slow ones are closed."""

import asyncio
import errno
import logging
import time
from collections import Counter
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from translume.serving.access.clients import Networks, address_block
from translume.serving.access.limits import Limits

RESERVED_DESCRIPTORS: Final = 128
"""File descriptors for everything but connections: files, keys, worker processes."""
DRAINED_BYTES: Final = 16_000_000
"""Most bytes of a body that are read and dropped after its request was refused. Then the connection is closed.

Closing at once would make most clients report a broken connection and not the refusal.
"""
MOST_HEAD_BYTES: Final = 65_536
"""Most bytes of a request line with headers, of trailers, and of what frames a body, between two parts of the body."""
MOST_PIPELINED: Final = 16
"""Most requests that wait for the one before them on a connection. Then the connection ends after its response."""
LOG_SECONDS: Final = 10.0
"""Interval between log lines about refused connections."""
FREED: Final = 16
"""Idle connections that are closed when the process has no more file descriptors."""
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("translume.serving")


def most_connections(limits: Limits) -> int:
    """Return the largest number of connections for which the process has file descriptors, at most the limit.

    Raises the soft limit of descriptors (`ulimit -n`) as far as needed and allowed. Windows has none.
    """
    try:
        import resource
    except ImportError:
        return limits.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.connections + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return limits.connections
    return min(limits.connections, max(soft - RESERVED_DESCRIPTORS, soft // 2))


class Connections:
    """The open connections of a server. Used by its event loop only.

    An idle connection is one without a complete request: it is silent, sends headers, is kept alive, or sends the rest
    of a refused body. Beyond the limit, a new connection replaces the oldest idle one.
    """

    def __init__(self, most: int, most_per_address: int, proxies: Networks) -> None:
        """proxies: addresses that `most_per_address` does not apply to."""
        self._most, self._most_per_address, self._proxies = most, most_per_address, proxies
        self._open: dict[LimitedProtocol, str] = {}
        self._idle: dict[LimitedProtocol, None] = {}
        self._of_address: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._logged = -LOG_SECONDS

    def add(self, connection: "LimitedProtocol", address: str) -> bool:
        """Add a new connection; return False if it is refused."""
        block = "" if address in self._proxies else address_block(address)
        if block and self._of_address[block] >= self._most_per_address:
            self._report("refused_by_address")
            return False
        if len(self._open) >= self._most and not self._close_idle(1):
            self._report("refused")
            return False
        self._open[connection] = block
        self._of_address[block] += 1
        self._idle[connection] = None
        return True

    def set_idle(self, connection: "LimitedProtocol", idle: bool) -> None:
        """Set whether an open connection is idle. Among idle connections, the newest is last."""
        self._idle.pop(connection, None)
        if idle and connection in self._open:
            self._idle[connection] = None

    def remove(self, connection: "LimitedProtocol") -> None:
        """Remove a connection, if it is open."""
        self._idle.pop(connection, None)
        block = self._open.pop(connection, None)
        if block is not None:
            self._of_address[block] -= 1
            if not self._of_address[block]:
                del self._of_address[block]

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of the event loop. Without descriptors, asyncio repeats accept() up to 2,048 times a second.

        Each failure would be logged with a traceback.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS and "accept" in context.get("message", ""):
            first = not self._counts["no_descriptors"]
            self._report("no_descriptors")
            if first:
                self._close_idle(FREED)
        else:
            loop.default_exception_handler(context)

    def _close_idle(self, count: int) -> bool:
        """Close the oldest idle connections; return False if there is none."""
        oldest = [connection for connection, _ in zip(self._idle, range(count), strict=False)]
        for connection in oldest:
            self.remove(connection)
            connection.transport.abort()
            self._report("closed_idle")
        return bool(oldest)

    def _report(self, kind: str) -> None:
        """Count an event, and log the counts at most every `LOG_SECONDS`."""
        self._counts[kind] += 1
        if time.monotonic() - self._logged < LOG_SECONDS:
            return
        self._logged = time.monotonic()
        reason = "no file descriptor is free for a connection" if kind == "no_descriptors" else "too many connections"
        log.warning(reason, extra={"fields": {"open": len(self._open), **self._counts}})
        self._counts.clear()


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is closed if the headers of a request do not arrive within `header_seconds`.

    Beyond uvicorn's class, the sizes of headers and the number of pipelined requests are limited, trailers are dropped,
    the bodies of requests for another protocol (`Upgrade`) are read, and a pipelined request ends if the client
    disconnects.
    """

    header_seconds: ClassVar[float]
    register: ClassVar[Connections]
    _timer: asyncio.TimerHandle | None = None
    _drained: int = 0
    _running: Any = None  # the request in progress; `cycle` is the newest one
    _head: int = 0  # bytes of the headers that the parser has found
    _unparsed: int = 0  # bytes since the last headers or part of a body
    _in_head: bool = True
    _resuming: bool = False
    _ended: bool = False  # nothing more is read

    @classmethod
    def with_limits(cls, limits: Limits, register: Connections) -> type["LimitedProtocol"]:
        """Return the class of a server's connections."""
        return type("LimitedProtocol", (cls,), {"header_seconds": limits.read_seconds, "register": register})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.parser = self._new_parser()
        if not self.register.add(self, self.client[0] if self.client else ""):
            transport.abort()
            return
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._has_responded:
            # The rest of a refused body, or the headers of the next request.
            self._drained += len(data)
            if self._drained > DRAINED_BYTES:
                self.transport.close()
                return
        self._unset_keepalive_if_required()
        self._unparsed += len(data)
        self._feed(data)
        if self._unparsed > MOST_HEAD_BYTES and not self._ended:
            self._refuse(431)
        if self._has_responded:
            if self._timer is None:
                self._start_timer()
            return
        self.register.set_idle(self, False)
        self._drained = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        if not self._resuming:
            self._head, self._in_head = 0, True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._resuming:
            return
        self._count(len(name) + len(value))
        if self._in_head:  # trailers come after the headers were checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if len(self.pipeline) >= MOST_PIPELINED or hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise _RefusedError
        self._unparsed, self._in_head, self._head = 0, False, 0
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn pauses it, and would not learn that the client disconnected
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
            self.cycle.keep_alive = False  # `check_framing` refuses it; where it ends is not certain

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else `_read_past_upgrade` reads the body
            self._unparsed = 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # may begin the next request
        self.register.set_idle(self, self._has_responded)

    def connection_lost(self, exc: Exception | None) -> None:
        self.register.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_past_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(431 if isinstance(error.__context__, _TooLargeError) else 400)

    def _read_past_upgrade(self, rest: bytes) -> None:
        """Read on after the headers of a request for another protocol, which is answered in this one (RFC 9110, 7.8).

        The parser ends there, so another one reads its body, and the requests after it.  rest: what has arrived.
        """
        framing = [
            name + b": " + value for name, value in self.headers if name in (b"content-length", b"transfer-encoding")
        ]
        self.parser = self._new_parser()
        self._resuming = True
        self._feed(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))
        self._resuming = False
        if rest and not self._ended:
            self._feed(rest)

    def _new_parser(self) -> Any:
        """Return a parser that leaves a body with two lengths to `check_framing`, and data after a close to uvicorn."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True, lenient_chunked_length=True)
        return parser

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MOST_HEAD_BYTES:
            raise _TooLargeError

    def _refuse(self, status: int) -> None:
        """Respond to a request that cannot be parsed, and end the connection."""
        self._ended = True
        running = self._running
        if running is None or running.response_complete:
            words = "The headers are too large." if status == 431 else "Invalid HTTP request received."
            self.logger.warning(words)
            head = (
                f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(words)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[status] + head.encode() + words.encode())
            self.transport.close()
        elif running.more_body:
            self.transport.close()  # its body is broken
        else:
            # It is answered, and those after it are not: another response now would be taken for its own.
            running.keep_alive = False
            self.pipeline.clear()
            self.cycle = running

    @property
    def _has_responded(self) -> bool:
        """Whether there is no request in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self.transport.close)


class _TooLargeError(Exception):
    """The headers of a request are too large."""


class _RefusedError(Exception):
    """Too many requests wait on a connection, or a request does not have one host."""
