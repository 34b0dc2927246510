"""Processes that train models and measure them, several at a time.

Each training has a process of its own, so that its peak memory is its own and a crash ends only it.
"""

import os
import resource  # Windows has none: `needed_by` says so
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path

import torch

from translume.checkpoint import FolderLock
from translume.config import Config
from translume.errors import ModelFolderError, TranslumeError
from translume.experiments.measuring import Measured, measure
from translume.json_values import JsonValue
from translume.training.events import Event, Finished
from translume.training.interrupt import ENDING, SignalFlag
from translume.training.resume import ModelDescription, Store

PRELOADED = ["translume.experiments.processes", "translume.training.train", "translume.translator"]
"""Modules that the fork server imports."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to train and measure.

    name: in messages.  folder: of the model. A new one takes vocabularies and tokenized corpus from one beside it.
    sentences: number of validation sentences to translate, evenly spread; 0 for all.
    """

    name: str
    config: Config
    folder: Path
    sentences: int = field(kw_only=True)
    device: str = field(kw_only=True)
    threads: int | None = field(kw_only=True)

    @property
    def log(self) -> Path:
        """The file of the output of its process, such as a traceback; it exists only if there is some."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def work(self, send: Callable[[object], None]) -> None:
        """Train, then measure, in the worker process; send events, the peak memory and the measures."""
        from translume.training.train import train

        event = None
        for event in train(self.config, self.folder, device=self.device, threads=self.threads):
            send(event)
        if not (isinstance(event, Finished) and event.already):
            send(peak_bytes())
        if isinstance(event, Finished):
            sentences, device, threads = self.sentences, self.device, self.threads
            send(measure(self.folder, self.config, sentences=sentences, device=device, threads=threads))


@dataclass(slots=True, kw_only=True)
class Run(JsonValue):
    """The result of a task: measures, or the reason of a failure; neither, if it is missing or was interrupted.

    peak_bytes: peak memory of the training, of the process or, on CUDA, of the device; None if it had finished before.
    failure: one line.  key: digest of the measured weights and of the settings of model and measurement.
    """

    measured: Measured | None = None
    peak_bytes: int | None = None
    failure: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A task is started: the `number`-th of `count`, or of an unknown number."""

    number: int
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The tasks were stopped before their end.  signal: its name; empty if the time was over."""

    signal: str


def run_tasks(
    tasks: Iterable[Task | None], *, workers: int = 1, seconds: float | None = None
) -> Iterator[tuple[Task, Began | Event | Run] | Stopped]:
    """Train and measure, in at most `workers` processes at a time. Yield for each task Began, its events, a Run.

    tasks: the next one is taken when a process is free and the last Run was yielded. None: no task can begin before
    another Run.
    The first SIGINT or SIGTERM, or the end of the time, is passed on, so that all runs are saved; no other task begins,
    and Stopped is the last. A second signal ends all processes.
    """
    until = None if seconds is None else time.monotonic() + seconds
    running: dict[Connection, tuple[Task, BaseProcess, Run]] = {}
    late = False

    def pass_on(number: int) -> None:
        for _, process, _ in running.values():
            if process.pid is not None:
                os.kill(process.pid, number)

    count = len(tasks) if isinstance(tasks, Sequence) else None
    waiting = enumerate(tasks, start=1)
    with SignalFlag(on_signal=pass_on) as signals:
        try:
            while True:
                while len(running) < workers and not (late or signals.caught):
                    number, task = next(waiting, (0, None))
                    if task is None:
                        break
                    yield task, Began(number=number, count=count)
                    receiver, process = _start(task, {other.folder for other, _, _ in running.values()})
                    running[receiver] = task, process, Run()
                    if signals.caught:  # before it was among those running
                        pass_on(signal.Signals[signals.caught])
                if not running:
                    break
                left = None if until is None or late else max(0.0, until - time.monotonic())
                ready = wait([*running], left)
                for receiver in [each for each in running if each in ready]:
                    task, process, run = running[receiver]
                    try:
                        message = receiver.recv()
                    except EOFError:
                        del running[receiver]
                        process.join()
                        receiver.close()
                        _end(run, task.log, process.exitcode, stopped=late or bool(signals.caught))
                        yield task, run
                        continue
                    match message:
                        case Measured():
                            run.measured = message
                        case int():
                            run.peak_bytes = message
                        case TranslumeError():
                            run.failure = str(message)
                        case _:
                            yield task, message
                if until is not None and not late and time.monotonic() >= until:
                    late = True
                    pass_on(signal.SIGINT)
        finally:
            for receiver, (_, process, _) in running.items():
                process.kill()
                receiver.close()
        if late or signals.caught:
            yield Stopped(signal=signals.caught)


def _start(task: Task, busy: set[Path]) -> tuple[Connection, BaseProcess]:
    """Start the process of a task; return what receives its messages, and it.  busy: folders of other processes."""
    # A fork server imports torch once for all tasks, not once for each. On macOS, some libraries do not survive a fork.
    context = get_context("forkserver") if sys.platform == "linux" else get_context("spawn")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    beside = (path.parent for path in sorted(task.folder.parent.glob("*/manifest.json")))
    others = [each for each in beside if each not in busy]
    process = context.Process(target=_run, args=(task, others, sender, dict(os.environ)), daemon=True)
    task.log.touch()
    # Until it has a session of its own, the worker blocks the signals that a terminal sends to all processes.
    ensure_running()  # as the first start of a process would, which unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sender.close()
    return receiver, process


def _end(run: Run, log: Path, code: int | None, *, stopped: bool) -> None:
    """Complete a run after the end of its process.  code: its exit code.  stopped: a failure may be due to that."""
    if code:
        run.failure = _exit_reason(code, log)
    if run.measured is None:
        run.failure = "" if stopped else run.failure or "no measures were returned"
    if not log.stat().st_size:
        log.unlink()


def _exit_reason(code: int, log: Path) -> str:
    """Return one line: the signal that ended a process, or else the last line in the log of its output."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else (lines or [f"exit code {code}"])[-1]
    return f"{reason} (see {log})" if lines else reason


def _run(task: Task, others: Sequence[Path], sender: Connection, environment: dict[str, str]) -> None:
    """Do the work of a task in the worker process; send what it sends, or an error.

    environment: of the caller; that of a fork server is as old as itself.
    """
    os.environ.update(environment)
    os.setsid()
    output = os.open(task.log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background command ignores it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        reuse_vocabularies(others, task)
        task.work(sender.send)
    except KeyboardInterrupt:  # before the first update, or while measuring: there is nothing to save
        return
    except TranslumeError as error:
        sender.send(error)


def reuse_vocabularies(others: Sequence[Path], task: Task) -> None:
    """Copy vocabularies and tokenized corpus of another run with the same settings into a new one."""
    config, folder = task.config, task.folder
    with FolderLock(folder):
        store = Store(folder)
        if store.model() is not None:
            return
        for beside in others:
            model = None
            with suppress(ModelFolderError):  # reported when this model is trained
                model = Store(beside).model()
            if model is None or (model.config.tokenizer, model.config.data) != (config.tokenizer, config.data):
                continue
            store.begin(ModelDescription(config=config, source=model.source, target=model.target))
            with suppress(OSError, shutil.Error):  # without a copy the corpus is built again
                shutil.copytree(beside / "cache", folder / "cache", copy_function=os.link)
            return


def peak_bytes() -> int:
    """Return the peak memory in bytes: of the device if this process has used CUDA, else of the process (resident)."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss includes the process before it became this program
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
