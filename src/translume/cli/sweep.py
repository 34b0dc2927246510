"""translume sweep and translume heads"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import (
    FILE,
    FOLDER,
    Compute,
    compute_options,
    json_option,
    option_group,
    set_option,
    typed_command,
    warn_of_warmup,
)
from translume.cli.terminal import note, print_json, warn
from translume.cli.train import EXIT_CODES
from translume.errors import TrainingError
from translume.processors import default_threads

if TYPE_CHECKING:
    from translume.experiments.combinations import Combination
    from translume.experiments.processes import Began, Run, Stopped, Task
    from translume.training.events import Event

OUT_OF_TIME = 75
"""The exit code when --minutes are over before all is measured: that of sysexits.h for "try again"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often, how long and with how many processes a sweep trains, and how much it translates; see the options."""

    out: Path | None
    seeds: int
    minutes: float | None
    workers: int
    sentences: int
    as_json: bool


_N: dict[str, Any] = {"metavar": "N", "show_default": True}
_MINUTES, _COUNT, _SENTENCES = click.FloatRange(0, min_open=True), click.IntRange(1, 999), click.IntRange(0)
_FOLDER = "Folder for the models and the table.  [default: sweep/NAME or heads/NAME for NAME.toml]"
_TEXTS = "Validation sentences to translate for the [evaluation] metrics; 0 for all."
plan_options = option_group(
    "plan",
    lambda values, earlier: Plan(**values),
    [
        click.option("--seeds", type=_COUNT, default=1, help="Seeds, from training.seed on.", **_N),
        click.option("--minutes", type=_MINUTES, metavar="X", help="Time for all of it; the same command goes on."),
        click.option("--workers", type=_COUNT, default=1, help="Models trained at a time.", **_N),
        click.option("--sentences", type=_SENTENCES, default=500, help=_TEXTS, **_N),
        click.option("--out", type=FOLDER, help=_FOLDER),
        json_option,
    ],
)
"""--seeds, --minutes, --workers, --sentences, --out and --json, as `plan`."""


@click.command(
    "sweep",
    short_help="Train with several settings and seeds, and compare.",
    epilog="Example: translume sweep en-de.toml --vary model.norm=pre,post --seeds 3 --minutes 60",
)
@click.argument("configs", type=FILE, nargs=-1, required=True)
@click.option("--vary", multiple=True, metavar="PATH=VALUES", help="Such as model.norm=pre,post. Repeatable.")
@plan_options
@set_option
@compute_options
def sweep(
    configs: tuple[Path, ...], vary: tuple[str, ...], plan: Plan, overrides: tuple[str, ...], compute: Compute
) -> None:
    """Train the models of CONFIGS with every combination of the values of --vary, and print a table.

    Each model has its own folder under --out. The same command resumes an interrupted sweep, and trains and measures
    only what is missing. The table is also written there, as table.md, table.json, table.html and table.png. --json
    prints one object.
    """
    from translume.experiments.combinations import combinations, folder_name, parse_varied

    varied = parse_varied(vary)
    grid = combinations(configs, varied, seeds=plan.seeds, overrides=(*compute.precision, *overrides))
    columns = (*(["file"] if len(configs) > 1 or not varied else []), *varied)
    folder = plan.out or Path("sweep") / folder_name("-".join(config.stem for config in configs))
    title = f"Sweep of {', '.join(config.name for config in configs)}"
    _train_and_compare(grid, folder, title, columns, plan, compute)


@click.command(
    "heads",
    short_help="Train a model with each output head, and compare.",
    epilog="Example: translume heads en-de.toml --kinds softmax,mixture --updates 4000",
)
@click.argument("config", type=FILE)
@click.option("--kinds", default="all", metavar="NAMES", help="Such as softmax,mixture.  [default: all]")
@click.option("--updates", type=click.IntRange(min=1), metavar="N", help="Updates for each head: training.updates.")
@plan_options
@set_option
@compute_options
def heads(
    config: Path, kinds: str, updates: int | None, plan: Plan, overrides: tuple[str, ...], compute: Compute
) -> None:
    """Train the model of CONFIG with each output head, on the same data and seed, and print a table.

    This is `translume sweep` of model.head.kind: each model has its own folder under --out, and the same command
    resumes an interrupted comparison. --json prints one object.
    """
    from translume.experiments.combinations import KIND, combinations, fitting_kinds, parse_varied

    changes = (*([f"training.updates={updates}"] if updates else []), *compute.precision, *overrides)
    kinds = ",".join(fitting_kinds(config, changes)) if kinds.strip() == "all" else kinds
    varied = parse_varied([f"{KIND}={kinds}"])
    grid = combinations([config], varied, seeds=plan.seeds, overrides=changes)
    grid = [replace(each, name=each.values[0]) for each in grid]
    folder = plan.out or Path("heads") / config.stem
    _train_and_compare(grid, folder, f"Output heads on {config.name}", ("head",), plan, compute)


def _train_and_compare(
    combinations: "Sequence[Combination]",
    folder: Path,
    title: str,
    columns: Sequence[str],
    plan: Plan,
    compute: Compute,
) -> None:
    """Train and measure what is missing, then write and print the table, and say how to go on if something is left."""
    from translume.experiments.processes import Run, Stopped
    from translume.experiments.sweep import Row, run_sweep, tasks_of
    from translume.experiments.sweep_table import make_table, save_table

    resume, context = typed_command(), click.get_current_context()
    threads = threads_of_each(compute, plan.workers)
    tasks = [tasks_of(each, folder, plan.sentences, compute.device, threads) for each in combinations]
    trainings = [config.training for each in combinations for config in each.configs]
    for training in {(each.updates, each.warmup_updates): each for each in trainings}.values():
        warn_of_warmup(training)
    seconds, runs, stopped = plan.minutes and 60 * plan.minutes, dict[Path, Run](), None
    with interrupt_hint(f"Interrupted; continue with: {resume}"):
        news = run_sweep([task for each in tasks for task in each], folder, workers=plan.workers, seconds=seconds)
        for item in show_runs(news, plan.workers):
            if isinstance(item, Stopped):
                stopped = item
            else:
                runs[item[0].folder] = item[1]
        rows = [
            Row(values=each.values, runs=tuple((task, runs.get(task.folder, Run())) for task in of_seeds))
            for each, of_seeds in zip(combinations, tasks, strict=True)
        ]
        table = make_table(rows, title=title, command=resume, columns=columns)
        save_table(table, folder)
        note(f"{folder}/table.md, table.json, table.html, table.png: written")
    print_json(table.to_dict()) if plan.as_json else click.echo(table.to_markdown())
    if stopped and stopped.signal:
        click.echo(f"Interrupted, all saved; continue with: {resume}", err=True)
        context.exit(EXIT_CODES[stopped.signal])
    if stopped and table.missing:
        missing = "; ".join(table.missing)
        click.echo(
            f"{plan.minutes:g} minutes are over, all saved; missing: {missing}; continue with: {resume}", err=True
        )
        context.exit(OUT_OF_TIME)
    if not table.measured:
        task, run = rows[0].runs[0]
        raise TrainingError(f"{folder}: no model was trained; {task.name}: {run.failure}")


def threads_of_each(compute: Compute, workers: int) -> int | None:
    """Return the threads of each of `workers` trainings; None: all cores."""
    return compute.threads or (None if workers == 1 else max(1, default_threads() // workers))


def show_runs(
    news: "Iterator[tuple[Task, Began | Event | Run] | Stopped]", workers: int
) -> "Iterator[tuple[Task, Run] | Stopped]":
    """Show the progress of what `run_tasks` yields; yield the runs, and whether they were stopped."""
    from translume.cli.training_display import TrainingDisplay
    from translume.experiments.processes import Began, Run, Stopped
    from translume.training.events import Finished, Warned

    display = TrainingDisplay()
    try:
        for item in news:
            if isinstance(item, Stopped):
                yield item
                continue
            task, event = item
            if isinstance(event, Began):
                of = "" if event.count is None else f" ({event.number} of {event.count})"
                note(f"{task.name}{of}: {task.folder}")
                display = TrainingDisplay()
            elif isinstance(event, Run):
                if event.failure:
                    warn(f"{task.name} failed: {event.failure}")
                yield task, event
            elif workers == 1:
                display.show(event)
            elif isinstance(event, Warned):
                warn(f"warning: {task.name}: {event.message}")
            if isinstance(event, Finished):
                note(f"{task.folder}: measuring")
    finally:
        display.close()
