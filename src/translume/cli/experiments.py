"""translume demo and translume heads"""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.group import INTERRUPTED, TERMINATED, interrupt_hint
from translume.cli.options import (
    FILE,
    FOLDER,
    Compute,
    compute_options,
    json_option,
    set_option,
    typed_command,
    warn_of_warmup,
)
from translume.cli.terminal import note, print_json, progress_over, warn
from translume.cli.train import train_model
from translume.errors import SettingsError, TrainingError

if TYPE_CHECKING:
    from translume.config import Config
    from translume.experiments.demo import DemoCorpus
    from translume.experiments.heads import Comparison, Row
    from translume.inspection import Trace
    from translume.training.events import Interrupted
    from translume.translator import Translator

SHOWN = 5
BAR_WIDTH, ALTERNATIVES = 20, 3


@click.command(
    "demo",
    short_help="Train, measure and use a small translator in minutes, offline.",
    epilog="Example: translume demo --languages en-de",
)
@click.option("--languages", default="en-zh", show_default=True, help="Two of en, zh, de, fr, es, from-to.")
@click.option("--out", type=FOLDER, help="Model folder.  [default: models/demo, or models/demo-en-de and so on]")
@click.option("--pairs", type=click.IntRange(min=100), default=40_000, show_default=True, help="Pairs to train on.")
@click.option("--updates", type=click.IntRange(min=1), help="Training updates.  [default: enough for the demo]")
@compute_options
def demo(languages: str, out: Path | None, pairs: int, updates: int | None, compute: Compute) -> None:
    """Generate a small real corpus offline, train a model on it in minutes, evaluate it, translate and inspect."""
    from translume.config import Config
    from translume.experiments.demo import UPDATES, demo_config, make_corpus, write_recipe

    resume = typed_command()
    source, dash, target = languages.partition("-")
    if not dash or source == target:
        raise SettingsError(f"--languages: found '{languages}', expected two languages such as en-zh")
    if out is not None and not out.name:
        raise SettingsError(f"--out: found '{out}', expected the path of a new folder")
    folder = out or Path("models") / ("demo" if languages == "en-zh" else f"demo-{languages}")
    data = folder.with_name(f"{folder.name}-corpus")
    corpus = make_corpus(source, target, pairs=pairs)
    corpus.write(data)
    note(f"{data}: a corpus of phrases filled with dates, times, money, names and units from CLDR")
    note(
        f"{len(corpus.train):,} pairs for training, {len(corpus.valid):,} for validation, {len(corpus.test):,} for test"
    )
    note(f"  {corpus.train[0][0]}\n  {corpus.train[0][1]}")
    recipe = write_recipe(data, demo_config(source, target, updates=updates or UPDATES))
    same = shlex.join(["translume", "train", str(recipe), "--out", str(folder)])
    note(f"Training {folder}, as `{same}` would")
    with interrupt_hint(f"Interrupted; continue with: {resume}"):
        train_model(Config.read(recipe, compute.precision), folder, None, compute, resume, next_steps=False)
        _show_results(folder, corpus, data, compute)


def _show_results(folder: Path, corpus: "DemoCorpus", data: Path, compute: Compute) -> None:
    """Measure on the test pairs, translate some, inspect one, and print what to do next."""
    translator = compute.load_plain(folder)
    _measure(translator, corpus)
    click.echo(f"\n{SHOWN} sentences it was not trained on:")
    translations = [translator.translate(source) for source, _ in corpus.test[:SHOWN]]
    for translation, (source, target) in zip(translations, corpus.test, strict=False):
        click.echo(
            f"  {source}\n    {translation.text}" + ("" if translation.text == target else f"\n    reference: {target}")
        )
    from translume.inspection import trace

    found = [each for each in translations if each.hypotheses]
    traces = [trace(translator, each.source, each.hypotheses[0], k=ALTERNATIVES + 1, show=()) for each in found]
    if traces:
        # The sentence with the least certain token is the most interesting.
        traced = min(traces, key=lambda each: min(step.p_model for step in each.steps))
        click.echo("\nThe predicted distribution at each token of one of them (probability, then the alternatives):")
        for line in bars(traced):
            click.echo(line)
    click.echo("")
    for line in next_steps(folder, data, corpus):
        click.echo(line)


def _measure(translator: "Translator", corpus: "DemoCorpus") -> None:
    from translume.evaluation import measure

    sources, references = zip(*corpus.test, strict=True)
    translations = translator.translate_all(sources)
    translations = progress_over(translations, "translating the test", unit="lines", total=len(sources))
    scores = measure([each.text for each in translations], references, translator.config.scoring)
    click.echo(f"\nOn {len(sources):,} test pairs that were not in training:")
    click.echo(f"exact match {scores['exact_match'].value:.1f} %")
    for score in scores:
        click.echo(f"  {score}")


def bars(traced: "Trace") -> Iterator[str]:
    """Yield a line for each token: the token, a bar for its probability, and the alternatives."""
    from rich.cells import cell_len

    width = max(cell_len(token.text) for token in traced.target_tokens)
    for token, step in zip(traced.target_tokens, traced.steps, strict=True):
        filled = round(step.p_model * BAR_WIDTH)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        others = [each for each in step.top_model.candidates if each.id != token.id][:ALTERNATIVES]
        listed = "   ".join(f"{each.text} {share(each.p_model)}" for each in others)
        padding = " " * (width - cell_len(token.text))
        yield f"  {token.text}{padding} {bar} {share(step.p_model):>7}   {listed}".rstrip()


def share(probability: float) -> str:
    """Return a percentage such as "97.3 %"; only a probability of 1 is shown as 100 %."""
    percent = min(probability * 100, 99.9) if probability < 1 else 100.0
    return f"{percent:.1f} %"


def next_steps(folder: Path, data: Path, corpus: "DemoCorpus") -> Iterator[str]:
    """Yield commands to try next, with this model and with the user's own files."""
    source, target = corpus.source_language, corpus.target_language
    yield "Next, with this model:"
    model = shlex.quote(str(folder))
    test = shlex.join(str(data / f"test.{language}") for language in (source, target))
    yield f"  echo {shlex.quote(corpus.test[0][0])} | translume translate {model}"
    yield f"  translume evaluate {model} {test}"
    yield f"  translume show {model} --plot curves.png"
    yield f"With two files of your own, each line the translation of the other's (train.{source}, train.{target}):"
    yield f"  translume init train.{source} train.{target} > {source}-{target}.toml"
    yield f"  translume train {source}-{target}.toml"
    yield f"  translume translate models/{source}-{target} < some.{source}"


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
def heads(
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
    changes = () if updates is None else (f"training.updates={updates}",)
    settings = Config.read(config, (*changes, *compute.precision, *overrides))
    warn_of_warmup(settings)
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
