"""Train and measure one head in a process of its own, so that its peak memory is its own and a crash ends only it."""

import sys
import traceback
from collections.abc import Generator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from translume.comparison.measuring import Measures, measure_head
from translume.config import Config
from translume.data import Account, DataFile
from translume.errors import TranslumeError
from translume.processes import (
    ChildProcess,
    ProcessLostError,
    Request,
    UnexpectedChildError,
    exit_reason,
    serve_requests,
)
from translume.training.events import (
    Event,
    Finished,
    Interrupted,
    Preparing,
    Progress,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
)
from translume.training.interrupt import SignalFlag

EVENTS: tuple[type[Event], ...] = (
    Preparing,
    Started,
    Resumed,
    Warned,
    Progress,
    Validated,
    Saved,
    Interrupted,
    Finished,
)
_BY_NAME = {kind.__name__.lower(): kind for kind in EVENTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to train and measure; see `compare_heads`."""

    config: Config
    folder: Path
    sentences: int
    device: str
    threads: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON values for `from_dict`."""
        values = {"config": self.config.model_dump(mode="json"), "folder": str(self.folder)}
        return {**values, "sentences": self.sentences, "device": self.device, "threads": self.threads}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the task of `to_dict`."""
        config, folder = Config.build(values["config"]), Path(values["folder"])
        return cls(**{**values, "config": config, "folder": folder})


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a task ended. Without measures it was interrupted or failed.

    peak_bytes: peak memory of the training; None if the training had finished before.
    interrupted: the signal's name.  failure: one line.
    """

    measures: Measures | None = None
    peak_bytes: int | None = None
    interrupted: str = ""
    failure: str = ""


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return a training event as JSON values for `event_from_dict`."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    plain = {
        name: value.to_dict() if isinstance(value, Account) else str(value) if isinstance(value, Path) else value
        for name, value in values.items()
    }
    if isinstance(event, Started):
        plain["files"] = [asdict(file) for file in event.files]
    return {"event": type(event).__name__.lower(), **plain}


def event_from_dict(values: dict[str, Any]) -> Event | None:
    """Return the event of `event_to_dict`; None for other values."""
    kind = _BY_NAME.get(values.get("event", ""))
    if kind is None:
        return None
    rest = {name: value for name, value in values.items() if name != "event"}
    if "folder" in rest:
        rest["folder"] = Path(rest["folder"])
    if kind is Started:
        rest |= {name: Account.from_dict(rest[name]) for name in ("training", "validation")}
        rest["files"] = tuple(DataFile(**file) for file in rest["files"])
    return kind(**rest)


def run_in_worker(task: Task, log: Path) -> Generator[Event, None, Outcome]:
    """Yield the events of `train`, and return the outcome (the value of `yield from`).

    log: receives the output of the process, such as a traceback; deleted if there is none.
    The first SIGINT or SIGTERM is passed on, so that the run is saved. A second one ends both processes.
    """
    outcome = Outcome()
    with (
        ChildProcess(__name__, output=log) as child,
        SignalFlag(on_signal=child.send_signal) as signals,
    ):
        try:
            for message in child.request("run", task.to_dict()).responses():
                event = _record(outcome, dict(message.values))
                if event is not None:
                    yield event
        except TranslumeError as error:
            outcome.failure = str(error)
        except (ProcessLostError, UnexpectedChildError):
            outcome.failure = exit_reason(child.close(), log)
    if signals.caught and not outcome.interrupted and outcome.measures is None:
        outcome.interrupted, outcome.failure = signals.caught, ""
    if not log.stat().st_size:
        log.unlink()
    return outcome


def _record(outcome: Outcome, values: dict[str, Any]) -> Event | None:
    """Update the outcome from a response, and return the event that it contains, if any."""
    event = event_from_dict(values)
    if isinstance(event, Interrupted):
        outcome.interrupted = event.signal
    match values["event"]:
        case "peak":
            outcome.peak_bytes = values["bytes"]
        case "measured":
            outcome.measures = Measures.from_dict(values)
    return event


def peak_bytes() -> int:
    """Return the peak memory in bytes: of the device if this process has used CUDA, else of the process (resident)."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss includes the process before it became this program
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _handle(request: Request) -> None:
    """Handle a request in the worker process."""
    try:
        _run(request)
    except KeyboardInterrupt:  # before the first update, or while measuring: there is nothing to save
        return
    except TranslumeError:
        raise
    except BaseException:
        traceback.print_exc()
        raise


def _run(request: Request) -> None:
    """Train, then measure."""
    from translume.training.train import train

    task = Task.from_dict(dict(request.values))
    last = None
    for last in train(task.config, task.folder, device=task.device, threads=task.threads):
        request.respond(event_to_dict(last))
    if not (isinstance(last, Finished) and last.already):
        request.respond({"event": "peak", "bytes": peak_bytes()})
    if isinstance(last, Finished):
        found = measure_head(
            task.folder, task.config, sentences=task.sentences, device=task.device, threads=task.threads
        )
        request.respond({"event": "measured", **found.to_dict()})


def main() -> None:
    """Run a worker process."""
    serve_requests(_handle)
