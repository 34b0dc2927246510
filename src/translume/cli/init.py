"""translume init"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.options import FILE
from translume.cli.terminal import Meter, note

if TYPE_CHECKING:
    from translume.cli.choosing import Choice

HELD_OUT_NAMES = ("valid", "val", "dev")


@click.command(
    "init",
    short_help="Choose settings from two files.",
    epilog="Example: translume init train.en train.de > en-de.toml   then   translume train en-de.toml",
)
@click.argument("train_source", type=FILE)
@click.argument("train_target", type=FILE)
@click.option("--valid-source", type=FILE, help="Validation sources; looked for beside the training file if not given.")
@click.option("--valid-target", type=FILE, help="Validation targets.")
def command(train_source: Path, train_target: Path, valid_source: Path | None, valid_target: Path | None) -> None:
    """Print settings chosen from the data's size and scripts, as commented TOML."""
    from translume.cli.choosing import Choice, choose
    from translume.cli.survey import language_of, survey
    from translume.data.lines import STANDARD_INPUT, read_lines
    from translume.errors import DataError

    if (valid_source is None) != (valid_target is None):
        raise click.UsageError("--valid-source and --valid-target go together")
    if STANDARD_INPUT in map(str, (train_source, train_target, valid_source, valid_target)):
        raise DataError("init: found standard input, wanted files: settings name them")
    pairs = _count_pairs(train_source, train_target)
    source = survey(read_lines(train_source), language_of(train_source))
    target = survey(read_lines(train_target), language_of(train_target))
    if valid_source is None or valid_target is None:
        valid_source, valid_target = _beside(train_source), _beside(train_target)
    choices = [
        Choice(path="data.source_language", value=source.language),
        Choice(path="data.target_language", value=target.language),
        Choice(path="data.train_source", value=(str(train_source),)),
        Choice(path="data.train_target", value=(str(train_target),)),
    ]
    if valid_source and valid_target:
        _count_pairs(valid_source, valid_target)
        choices += [
            Choice(path="data.valid_source", value=(str(valid_source),)),
            Choice(path="data.valid_target", value=(str(valid_target),)),
        ]
    choices += choose(pairs, source, target)
    click.echo(_toml(choices, pairs), nl=False)
    held = f"validated on {valid_source}" if valid_source and valid_target else "2 % of it held out for validation"
    scripts = [side.script or "no letters" for side in (source, target)]
    note(f"{_counted(pairs)}, {' to '.join(scripts)}; {held}")


def _count_pairs(source: Path, target: Path) -> int:
    """Pairs in two files; raises DataError naming both files and both counts where they differ."""
    from translume.config import DataSettings
    from translume.data import read_pairs

    settings = DataSettings(train_source=(str(source),), train_target=(str(target),))
    with Meter("reading", unit="pairs") as meter:
        for _ in read_pairs(settings, "train"):
            meter.done += 1
            if meter.done % 10_000 == 0:
                meter.to(meter.done)
        return meter.done


def _counted(pairs: int) -> str:
    return f"{pairs:,} pair" if pairs == 1 else f"{pairs:,} pairs"


def _beside(training: Path) -> Path | None:
    """The validation file that lies beside "train.en": "valid.en", "val.en" or "dev.en"."""
    for name in HELD_OUT_NAMES:
        for packed in (training.name, training.name.removesuffix(".gz").removesuffix(".zst")):
            path = training.with_name(packed.replace("train", name, 1))
            if "train" in training.name and path.exists():
                return path
    return None


def _toml(choices: Sequence["Choice"], pairs: int) -> str:
    """Commented TOML; checked by reading it back."""
    from translume.config import Config
    from translume.config.toml import literal

    lines = [
        f"# Settings for {_counted(pairs)}, written by `translume init`; docs/init.md says how they were chosen.",
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
