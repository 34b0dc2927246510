"""translume demo"""

import importlib.util
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import INTERRUPTED, resume_with
from translume.cli.options import FOLDER, compute, compute_options
from translume.cli.terminal import note
from translume.errors import SettingsError, TranslumeError

if TYPE_CHECKING:
    from translume.demo import DemoCorpus, TokenBelief
    from translume.translator import Translator

SHOWN = 5
BAR = 20


@click.command(
    "demo",
    short_help="From nothing to a measured translator in minutes, offline.",
    epilog="Example: translume demo --languages en-de",
)
@click.option("--languages", default="en-zh", show_default=True, help="Two of en, zh, de, fr, es, from-to.")
@click.option("--out", type=FOLDER, help="Model folder.  [default: models/demo, or models/demo-en-de and so on]")
@click.option("--pairs", type=click.IntRange(min=100), default=40_000, show_default=True, help="Pairs to train on.")
@click.option("--updates", type=click.IntRange(min=1), help="Steps of training.  [default: what the demo needs]")
@compute_options
def command(languages: str, out: Path | None, pairs: int, updates: int | None) -> None:
    """Make a small real corpus offline, train on it in minutes, measure, translate and look inside."""
    if importlib.util.find_spec("babel") is None:
        raise TranslumeError("the demo needs the package babel, found none; wanted: pip install 'translume[demo]'")
    from translume.demo import UPDATES, demo_config, make_corpus, write_recipe

    again = _resume_line(languages, out, pairs, updates)
    resume_with([f"Interrupted; go on with: {again}"])
    source, dash, target = languages.partition("-")
    if not dash or source == target:
        raise SettingsError(f"--languages: found '{languages}', wanted two languages such as en-zh")
    folder = out or Path("models") / ("demo" if languages == "en-zh" else f"demo-{languages}")
    data = folder.with_name(f"{folder.name}-corpus")
    corpus = make_corpus(source, target, pairs=pairs)
    corpus.write(data)
    note(f"{data}: a corpus of phrases, filled with dates, times, money, names and units from CLDR")
    note(
        f"{len(corpus.train):,} pairs to train on, {len(corpus.valid):,} to validate, {len(corpus.test):,} for the test"
    )
    note(f"  {corpus.train[0][0]}\n  {corpus.train[0][1]}")
    recipe = write_recipe(data, demo_config(source, target, updates=updates or UPDATES))
    note(f"Training {folder}, as `translume train {recipe} --out {folder}` would")
    _train(recipe, folder, again)
    _look(folder, corpus, data)


def _resume_line(languages: str, out: Path | None, pairs: int, updates: int | None) -> str:
    words = ["translume", "demo"]
    for name, value, default in (
        ("--languages", languages, "en-zh"),
        ("--out", out, None),
        ("--pairs", pairs, 40_000),
        ("--updates", updates, None),
    ):
        if value != default:
            words += [name, str(value)]
    return shlex.join(words)


def _train(recipe: Path, folder: Path, again: str) -> None:
    from translume.cli.live import Live
    from translume.config import Config
    from translume.training import Interrupted, train

    where = compute()
    precision = () if where.dtype == "auto" else (f"training.precision={where.dtype}",)
    config = Config.read(recipe, precision)
    with Live() as live:
        for event in train(config, folder, device=where.device, threads=where.threads):
            live.show(event)
            if isinstance(event, Interrupted):
                note(f"Interrupted after {event.update:,} updates, all saved; go on with: {again}")
                click.get_current_context().exit(INTERRUPTED)


def _look(folder: Path, corpus: "DemoCorpus", data: Path) -> None:
    """Measure on the test pairs, translate some, look inside one, and say what comes next."""
    from translume.translator import load_translator

    where = compute()
    translator = load_translator(folder, device=where.device, dtype=where.plain_dtype, threads=where.threads)
    _measure(translator, corpus)
    click.echo(f"\n{SHOWN} sentences it has never seen:")
    translations = [translator.translate(source) for source, _ in corpus.test[:SHOWN]]
    for translation, (source, target) in zip(translations, corpus.test, strict=False):
        click.echo(
            f"  {source}\n    {translation.text}" + ("" if translation.text == target else f"\n    wanted: {target}")
        )
    from translume.demo import beliefs

    seen = [beliefs(translator, each.source, each.hypotheses[0]) for each in translations if each.hypotheses]
    if seen:
        # The sentence in which it was least sure of a token has the most to show.
        tokens = min(seen, key=lambda each: min(token.probability for token in each))
        click.echo("\nWhat it believed at each token of one of them (probability, then the runners-up):")
        for line in bars(tokens):
            click.echo(line)
    click.echo("")
    for line in next_steps(folder, data, corpus):
        click.echo(line)


def _measure(translator: "Translator", corpus: "DemoCorpus") -> None:
    from translume.cli.terminal import Meter
    from translume.evaluation import measure

    sources, references = zip(*corpus.test, strict=True)
    found = []
    with Meter("translating the test", unit="lines", total=len(sources)) as meter:
        for translation in translator.translate_all(sources):
            found.append(translation.text)
            meter.advance()
    scores = measure(found, references, translator.config.scoring)
    click.echo(f"\nOn {len(found):,} test pairs that were not in training:")
    click.echo(f"exact match {scores['exact_match'].value:.1f} %")
    for score in scores:
        click.echo(f"  {score}")


def bars(tokens: Sequence["TokenBelief"]) -> Iterator[str]:
    """A line a token: the token, a bar as long as it was likely, and what else was thought of."""
    from rich.cells import cell_len

    width = max(cell_len(token.token) for token in tokens)
    for token in tokens:
        filled = round(token.probability * BAR)
        bar = "█" * filled + "░" * (BAR - filled)
        others = "   ".join(f"{other} {share(probability)}" for other, probability in token.runners_up)
        padding = " " * (width - cell_len(token.token))
        yield f"  {token.token}{padding} {bar} {share(token.probability):>7}   {others}".rstrip()


def share(probability: float) -> str:
    """ "97.3 %"; never 100 % for what is less."""
    percent = min(probability * 100, 99.9) if probability < 1 else 100.0
    return f"{percent:.1f} %"


def next_steps(folder: Path, data: Path, corpus: "DemoCorpus") -> Iterator[str]:
    """What to type next, with this model and with one's own files."""
    source, target = corpus.source_language, corpus.target_language
    yield "Next, with this model:"
    yield f"  echo '{corpus.test[0][0]}' | translume translate {folder}".replace(
        "'", '"' if "'" in corpus.test[0][0] else "'"
    )
    yield f"  translume evaluate {folder} {data}/test.{source} {data}/test.{target}"
    yield f"  translume show {folder} --plot curves.png"
    yield f"With two files of your own, line by line translations of each other (train.{source}, train.{target}):"
    yield f"  translume init train.{source} train.{target} > {source}-{target}.toml"
    yield f"  translume train {source}-{target}.toml"
    yield f"  translume translate models/{source}-{target} < some.{source}"
