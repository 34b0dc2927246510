"""translume tune"""

from pathlib import Path

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FILE, FOLDER, Compute, compute_options, json_option, set_option, typed_command
from translume.cli.sweep import show_runs, threads_of_each
from translume.cli.terminal import note, print_json, span
from translume.cli.train import EXIT_CODES

_COUNT = click.IntRange(1, 999)


@click.command(
    "tune",
    short_help="Search for better settings within a budget of time.",
    epilog="Example: translume tune en-de.toml tuned --minutes 60",
)
@click.argument("config", type=FILE)
@click.argument("out", type=FOLDER)
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), metavar="X", required=True, help="Time for all of it."
)
@click.option(
    "--vary",
    multiple=True,
    metavar="PATH=SPACE",
    help="LOW..HIGH, LOW..HIGH:log or VALUE,VALUE. Repeatable.  [default: around the values of CONFIG]",
)
@click.option("--seeds", type=_COUNT, default=2, metavar="N", show_default=True, help="Other seeds for the best three.")
@click.option("--workers", type=_COUNT, default=1, metavar="N", show_default=True, help="Models trained at a time.")
@json_option
@set_option
@compute_options
def command(
    config: Path,
    out: Path,
    minutes: float,
    vary: tuple[str, ...],
    seeds: int,
    workers: int,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Search for settings that train a better model than those of CONFIG in the same time.

    The search begins with CONFIG, compares on the validation set, and repeats the best three with other seeds. OUT has
    best.toml, tune.html with history, importance and parallel coordinates, tune.json, and the models. The same
    command goes on with an interrupted search. --json prints one object.
    """
    from translume.config import Config
    from translume.experiments.processes import Stopped
    from translume.experiments.search_space import parse_space, propose_space
    from translume.experiments.tuning import Budget, Search
    from translume.experiments.tuning_report import report, save, to_markdown

    resume, changes = typed_command(), (*compute.precision, *overrides)
    space = parse_space(vary) or tuple(propose_space(Config.read(config, changes)))
    threads = threads_of_each(compute, workers)
    budget = Budget(minutes=minutes, seeds=seeds, workers=workers, device=compute.device, threads=threads)
    with interrupt_hint(f"Interrupted; continue with: {resume}"):
        search = Search(config, changes, space, out, budget)
        note(f"{len(space)} settings vary: {'; '.join(map(str, space))}")
        note(f"trainings of {span(search.seconds)} each; {span(search.left)} left")
        stopped = None
        for news in show_runs(search.run(), workers):
            if isinstance(news, Stopped):
                stopped = news
            elif news[1].measured:
                scores = ", ".join(f"{name} {value:.3f}" for name, value, _ in news[1].measured.measures.scores)
                note(f"{news[0].name}: {scores}; {span(search.left)} left")
        result = report(search, resume)
        save(search, result, config.name)
        note(f"{out}/{'best.toml, ' if result['best'] is not None else ''}tune.html, tune.json: written")
    print_json(result) if as_json else click.echo(to_markdown(result))
    if stopped:
        click.echo(f"Interrupted, all saved; continue with: {resume}", err=True)
        click.get_current_context().exit(EXIT_CODES[stopped.signal])
