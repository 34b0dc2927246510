"""A server on a port, until it is told to stop."""

import errno
import socket

import uvicorn
from starlette.types import ASGIApp

from translume.errors import TranslumeError
from translume.serving.guard import log_to_stderr
from translume.serving.limits import Limits


class PortError(TranslumeError):
    """An address that cannot be listened at."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; port 0 is any free one. Raises PortError in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        cure = "; stop what listens there or take another --port" if error.errno == errno.EADDRINUSE else ""
        # create_server adds the address to the reason; it stands at the front already.
        reason = error.strerror.partition(" (while")[0].lower() if error.strerror else str(error)
        raise PortError(f"{host}:{port}: cannot listen: {reason}{cure}") from None
    except OverflowError:
        raise PortError(f"port: found {port}, wanted 0 to 65535") from None


def uvicorn_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """What speaks HTTP for an application: no log of its own, no name, no trust in forwarded headers."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
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


def serve(app: ASGIApp, bound: socket.socket, limits: Limits) -> None:
    """Answer until SIGTERM or Ctrl-C; then no more is taken, and what was begun is finished."""
    log_to_stderr()
    uvicorn_server(app, limits).run(sockets=[bound])
