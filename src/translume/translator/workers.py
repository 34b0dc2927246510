"""Lines of an input shared among processes: of this machine, or of a Ray cluster."""

import os
import socket
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from translume.config import DecodingSettings
from translume.errors import SettingsError, TranslationError, needed_by
from translume.parallel import Closing, ProcessLostError, WorkerPool, in_order
from translume.translator.loading import ComputeOptions
from translume.translator.planning import Line, LineError, numbered_lines, same_document, windows
from translume.translator.results import Translation
from translume.translator.translator import Translator, load, up_to_an_error

if TYPE_CHECKING:
    from translume.translator.generator import Generator

LINES_PER_TASK: Final = 256
AFTER_FAILURE: Final = 16
"""Lines that are given to a model after one that failed, twice as many each time: a failure repeats their encoding."""
MAX_LOSSES: Final = 12
"""How often processes may end without a result in between: more than it takes to find a line among LINES_PER_TASK."""
RAY_RETRIES: Final = 3
"""How often Ray gives the same lines to another process after the death of one."""
CONNECT_SECONDS: Final = 10.0
"""How long the machine of a cluster has to answer."""

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[Any, Sequence[Line], DecodingSettings], Iterable[R]]
"""A function of (model, lines, settings) that returns a result for each line, in order; see `up_to_an_error`.

Such as `Translator.translate_lines`. Processes import it by name.
"""


def outcomes(
    work: Work[R], settings: DecodingSettings, model: object, lines: Sequence[Line]
) -> Iterator[R | LineError]:
    """Yield the result of each line or why it has none, in order."""
    done, count = 0, len(lines)
    while done < len(lines):
        if lines[done].fault:
            yield LineError(lines[done], lines[done].fault)
            done += 1
            continue
        end = done + count
        while end < len(lines) and same_document(lines[end - 1], lines[end]):
            end += 1
        readable = list(takewhile(lambda line: not line.fault, lines[done:end]))
        try:
            for result in up_to_an_error(lambda part: work(model, part, settings), readable):
                done += 1
                yield result
            count *= 2
        except LineError as error:
            done, count = done + 1, AFTER_FAILURE
            yield error


def _outcomes(work: Work[R], settings: DecodingSettings, model: object, lines: Sequence[Line]) -> list[R | LineError]:
    return list(outcomes(work, settings, model, lines))


def run_lines(
    model: object, work: Work[R], lines: Iterable[tuple[Line, int]], settings: DecodingSettings
) -> Iterator[R | LineError]:
    """Yield the result of each line or why it has none, in order, from a model of this process.  lines: with sizes."""
    for window in windows(lines):
        yield from outcomes(work, settings, model, window)


class Pool(Protocol):
    """Processes that work on items."""

    def map(self, function: Callable[[Any, T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield `function(model, item)` for each item, in order."""

    def restart(self) -> None:
        """Replace the processes after a ProcessLostError."""

    def close(self) -> None:
        """End the processes."""


class Workers(Closing):
    """Processes that share the lines of an input, each with a model on one thread. To be closed, best by `with`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @classmethod
    def start(cls, folder: Path | str, count: int, options: ComputeOptions) -> Self:
        """Processes of this machine with the model of a folder.  options: see `options_of`."""
        return cls(WorkerPool(count, partial(_load, str(folder), options)))

    def run(
        self, work: Work[R], lines: Iterable[tuple[Line, int]], settings: DecodingSettings
    ) -> Iterator[R | LineError]:
        """Yield the result of each line or why it has none, in order. Reads a few hundred lines ahead per process.

        If a process ends, the lines in work are done again, a few at a time to find the line that ends it, which then
        has no result.  lines: with their sizes, for `windows`.
        Raises TranslationError if processes keep ending.
        """
        done = losses = 0
        parts = windows(lines, lines=LINES_PER_TASK)
        suspects: deque[Sequence[Line]] = deque()
        while True:
            sent: deque[Sequence[Line]] = deque()
            alone = bool(suspects)
            items = iter([suspects.popleft()]) if alone else parts
            try:
                for outcomes in self._pool.map(partial(_outcomes, work, settings), _noted(items, sent)):
                    yield from outcomes
                    done, losses = done + len(sent.popleft()), 0
                if not alone:
                    return
            except ProcessLostError as lost:
                losses += 1
                reason = f"{lost}, perhaps because memory ran out"
                if losses > MAX_LOSSES:
                    raise TranslationError(f"after line {done}: {reason}; try fewer --workers") from None
                self._pool.restart()
                if alone and len(sent[0]) == 1:
                    yield LineError(sent[0][0], reason)
                    done, sent = done + 1, deque()
                elif alone:
                    half = len(sent[0]) // 2
                    sent = deque([sent[0][:half], sent[0][half:]])
                suspects.extendleft(reversed(sent))
            except OSError as error:
                raise TranslationError(f"cannot start worker processes: {error}; try fewer --workers") from None

    def translate_all(
        self,
        texts: Iterable[object],
        settings: DecodingSettings,
        constraints: Iterable[Iterable[str]] | None = None,
        *,
        frames: bool = False,
        documents: Iterable[Hashable] | bool = False,
    ) -> Iterator[Translation]:
        """Yield what `Translator.translate_all` yields, or raise its errors.  The others: see `numbered_lines`."""
        lines = numbered_lines(texts, constraints, frames=frames, documents=documents)
        for result in self.run(Translator.translate_lines, lines, settings):
            if isinstance(result, LineError):
                raise result
            yield result

    def close(self) -> None:
        """End the processes. Work in progress is lost."""
        self._pool.close()


def _noted(items: Iterable[T], sent: deque[T]) -> Iterator[T]:
    """Yield the items, and append each to `sent`."""
    for item in items:
        sent.append(item)
        yield item


def _load(folder: str, options: ComputeOptions) -> object:
    return load(folder, device=options.device, dtype=options.dtype, threads=options.threads, engine=options.engine)


def options_of(model: "Translator | Generator") -> ComputeOptions:
    """Return the options with which a process on one CPU thread computes as a loaded model does."""
    if model.engine is not None:
        return ComputeOptions(engine="fast", device="cpu", dtype=model.engine.dtype, threads=1)
    weight = next(model.checkpoint.model.parameters())
    return ComputeOptions(
        engine="plain", device="cpu", dtype="bf16" if weight.element_size() < 4 else "fp32", threads=1
    )


class _Actor:
    """A process of a cluster with the model of a folder, which it loads when it begins its first work."""

    def __init__(self, folder: str, options: ComputeOptions) -> None:
        self._folder, self._options = folder, options
        self._model: object = None

    def run(self, function: Callable[[Any, T], R], item: T) -> R:
        """Return `function(model, item)`."""
        self._model = self._model or _load(self._folder, self._options)
        return function(self._model, item)


class RayPool:
    """Actors of a Ray cluster, one for each CPU. Ray starts an actor that died again, and gives it the same lines.

    The model folder must have the same path on all machines.
    """

    def __init__(self, address: str, folder: Path | str, count: int | None, options: ComputeOptions) -> None:
        """address: of a cluster, such as "head:6379"; "auto" for that of this machine, "local" to start one here.

        count: of actors; None: as many as the cluster has CPUs.  options: see `options_of`.
        Raises SettingsError if Ray is not installed or has no cluster there, or not so many CPUs.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with needed_by("--ray"):
            import ray
        self._ray = ray
        more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal():  # Ray would try for minutes where nothing answers
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            ray.init(address, log_to_driver=False, logging_level="ERROR", **more)
        except (OSError, OverflowError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = " ".join(str(error).split())
            raise SettingsError(f"--ray {address}: found no cluster, expected the address of one: {reason}") from None
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if not 0 < (count or cpus) <= cpus:
            ray.shutdown()
            raise SettingsError(f"--workers: found {count or 0}, but the cluster has {cpus} CPUs")
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=RAY_RETRIES)(_Actor)
        self._actors = [actor.remote(str(Path(folder).absolute()), options) for _ in range(count or cpus)]

    def map(self, function: Callable[[Any, T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield `function(model, item)` for each item, in order."""
        actors = cycle(self._actors)

        def submit(item: T) -> Callable[[], R]:
            return partial(self._result, next(actors).run.remote(function, item))

        return in_order(submit, items, 2 * len(self._actors))

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise ProcessLostError(" ".join(str(error).split())) from None

    def restart(self) -> None:
        """Do nothing: Ray starts actors again."""

    def close(self) -> None:
        """End the actors, and a cluster that was started here. Work in progress is lost."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()
