"""The HTTP server process: listening, reading with time limits, and shutting down."""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from typing import ClassVar, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from translume.errors import TranslumeError
from translume.serving.access.limits import Limits
from translume.serving.workers.main import freeze_startup_objects

SWITCH_SECONDS: Final = 0.0005
"""Python's thread switch interval. With the default, 5 ms, the event loop would wait for the translating thread again
and again."""
STALLED_SECONDS: Final = 60.0
"""Seconds without acknowledged data after which a connection counts as lost."""


class PortError(TranslumeError):
    """A port that cannot be bound."""


def port_error(host: str, port: int, error: OSError, flag: str = "--port") -> PortError:
    """Explain in one line why binding a port failed.  flag: the command-line option that sets the port."""
    cure = f"; stop the other process or choose another {flag}" if error.errno == errno.EADDRINUSE else ""
    # create_server appends the address to the reason; the message begins with it already.
    reason = error.strerror.partition(" (while")[0].lower() if error.strerror else str(error)
    return PortError(f"{host}:{port}: cannot listen: {reason}{cure}")


def listen(host: str, port: int, *, stalled_seconds: float = STALLED_SECONDS) -> socket.socket:
    """Return a socket bound to an address; port 0 chooses a free one. Raises PortError.

    stalled_seconds: after which the system closes a connection whose client acknowledges nothing (Linux only). Without
    it, a client that stops reading would keep its request open.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise port_error(host, port, error) from None
    except OverflowError:
        raise PortError(f"port: found {port}, expected 0 to 65535") from None
    # Connections inherit these options. With Nagle's algorithm the body of a response would wait 40 ms for the client's
    # delayed acknowledgement of the headers.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        bound.setsockopt(socket.IPPROTO_TCP, option, int(1000 * stalled_seconds))
    return bound


class _TimedProtocol(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive within `header_seconds`."""

    header_seconds: ClassVar[float]
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        reading = self.cycle is None or self.cycle.response_complete
        if not reading and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif reading and self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self.transport.close)


def uvicorn_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """Return a uvicorn server: without its own log, a Server header, and trust in forwarded headers."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=type("TimedProtocol", (_TimedProtocol,), {"header_seconds": limits.read_seconds}),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=int(limits.drain_seconds) + 1,
        )
    )


class _Server(uvicorn.Server):
    """Calls `started_callback` once it accepts connections and handles signals."""

    started_callback: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_callback()


def serve(app: ASGIApp, bound: socket.socket, limits: Limits, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish the requests in progress.

    started: called once the server accepts connections.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    freeze_startup_objects()
    server = _Server(uvicorn_server(app, limits).config)
    server.started_callback = started
    server.run(sockets=[bound])
