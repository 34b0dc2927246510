"""translume backtranslate"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.bulk import FileOptions, FileWork, file_options, print_warnings, text_files
from translume.cli.options import (
    MODEL,
    Compute,
    changed,
    decoding_options,
    engine_compute_options,
    set_option,
)
from translume.errors import SettingsError

if TYPE_CHECKING:
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
def command(
    model: Path,
    files: FileOptions,
    tag: str,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Translate texts of the target language with MODEL, which translates into the source language.

    Each file of --input gives a table in --output with two columns: the tag and the translation, and the text itself.
    Add these tables to the training files: `train = ["synthetic/*.tsv.zst"]` beside `train_source` and `train_target`.
    Lines without a translation are left out. `--strategy sampling` draws the translations from the model.
    """
    from translume.translator import Translator
    from translume.translator.workers import translate

    if not files.inputs or files.output is None:
        raise SettingsError("--input, --output: expected both")
    if not tag.isprintable():
        raise SettingsError(f"--tag: found {tag!r}, expected a word without tabs and line breaks")
    translator = Translator.load(model, compute.to_load())
    settings = changed(translator.config, overrides, "decoding").decoding
    if settings.nbest > 1:
        raise SettingsError("--nbest: expected one translation for each line")
    work = FileWork(
        model=model,
        loaded=translator,
        work=translate,
        settings=settings,
        files=files,
        row=partial(_synthetic_pair, tag=tag),
        report=print_warnings,
    )
    if work.process(text_files(files, translator.config.data, ending=".tsv")):
        click.get_current_context().exit(1)


def _synthetic_pair(result: "Translation | LineError", tag: str) -> str:
    """Return a row of back-translation: tag and translation, and the text; nothing without a translation."""
    from translume.translator import Translation

    if not isinstance(result, Translation) or not result.text or not result.source.strip():
        return ""
    return f"{tag} {_cell(result.text)}".strip() + f"\t{_cell(result.source)}\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("\t", " ").splitlines())
