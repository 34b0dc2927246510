"""translume train"""

import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from translume.cli.group import INTERRUPTED, resume_with
from translume.cli.options import FILE, FOLDER, Compute, compute, compute_options, json_option, overrides, set_option

TERMINATED = 143


@click.command(
    "train",
    short_help="Train a model; again to go on.",
    epilog="Example: translume train en-de.toml --set training.updates=8000",
)
@click.argument("config", type=FILE)
@click.option("--out", type=FOLDER, help="Model folder.  [default: models/NAME for NAME.toml]")
@click.option("--from", "source", type=FOLDER, help="Fine-tune a copy of this model.")
@json_option
@set_option
@compute_options
def command(config: Path, out: Path | None, source: Path | None, as_json: bool) -> None:
    """Train a model on the files that CONFIG names; the same line again goes on where it stopped.

    --dtype is an alias of training.precision. --json prints each event as an object.
    """
    from translume.cli.live import Live
    from translume.config import Config
    from translume.training import Interrupted, Started, TensorBoard, train

    where = compute()
    folder = out or Path("models") / config.stem
    precision = () if where.dtype == "auto" else (f"training.precision={where.dtype}",)
    settings = Config.read(config, (*precision, *overrides()))
    again = resume_line(config, out, source, where)
    resume_with([f"Interrupted; go on with: {again}"])
    last, board = None, None
    with Live(as_json=as_json) as live:
        for event in train(settings, folder, source=source, device=where.device, threads=where.threads):
            live.show(event)
            if isinstance(event, Started) and find_spec("tensorboard"):
                board = TensorBoard(folder, after_update=event.update)
            if board is not None:
                board.add(event)
            last = event
    if board is not None:
        board.close()
    if isinstance(last, Interrupted):
        click.echo(f"Interrupted after {last.update:,} updates, all saved; go on with: {again}", err=True)
        click.get_current_context().exit(TERMINATED if last.signal == "SIGTERM" else INTERRUPTED)
    live.next_steps(folder)


def resume_line(config: Path, out: Path | None, source: Path | None, where: Compute) -> str:
    """The command that goes on with this run."""
    words = ["translume", "train", str(config)]
    if out is not None:
        words += ["--out", str(out)]
    if source is not None:
        words += ["--from", str(source)]
    return shlex.join([*words, *shared_words(where)])


def shared_words(where: Compute) -> list[str]:
    """--set, --device, --dtype and --threads as they were given."""
    words = []
    for assignment in overrides():
        words += ["--set", assignment]
    for name, value, default in (
        ("--device", where.device, "auto"),
        ("--dtype", where.dtype, "auto"),
        ("--threads", where.threads, None),
    ):
        if value != default:
            words += [name, str(value)]
    return words
