"""Worker processes that each hold all models. A worker that ends is replaced by one with the same models."""

import itertools
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from translume.config import Config
from translume.errors import TranslumeError
from translume.model.device import is_cpu
from translume.processes import Call, ChildProcess, ProcessLostError, UnexpectedChildError, exit_name, usable_processors
from translume.serving.workers.messages import LoadedModel, decode_error
from translume.serving.workers.models import AnyServed, served_class
from translume.translator.loading import ComputeOptions

LOAD_TIMEOUT_SECONDS: Final = 600.0
"""Seconds after which loading a model counts as hung."""
REPLACE_TIMEOUT_SECONDS: Final = 60.0
"""Seconds that a request waits for a worker that replaces another one."""
PLACES: Final = 4
"""Requests that each lane of a worker process takes at a time. Lines that are translated with the same settings share a
search."""
RETRY_LOAD_SECONDS: Final = 10.0
"""Interval at which a worker tries again to load a model that failed to load, for lack of memory perhaps."""
SHORT_LIFE_SECONDS: Final = 30.0
"""Workers that end within this time of their start are replaced after a growing delay."""

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model that every worker holds.  state: of its folder, as it was when the first worker loaded it."""

    name: str
    folder: Path
    state: str


class WorkerPool:
    """`count` worker processes. Call `close` at the end."""

    def __init__(self, count: int, computing: ComputeOptions, *, lanes: int = 1, standby: bool = False) -> None:
        """lanes: searches that a worker runs at a time, each in a thread; they share the models.

        standby: whether one more process, without models, waits to replace a worker.
        A process takes seconds to start on a busy machine, most of them to import torch.
        """
        self._count, self._computing, self._lanes = count, computing, lanes
        self.on_lost: Callable[[], object] | None = None
        """Called when a worker has ended unexpectedly."""
        self._changed = threading.Condition()
        self._started: list[ChildProcess] = []  # includes those that do not hold all models yet
        self._ready: list[ChildProcess] = []
        self._idle: list[ChildProcess] = []
        self._standby: ChildProcess | None = None
        self._models: dict[str, _Model] = {}
        self._loading = threading.Lock()
        self._keys, self._turns = itertools.count(), itertools.count()
        self._closing = threading.Event()
        self._unused: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        targets = [self._supervise] * count + [self._unload_unused] + [self._keep_standby] * standby
        self._threads = [threading.Thread(target=target, name="translume-pool", daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def load(self, name: str, folder: Path) -> AnyServed:
        """Load a model in all workers, and return its proxy. Raises TranslumeError if any of them cannot load it."""
        with self._changed:  # workers that are starting
            self._changed.wait_for(
                lambda: len(self._ready) == self._count or self._closing.is_set(), REPLACE_TIMEOUT_SECONDS
            )
        with self._loading:
            key = str(next(self._keys))
            model = _Model(name=name, folder=folder, state="")
            ready = list(self._ready)
            try:
                if not ready:
                    raise ProcessLostError("no worker process started")
                calls = [self._request_load(worker, key, model) for worker in ready]
                loaded = [_loaded(call) for call in calls]
            except (ProcessLostError, UnexpectedChildError) as error:
                self._unused.put(key)
                if isinstance(error, UnexpectedChildError):
                    fields = {"model": name, "error": error.kind, "traceback": error.trace}
                    log.error("a model was not loaded", extra={"fields": fields})
                raise TranslumeError(f"{name}: not loaded: {error}; the log may say why") from None
            except BaseException:
                self._unused.put(key)
                raise
            first = loaded[0]
            if any(each.state != first.state for each in loaded):
                self._unused.put(key)
                raise TranslumeError(f"{folder}: changed while it was read; try again")
            self._models[key] = _Model(name=name, folder=folder, state=first.state)
        with self._changed:
            self._changed.notify_all()
        served = served_class(Config.parse(first.config, place="config")).remote(name, self, key, first)
        weakref.finalize(served.model, self._unused.put, key).atexit = False
        return served

    @contextmanager
    def lease(self) -> Iterator[ChildProcess]:
        """Yield a worker with a free place; see `PLACES`. Raises ProcessLostError if none starts in time."""
        with self._changed:
            worker = self._pick(lambda: self._idle)
            self._idle.remove(worker)
        try:
            yield worker
        finally:
            with self._changed:
                if worker in self._ready:
                    self._idle.append(worker)
                    self._changed.notify_all()

    def next_worker(self) -> ChildProcess:
        """Return the next worker in turn, for requests that share it. Raises ProcessLostError like `lease`."""
        with self._changed:
            return self._pick(lambda: self._ready)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are ready."""
        return [each.pid for each in list(self._ready) if not each.ended]

    def close(self) -> None:
        """End all workers."""
        with self._changed:
            self._closing.set()
            for each in self._started:
                each.shutdown()
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

    def _pick(self, workers: Callable[[], list[ChildProcess]]) -> ChildProcess:
        """Return a worker that has not ended, one named most often, once there is one. `_changed` must be held."""

        def alive() -> list[ChildProcess]:
            found = [each for each in workers() if not each.ended]
            most = max(map(found.count, found), default=0)
            return [each for each in dict.fromkeys(found) if found.count(each) == most]

        self._changed.wait_for(lambda: alive() or self._closing.is_set(), REPLACE_TIMEOUT_SECONDS)
        if found := alive():
            return found[next(self._turns) % len(found)]
        reason = "the worker pool is closed" if self._closing.is_set() else "no worker process started in time"
        raise ProcessLostError(reason)

    def _supervise(self) -> None:
        """Keep one worker running."""
        short_lives = 0
        while not self._closing.is_set():
            started = time.monotonic()
            worker = self._take_standby() or self._start()
            if worker is None:
                continue
            with self._loading:
                missing = [key for key, model in list(self._models.items()) if not self._reload(worker, key, model)]
                with self._changed:
                    self._ready.append(worker)
                    self._idle += [worker] * (PLACES * self._lanes)
                    self._changed.notify_all()
            while missing and not worker.ended and not self._closing.wait(RETRY_LOAD_SECONDS):
                with self._loading:
                    models = [(key, model) for key in missing if (model := self._models.get(key)) is not None]
                    missing = [key for key, model in models if not self._reload(worker, key, model)]
            code = worker.wait()
            with self._changed:
                self._started.remove(worker)
                self._ready.remove(worker)
                self._idle = [each for each in self._idle if each is not worker]
            if self._closing.is_set():
                return
            log.error("a worker process ended", extra={"fields": {"worker": worker.pid, "how": exit_name(code)}})
            if self.on_lost is not None:
                self.on_lost()
            short_lives = short_lives + 1 if time.monotonic() - started < SHORT_LIFE_SECONDS else 0
            self._closing.wait(min(30.0, 0.1 * 2**short_lives) if short_lives > 1 else 0.0)

    def _start(self) -> ChildProcess | None:
        """Start a process. If there is no room for one, return None after a second."""
        try:
            worker = ChildProcess("translume.serving.workers.main", output=_log_line, decode_error=decode_error)
        except (OSError, RuntimeError) as error:  # no process or thread is available now
            log.error("no worker process can be started", extra={"fields": {"error": str(error)}})
            self._closing.wait(1.0)
            return None
        with self._changed:
            self._started.append(worker)
            if self._closing.is_set():
                worker.shutdown()
        return worker

    def _keep_standby(self) -> None:
        """Start a standby process whenever there is none and all workers hold their models."""

        def missing() -> bool:
            return self._standby is None and bool(self._models) and len(self._ready) == self._count

        while not self._closing.is_set():
            with self._changed:
                self._changed.wait_for(lambda: missing() or self._closing.is_set())
            if not self._closing.is_set() and (process := self._start()) is not None:
                with self._changed:
                    self._standby = process
        if (process := self._take_standby()) is not None:
            process.close()

    def _take_standby(self) -> ChildProcess | None:
        """Return the standby process; None if there is none, or if it has ended."""
        with self._changed:
            process, self._standby = self._standby, None
            self._changed.notify_all()
        if process is not None and process.ended:
            process.wait()
            with self._changed:
                self._started.remove(process)
            return None
        return process

    def _request_load(self, worker: ChildProcess, key: str, model: _Model) -> Call:
        values = {"name": model.name, "folder": str(model.folder), "state": model.state}
        return worker.request(
            "load", {"model": key, **values, "computing": asdict(self._computing), "lanes": self._lanes}
        )

    def _reload(self, worker: ChildProcess, key: str, model: _Model) -> bool:
        """Load a model of the other workers in a new one; return whether that succeeded."""
        try:
            _loaded(self._request_load(worker, key, model))
        except ProcessLostError:
            return False
        except (TranslumeError, UnexpectedChildError) as error:
            log.error("a model was not loaded again", extra={"fields": {"model": model.name, "reason": str(error)}})
            return False
        return True

    def _unload_unused(self) -> None:
        """Unload models whose proxy was deleted."""
        while (key := self._unused.get()) is not None:
            with self._loading, self._changed:  # a worker that is starting may be loading it
                self._models.pop(key, None)
                ready = list(self._ready)
            for worker in ready:
                with suppress(ProcessLostError, UnexpectedChildError):
                    list(worker.request("unload", {"model": key}).responses(LOAD_TIMEOUT_SECONDS))


def _loaded(call: Call) -> LoadedModel:
    (message,) = list(call.responses(LOAD_TIMEOUT_SECONDS))
    return LoadedModel(**message.values)


def _log_line(pid: int, line: str) -> None:
    log.warning("a worker process said", extra={"fields": {"worker": pid, "line": line}})


def lanes_of(lanes: int, workers: int, computing: ComputeOptions) -> tuple[int, ComputeOptions]:
    """Return the lanes of each worker, and how it computes with them.

    lanes: as the settings have it; 0: one for each processor that a worker has, or one on a GPU and with `--threads`.
    """
    if not lanes:
        lanes = max(1, usable_processors() // workers) if is_cpu(computing.device) and computing.threads is None else 1
    return lanes, replace(computing, threads=1) if lanes > 1 and computing.threads is None else computing
