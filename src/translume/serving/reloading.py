"""Load models at startup, all or none; reload settings, API keys and models while the server runs.

Each valid part is replaced by one assignment. An invalid part is kept as it was, and reported in the log and by
/health/ready. Requests in progress finish with the models and keys that they started with.
"""

import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from translume.checkpoint import read_config, verify
from translume.checkpoint.folder import model_folder
from translume.checkpoint.model_card import licence_of
from translume.device import is_cpu
from translume.errors import TranslumeError
from translume.processors import usable_processors
from translume.serving.access.quotas import open_access
from translume.serving.files.storage import PrivateFolder
from translume.serving.models import MANIFEST, ServedModel, ServedModels
from translume.serving.server import Server
from translume.serving.settings import ServeSettings
from translume.tasks import task_of
from translume.translator.loading import ComputeOptions

Load = Callable[[str, Path], ServedModel]
"""Loads the model of a folder under a name. Raises TranslumeError if the folder holds no valid model."""
AT_START: Final = ("host", "port", "socket_mode", "proxies", "metrics", "workers", "on_demand", "pivot")
"""Settings that take effect only at startup."""
LIMITS_AT_START: Final = (
    *("connections", "queue", "batch_tokens", "drain_seconds"),
    *("files", "file_seconds", "kept_seconds"),
)
"""Limits that take effect only at startup."""

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadReport:
    """The outcome of a reload.

    at: UTC time.  loaded, kept, unloaded: names of models that are new or changed, unchanged, and removed.
    problems: by "settings", "keys" or "models.NAME", why that part was not reloaded.
    waiting: changed settings that take effect at the next start.
    keys: number of API keys; None if none is required.
    """

    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    unloaded: tuple[str, ...]
    problems: Mapping[str, str]
    waiting: tuple[str, ...] = ()
    keys: int | None = None

    def to_public_dict(self) -> dict[str, Any]:
        """Return the outcome for clients: what failed, but not the reasons, which name files."""
        return {"at": self.at, "done": not self.problems, "kept_as_before": sorted(self.problems)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedFolder:
    """A loaded model, its folder, and the folder's state at that time; see `state_of`."""

    served: ServedModel
    folder: Path
    state: str


class Loader:
    """Loads models, and keeps track of the loaded ones."""

    def __init__(self, load: Load, pivot: str = "") -> None:
        """pivot: see `ServedModels`."""
        self._load, self._pivot = load, pivot
        self._held: dict[str, _LoadedFolder] = {}

    def load_all(self, folders: Mapping[str, Path]) -> ServedModels:
        """Load all models; raise the error of the first that fails."""
        self._held = {name: self._loaded(name, folder) for name, folder in folders.items()}
        return self._models()

    def reload(self, folders: Mapping[str, Path]) -> tuple[ServedModels, ReloadReport]:
        """Load the models whose folder has changed, keep the others, and report both.

        A model that cannot be loaded, or cannot translate, stays in its previous version, if there is one.
        """
        held, problems = dict[str, _LoadedFolder](), dict[str, str]()
        for name, folder in folders.items():
            before = self._held.get(name)
            try:
                held[name] = self._current(name, folder, before)
                continue
            except TranslumeError as error:
                problems[f"models.{name}"] = str(error)
            except BaseException as error:  # the server must go on
                log.error("loading failed", exc_info=error)
                problems[f"models.{name}"] = f"cannot be loaded: {type(error).__name__}"
            if before is not None:
                held[name] = before
        old, self._held = self._held, held or self._held  # a server needs at least one model
        kept = tuple(name for name, each in held.items() if each is old.get(name))
        loaded, unloaded = tuple(name for name in held if name not in kept), tuple(old.keys() - self._held.keys())
        return self._models(), ReloadReport(loaded=loaded, kept=kept, unloaded=unloaded, problems=problems)

    def _models(self) -> ServedModels:
        return ServedModels((each.served for each in self._held.values()), self._pivot)

    def _current(self, name: str, folder: Path, before: _LoadedFolder | None) -> _LoadedFolder:
        """Return the model that the folder holds now: `before` itself if nothing changed and all files are intact."""
        if before is not None and (before.folder, before.state) == (folder, state_of(folder)):
            verify(folder)
            return before
        return self._loaded(name, folder)

    def _loaded(self, name: str, folder: Path) -> _LoadedFolder:
        state = state_of(folder)
        served = self._load(name, folder)
        if served.loaded:
            served.run_probe()
        return _LoadedFolder(served=served, folder=folder, state=state)


def load_served(computing: ComputeOptions, name: str, folder: Path, *, on_demand: bool = False) -> ServedModel:
    """Load the model of a folder. Its facts have the digest of its manifest, which identifies the exact weights.

    on_demand: to load a translator between two languages when it is first used.
    """
    digest, config = state_of(folder), read_config(folder)
    load = partial(task_of(config).user_class().load, folder, computing)
    if on_demand and config.data.source_language and config.data.target_language and not config.data.source.reader:
        served = ServedModel.on_demand(name, folder, load)
    else:
        served = ServedModel.from_model(name, load())
    return replace(served, facts={**served.facts, MANIFEST: digest, "licence": licence_of(model_folder(folder))})


def open_server(
    settings: ServeSettings, computing: ComputeOptions, lanes: int, files: PrivateFolder | None = None
) -> tuple[Server, Loader]:
    """Return a server whose models are loaded, and what loads them again.  files: see `Server`.

    Raises TranslumeError if a model or the keys cannot be loaded.
    """
    access = open_access(settings.keys)
    loader = Loader(partial(load_served, computing, on_demand=settings.on_demand), settings.pivot)
    server = Server(
        models=loader.load_all({name: Path(folder) for name, folder in settings.models.items()}),
        settings=settings,
        access=access,
        lanes=lanes,
        files=files or PrivateFolder(),
    )
    return server, loader


def lanes_of(workers: int, computing: ComputeOptions) -> tuple[int, ComputeOptions]:
    """Return how many searches a process runs at a time, and how it computes with them.

    One for each processor that a worker has, each on one thread; or one on a GPU and with `--threads`.
    """
    if not is_cpu(computing.device) or computing.threads is not None:
        return 1, computing
    return max(1, usable_processors() // workers), replace(computing, threads=1)


def state_of(folder: Path) -> str:
    """Return the SHA-256 of a folder's manifest, which changes with every commit; empty if it cannot be read."""
    try:
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    except OSError:  # loading reports the reason
        return ""


class Reloader:
    """Reloads a server on request, one reload at a time. Call `close` at the end."""

    def __init__(self, server: Server, loader: Loader, read: Callable[[], ServeSettings]) -> None:
        """read: reads the settings again."""
        self._server, self._loader, self._read = server, loader, read
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="translume-reloader", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Request a reload. Safe to call from a signal handler."""
        self._requests.put(True)

    def close(self) -> None:
        """Stop, after a reload in progress."""
        self._requests.put(False)
        self._thread.join()

    def reload(self) -> ReloadReport:
        """Read everything again, and replace the parts that are valid."""
        problems: dict[str, str] = {}
        server = self._server
        settings = before = server.settings
        try:
            settings = self._read()
        except TranslumeError as error:
            problems["settings"] = str(error)
        try:
            access = open_access(settings.keys, server.access)
        except TranslumeError as error:
            access = server.access
            problems["keys"] = str(error)
        models, report = self._loader.reload({name: Path(folder) for name, folder in settings.models.items()})
        waiting = [name for name in AT_START if getattr(settings, name) != getattr(before, name)]
        held = {name: getattr(before.limits, name) for name in LIMITS_AT_START}
        waiting += [f"limits.{name}" for name in held if getattr(settings.limits, name) != held[name]]
        at_start = {name: getattr(before, name) for name in AT_START}
        limits = settings.limits.model_copy(update=held)
        server.models, server.access = models, access
        server.settings = settings.model_copy(update={**at_start, "limits": limits})
        number = len(access.keys.all) if access is not None else None
        report = replace(report, problems={**problems, **report.problems}, waiting=tuple(waiting), keys=number)
        server.reloaded = report.to_public_dict()
        return report

    def _serve(self) -> None:
        while self._requests.get():
            try:
                report = self.reload()
            except BaseException as error:  # the thread must go on
                log.error("reload failed", exc_info=error)
                continue
            level = logging.ERROR if report.problems else logging.WARNING if report.waiting else logging.INFO
            log.log(level, "reloaded", extra={"fields": asdict(report)})


def reload_on_hangup(request: Callable[[], object]) -> None:
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
