"""translume backtranslate and translume distil"""

import json
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.bulk import (
    FileOptions,
    FileWork,
    InputFile,
    Lines,
    bulk_options,
    file_options,
    line_row,
    print_warnings,
    text_files,
)
from translume.cli.options import (
    FILE,
    FOLDER,
    MODEL,
    Compute,
    changed,
    compute_options,
    decoding_options,
    engine_compute_options,
    json_option,
    set_option,
)
from translume.cli.terminal import note
from translume.cli.train import train_model
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import Config, DecodingSettings
    from translume.data.pairs import Origin
    from translume.translator import Translation
    from translume.translator.planning import LineError


@click.command(
    "backtranslate",
    short_help="Make training pairs from texts of the target language.",
    epilog="Example: translume backtranslate models/de-en --input 'news.*.de' --output synthetic",
)
@click.argument("model", type=MODEL)
@file_options
@click.option("--tag", default="<BT>", help="First word of each synthetic source; empty for none.  [default: <BT>]")
@decoding_options
@set_option
@engine_compute_options
def backtranslate(model: Path, files: FileOptions, tag: str, overrides: tuple[str, ...], compute: Compute) -> None:
    """Translate texts of the target language with MODEL, which translates into the source language.

    Each file of --input gives a table in --output with two columns: the tag and the translation, and the text itself.
    Add these tables to the training files: `train = ["synthetic/*.tsv.zst"]` beside `train_source` and `train_target`.
    Lines without a translation are left out. `--strategy sampling` draws the translations from the model.
    """
    from translume.translator import Translator

    if not files.inputs or files.output is None:
        raise SettingsError("--input, --output: expected both")
    if not tag.isprintable():
        raise SettingsError(f"--tag: found {tag!r}, expected a word without tabs and line breaks")
    translator = Translator.load(model, compute.to_load())
    settings = changed(translator.config, overrides, "decoding").decoding
    if settings.nbest > 1:
        raise SettingsError("--nbest: expected one translation for each line")
    counts: Counter[str] = Counter()
    work = FileWork(
        model=model,
        loaded=translator,
        work=Translator.translate_lines,
        settings=settings,
        files=files,
        row=partial(_synthetic_pair, tag=tag, counts=counts),
        report=print_warnings,
    )
    failed = work.process(text_files(files, translator.config.data, ending=".tsv"))
    if counts:
        dropped = "".join(f", {counts[reason]:,} {reason}" for reason in DROPPED if counts[reason])
        note(f"{counts.total():,} lines read, {counts[PAIRED]:,} {PAIRED}{dropped}")
    if failed:
        click.get_current_context().exit(1)


PAIRED, DROPPED = "pairs written", ("empty", "without a translation", "failed")
"""What becomes of the lines of a back-translation."""


def _synthetic_pair(result: "Translation | LineError", tag: str, counts: Counter[str]) -> str:
    """Return a row of back-translation: tag and translation, and the text; nothing without a translation."""
    from translume.translator import Translation

    reason = PAIRED
    if not isinstance(result, Translation):
        reason = "failed"
    elif not result.source.strip():
        reason = "empty"
    elif not result.text.strip():
        reason = "without a translation"
    counts[reason] += 1
    if reason != PAIRED or not isinstance(result, Translation):
        return ""
    return f"{tag} {_cell(result.text)}".strip() + f"\t{_cell(result.source)}\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("\t", " ").splitlines())


@click.command(
    "distil",
    short_help="Train a small model on the translations of a large one.",
    epilog="Example: translume distil models/en-de en-de.toml --out models/small --set model.width=256",
)
@click.argument("teacher", type=MODEL)
@click.argument("config", type=FILE)
@click.option("--out", type=FOLDER, required=True, help="Model folder of the small model.")
@bulk_options
@json_option
@set_option
@compute_options
def distil(
    teacher: Path,
    config: Path,
    out: Path,
    files: FileOptions,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Translate the training sources of CONFIG with TEACHER, and train a model as CONFIG says on the translations.

    CONFIG may be that of the teacher, with smaller sizes by --set. The translations are kept in OUT.targets, one file
    for each training file. The same command resumes the work.
    """
    from translume.config import Config
    from translume.data.pairs import origins
    from translume.translator import Translator

    settings = Config.read(config, overrides)
    decoding = _decoding(settings, teacher)
    inputs = _inputs(settings, teacher, decoding, out.parent / f"{out.absolute().name}.targets")
    if any(not each.output.exists() for each in inputs):
        translator = Translator.load(teacher, compute.to_load())
        translator.check(decoding)
        FileWork(
            model=teacher,
            loaded=translator,
            work=Translator.translate_lines,
            settings=decoding,
            files=files,
            row=partial(line_row, value=str),
            report=print_warnings,
        ).process(inputs)
        if any(not each.output.exists() for each in inputs):
            click.get_current_context().exit(1)
    own: dict[str, object] = {
        "train_source": tuple(each.source for each in inputs),
        "train_target": tuple(str(each.output) for each in inputs),
        "train": (),
        "weights": tuple(place.weight for place in origins(settings.data, "train")),
    }
    if not settings.data.valid:  # no file with columns is left
        own |= {"columns": (), "template": ""}
    student = settings.with_values("data", own)
    train_model(student, out, None, compute, resume="the same command", as_json=as_json)


def _decoding(config: "Config", teacher: Path) -> "DecodingSettings":
    """Return how the teacher translates. One of several languages translates as the settings of the student say."""
    from translume.checkpoint import read_config

    theirs = read_config(teacher)
    if theirs.model.language_tags == "none":
        return theirs.decoding
    languages = {"from_": config.data.source_language, "to": config.data.target_language}
    return theirs.decoding.model_copy(update=languages)


def _inputs(config: "Config", teacher: Path, decoding: "DecodingSettings", folder: Path) -> list[InputFile]:
    """Return the training sources, those of tables written to text files, and the files of their translations.

    Raises SettingsError if the folder of translations is that of another teacher, of other training files or of other
    settings, and DataError for parallel files of unequal length.
    """
    from translume.atomic import make_folder, write_file
    from translume.checkpoint import read_config
    from translume.data.lines import count_lines, read_lines
    from translume.data.pairs import origins
    from translume.tasks import task_of
    from translume.translator.planning import numbered_lines

    data, task = config.data, task_of(config)
    other = data.corpus or data.source.reader or data.objective != "pairs"
    if (task.reads, task.predicts) != ("pairs", "tokens") or other:
        raise SettingsError("distil: expected texts and their targets in one direction, in [data]")
    if data.context.used and data.train and data.document_column != "":
        found = "found tables of documents for data.context"
        raise SettingsError(f"distil: data.document_column: {found}, expected parallel files with blank lines")
    make_folder(folder)
    places = origins(data, "train")
    for place in places:
        place.check_lengths()
    _refuse_other(folder, teacher, decoding, places)
    context = read_config(teacher).data.context.used and data.documents != "line"

    def read(file: str) -> Lines:
        return numbered_lines(read_lines(file), documents=context)

    inputs = []
    for number, place in enumerate(places):
        file = place.file
        if not place.target_file:
            file = str(folder / f"{number:04}.source.txt")
            if not Path(file).exists():
                lines = (" ".join(pair.source.splitlines()) for pair in place.read())
                write_file(Path(file), "".join(f"{line}\n" for line in lines).encode())
        target = folder / f"{number:04}.target.txt"
        inputs.append(InputFile(file, target, partial(read, file), partial(count_lines, file)))
    return inputs


def _refuse_other(folder: Path, teacher: Path, decoding: "DecodingSettings", places: "Iterable[Origin]") -> None:
    """Record what a folder of translations is made from. Raises SettingsError if that was something else before."""
    from translume.atomic import write_file
    from translume.checkpoint import Manifest
    from translume.checkpoint.loading import WEIGHTS
    from translume.data.token_cache import DIGESTS, file_digest

    record = folder / "made_from.json"
    weights = Manifest.read(teacher).files[WEIGHTS].sha256
    sources = [[file_digest(place.file, folder / DIGESTS), place.columns, place.template] for place in places]
    values = {"teacher": weights, "sources": sources, "decoding": decoding.model_dump(mode="json")}
    content = f"{json.dumps(values)}\n".encode()
    if not record.exists():
        write_file(record, content)
    elif record.read_bytes() != content:
        raise SettingsError(
            f"{folder}: found translations by another teacher, of other training files or with other settings of "
            "[decoding]; delete it or change --out"
        )
