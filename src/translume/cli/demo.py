"""translume demo"""

import importlib.util
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import INTERRUPTED, interrupt_hint
from translume.cli.options import FOLDER, Compute, compute_options, typed_command
from translume.cli.terminal import note, progress_over, warn
from translume.errors import SettingsError, TranslumeError

if TYPE_CHECKING:
    from translume.experiments.demo import DemoCorpus, TokenBelief
    from translume.translator import Translator

SHOWN = 5
BAR_WIDTH = 20


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
def command(languages: str, out: Path | None, pairs: int, updates: int | None, compute: Compute) -> None:
    """Generate a small real corpus offline, train a model on it in minutes, evaluate it, translate and inspect."""
    if importlib.util.find_spec("babel") is None:
        raise TranslumeError("the demo needs the package babel: pip install 'translume[demo]'")
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
        _train(recipe, folder, resume, compute)
        _show_results(folder, corpus, data, compute)


def _train(recipe: Path, folder: Path, resume: str, compute: Compute) -> None:
    from translume.cli.training_display import TrainingDisplay
    from translume.config import Config
    from translume.training import Interrupted, train

    precision = () if compute.dtype == "auto" else (f"training.precision={compute.dtype}",)
    config = Config.read(recipe, precision)
    with TrainingDisplay() as display:
        for event in train(config, folder, device=compute.device, threads=compute.threads):
            display.show(event)
            if isinstance(event, Interrupted):
                warn(f"Interrupted after {event.update:,} updates, all saved; continue with: {resume}")
                click.get_current_context().exit(INTERRUPTED)


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
    from translume.experiments.demo import beliefs

    predictions = [beliefs(translator, each.source, each.hypotheses[0]) for each in translations if each.hypotheses]
    if predictions:
        # The sentence with the least certain token is the most interesting.
        tokens = min(predictions, key=lambda each: min(token.probability for token in each))
        click.echo("\nThe predicted distribution at each token of one of them (probability, then the alternatives):")
        for line in bars(tokens):
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


def bars(tokens: Sequence["TokenBelief"]) -> Iterator[str]:
    """Yield a line for each token: the token, a bar for its probability, and the alternatives."""
    from rich.cells import cell_len

    width = max(cell_len(token.token) for token in tokens)
    for token in tokens:
        filled = round(token.probability * BAR_WIDTH)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        others = "   ".join(f"{other} {share(probability)}" for other, probability in token.runners_up)
        padding = " " * (width - cell_len(token.token))
        yield f"  {token.token}{padding} {bar} {share(token.probability):>7}   {others}".rstrip()


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
