"""Worker processes, each with all models: one that ends is replaced by another one with the same models."""

import itertools
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from translume.errors import TranslumeError
from translume.serving.workers.models import Served, ServedClassifier
from translume.serving.workers.plain import FailedElsewhereError
from translume.serving.workers.process import Call, Process
from translume.serving.workers.proxy import RemoteClassifier, RemoteTranslator, Told
from translume.serving.workers.thread import WorkerLostError
from translume.translator.engines import Computing

LOAD_SECONDS: Final = 600.0
"""How long a model may take to be loaded."""
REPLACE_SECONDS: Final = 60.0
"""How long work waits for a process that replaces another one."""
AGAIN_SECONDS: Final = 10.0
"""After how long a process tries once more to load a model that it could not: memory, or a file, may be back."""
SOON_SECONDS: Final = 30.0
"""A process that ends before it is so old is replaced later, the more often that happened."""

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """A model that processes are to have.  state: of its folder, as it was when it was loaded first."""

    name: str
    folder: Path
    state: str


class Processes:
    """Worker processes of a server. To be closed; they end with this process in any case."""

    def __init__(self, count: int, computing: Computing) -> None:
        self._computing = computing
        self.told: Callable[[], object] | None = None
        """Is called whenever a process has ended that was not to."""
        self._changed = threading.Condition()
        self._begun: list[Process] = []  # also those that are loading what the others have
        self._ready: list[Process] = []
        self._idle: list[Process] = []
        self._loads: dict[str, _Load] = {}
        self._loading = threading.Lock()
        self._keys, self._turns = itertools.count(), itertools.count()
        self._closing = threading.Event()
        self._unused: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._keep, name="translume-process", daemon=True) for _ in range(count)
        ]
        self._threads.append(threading.Thread(target=self._unload, name="translume-unload", daemon=True))
        for thread in self._threads:
            thread.start()

    def load(self, name: str, folder: Path) -> Served | ServedClassifier:
        """The model of a folder, in all processes; the error of whichever cannot load it."""
        self._wait_for_all()
        with self._loading:
            key = str(next(self._keys))
            load = _Load(name=name, folder=folder, state="")
            ready = list(self._ready)
            try:
                if not ready:
                    raise WorkerLostError("no worker process came up")
                calls = [self._asked_to_load(process, key, load) for process in ready]
                told = [_told(call) for call in calls]
            except (WorkerLostError, FailedElsewhereError) as error:
                self._unused.put(key)
                if isinstance(error, FailedElsewhereError):
                    fields = {"model": name, "error": error.kind, "traceback": error.places}
                    log.error("a model was not loaded", extra={"fields": fields})
                raise TranslumeError(f"{name}: not loaded: {error}; the log may say why") from None
            except BaseException:
                self._unused.put(key)
                raise
            if any(each.state != told[0].state for each in told):
                self._unused.put(key)
                raise TranslumeError(f"{folder}: changed while it was read; try again")
            self._loads[key] = _Load(name=name, folder=folder, state=told[0].state)
        remote = (RemoteClassifier if told[0].labels is not None else RemoteTranslator)(self, key, told[0])
        weakref.finalize(remote, self._unused.put, key).atexit = False
        if isinstance(remote, RemoteClassifier):
            return ServedClassifier(name=name, classifier=remote, facts=told[0].facts)
        data = remote.config.data
        return Served(
            name=name,
            translator=remote,
            source=data.source_language,
            target=data.target_language,
            facts=told[0].facts,
        )

    @contextmanager
    def leased(self) -> Iterator[Process]:
        """A process that nobody else has work in; WorkerLostError where none comes up."""
        with self._changed:
            process = self._one(self._idle)
            self._idle.remove(process)
        try:
            yield process
        finally:
            with self._changed:
                if process in self._ready:
                    self._idle.append(process)
                    self._changed.notify_all()

    def any(self) -> Process:
        """A process for what is done beside other work, each in turn; WorkerLostError where none comes up."""
        with self._changed:
            return self._one(self._ready)

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes that are there now."""
        return [each.pid for each in list(self._ready) if not each.over]

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._closing.set()
            for each in self._begun:
                each.end()
            self._changed.notify_all()
        self._unused.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, among: list[Process]) -> Process:
        """One of some processes that has not ended, as soon as there is one; `_changed` is held."""

        def living() -> list[Process]:
            return [each for each in among if not each.over]

        self._changed.wait_for(lambda: living() or self._closing.is_set(), REPLACE_SECONDS)
        if found := living():
            return found[next(self._turns) % len(found)]
        raise WorkerLostError("the worker processes were ended" if self._closing.is_set() else "no worker came up")

    def _wait_for_all(self) -> None:
        """Wait for processes that are about to come up, without being in their way."""
        count = len(self._threads) - 1
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) == count or self._closing.is_set(), REPLACE_SECONDS)

    def _asked_to_load(self, process: Process, key: str, load: _Load) -> Call:
        own = {"name": load.name, "folder": str(load.folder), "state": load.state}
        return process.call("load", {"key": key, **own, "computing": asdict(self._computing)})

    def _keep(self) -> None:
        """Keep a process there."""
        soon = 0
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                process = Process()
            except (OSError, RuntimeError) as error:
                # The machine has no room for one, or for its threads, just now.
                log.error("no worker process can be begun", extra={"fields": {"error": str(error)}})
                self._closing.wait(1.0)
                continue
            with self._changed:
                self._begun.append(process)
                if self._closing.is_set():
                    process.end()
            with self._loading:
                lacking = [key for key, load in list(self._loads.items()) if not self._load_again(process, key, load)]
                with self._changed:
                    self._ready.append(process)
                    self._idle.append(process)
                    self._changed.notify_all()
            while lacking and not process.over and not self._closing.wait(AGAIN_SECONDS):
                with self._loading:
                    wanted = [(key, load) for key in lacking if (load := self._loads.get(key)) is not None]
                    lacking = [key for key, load in wanted if not self._load_again(process, key, load)]
            how = process.wait()
            with self._changed:
                self._begun.remove(process)
                self._ready.remove(process)
                with suppress(ValueError):
                    self._idle.remove(process)
            if self._closing.is_set():
                return
            log.error("a worker process ended", extra={"fields": {"worker": process.pid, "how": how}})
            if self.told is not None:
                self.told()
            soon = soon + 1 if time.monotonic() - begun < SOON_SECONDS else 0
            self._closing.wait(min(30.0, 0.1 * 2**soon) if soon > 1 else 0.0)

    def _load_again(self, process: Process, key: str, load: _Load) -> bool:
        """Have a new process load what others had; whether it has. What it cannot load, it says of every text."""
        try:
            _told(self._asked_to_load(process, key, load))
        except WorkerLostError:
            return False
        except (TranslumeError, FailedElsewhereError) as error:
            log.error("a model was not loaded again", extra={"fields": {"model": load.name, "reason": str(error)}})
            return False
        return True

    def _unload(self) -> None:
        """Have processes forget the models that nobody uses any more."""
        while (key := self._unused.get()) is not None:
            # A process that is coming up may be loading it.
            with self._loading, self._changed:
                self._loads.pop(key, None)
                ready = list(self._ready)
            for process in ready:
                process.post("unload", -1, {"key": key})


def _told(call: Call) -> Told:
    """What a process tells of a model that it was asked to load."""
    (answer,) = list(call.answers(LOAD_SECONDS))
    return Told.of(answer.body)
