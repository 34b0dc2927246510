"""Connections of the HTTP server: their number is limited, in all and per address, and slow ones are closed."""

import asyncio
import errno
import logging
import resource
import time
from collections import Counter
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from translume.serving.access.clients import Networks, address_block
from translume.serving.access.limits import Limits

RESERVED_DESCRIPTORS: Final = 128
"""File descriptors for everything but connections: files, keys, worker processes."""
DRAINED_BYTES: Final = 16_000_000
"""Most bytes of a body that are read and dropped after its request was refused. Then the connection is closed.

Closing at once would make most clients report a broken connection and not the refusal.
"""
LOG_SECONDS: Final = 10.0
"""Interval between log lines about refused connections."""
FREED: Final = 16
"""Idle connections that are closed when the process has no more file descriptors."""
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("translume.serving")


def most_connections(limits: Limits) -> int:
    """Return the largest number of connections for which the process has file descriptors, at most the limit.

    Raises the soft limit of descriptors (`ulimit -n`) as far as needed and allowed.
    """
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


class LimitedProtocol(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive within `header_seconds`."""

    header_seconds: ClassVar[float]
    register: ClassVar[Connections]
    _timer: asyncio.TimerHandle | None = None
    _drained: int = 0

    @classmethod
    def with_limits(cls, limits: Limits, register: Connections) -> type["LimitedProtocol"]:
        """Return the class of a server's connections."""
        return type("LimitedProtocol", (cls,), {"header_seconds": limits.read_seconds, "register": register})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not self.register.add(self, self.client[0] if self.client else ""):
            transport.abort()
            return
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._has_responded:
            # The rest of a refused body, or the headers of the next request.
            self._drained += len(data)
            if self._drained > DRAINED_BYTES:
                self.transport.close()
                return
        super().data_received(data)
        if self._has_responded:
            if self._timer is None:
                self._start_timer()
            return
        self.register.set_idle(self, False)
        self._drained = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_response_complete(self) -> None:
        super().on_response_complete()  # may begin the next request
        self.register.set_idle(self, self._has_responded)

    def connection_lost(self, exc: Exception | None) -> None:
        self.register.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _has_responded(self) -> bool:
        """Whether there is no request in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self.transport.close)
