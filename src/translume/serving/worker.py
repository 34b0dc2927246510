"""What one of several processes of `translume serve --workers N` runs: the whole server, on a Unix socket."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from translume.errors import TranslumeError
from translume.serving.api.app import build_app
from translume.serving.files.storage import PrivateFolder
from translume.serving.reloading import open_server
from translume.serving.run import log_to_stderr, serve
from translume.serving.settings import ServeSettings
from translume.text.detection import installed_detector
from translume.translator.loading import ComputeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a process needs to serve.  read: reads the settings.  lanes: searches at a time.  folder: of all of them."""

    read: Callable[[], ServeSettings]
    computing: ComputeOptions
    lanes: int
    folder: Path

    @property
    def files(self) -> Path:
        """The folder of translated files."""
        return self.folder / "files"

    @property
    def metrics(self) -> Path:
        """The folder in which the processes count."""
        return self.folder / "metrics"


def run_worker(options: WorkerOptions, address: str, connection: Connection) -> None:
    """Serve on a Unix socket until SIGTERM or until the front has ended.  connection: gets an error, or "" at last."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    try:
        settings = options.read()
        server, _ = open_server(settings, options.computing, options.lanes, PrivateFolder(shared=options.files))
    except TranslumeError as error:
        connection.send(str(error))
        return
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(address)
    bound.listen(2048)

    def end_with_front() -> None:
        with suppress(EOFError, OSError):
            connection.recv()
        os.kill(os.getpid(), signal.SIGTERM)

    def started() -> None:
        with suppress(OSError):  # the front has ended meanwhile
            connection.send("")

    threading.Thread(target=end_with_front, name="translume-parent", daemon=True).start()
    serve(build_app(server, detector=installed_detector()), bound, settings.limits, started, ("*",))
