"""translume data"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from translume.cli.clean import clean
from translume.cli.group import CommandGroup
from translume.cli.options import FILE, FOLDER, json_option, set_option
from translume.cli.terminal import ProgressBar, note, print_json, warn

if TYPE_CHECKING:
    from translume.config import Config
    from translume.data.corpus import TokenizedCorpus
    from translume.data.findings import Findings


_SIDES = {"pairs": (("source", "target"), "sentence"), "documents": (("target",), "document")}
"""For each unit, the sides of it and the name of one text."""


_FILES = click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")


@click.group("data", cls=CommandGroup, short_help="Check, count and prepare training data.")
def command() -> None:
    """Inspect and prepare training data before training."""


@command.command(
    "check",
    short_help="Count what each cleaning rule drops, and report suspicious pairs.",
    epilog="Example: translume data check en-de.toml",
)
@_FILES
@json_option
@set_option
def check(files: tuple[Path, ...], as_json: bool, overrides: tuple[str, ...]) -> None:
    """Count what each cleaning rule drops, with an example: read = used + held out + dropped.

    FILE... are a file of settings, a table of pairs, or sources and targets, to which those of the validation data may
    be added; without settings, the defaults apply.

    Also report what may be a mistake although no rule drops it: duplicates, identical sides, training pairs and
    sources that are in the validation data too, and first lines that look like headers.
    """
    from translume.data.findings import RULES

    settings = _read(files, overrides)
    dropped = [kind for kind, rule in RULES.items() if getattr(settings.data.cleaning, rule)]
    for split, corpus, findings in _prepared(settings, find=True):
        if as_json:
            more = {} if findings is None else {"findings": findings.to_dict()}
            print_json({"split": split, **corpus.account.to_dict(), **more})
        else:
            click.echo(f"{split}: {corpus.account.summary(examples=True)}")
            for message in filter(None, (corpus.without_pairs, corpus.shortened)):
                click.echo(f"  {message}")
            for line in [] if findings is None else findings.lines(dropped):
                click.echo(line)


@command.command(
    "stats",
    short_help="Count pairs or documents, tokens and lengths.",
    epilog="Example: translume data stats en-de.toml",
)
@_FILES
@json_option
@set_option
def stats(files: tuple[Path, ...], as_json: bool, overrides: tuple[str, ...]) -> None:
    """Print the number of pairs, or of documents, and tokens and the lengths of the data a run would read.

    FILE... as for `translume data check`.
    """
    for split, corpus, _ in _prepared(_read(files, overrides)):
        unit, numbers = corpus.account.unit, _numbers(corpus)
        if as_json:
            print_json({"split": split, **numbers})
            continue
        click.echo(f"{split}: {numbers[unit]:,} {unit}")
        sides, text = _SIDES[unit]
        for side in sides:
            click.echo(
                f"  {side}: vocabulary {numbers[f'{side}_vocabulary']:,}, {numbers[f'{side}_tokens']:,} tokens; "
                f"tokens per {text}: mean {numbers[f'{side}_mean']:.1f}, median {numbers[f'{side}_median']}, "
                f"99 % at most {numbers[f'{side}_99']}, longest {numbers[f'{side}_longest']}"
            )


@command.command(
    "prepare",
    short_help="Learn the vocabularies and tokenize the data on all cores, before a training.",
    epilog="Example: translume data prepare en-de.toml",
)
@click.argument("config", type=FILE)
@click.option("--out", type=FOLDER, help="Model folder.  [default: models/NAME for NAME.toml]")
@set_option
def prepare_command(config: Path, out: Path | None, overrides: tuple[str, ...]) -> None:
    """Write vocabularies and tokenized data to the model folder; `translume train` with the same settings uses them.

    Training prepares the data, too. Use this command on a machine with many cores and without a GPU.
    """
    from translume.training import Preparing, Warned
    from translume.training.prepare import PreparedData, prepare_folder

    for event in prepare_folder(_read((config,), overrides), out or Path("models") / config.stem):
        match event:
            case Preparing():
                note(f"preparing: {event.what}")
            case Warned():
                warn(f"warning: {event.message}")
            case PreparedData():
                some = ", the first pairs of the files" if event.stream else ""
                click.echo(f"train{some}: {event.training.account.summary()}")
                if not event.training.account.held_out:
                    click.echo(f"valid: {event.validation.account.summary()}")


command.add_command(clean)


def _numbers(corpus: "TokenizedCorpus") -> dict[str, int | float]:
    import numpy as np

    numbers: dict[str, int | float] = {corpus.account.unit: corpus.pairs}
    for side in _SIDES[corpus.account.unit][0]:
        lengths = getattr(corpus, f"{side}_lengths")
        numbers[f"{side}_vocabulary"] = len(getattr(corpus, f"{side}_tokenizer"))
        numbers[f"{side}_tokens"] = int(lengths.sum(dtype=np.int64))
        numbers[f"{side}_mean"] = round(float(lengths.mean()), 2)
        numbers[f"{side}_median"] = int(np.median(lengths))
        numbers[f"{side}_99"] = int(np.percentile(lengths, 99))
        numbers[f"{side}_longest"] = int(lengths.max())
    return numbers


def _read(files: tuple[Path, ...], overrides: tuple[str, ...]) -> "Config":
    """Return the settings in a file, or the default ones for files of pairs."""
    from translume.config import Config
    from translume.data.evaluation_files import is_table

    if len(files) == 1 and not is_table(files[0]):
        return Config.read(files[0], overrides)
    if len(files) not in (1, 2, 4):
        raise click.UsageError("expected CONFIG.toml, a table of pairs, or SOURCE TARGET [VALID_SOURCE VALID_TARGET]")
    names = ("train",) if len(files) == 1 else ("train_source", "train_target", "valid_source", "valid_target")
    return Config.build({"data": dict(zip(names, map(str, files), strict=False))}, overrides, place="data")


def _prepared(config: "Config", *, find: bool = False) -> Iterator[tuple[str, "TokenizedCorpus", "Findings | None"]]:
    """Yield both splits as a run would read them, prepared in a temporary folder.

    find: whether to yield what may be mistakes in the training pairs, too.  With `data.streaming`, these are the
    first ones of the files.
    """
    from translume.data.encoding import Encoder
    from translume.data.findings import Finder
    from translume.data.pairs import origins, refuse_pipes
    from translume.data.streaming import open_stream
    from translume.data.token_cache import prepare
    from translume.training.vocabularies import vocabularies_of

    refuse_pipes(config.data)
    source, target = vocabularies_of(config, lambda sides: note(f"learning the vocabulary of {' and '.join(sides)}"))
    parts, model = (config.data, source, target), config.model
    reading = Encoder(config.data.task, source, target, "drop", None, paths=bool(config.data.source.reader))
    finder = Finder(config.data, reading.normalised) if find else None
    limits: dict[str, Any] = {"max_positions": model.positions_of_sides, "language_tags": model.language_tags}
    splits: tuple[Literal["train", "valid"], ...] = ("train", "valid") if origins(config.data, "valid") else ("train",)
    with tempfile.TemporaryDirectory(prefix="translume-") as folder:
        for split in splits:
            if split == "train" and config.data.streaming:
                note("data.streaming: these are the first pairs of the files")
                sample = open_stream(
                    *parts, seed=config.training.seed, **limits, look=finder.look if finder else None
                ).sample
                yield split, sample, finder.findings() if finder else None
                continue
            with ProgressBar("reading and tokenizing", unit="pairs") as bar:
                own = finder if split == "train" else None
                look = own.look if own else None
                corpus = prepare(*parts, Path(folder), split=split, **limits, progress=bar.update, look=look)
            yield split, corpus, own.findings() if own else None
