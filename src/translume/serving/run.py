"""A server on a port, until it is told to stop."""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from translume.serving.access.limits import Limits
from translume.serving.port_error import PortError, port_error
from translume.serving.workers.settled import settle

SWITCH_SECONDS = 0.0005
"""How long the thread that translates may keep others from running Python; at 5 ms, the usual, those that only refuse
or accept would wait for it again and again."""
STALLED_SECONDS = 60.0
"""How long a client may read nothing of what it was sent before it is taken for gone."""


def listen(host: str, port: int, *, stalled_seconds: float = STALLED_SECONDS) -> socket.socket:
    """A socket that is bound to an address; port 0 is any free one. Raises PortError in one line.

    stalled_seconds: after which the system ends a connection whose other side reads nothing, where it can be told to:
    on Linux. Nobody else would, and the request would be open as long as the client pleases.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise port_error(host, port, error) from None
    except OverflowError:
        raise PortError(f"port: found {port}, wanted 0 to 65535") from None
    # Connections have these from the socket that listens. Without the first, the body of an answer waits for the other
    # side to acknowledge its head: 40 ms for whoever keeps a connection.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        bound.setsockopt(socket.IPPROTO_TCP, option, int(1000 * stalled_seconds))
    return bound


class _Impatient(H11Protocol):
    """A connection that is ended where the head of a request does not come, or not whole, in time."""

    head_seconds: ClassVar[float]
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        reading = self.cycle is None or self.cycle.response_complete
        if not reading and self._late is not None:
            self._late.cancel()
            self._late = None
        elif reading and self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.head_seconds, self.transport.close)


def uvicorn_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """What speaks HTTP for an application: no log of its own, no name, no trust in forwarded headers."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=type("Impatient", (_Impatient,), {"head_seconds": limits.read_seconds}),
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


class _Telling(uvicorn.Server):
    """Says when it answers: signals are heard by then, however they were dealt with before."""

    begun: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun()


def serve(app: ASGIApp, bound: socket.socket, limits: Limits, begun: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; then no more is taken, and what was begun is finished.

    begun: is called once it answers.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    settle()
    server = _Telling(uvicorn_server(app, limits).config)
    server.begun = begun
    server.run(sockets=[bound])
