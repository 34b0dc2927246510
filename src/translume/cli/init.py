"""translume init"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.options import FILE
from translume.cli.terminal import Meter, note
from translume.tasks import find_task, task_names

if TYPE_CHECKING:
    from translume.config import DataSettings
    from translume.data.pairs import Split
    from translume.recommend.choosing import Choice, Recommendation, Value
    from translume.recommend.columns import Columns

HELD_OUT_NAMES = ("valid", "val", "dev")


@click.command(
    "init",
    short_help="Choose settings from training files.",
    epilog="Example: translume init train.en train.de > en-de.toml   then   translume train en-de.toml",
)
@click.argument("train_source", type=FILE)
@click.argument("train_target", type=FILE, required=False)
@click.option("--valid-source", type=FILE, help="Validation sources; looked for beside the training file if not given.")
@click.option("--valid-target", type=FILE, help="Validation targets.")
@click.option("--valid", type=FILE, help="The same in one TSV or JSONL file.")
@click.option(
    "--task",
    type=click.Choice(task_names()),
    default="sequence",
    show_default=True,
    help="What is learnt: " + "; ".join(f"{name}: {find_task(name).summary}" for name in task_names()) + ".",
)
@click.option(
    "--columns",
    metavar="A,B",
    help="Of one file: columns of a TSV file, counted from 0, or keys of a JSONL file, that are source and target, or "
    "text and label.  [default: found out where there are two]",
)
def command(
    train_source: Path,
    train_target: Path | None,
    valid_source: Path | None,
    valid_target: Path | None,
    valid: Path | None,
    task: str,
    columns: str | None,
) -> None:
    """Print settings chosen from the data's size and scripts, as commented TOML.

    TRAIN_SOURCE and TRAIN_TARGET are two files, line by line; TRAIN_SOURCE alone is a TSV or JSONL file of pairs. With
    --task classification, the second file or column holds the labels of the texts in the first.
    """
    from translume.data.lines import STANDARD_INPUT
    from translume.errors import DataError, SettingsError
    from translume.recommend.columns import columns_found, columns_told

    if (valid_source is None) != (valid_target is None):
        raise click.UsageError("--valid-source and --valid-target go together")
    if STANDARD_INPUT in map(str, (train_source, train_target, valid_source, valid_target, valid)):
        raise DataError("init: found standard input, wanted files: settings name them")
    if train_target is not None and columns is not None:
        raise SettingsError("--columns: found two training files, wanted it with one TSV or JSONL file")
    if valid is not None and (train_target is not None or valid_source is not None):
        raise SettingsError("--valid: wanted with one TSV or JSONL file to train with, and without --valid-source")
    if train_target is not None:
        held = valid_source or _beside(train_source), valid_target or _beside(train_target)
        files = _parallel((train_source, train_target), held)
    else:
        found = columns_told(columns) if columns else columns_found(train_source, find_task(task))
        if valid_source is None:
            valid = valid or _beside(train_source)
        files = _together(train_source, valid, found)
        if valid_source is not None:
            files |= {"valid_source": (str(valid_source),), "valid_target": (str(valid_target),)}
    _print_chosen(files, task)


def _parallel(train: tuple[Path, Path], valid: "tuple[Path | None, Path | None]") -> "dict[str, Value]":
    """What [data] says of two files, and of two to validate with if there are both."""
    named = {"train_source": train[0], "train_target": train[1]}
    if valid[0] and valid[1]:
        named |= {"valid_source": valid[0], "valid_target": valid[1]}
    return {name: (str(file),) for name, file in named.items()}


def _together(train: Path, valid: Path | None, columns: "Columns") -> "dict[str, Value]":
    """What [data] says of one file with both sides, and perhaps of one to validate with."""
    files: dict[str, Value] = {"columns": columns} if columns else {}
    named = {"train": train} if valid is None else {"train": train, "valid": valid}
    return files | {name: (str(file),) for name, file in named.items()}


def _print_chosen(files: "dict[str, Value]", task: str) -> None:
    """Look at the data, choose, and print."""
    from translume.config import DataSettings
    from translume.recommend.choosing import Choice

    data = DataSettings.model_validate({"task": task, **files})
    count = _count(data, "train")
    valid = (*data.valid_source, *data.valid)
    if valid:
        _count(data, "valid")
    found: Recommendation = find_task(task).part("recommend")(data, count)
    for line in found.notes:
        note(line)
    chosen = found.choices
    named = [Choice(path=f"data.{name}", value=value) for name, value in files.items()]
    languages = [choice for choice in chosen if choice.path.endswith("_language") or choice.path == "data.task"]
    rest = [choice for choice in chosen if choice not in languages]
    counted = _counted(count, find_task(task).example)
    click.echo(_toml([*languages, *named, *rest], counted), nl=False)
    held = f"validated on {valid[0]}" if valid else "2 % of it held out for validation"
    note(f"{counted}{found.summary}; {held}")


def _count(data: "DataSettings", split: "Split") -> int:
    """How many pairs there are; raises DataError where a line is none, or two files differ in length."""
    from translume.data import read_pairs

    with Meter("reading", unit="pairs") as meter:
        for _ in read_pairs(data, split):
            meter.done += 1
            if meter.done % 10_000 == 0:
                meter.to(meter.done)
        return meter.done


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _beside(training: Path) -> Path | None:
    """The validation file that lies beside "train.en": "valid.en", "val.en" or "dev.en"."""
    for name in HELD_OUT_NAMES:
        for packed in (training.name, training.name.removesuffix(".gz").removesuffix(".zst")):
            path = training.with_name(packed.replace("train", name, 1))
            if "train" in training.name and path.exists():
                return path
    return None


def _toml(choices: Sequence["Choice"], counted: str) -> str:
    """Commented TOML; checked by reading it back."""
    from translume.config import Config
    from translume.config.toml import literal

    lines = [
        f"# Settings for {counted}, written by `translume init`; docs/init.md says how they were chosen.",
        "# `translume config` with this file's name prints every setting and what it means.",
        "# Paths are relative to the folder this file lies in.",
    ]
    table = ""
    for choice in choices:
        above, _, key = choice.path.rpartition(".")
        if above != table:
            lines += ["", f"[{above}]"]
            table = above
        value = choice.value[0] if isinstance(choice.value, tuple) and len(choice.value) == 1 else choice.value
        lines.append(f"{key} = {literal(value)}" + (f"  # {choice.why}" if choice.why else ""))
    text = "\n".join(lines) + "\n"
    Config.parse(text, place="init")
    return text
