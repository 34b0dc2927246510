"""translume evaluate"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import check_writable, write_file
from translume.cli.calibrating import calibrated, check_picture
from translume.cli.engines import engine, engine_option, translator_at
from translume.cli.group import resume_with
from translume.cli.options import (
    FILE,
    FOLDER,
    calibration_options,
    changed,
    compute,
    decoding_options,
    engine_compute_options,
    evaluation_options,
    json_option,
    set_option,
)
from translume.cli.terminal import Meter, note
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.translator import Translator


@click.command(
    "evaluate",
    short_help="Measure a model, or compare two.",
    epilog="Example: translume evaluate models/en-de test.en test.de --lowercase --compare models/other",
)
@click.argument("model", type=FOLDER)
@click.argument("source", type=FILE)
@click.argument("reference", type=FILE, required=False)
@click.option("--compare", "other", type=FOLDER, help="Another model: is the difference more than chance?")
@click.option("--write", type=FILE, help="Also write the translations to this file; '-' is standard output.")
@click.option("--record", is_flag=True, help="Keep the scores in the model's history and its README.md.")
@calibration_options
@evaluation_options
@decoding_options
@json_option
@set_option
@engine_option
@engine_compute_options
def command(
    model: Path,
    source: Path,
    reference: Path | None,
    other: Path | None,
    write: Path | None,
    record: bool,
    as_json: bool,
) -> None:
    """Translate SOURCE and print how near it comes to REFERENCE: each score with its signature.

    Of a classifier, name one TSV or JSONL file with texts and labels: it prints accuracy, a row for each class, who is
    taken for whom, and the calibration error, which --calibration draws.
    """
    from translume.checkpoint import read_config
    from translume.tasks import task_of

    resume_with(["Interrupted; nothing was measured"])
    if write is not None:
        check_writable(write)
    check_picture()
    evaluate = task_of(read_config(model)).part("evaluate")
    evaluate(model, source, reference, other=other, write=write, record=record, as_json=as_json)


def evaluate_translator(
    model: Path,
    source: Path,
    reference: Path | None,
    *,
    other: Path | None,
    write: Path | None,
    record: bool,
    as_json: bool,
) -> None:
    """Translate SOURCE and print how near it comes to REFERENCE."""
    from translume.evaluation import compare, measure, metric_from

    if reference is None:
        raise SettingsError(f"evaluate: {model} is a translator, expected MODEL SOURCE REFERENCE")
    sources, references = _parallel(source, reference)
    translator = _load(model)
    opponent = None if other is None else _load(other)
    settings = changed(translator.config, "evaluation", "decoding").scoring
    for name in settings.metrics:
        metric_from(name, settings)  # refuses what is unknown or not installed before anything is translated
    translator, judged = calibrated(translator, model, sources, references)
    found = _translations(translator, sources)
    if write is not None:
        write_file(write, "".join(f"{text}\n" for text in found).encode())
    scores = measure(found, references, settings)
    if record:
        from translume.checkpoint import append_history, record_evaluation

        files = {"source": str(source), "reference": str(reference)}
        record_evaluation(model, {**files, **scores.to_dict()})
        for each in judged:
            append_history(model, {"event": "calibrated", **files, **each.to_dict()})
    if opponent is None:
        lines = [json.dumps(scores.to_dict())] if as_json else [str(score) for score in scores]
    else:
        theirs = _translations(opponent, sources)
        comparisons = compare(theirs, found, references, settings)
        lines = [json.dumps(each.to_dict()) if as_json else str(each) for each in comparisons]
        if not as_json:
            note(f"first {other}, second {model}; the difference is second minus first")
    lines += [json.dumps(each.to_dict()) if as_json else str(each) for each in judged]
    for line in lines:
        click.echo(line)


def _load(model: Path) -> "Translator":
    return translator_at(model, compute(), engine())


def _parallel(source: Path, reference: Path) -> tuple[list[str], list[str]]:
    from translume.data.lines import read_lines, refuse_one_input
    from translume.data.pairs import unequal_lengths

    refuse_one_input(source, reference)
    sources, references = list(read_lines(source)), list(read_lines(reference))
    if len(sources) != len(references):
        raise DataError(unequal_lengths(source, reference, (len(sources), len(references))))
    if not sources:
        raise DataError(f"{source}: empty file, expected one sentence a line")
    return sources, references


def _translations(translator: "Translator", sources: Sequence[str]) -> list[str]:
    decoding = changed(translator.config, "evaluation", "decoding").decoding
    with Meter("translating", unit="lines", total=len(sources)) as meter:
        found = []
        for translation in translator.translate_all(sources, settings=decoding):
            found.append(translation.text)
            meter.advance()
    return found
