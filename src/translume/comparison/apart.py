"""A run in a process of its own, watched from this one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from translume.comparison.child import STOPPED, Request
from translume.comparison.measuring import Measures
from translume.comparison.wire import from_values
from translume.training.events import Event, Interrupted
from translume.training.interrupt import Signals

CHILD = "translume.comparison.child"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How it ended. Without measures it was interrupted or failed.

    peak_bytes: most memory that the training took; None if nothing was left to train.
    interrupted: the signal's name.  failure: one line.
    """

    measures: Measures | None = None
    peak_bytes: int | None = None
    interrupted: str = ""
    failure: str = ""


def run_apart(request: Request, log: Path) -> Generator[Event, None, Outcome]:
    """Tells the events of `train`, and returns (as `yield from` gives it) what came out.

    log: gets what the process prints besides, such as a traceback; it is deleted if that is nothing.
    The first SIGINT or SIGTERM is handed on, so that the run saves; a second one ends both.
    """
    outcome = Outcome()
    # In a group of its own Ctrl-C does not reach it a second time, which would end it before it has saved.
    with (
        log.open("wb") as printed,
        subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
            encoding="utf-8",
            process_group=0,
        ) as process,
        Signals(tell=process.send_signal) as signals,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _hand_over(request, process.stdin)
            for line in process.stdout:
                event = _note(outcome, line)
                if event is not None:
                    yield event
            code = process.wait()
        finally:
            process.kill()
    if signals.caught and not outcome.interrupted and outcome.measures is None:
        outcome.interrupted = signals.caught
    if code not in (0, STOPPED) and not outcome.failure and not outcome.interrupted:
        outcome.failure = why(code, log)
    elif not log.stat().st_size:
        log.unlink()
    return outcome


def _hand_over(request: Request, pipe: IO[str]) -> None:
    try:
        pipe.write(request.to_json())
        pipe.close()
    except BrokenPipeError:  # it died before it read; its exit code tells
        return


def _note(outcome: Outcome, line: str) -> Event | None:
    """Keep what a line says of the outcome; the event to hand on, if it is one."""
    values = json.loads(line)
    event = from_values(values)
    if isinstance(event, Interrupted):
        outcome.interrupted = event.signal
    match values["event"]:
        case "peak":
            outcome.peak_bytes = values["bytes"]
        case "measured":
            outcome.measures = Measures.from_dict(values)
        case "failed":
            outcome.failure = values["reason"]
    return event


def why(code: int, log: Path) -> str:
    """The last line that a process printed before it died, or the signal that killed it."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else last or f"exit code {code}"
    return f"{how} (see {log})" if last else how
