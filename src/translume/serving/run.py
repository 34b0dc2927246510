"""The HTTP server process: listening, limiting connections, shutting down, and its log."""

import errno
import gc
import json
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp

from translume.errors import TranslumeError
from translume.serving.api.errors import REQUEST
from translume.serving.connections import MAX_HEAD_BYTES, Connections
from translume.serving.settings import LOOPBACK_ADDRESSES, Limits

SWITCH_SECONDS: Final = 0.0005
"""Python's thread switch interval. With the default, 5 ms, the event loop would wait for the lanes again and again."""
UNIX: Final = "unix:"
"""Beginning of a host that is the path of a Unix socket."""
STALLED_SECONDS: Final = 60.0
"""Seconds without acknowledged data after which a connection counts as lost."""


class PortError(TranslumeError):
    """A port that cannot be bound."""


def port_error(host: str, port: int, error: OSError, flag: str = "--port") -> PortError:
    """Explain in one line why binding a port failed.  flag: the command-line option that sets the port."""
    cure = f"; stop the other process or choose another {flag}" if error.errno == errno.EADDRINUSE else ""
    # create_server appends the address to the reason; the message begins with it already.
    reason = error.strerror.partition(" (while")[0].lower() if error.strerror else str(error)
    return PortError(f"{address_of(host, port)}: cannot listen: {reason}{cure}")


def address_of(host: str, port: int) -> str:
    """Return HOST:PORT, or unix:PATH."""
    return host if host.startswith(UNIX) else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_unix(path: Path, mode: int) -> socket.socket:
    """Return a Unix socket with the permissions `mode`, in place of one that a server has left. Raises PortError."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as other:
                if not other.connect_ex(str(path)):
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            path.unlink()
        before = os.umask(0o777 & ~mode)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise port_error(f"{UNIX}{path}", 0, error, "--host") from None
    return bound


def release(bound: socket.socket, host: str) -> None:
    """Close a socket that listens at a host, and remove its file if it has one."""
    bound.close()
    if host.startswith(UNIX):
        Path(host.removeprefix(UNIX)).unlink(missing_ok=True)


def listen(
    host: str, port: int, *, stalled_seconds: float = STALLED_SECONDS, socket_mode: str = "660"
) -> socket.socket:
    """Return a socket bound to an address, or to unix:PATH; port 0 chooses a free one. Raises PortError.

    stalled_seconds: after which the system closes a connection whose client acknowledges nothing (Linux only). Without
    it, a client that stops reading would keep its request open.
    """
    if host.startswith(UNIX):
        return listen_unix(Path(host.removeprefix(UNIX)), int(socket_mode, 8))
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
    """A server that calls `started_callback` once it accepts connections and handles signals."""

    started_callback: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started_callback is not None:
            self.started_callback()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which afterwards ends the process by the signal that it got; remove files of sockets before."""
        paths = [Path(each.getsockname()) for each in sockets or () if each.family == socket.AF_UNIX]
        await super().shutdown(sockets)
        for path in paths:
            path.unlink(missing_ok=True)


def uvicorn_server(app: ASGIApp, limits: Limits, proxies: Sequence[str] = LOOPBACK_ADDRESSES) -> _Server:
    """Return a uvicorn server: without its own log and a Server header, and with limited connections.

    proxies: addresses and networks whose X-Forwarded-For header names the client; ("*",) for a Unix socket.
    """
    connections = Connections(app, limits, proxies)
    return _Server(
        uvicorn.Config(
            connections,
            http=cast(Any, connections.protocol),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `Connections` reads them
            ws="none",
            lifespan="on",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=int(limits.drain_seconds) + 1,
        )
    )


def freeze_startup_objects() -> None:
    """Exclude objects created at startup from garbage collection.

    Traversing the objects of torch and pydantic takes 0.1 s or more, during which no other thread runs. They are still
    freed by reference counting.
    """
    gc.collect()
    gc.freeze()


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


class JsonLines(logging.Formatter):
    """Formats log records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's message and fields; for an exception its type and traceback, but not its message."""
        request = REQUEST.get()
        fields = {**({"request_id": request} if request else {}), **getattr(record, "fields", {})}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            fields |= {"error": type(error).__name__, "traceback": "".join(traceback.format_tb(error.__traceback__))}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
            **fields,
        }
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr() -> None:
    """Write the server's log to stderr, one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    # uvicorn would warn of every malformed request, which clients could fill a disk with.
    for name, level in (("translume.serving", logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
