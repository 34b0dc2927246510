"""The HTTP server process: listening, reading with time limits, and shutting down."""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from translume.errors import TranslumeError
from translume.serving.access.clients import Networks
from translume.serving.access.limits import Limits
from translume.serving.connections import Connections, LimitedProtocol, most_connections
from translume.serving.settings import LOOPBACK_ADDRESSES
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
    if not 0 <= port <= 65535:
        raise PortError(f"port: found {port}, expected 0 to 65535")
    try:
        # create_server would leave its socket open if the name cannot be encoded.
        socket.getaddrinfo(host, port, family)
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise port_error(host, port, error) from None
    except (TypeError, UnicodeError):  # the name cannot be encoded, such as bytes that are not UTF-8
        raise PortError(f"host: found {host!a}, expected an address or a host name") from None
    # Connections inherit these options. With Nagle's algorithm the body of a response would wait 40 ms for the client's
    # delayed acknowledgement of the headers.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        bound.setsockopt(socket.IPPROTO_TCP, option, int(1000 * stalled_seconds))
    return bound


class _Server(uvicorn.Server):
    """A server that limits its connections, and calls `started_callback` once it accepts them and handles signals."""

    register: Connections
    started_callback: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.register.handle_loop_error)
        await super().startup(sockets)
        if self.started_callback is not None:
            self.started_callback()


def uvicorn_server(app: ASGIApp, limits: Limits, proxies: Sequence[str] = LOOPBACK_ADDRESSES) -> _Server:
    """Return a uvicorn server: without its own log and a Server header, and with limited connections.

    proxies: addresses and networks whose X-Forwarded-For header names the client.
    """
    register = Connections(most_connections(limits), limits.connections_per_address, Networks(proxies))
    server = _Server(
        uvicorn.Config(
            app,
            http=LimitedProtocol.with_limits(limits, register),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=True,
            forwarded_allow_ips=list(proxies),
            ws="none",
            lifespan="on",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=int(limits.drain_seconds) + 1,
        )
    )
    server.register = register
    return server


def serve(
    app: ASGIApp,
    bound: socket.socket,
    limits: Limits,
    started: Callable[[], None],
    proxies: Sequence[str] = LOOPBACK_ADDRESSES,
) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish the requests in progress.

    started: called once the server accepts connections.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    freeze_startup_objects()
    server = uvicorn_server(app, limits, proxies)
    server.started_callback = started
    server.run(sockets=[bound])
