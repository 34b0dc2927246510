"""Reload settings, API keys and models while the server runs.

Each valid part is replaced by one assignment. An invalid part is kept as it was, and reported in the log and by
/health/ready. Requests in progress finish with the models and keys that they started with.
"""

import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from translume.errors import TranslumeError
from translume.serving.access.quotas import open_access
from translume.serving.server import Server
from translume.serving.settings import ServeSettings
from translume.serving.workers.loading import Loader, ReloadReport

AT_START: Final = ("host", "port", "proxies", "metrics", "lanes", "standby")
"""Settings that take effect only at startup."""
LIMITS_AT_START: Final = (
    *("connections", "queue", "batch_tokens", "workers", "drain_seconds"),
    *("files", "file_seconds", "kept_seconds"),
)
"""Limits that take effect only at startup."""

log = logging.getLogger("translume.serving")


class Reloader:
    """Reloads a server on request, one reload at a time. Call `close` at the end."""

    def __init__(
        self, server: Server, loader: Loader, settings: ServeSettings, read: Callable[[], ServeSettings]
    ) -> None:
        """settings: those at startup.  read: reads the settings again."""
        self._server, self._loader, self._settings, self._read = server, loader, settings, read
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="translume-reload")
        self._thread = threading.Thread(target=self._serve, name="translume-reloader", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Request a reload. Safe to call from a signal handler."""
        self._requests.put(True)

    def close(self) -> None:
        """Stop, after a reload in progress."""
        self._requests.put(False)
        self._thread.join()
        self._pool.shutdown()

    def reload(self) -> ReloadReport:
        """Read everything again, and replace the parts that are valid."""
        problems: dict[str, str] = {}
        settings = self._settings
        try:
            settings = self._read()
        except TranslumeError as error:
            problems["settings"] = str(error)
        server = self._server
        try:
            access = open_access(settings.keys, server.access)
        except TranslumeError as error:
            access = server.access
            problems["keys"] = str(error)
        change = self._loader.reload({name: Path(folder) for name, folder in settings.models.items()})
        waiting = [name for name in AT_START if getattr(settings, name) != getattr(self._settings, name)]
        held = {name: getattr(server.limits, name) for name in LIMITS_AT_START}
        waiting += [f"limits.{name}" for name in held if getattr(settings.limits, name) != held[name]]
        server.models, server.access = change.models, access
        server.limits = settings.limits.model_copy(update=held)
        server.cors_origins, server.host_names = settings.cors_origins, settings.hosts
        server.log_text, server.log_clients = settings.log_text, settings.log_clients
        server.public_address = settings.public_address
        # Settings that take effect at startup are compared with those of the last startup.
        self._settings = settings.model_copy(update={name: getattr(self._settings, name) for name in AT_START})
        server.reloaded = ReloadReport(
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            loaded=change.loaded,
            kept=change.kept,
            unloaded=change.unloaded,
            problems={**problems, **{f"models.{name}": reason for name, reason in change.problems.items()}},
            waiting=tuple(waiting),
            keys=len(access.keys.all) if access is not None else None,
        )
        return server.reloaded

    def _serve(self) -> None:
        while self._requests.get():
            done = self._pool.submit(self.reload)
            if (error := done.exception()) is not None:
                places = "".join(traceback.format_tb(error.__traceback__))
                log.error("reload failed", extra={"fields": {"error": type(error).__name__, "traceback": places}})
                continue
            found = done.result()
            level = logging.ERROR if found.problems else logging.WARNING if found.waiting else logging.INFO
            log.log(level, "reloaded", extra={"fields": found.to_dict()})


def reload_on_hangup(request: Callable[[], None]) -> None:
    """Call `request` on SIGHUP; but if the terminal was closed, end as on SIGTERM."""
    had_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN

    def hangup(number: int, frame: object) -> None:
        if had_terminal and not _has_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            request()

    signal.signal(signal.SIGHUP, hangup)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
