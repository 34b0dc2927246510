"""translume heads"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.group import INTERRUPTED, TERMINATED, interrupt_hint
from translume.cli.options import FILE, FOLDER, Compute, compute_options, json_option, set_option, typed_command
from translume.cli.terminal import note, print_json, warn
from translume.errors import TrainingError

if TYPE_CHECKING:
    from translume.config import Config
    from translume.experiments.heads import Comparison, Row
    from translume.training.events import Interrupted


@click.command(
    "heads",
    short_help="Train a model with each output head, and compare.",
    epilog="Example: translume heads en-de.toml --kinds softmax,mixture --updates 4000",
)
@click.argument("config", type=FILE)
@click.option("--kinds", default="all", metavar="NAMES", help="Such as softmax,mixture.  [default: all]")
@click.option("--updates", type=click.IntRange(min=1), metavar="N", help="Updates for each head: training.updates.")
@click.option(
    "--sentences",
    type=click.IntRange(min=0),
    default=500,
    show_default=True,
    metavar="N",
    help="Validation sentences to translate for the [evaluation] metrics; 0 for all.",
)
@click.option("--out", type=FOLDER, help="Folder for the models and the table.  [default: heads/NAME for NAME.toml]")
@json_option
@set_option
@compute_options
def command(
    config: Path,
    kinds: str,
    updates: int | None,
    sentences: int,
    out: Path | None,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Train the model of CONFIG with each output head, on the same data and seed, and print a table.

    Trains one model after another, each in its own folder under --out. The same command resumes an interrupted
    comparison. The table is also written there, as table.md, table.json and table.png. --json prints one object.
    """
    from translume.config import Config
    from translume.experiments.heads import Comparison, chosen_kinds

    folder = out or Path("heads") / config.stem
    resume = typed_command()
    chosen = chosen_kinds(kinds)
    changes = [] if updates is None else [f"training.updates={updates}"]
    changes += [] if compute.dtype == "auto" else [f"training.precision={compute.dtype}"]
    settings = Config.read(config, (*changes, *overrides))
    training = settings.training
    if training.updates <= training.warmup_updates:
        warn(
            f"warning: training.warmup_updates = {training.warmup_updates:,}, but the training has "
            f"{training.updates:,} updates: the learning rate never reaches its peak"
        )
    with interrupt_hint(f"Interrupted; continue with: {resume}"):
        rows, interrupted = _compare(settings, folder, chosen, sentences, compute)
    if rows:
        comparison = Comparison(config=settings, name=config.name, command=resume, rows=tuple(rows))
        _save(comparison, folder, complete=interrupted is None)
        print_json(comparison.to_dict()) if as_json else click.echo(comparison.to_markdown())
    if interrupted is not None:
        click.echo(f"Interrupted, all saved; continue with: {resume}", err=True)
        click.get_current_context().exit(TERMINATED if interrupted.signal == "SIGTERM" else INTERRUPTED)
    if not any(row.measures for row in rows):
        raise TrainingError(f"{folder}: no head was trained; {rows[0].kind}: {rows[0].failure}")


def _compare(
    settings: "Config", folder: Path, kinds: Sequence[str], sentences: int, compute: Compute
) -> "tuple[list[Row], Interrupted | None]":
    """Train each kind and show its progress. Returns the rows, and the event if training was interrupted."""
    from translume.cli.training_display import TrainingDisplay
    from translume.experiments.heads import ComparingHead, Row, compare_heads
    from translume.training.events import Finished, Interrupted

    rows: list[Row] = []
    interrupted = None
    display = TrainingDisplay()
    try:
        for event in compare_heads(
            settings, folder, kinds, sentences=sentences, device=compute.device, threads=compute.threads
        ):
            if isinstance(event, ComparingHead):
                note(f"{event.kind} ({event.number} of {event.count}): {event.folder}")
                display = TrainingDisplay()
            elif isinstance(event, Row):
                rows.append(event)
                if event.failure:
                    warn(f"{event.kind} failed: {event.failure}")
            else:
                display.show(event)
                if isinstance(event, Finished):
                    note(f"{folder}: measuring")
                interrupted = event if isinstance(event, Interrupted) else interrupted
    finally:
        display.__exit__(None, None, None)
    return rows, interrupted


def _save(comparison: "Comparison", folder: Path, *, complete: bool) -> None:
    """Write the table, and the picture once every head was trained."""
    write_file(folder / "table.md", comparison.to_page().encode())
    write_file(folder / "table.json", f"{json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False)}\n".encode())
    note(f"{folder}/table.md, table.json: written")
    if complete and any(row.measures for row in comparison.rows):
        from translume.experiments.heads import draw_heads

        draw_heads(comparison, folder, folder / "table.png")
        note(f"{folder}/table.png: written")
