"""translume train"""

import shlex
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from translume.cli.group import INTERRUPTED, TERMINATED, interrupt_hint
from translume.cli.options import FILE, FOLDER, Compute, compute_options, json_option, set_option
from translume.cli.terminal import note


@click.command(
    "train",
    short_help="Train a model, or resume its training.",
    epilog="Example: translume train en-de.toml --set training.updates=8000",
)
@click.argument("config", type=FILE)
@click.option("--out", type=FOLDER, help="Model folder.  [default: models/NAME for NAME.toml]")
@click.option("--from", "source", type=FOLDER, help="Fine-tune a copy of this model.")
@json_option
@set_option
@compute_options
def command(
    config: Path, out: Path | None, source: Path | None, as_json: bool, overrides: tuple[str, ...], compute: Compute
) -> None:
    """Train a model on the files that CONFIG names. The same command resumes an interrupted training.

    --dtype is an alias of training.precision. --json prints each event as an object; if standard output fails, the
    training goes on without it and exits with 1 at its end.
    """
    from translume.cli.training_display import TrainingDisplay
    from translume.config import Config
    from translume.training import Interrupted, Started, TensorBoard, train

    folder = out or Path("models") / config.stem
    precision = () if compute.dtype == "auto" else (f"training.precision={compute.dtype}",)
    settings = Config.read(config, (*precision, *overrides))
    resume = _resume_command(config, out, source, overrides, compute)
    last, board = None, None
    with interrupt_hint(f"Interrupted; continue with: {resume}"), TrainingDisplay(as_json=as_json) as display:
        for event in train(settings, folder, source=source, device=compute.device, threads=compute.threads):
            display.show(event)
            last = event
            try:
                if isinstance(event, Started) and find_spec("tensorboard"):
                    board = TensorBoard(folder, after_update=event.update)
                if board is not None:
                    board.add(event)
            except OSError as error:
                board = None
                reason = error.strerror or error
                note(f"warning: {folder}/tensorboard: cannot be written: {reason}; the training goes on without it")
    if board is not None:
        with suppress(OSError):  # the curves are no part of the model
            board.close()
    if isinstance(last, Interrupted):
        click.echo(f"Interrupted after {last.update:,} updates, all saved; continue with: {resume}", err=True)
        click.get_current_context().exit(TERMINATED if last.signal == "SIGTERM" else INTERRUPTED)
    display.next_steps(folder)
    if display.output_error is not None:
        raise display.output_error


def _resume_command(
    config: Path, out: Path | None, source: Path | None, overrides: tuple[str, ...], compute: Compute
) -> str:
    words = ["translume", "train", str(config)]
    if out is not None:
        words += ["--out", str(out)]
    if source is not None:
        words += ["--from", str(source)]
    words += [word for assignment in overrides for word in ("--set", assignment)]
    return shlex.join([*words, *compute.words()])
