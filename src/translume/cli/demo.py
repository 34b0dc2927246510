"""translume demo"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FOLDER, Compute, compute_options, typed_command
from translume.cli.terminal import note, progress_over
from translume.cli.train import train_model
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.experiments.demo import DemoCorpus
    from translume.inspection import Trace
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

    translated = [each for each in translations if each.hypotheses]
    traces = [trace(translator, each.source, each.hypotheses[0], k=ALTERNATIVES + 1, show=()) for each in translated]
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
    yield f"  translume inspect {model} {shlex.quote(corpus.test[0][0])} --html out.html  # what it predicted"
    yield f"  translume serve {model}  # a page to translate on"
    yield f"  translume evaluate {model} {test}"
    yield f"  translume show {model} --plot curves.png"
    yield f"With two files of your own, each line the translation of the other's (train.{source}, train.{target}):"
    yield f"  translume init train.{source} train.{target} > {source}-{target}.toml"
    yield f"  translume train {source}-{target}.toml"
    yield f"  translume translate models/{source}-{target} < some.{source}"
