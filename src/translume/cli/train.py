"""translume train"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from translume.cli.group import HUNG_UP, INTERRUPTED, TERMINATED, interrupt_hint
from translume.cli.options import (
    FILE,
    FOLDER,
    MODEL,
    Compute,
    compute_options,
    json_option,
    set_option,
    typed_command,
    warn_of_warmup,
)
from translume.cli.terminal import print_json, warn
from translume.errors import SettingsError, reason_of

if TYPE_CHECKING:
    from translume.config import Config
    from translume.training.events import Event
    from translume.training.tracking import Ending, Tracker

EXIT_CODES = {"SIGHUP": HUNG_UP, "SIGINT": INTERRUPTED, "SIGTERM": TERMINATED}


@click.command(
    "train",
    short_help="Train a model, or resume its training.",
    epilog="Example: translume train en-de.toml --set training.updates=8000",
)
@click.argument("config", type=FILE)
@click.option("--out", type=FOLDER, help="Model folder.  [default: models/NAME for NAME.toml]")
@click.option("--from", "source", type=MODEL, help="Fine-tune a copy of this model.")
@click.option(
    "--dry-run", is_flag=True, help="Measure memory and time with a few updates instead, and leave nothing behind."
)
@click.option(
    "--track",
    type=click.Choice(["wandb", "mlflow"]),
    multiple=True,
    help="Send curves and settings to Weights & Biases or MLflow. Repeatable.",
)
@json_option
@set_option
@compute_options
def command(
    config: Path,
    out: Path | None,
    source: Path | None,
    dry_run: bool,
    track: tuple[str, ...],
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Train a model on the files that CONFIG names. The same command resumes an interrupted training.

    --dtype is an alias of training.precision. --json prints each event as an object; if standard output fails, the
    training goes on without it and exits with 1 at its end. Processes that torchrun started train one model together.
    """
    from translume.config import Config
    from translume.training.group import GroupError, joined
    from translume.training.tracking import check_services

    folder = out or Path("models") / config.stem
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    resume = (f"torchrun --nproc-per-node {processes} -m " if processes != "1" else "") + typed_command()
    try:
        with joined() as group:
            with group.together():
                check_services(track)
                settings = Config.read(config, (*compute.precision, *overrides), partial=source is not None)
                if dry_run and not group.alone:
                    raise SettingsError("--dry-run: found several processes, expected one; run it without torchrun")
            if group.leads:
                warn_of_warmup(settings.training)
            if dry_run:
                _rehearse(settings, folder, source, compute, as_json=as_json)
            else:
                train_model(
                    settings, folder, source, compute, resume, track=track, as_json=as_json, reports=group.leads
                )
    except GroupError as error:
        if error.reports:
            raise
        click.get_current_context().exit(1)


def train_model(
    settings: "Config",
    folder: Path,
    source: Path | None,
    compute: Compute,
    resume: str,
    *,
    track: tuple[str, ...] = (),
    as_json: bool = False,
    reports: bool = True,
    next_steps: bool = True,
) -> None:
    """Train and show the events.

    resume: how to continue, for messages.  track: the services that get the curves, beside TensorBoard.
    reports: false in the processes of a group that print nothing.  next_steps: whether to print what to do next.
    """
    from translume.cli.training_display import TrainingDisplay
    from translume.training import Interrupted, Started, train

    last, trackers = None, Trackers()
    with interrupt_hint(f"Interrupted; continue with: {resume}"), TrainingDisplay(as_json=as_json) as display, trackers:
        for event in train(settings, folder, source=source, device=compute.device, threads=compute.threads):
            last = event
            if not reports:
                continue
            display.show(event)
            if isinstance(event, Started):
                trackers.begin(folder, settings, track, after_update=event.update)
            trackers.add(event)
    if isinstance(last, Interrupted):
        if reports:
            click.echo(f"Interrupted after {last.update:,} updates, all saved; continue with: {resume}", err=True)
        click.get_current_context().exit(EXIT_CODES[last.signal])
    if reports and next_steps:
        display.next_steps(folder)
    if display.output_error is not None:
        raise display.output_error


class Trackers:
    """Passes events on to TensorBoard, if it is installed, and to services; goes on without those that fail.

    A context, which writes what is left at its end.
    """

    def __init__(self) -> None:
        self._open: list[Tracker] = []
        self._ending: Ending = "failed"

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ending = "interrupted" if kind is KeyboardInterrupt else self._ending
        for tracker in self._open:
            with suppress(OSError):  # the curves are no part of the model
                tracker.close(ending)

    def begin(self, folder: Path, config: "Config", services: tuple[str, ...], *, after_update: int) -> None:
        """Begin to track a run. Raises TrainingError if a service refuses it."""
        from translume.training.tracking import SERVICES, TensorBoard

        self._open += [SERVICES[name](folder, config) for name in services]
        if find_spec("tensorboard"):
            try:
                self._open.append(TensorBoard(folder, after_update=after_update))
            except OSError as error:
                self._warn(f"{folder}/tensorboard", error)

    def add(self, event: "Event") -> None:
        """Pass an event on."""
        from translume.training import Finished, Interrupted

        if isinstance(event, Finished | Interrupted):
            self._ending = "finished" if isinstance(event, Finished) else "interrupted"
        for tracker in list(self._open):
            try:
                tracker.add(event)
            except OSError as error:
                self._open.remove(tracker)
                self._warn(tracker.place, error)

    def _warn(self, place: str, error: OSError) -> None:
        reason = reason_of(error)
        warn(f"warning: {place}: cannot be written: {reason}; the training goes on without it")


@contextmanager
def _exits_on_signals() -> Iterator[None]:
    """Run a block that SIGTERM and SIGHUP end by SystemExit, so that temporary folders are removed."""

    from translume.training.interrupt import ENDING

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    numbers = [each for each in ENDING[1:] if signal.getsignal(each) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _rehearse(config: "Config", folder: Path, source: Path | None, compute: Compute, *, as_json: bool) -> None:
    """Print what a training would cost."""
    from translume.cli.terminal import span
    from translume.cli.training_display import TrainingDisplay
    from translume.training import DryRun, Interrupted, dry_run

    with _exits_on_signals(), TrainingDisplay() as display:
        for event in dry_run(config, folder, source=source, device=compute.device, threads=compute.threads):
            if isinstance(event, Interrupted):
                click.get_current_context().exit(EXIT_CODES[event.signal])
            if not isinstance(event, DryRun):
                display.show(event)
            elif as_json:
                print_json(event)
            else:
                device = "" if event.device_bytes is None else f", {event.device_bytes / 1e9:.2f} GB on {event.device}"
                click.echo(f"memory: {event.peak_bytes / 1e9:.2f} GB{device}")
                click.echo(
                    f"start: {span(event.preparation_seconds)} of preparation, "
                    f"{span(event.warm_up_seconds)} more for the first updates than for later ones"
                )
                click.echo(
                    f"update: {event.update_seconds:.3g} s, the mean of {event.measured}; "
                    f"{event.tokens_per_second:,.0f} target tokens/s"
                )
                rest = ", without validation and saving"
                if event.validation_seconds is not None and event.saving_seconds is not None:
                    texts = "" if config.training.metric == "nll" else f"; without texts for {config.training.metric}"
                    rest = (
                        f", with validations of {event.validation_seconds:.2g} s "
                        f"and commits of {event.saving_seconds:.2g} s{texts}"
                    )
                click.echo(f"training: {span(event.training_seconds)} for {event.updates:,} updates{rest}")
