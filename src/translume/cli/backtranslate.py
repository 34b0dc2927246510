"""translume backtranslate"""

from functools import partial
from pathlib import Path

import click

from translume.cli.bulk import TRANSLATE, Bulk, FileOptions, file_options, print_warnings, process_files, text_works
from translume.cli.options import (
    MODEL,
    Compute,
    changed,
    decoding_options,
    engine_compute_options,
    set_option,
    workers_option,
)
from translume.errors import SettingsError


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
@workers_option
@engine_compute_options
def command(
    model: Path,
    files: FileOptions,
    tag: str,
    workers: int | None,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Translate texts of the target language with MODEL, which translates into the source language.

    Each file of --input gives a table in --output with two columns: the tag and the translation, and the text itself.
    Add these tables to the training files: `train = ["synthetic/*.tsv.zst"]` beside `train_source` and `train_target`.
    Lines without a translation are left out. `--strategy sampling` draws the translations from the model.
    """
    from translume.translator import Translator
    from translume.translator.bulk import as_synthetic_pair
    from translume.translator.jobs import TRANSLATE as JOB
    from translume.translator.planning import numbered_lines

    if not files.inputs or files.output is None:
        raise SettingsError("--input, --output: expected both")
    if not tag.isprintable():
        raise SettingsError(f"--tag: found {tag!r}, expected a word without tabs and line breaks")
    translator = Translator.load(model, compute.to_load())
    settings = changed(translator.config, overrides, "decoding").decoding
    if settings.nbest > 1:
        raise SettingsError("--nbest: expected one translation for each line")
    bulk = Bulk(
        model=model,
        loaded=translator,
        job=JOB,
        verb=TRANSLATE,
        settings=settings,
        count=workers,
        cluster=files.address,
        stops=files.on_error == "stop",
        row=partial(as_synthetic_pair, tag=tag),
        report=print_warnings,
    )
    if process_files(text_works(files, files.output, translator.config.data, numbered_lines, ".tsv"), bulk):
        click.get_current_context().exit(1)
