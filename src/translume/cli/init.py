"""translume init"""

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume import checkpoint
from translume.cli.options import FILE, FOLDER, excludes, late_help, refuse_options, requires
from translume.cli.terminal import ProgressBar, note
from translume.errors import DataError, SettingsError, nearest
from translume.experiments import Choice, Value
from translume.tasks import Task, find_task, task_names, task_of

if TYPE_CHECKING:
    from translume.config import DataSettings
    from translume.data.pairs import Split
    from translume.experiments.columns import Columns
    from translume.experiments.manifests import Manifest

SETTINGS_SUFFIXES = (".toml", ".yaml", ".yml")
VALIDATION_NAMES = ("valid", "val", "dev")
MAX_LABELS = 20
"""Up to so many different targets, each on average ten times or more, are likely labels."""
_PAIRS_ONLY = ("TRAIN_TARGET", "--columns", "--template", "--valid-source")
_ONE_DIRECTION = ("--valid-source", "--valid", "--task", "--from", "--columns", "--template")
"""Options that a model of several languages has no use for."""


def _tasks() -> str:
    tasks = "; ".join(f"{name}: {find_task(name).summary}" for name in task_names())
    return f"{tasks}.  [default: language_model for one file without tabs, else sequence]"


def _task(ctx: click.Context, parameter: click.Parameter, value: str | None) -> "Task | None":
    if value is None:
        return None
    if value not in task_names():
        raise click.BadParameter(f"found '{value}'{nearest(value, task_names())}", ctx, parameter)
    return find_task(value)


@click.command(
    "init",
    short_help="Propose settings for training files.",
    epilog="Example: translume init train.en train.de > en-de.toml   then   translume train en-de.toml",
)
@click.argument("train_source", type=FILE)
@click.argument("train_target", type=FILE, required=False)
@click.option("--valid-source", type=FILE, help="Validation sources.  [default: next to the training file]")
@click.option("--valid-target", type=FILE, help="Validation targets.")
@click.option("--valid", type=FILE, help="Validation data in one TSV, CSV, JSONL or text file.")
@click.option("--task", cls=late_help(_tasks), metavar="NAME", callback=_task)
@click.option(
    "--from",
    "base",
    type=FOLDER,
    help="Propose settings for fine-tuning this model: what they leave out is the model's.",
)
@click.option(
    "--columns",
    metavar="A,B",
    help="For one file: the columns of a TSV or CSV file, from 0 or by name, or the keys of a JSONL file that are "
    "source and target, or text and label.  [default: the only two, if there are two]",
)
@click.option(
    "--template",
    metavar="TEXT",
    help="Make the source from several columns, such as '{question} | {passage}'; --columns then names the target.",
)
@click.option(
    "--corpus",
    "corpora",
    type=FILE,
    nargs=2,
    multiple=True,
    metavar="SOURCE TARGET",
    help="Another language pair in the same model; may be repeated. Languages are those of the file names.",
)
@click.option("--both", is_flag=True, help="Train every pair of files in both directions, in one model.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=1),
    metavar="X",
    help="For pairs of texts: propose a training of so many minutes on one core; more cores or a GPU end sooner.",
)
@excludes("--minutes", "--from")
@excludes("--corpus", *_ONE_DIRECTION)
@excludes("--both", *_ONE_DIRECTION)
@excludes("TRAIN_TARGET", "--columns", "--template", "--valid")
@excludes("--valid", "--valid-source")
@requires("--corpus", "TRAIN_TARGET")
@requires("--both", "TRAIN_TARGET")
@requires("--valid-source", "--valid-target")
@requires("--valid-target", "--valid-source")
def command(
    train_source: Path,
    train_target: Path | None,
    valid_source: Path | None,
    valid_target: Path | None,
    valid: Path | None,
    task: "Task | None",
    columns: str | None,
    template: str | None,
    base: Path | None,
    corpora: tuple[tuple[Path, Path], ...],
    both: bool,
    minutes: float | None,
) -> None:
    """Print settings for training files as commented TOML, proposed from the size and the scripts of the data.

    TRAIN_SOURCE and TRAIN_TARGET are two parallel files; TRAIN_SOURCE alone is a TSV, CSV, JSONL or Parquet file of
    pairs, or a text file for a language model. With --task classification, the second file or column contains the
    labels of the texts in the first. With --corpus or --both, one model translates in all directions; file names must
    end with the language, as train.en does. Sources may be paths of recordings, images or arrays, relative to the file.
    """
    from translume.config.tree import MARIAN_HINT
    from translume.data.lines import STANDARD_INPUT
    from translume.data.pairs import refuse_pipe
    from translume.experiments.columns import is_text, parse_columns

    if STANDARD_INPUT in map(str, (train_source, train_target, valid_source, valid_target, valid)):
        raise DataError("init: found standard input, expected files, since settings name them")
    for file in (train_source, train_target, valid_source, valid_target, valid, *chain.from_iterable(corpora)):
        if file is not None:
            refuse_pipe(file)
        if file is not None and file.suffix in SETTINGS_SUFFIXES:
            hint = "" if file.suffix == ".toml" else MARIAN_HINT
            raise DataError(f"init: found {file}, a file of settings, expected training data{hint}")
    if train_target is not None and (corpora or both):
        _print_corpora([(train_source, train_target), *corpora], both=both, minutes=minutes)
        return
    named = parse_columns(columns, template=template is not None) if columns else ()
    if base is not None:
        config = checkpoint.read_config(base)
        task = _same_task(task, task_of(config), base)
        if train_target is None and columns is None and template is None and config.data.template:
            template, named = config.data.template, config.data.columns
    manifest = _manifest(train_source, train_target, named, base) if template is None else None
    if task is None:
        text = train_target is None and columns is None and template is None and is_text(train_source)
        task = find_task("language_model" if text and manifest is None else "sequence")
    if manifest is not None and task.predicts == "classes":
        raise DataError(f"{train_source}: found paths of {manifest.kind} files, expected texts to label")
    if task.reads == "documents":
        refuse_options("a language model, which reads one file of texts", *_PAIRS_ONLY)
    if minutes and (task.reads != "pairs" or task.predicts != "tokens" or manifest is not None):
        found = manifest.kind if manifest is not None else task.name
        raise SettingsError(f"--minutes: found data for '{found}', expected pairs of texts")
    files: dict[str, Value] = {}
    if train_target is not None:
        files |= {"train_source": (str(train_source),), "train_target": (str(train_target),)}
        if valid_source is None:
            valid_source, valid_target = _validation_files(train_source, train_target) or (None, None)
    else:
        if manifest is not None:
            named = manifest.columns
        elif not named and template is None and task.reads == "pairs":
            named = _columns_of(train_source, task)
        if valid_source is None:
            valid = valid or next(iter(_validation_files(train_source)), None)
        files |= {"columns": named} if named else {}
        files |= {"template": template} if template is not None else {}
        files |= {"train": (str(train_source),)}
        files |= {"valid": (str(valid),)} if valid else {}
    if valid_source and valid_target:
        files |= {"valid_source": (str(valid_source),), "valid_target": (str(valid_target),)}
    _print_proposal(files, task, base, "text" if manifest is None else manifest.kind, minutes)


def _same_task(task: "Task | None", of_base: "Task", base: Path) -> "Task":
    """Return the task of the model to fine-tune. Raises SettingsError if --task names another one."""
    if task is not None and task.name != of_base.name:
        raise SettingsError(f"--task: found '{task.name}', but {base} has '{of_base.name}'")
    return of_base


def _columns_of(file: Path, task: "Task") -> "Columns":
    """Return the columns of a table by their names, or () for those that a run takes without settings."""
    from translume.experiments.columns import find_columns, unknown_names

    labelled = task.predicts == "classes"
    columns = find_columns(file, task.keys, labelled=labelled)
    if not columns and (fields := unknown_names(file, labelled=labelled)):
        first = " | ".join(map(repr, fields))
        note(f"{file}:1: no known names of columns; the first pair is {first}; --columns takes names")
    return columns


def _manifest(source: Path, target: Path | None, columns: "Columns", base: Path | None) -> "Manifest | None":
    """Return what the training files are if their sources are paths; None for text.

    Raises DataError if the model to fine-tune reads other sources.
    """
    from translume.experiments.manifests import find_manifest

    read = None if base is None else checkpoint.read_config(base).data.source
    if read is not None and not read.reader:
        return None
    manifest = find_manifest(source, target, columns)
    if read is not None and (manifest is None or manifest.kind != read.files):
        kind = "text" if manifest is None else f"paths of {manifest.kind}"
        raise DataError(f"{source}: found {kind}, but {base} reads {read.kind}")
    return manifest


def _print_proposal(
    files: "dict[str, Value]", task: "Task", base: Path | None, kind: str, minutes: float | None
) -> None:
    """Survey the data and print the proposed settings.  kind: of the sources."""
    from translume.config import DataSettings
    from translume.experiments.minutes import fit_to_minutes, pairs_for

    theirs = None if base is None else checkpoint.read_config(base).data
    read: dict[str, object] = {"task": task.name, "source": kind if theirs is None else theirs.source.model_dump()}
    if theirs is not None and "train_source" in files and (theirs.context.used or theirs.documents == "blank_line"):
        read["documents"] = "blank_line" if theirs.documents == "line" else theirs.documents  # as it will be trained
    data = DataSettings.model_validate({**read, **files})
    count = _count(data, "train", hint=base is None)
    valid = (*data.valid_source, *data.valid)
    if valid:
        _count(data, "valid")
    if base is None:
        proposal = task.recommend(data, pairs_for(count, minutes) if minutes else count)
    else:
        from translume.experiments.fine_tuning import propose_fine_tuning

        proposal = propose_fine_tuning(data, count, base)
    for each in proposal.notes:
        note(each)
    named = [Choice(path=f"data.{name}", value=value) for name, value in files.items()]
    first = [each for each in proposal.choices if each.path.endswith("_language") or each.path == "data.task"]
    rest = [each for each in proposal.choices if each not in first]
    if minutes:
        rest = [*fit_to_minutes(rest, count, minutes)]
    size = proposal.size or f"{count:,} {task.example}" + ("" if count == 1 else "s")
    click.echo(_toml([*first, *named, *rest], size, base), nl=False)
    held = "2 % of it held out for validation" if count > 1 else "too few to hold any out for validation"
    if valid:
        held = f"validated on {valid[0]}"
    note(f"{size}{proposal.description}; {held}")


def _print_corpora(files: Sequence[tuple[Path, Path]], *, both: bool, minutes: float | None) -> None:
    """Survey corpora of several directions and print the proposed settings of one model."""
    from translume.config import DataSettings
    from translume.experiments.minutes import fit_to_minutes
    from translume.experiments.proposals import propose_for_corpora

    pairs = [pair for one, other in files for pair in ([(one, other), (other, one)] if both else [(one, other)])]
    tables = [_corpus(source, target) for source, target in pairs]
    if not all("valid_source" in table for table in tables):
        tables = [{name: value for name, value in table.items() if "valid" not in name} for table in tables]
    data = DataSettings.model_validate({"corpus": tables})
    counts = [_count(data.of_corpus(each), "train") for each in data.corpus]
    proposal = propose_for_corpora(data, counts)
    size = f"{sum(counts):,} pairs"
    choices = fit_to_minutes(proposal.choices, sum(counts), minutes) if minutes else proposal.choices
    click.echo(_toml(choices, size, None, tables), nl=False)
    held = "validated on the files beside them" if data.corpus[0].valid_source else "2 % of it held out for validation"
    note(f"{size}{proposal.description}; {held}")


def _corpus(source: Path, target: Path) -> dict[str, str]:
    """Return a [[data.corpus]] table. Raises SettingsError if a file does not name its language."""
    from translume.experiments.columns import language_of

    table = {}
    for side, file in (("source", source), ("target", target)):
        if not language_of(file):
            raise SettingsError(f"{file}: no language in the name, expected a name such as train.en")
        table[f"{side}_language"] = language_of(file)
    if table["source_language"] == table["target_language"]:
        raise SettingsError(f"{source}, {target}: found the same language twice, expected two")
    table |= {"train_source": str(source), "train_target": str(target)}
    valid = map(str, _validation_files(source, target))
    return table | dict(zip(("valid_source", "valid_target"), valid, strict=False))


def _count(data: "DataSettings", split: "Split", *, hint: bool = False) -> int:
    """Return the number of pairs with two sides; note how many others there are, and targets that may be labels.

    Raises DataError for an invalid line, for files of unequal length, and if no pair has two sides.
    """
    from translume.data.cleaning import is_blank
    from translume.data.pairs import read_pairs

    task, empty, targets = find_task(data.task), 0, set[str]()
    texts = task.reads == "pairs" and not data.source.reader  # a survey says what others lack
    with ProgressBar("reading", unit="pairs") as bar:
        for pair in read_pairs(data, split):
            bar.done += 1
            if bar.done % 10_000 == 0:
                bar.update(bar.done)
            empty += texts and (is_blank(pair.target) or is_blank(pair.source))
            if len(targets) <= MAX_LABELS:
                targets.add(pair.target.strip())
    count = bar.done - empty
    file = (*data.train_source, *data.train, *data.valid_source, *data.valid)[0]
    if not count:
        raise DataError(f"{file}: found no text on both sides in any of {bar.done:,} {task.reads}")
    if empty:
        note(f"{empty:,} of {bar.done:,} {task.reads} in {file} have an empty side, and are dropped")
    if hint and texts and task.predicts == "tokens" and len(targets) <= min(MAX_LABELS, count // 10):
        note(f"{file}: the targets have only {len(targets)} different values; --task classification is for labels")
    return count


def _validation_files(*training: Path) -> tuple[Path, ...]:
    """Return the validation files beside "train.en" and "train.de"; () unless every file has one.

    Their names begin alike, with "valid", "val" or "dev"; each may be compressed.
    """
    for name in VALIDATION_NAMES:
        beside = [_beside(file, name) for file in training]
        if all(beside):
            return tuple(file for file in beside if file is not None)
    return ()


def _beside(training: Path, name: str) -> Path | None:
    """Return the file whose name has `name` instead of "train"; first of the same compression, if any."""
    if "train" not in training.name:
        return None
    from translume.data.lines import COMPRESSED, without_compression

    plain = without_compression(training.name)
    names = (training.name, plain, *(f"{plain}{suffix}" for suffix in COMPRESSED))
    files = (training.with_name(file.replace("train", name, 1)) for file in names)
    return next((file for file in files if file.exists()), None)


def _toml(choices: Sequence["Choice"], size: str, base: Path | None, corpora: Sequence[Mapping[str, str]] = ()) -> str:
    """Return commented TOML, checked by reading it back.  corpora: the [[data.corpus]] tables."""
    from translume.config import Config
    from translume.config.base import literal

    lines = [
        f"# Settings for {size}, written by `translume init`; `translume docs init` explains how they were chosen.",
        "# `translume config` with this file prints every setting and what it means.",
        "# Paths are relative to the folder of this file.",
    ]
    if base is not None:
        lines = [
            f"# Settings for fine-tuning {base} on {size}, written by `translume init --from`.",
            f"# Use them with `translume train … --from {shlex.quote(str(base))}`. What they leave out is that of the",
            "# base model, except [training]; see `translume docs fine_tuning`.",
            "# Paths are relative to the folder of this file.",
        ]
    table = ""
    for choice in choices:
        above, _, key = choice.path.rpartition(".")
        if above != table:
            lines += ["", f"[{above}]"]
            table = above
        value = choice.value[0] if isinstance(choice.value, tuple) and len(choice.value) == 1 else choice.value
        lines.append(f"{key} = {literal(value)}" + (f"  # {choice.why}" if choice.why else ""))
    for corpus in corpora:
        lines += ["", "[[data.corpus]]", *(f"{key} = {literal(value)}" for key, value in corpus.items())]
    text = "\n".join(lines) + "\n"
    Config.parse(text, place="init", partial=base is not None)
    return text
