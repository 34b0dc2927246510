"""Connections of the HTTP server: their number is limited, in all and per address, and slow ones are closed.

uvicorn's protocol for h11 does the rest: it refuses headers that are too large or name no host or two, and reads a
pipelined request only after the response to the one before.
"""

import asyncio
import ipaddress
import logging
import select
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from translume.serving.settings import Limits

RESERVED_DESCRIPTORS: Final = 128
"""File descriptors for everything but connections: files, keys, worker processes."""
MAX_HEAD_BYTES: Final = 65_536
"""Maximum size of a request line with headers, and of what frames a body between two of its parts."""
MAX_IDLE_BYTES: Final = 16_000_000
"""Bytes that an idle connection may send: the rest of a refused body, which is dropped. Then it is closed.

Closing at once would make most clients report a broken connection and not the refusal.
"""
STREAMS: Final = "translume.streams"
"""Key of a scope: whether the response is a stream of events."""
RESET_SECONDS: Final = 0.1
"""Interval of looking whether a client that sends no more has closed its connection."""
MAX_JOINED_BYTES: Final = 65_536
"""Size at which joined writes are sent at once, so that a long response waits for a slow client."""
LOG_SECONDS: Final = 10.0
"""Interval between log lines about refused connections."""

_ANSWERING: Final = (h11.SEND_RESPONSE, h11.SEND_BODY)

log = logging.getLogger("translume.serving")


class Connections:
    """An ASGI application around another one that counts the open connections of its server.

    An idle connection is one without a complete request: it is silent, sends headers, is kept alive, or sends the rest
    of a refused body. Beyond the limit, a new connection replaces an idle one.
    """

    def __init__(self, app: ASGIApp, limits: Limits, proxies: Sequence[str]) -> None:
        """proxies: addresses and networks whose X-Forwarded-For header names the client; they have no share."""
        self._app: Any = ProxyHeadersMiddleware(app, list(proxies))  # type: ignore[arg-type]  # uvicorn's own ASGI types
        self._maximum, self._idle_seconds = max_connections(limits.connections), limits.read_seconds
        self._open: dict[tuple[str, int], Connection] = {}
        self._refused, self._logged = 0, -LOG_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. Its connection is not idle meanwhile."""
        connection = self._open.get(scope.get("client") or ("", 0))
        if connection is None:  # of a Unix socket, or just replaced
            await self._app(scope, receive, send)
            return
        self._change(connection, 1)
        try:
            await self._app(scope, receive, send)
        finally:
            self._change(connection, -1)

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> "Connection":
        """Return the protocol of a new connection. uvicorn gives the parameters, which are those of its protocols."""
        return Connection(self, H11Protocol(config, server_state, app_state, _loop))

    def add(self, connection: "Connection") -> bool:
        """Add a new connection; return False if it is refused."""
        connection.block = address_block(connection.peer[0])
        same = sum(each.block == connection.block for each in self._open.values())
        is_proxy = connection.peer[0] in self._app.trusted_hosts
        has_share = is_proxy or same < max(1, self._maximum // 8)
        if not has_share or (len(self._open) >= self._maximum and not self._close_oldest()):
            self._refused += 1
            if time.monotonic() - self._logged >= LOG_SECONDS:
                self._logged = time.monotonic()
                log.warning("too many connections", extra={"fields": {"refused": self._refused}})
            return False
        self._open[connection.peer] = connection
        self._change(connection, 0)
        return True

    def remove(self, connection: "Connection") -> None:
        """Remove a connection, if it is open."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
            connection.close_after(None)

    def _change(self, connection: "Connection", requests: int) -> None:
        """Change how many requests a connection has in progress. Without one it is idle, and closed after a time."""
        connection.requests += requests  # the next one may begin before the last one has ended
        if self._open.get(connection.peer) is connection:
            idle_seconds = 0.0 if connection.half_closed else self._idle_seconds
            connection.close_after(None if connection.requests else idle_seconds)
            connection.idle_since = time.monotonic()

    def _close_oldest(self) -> bool:
        """Close the oldest idle connection of the client that has most of them; return False if there is none."""
        idle = [each for each in self._open.values() if not each.requests]
        if not idle:
            return False
        counts = Counter(each.block for each in idle)
        oldest = min(idle, key=lambda each: (-counts[each.block], each.idle_since))
        self.remove(oldest)
        oldest.transport.abort()
        return True


class JoiningTransport:
    """A transport that sends in one call what is written in one turn of the event loop, such as headers and a body.

    Each call releases Python's lock, for which the event loop then waits while a lane computes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._data = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send some bytes at the end of this turn."""
        if not self._data:
            asyncio.get_running_loop().call_soon(self._send)
        self._data += data
        if len(self._data) > MAX_JOINED_BYTES:
            self._send()

    def close(self) -> None:
        """Send what was written, and close the connection."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        data, self._data = self._data, bytearray()
        if data and not self._transport.is_closing():
            self._transport.write(data)


class Connection(asyncio.Protocol):
    """A connection that is closed if it is idle for too long. Everything else is left to uvicorn's protocol."""

    transport: asyncio.Transport
    peer: tuple[str, int] = ("", 0)
    block = ""
    requests = 0
    idle_since = 0.0
    half_closed = False

    def __init__(self, register: Connections, inner: H11Protocol) -> None:
        self._register, self._inner = register, inner
        self._timer: asyncio.TimerHandle | None = None
        self._idle_bytes = 0
        self.pause_writing, self.resume_writing = inner.pause_writing, inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self.transport = cast(asyncio.Transport, JoiningTransport(transport))
        self._inner.connection_made(self.transport)
        if self._inner.client is not None:  # else of a Unix socket
            self.peer = self._inner.client
            if not self._register.add(self):
                transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._idle_bytes += len(data)
            if self._idle_bytes > MAX_IDLE_BYTES:
                self.transport.abort()
        if not self.transport.is_closing():
            try:
                self._inner.data_received(data)
            except h11.LocalProtocolError:  # the body is malformed, and it is too late for another response
                self.transport.abort()

    def eof_received(self) -> bool:
        """Answer the request of a client that will send no other; return whether to keep the connection.

        A client that has closed both directions looks alike, until it answers to something that it receives.
        """
        state = self._inner.conn
        if state.their_state not in (h11.DONE, h11.MUST_CLOSE) or state.our_state not in _ANSWERING:
            return False
        self.half_closed = True
        if state.our_state is h11.SEND_RESPONSE and state.their_http_version == b"1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif state.our_state is h11.SEND_BODY and self._inner.scope.get(STREAMS):
            self.transport.write(state.send(h11.Data(data=b":\n\n")) or b"")  # a comment
        self._watch()
        return True

    def _watch(self) -> None:
        """Close the connection once its client has reset it; asyncio does not read from it any more."""
        if self.transport.is_closing():
            return
        events = select.poll()
        events.register(self.transport.get_extra_info("socket").fileno(), 0)
        if events.poll(0):
            self.transport.abort()
        else:
            asyncio.get_running_loop().call_later(RESET_SECONDS, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.remove(self)
        self._inner.connection_lost(exc)

    def close_after(self, seconds: float | None) -> None:
        """Close the connection after some seconds, unless this is called again; None: do not close it."""
        if self._timer is not None:
            self._timer.cancel()
        later = asyncio.get_running_loop().call_later
        self._timer = None if seconds is None else later(seconds, self.transport.close)
        self._idle_bytes = 0


def address_block(address: str) -> str:
    """Return the addresses that count as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


def max_connections(wanted: int) -> int:
    """Return for how many connections the process has file descriptors, at most `wanted`.

    Raises the soft limit of descriptors (`ulimit -n`) as far as needed and allowed. Windows has none.
    """
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_DESCRIPTORS
    if 0 <= soft < needed:  # −1: unlimited
        soft = min(needed, hard) if hard >= 0 else needed
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, max(soft - RESERVED_DESCRIPTORS, soft // 2)) if soft >= 0 else wanted
