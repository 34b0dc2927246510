"""Settings, keys and models read anew while the server answers.

What is sound is taken over, each part by one assignment between two requests; what is not leaves that part as it was,
and is told in the log and by /health/ready. A request ends with the model and under the keys that it began with.
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
from translume.serving.access.admission import Access
from translume.serving.access.keys import Keys
from translume.serving.access.usage import Usage
from translume.serving.server import Server
from translume.serving.settings import KeySettings, ServeSettings
from translume.serving.workers.loading import Loader, Reloaded

AT_START: Final = ("host", "port", "metrics")
"""Settings that hold until the server is started again."""
LIMITS_AT_START: Final = (
    *("queue", "batch_tokens", "workers", "inspections", "drain_seconds"),
    *("files", "file_seconds", "kept_seconds", "kept_bytes"),
)
"""Limits that do."""

log = logging.getLogger("translume.serving")


def access_for(settings: KeySettings, before: Access | None = None) -> Access | None:
    """Who may ask by these settings; None for everybody. Raises DataError for keys or usage that cannot be read.

    before: whose counts go on, where they are in the same file.
    """
    if not settings.file:
        return None
    keys = Keys.read(Path(settings.file))
    same = before is not None and before.usage.path == settings.counted_in
    usage = before.usage if before is not None and same else Usage(settings.counted_in)
    return Access(keys, usage, settings)


class Reloader:
    """Reloads a server when it is asked to, one time after the other. To be closed."""

    def __init__(
        self, server: Server, loader: Loader, settings: ServeSettings, read: Callable[[], ServeSettings]
    ) -> None:
        """settings: that the server was started with.  read: gives them anew."""
        self._server, self._loader, self._settings, self._read = server, loader, settings, read
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="translume-reload")
        self._thread = threading.Thread(target=self._serve, name="translume-reloader", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Have everything reloaded soon; safe to call from a signal handler."""
        self._asked.put(True)

    def close(self) -> None:
        """Stop, after a reload that was begun."""
        self._asked.put(False)
        self._thread.join()
        self._pool.shutdown()

    def reload(self) -> Reloaded:
        """Read everything anew, and take over what is sound."""
        problems: dict[str, str] = {}
        settings = self._settings
        try:
            settings = self._read()
        except TranslumeError as error:
            problems["settings"] = str(error)
        server = self._server
        try:
            access = access_for(settings.keys, server.access)
        except TranslumeError as error:
            access = server.access
            problems["keys"] = str(error)
        change = self._loader.again({name: Path(folder) for name, folder in settings.models.items()})
        waiting = [name for name in AT_START if getattr(settings, name) != getattr(self._settings, name)]
        held = {name: getattr(server.limits, name) for name in LIMITS_AT_START}
        waiting += [f"limits.{name}" for name in held if getattr(settings.limits, name) != held[name]]
        server.models, server.access = change.models, access
        server.limits = settings.limits.model_copy(update=held)
        server.cors_origins, server.log_text = settings.cors_origins, settings.log_text
        server.public_address = settings.public_address
        # What waits for the next start is compared with what was there at the last one.
        self._settings = settings.model_copy(update={name: getattr(self._settings, name) for name in AT_START})
        server.reloaded = Reloaded(
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
        while self._asked.get():
            done = self._pool.submit(self.reload)
            if (error := done.exception()) is not None:
                places = "".join(traceback.format_tb(error.__traceback__))
                log.error("reload failed", extra={"fields": {"error": type(error).__name__, "traceback": places}})
                continue
            found = done.result()
            level = logging.ERROR if found.problems else logging.WARNING if found.waiting else logging.INFO
            log.log(level, "reloaded", extra={"fields": found.to_dict()})


def reload_at_hangup(ask: Callable[[], None]) -> None:
    """Call `ask` at SIGHUP, but end as at SIGTERM where it means that the terminal was closed."""
    had_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN

    def hangup(number: int, frame: object) -> None:
        if had_terminal and not _has_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            ask()

    signal.signal(signal.SIGHUP, hangup)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
