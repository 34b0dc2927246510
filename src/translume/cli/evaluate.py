"""translume evaluate"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.atomic import check_writable, write_file
from translume.cli.group import interrupt_hint
from translume.cli.length_limit import LimitCount
from translume.cli.options import (
    FILE,
    FOLDER,
    CalibrationOptions,
    Compute,
    calibration_options,
    changed,
    decoding_options,
    engine_compute_options,
    evaluation_options,
    json_option,
    set_option,
)
from translume.cli.terminal import ProgressBar, note
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.checkpoint import Temperature
    from translume.evaluation import Calibration
    from translume.translator import Translator


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """The options of `translume evaluate`, for the task of the model."""

    model: Path
    source: Path
    reference: Path | None
    other: Path | None
    write: Path | None
    record: bool
    as_json: bool
    overrides: tuple[str, ...]
    calibrate: CalibrationOptions
    compute: Compute


@click.command(
    "evaluate",
    short_help="Measure a model, or compare two.",
    epilog="Example: translume evaluate models/en-de test.en test.de --lowercase --compare models/other",
)
@click.argument("model", type=FOLDER)
@click.argument("source", type=FILE)
@click.argument("reference", type=FILE, required=False)
@click.option("--compare", "other", type=FOLDER, help="Another model: is the difference significant?")
@click.option("--write", type=FILE, help="Also write the translations to this file; '-' is standard output.")
@click.option("--record", is_flag=True, help="Add the scores to the model's history and its README.md.")
@calibration_options
@evaluation_options
@decoding_options
@json_option
@set_option
@engine_compute_options
def command(
    model: Path,
    source: Path,
    reference: Path | None,
    other: Path | None,
    write: Path | None,
    record: bool,
    as_json: bool,
    overrides: tuple[str, ...],
    calibrate: CalibrationOptions,
    compute: Compute,
) -> None:
    """Translate SOURCE, compare with REFERENCE, and print each score with its signature.

    For a classifier, name one TSV or JSONL file with texts and labels. Prints accuracy, a row for each class, the
    confusion matrix and the calibration error, which --calibration draws.

    For a language model, name one text file. Prints the perplexity by token and by word, the bits for each byte and the
    nats for each character.
    """
    from translume.checkpoint import read_config
    from translume.tasks import task_of

    with interrupt_hint("Interrupted; nothing was measured"):
        if write is not None:
            check_writable(write)
        if calibrate.picture_path is not None:
            _check_picture(calibrate.picture_path)
        task_of(read_config(model)).part("evaluate")(
            EvaluateOptions(
                model=model,
                source=source,
                reference=reference,
                other=other,
                write=write,
                record=record,
                as_json=as_json,
                overrides=overrides,
                calibrate=calibrate,
                compute=compute,
            )
        )


def evaluate_translator(options: EvaluateOptions) -> None:
    """Print the scores of a translator, or the differences between two."""
    from translume.evaluation import compare, measure, metric_from

    model, overrides = options.model, options.overrides
    if options.reference is None:
        raise SettingsError(f"evaluate: {model} is a translator, expected MODEL SOURCE REFERENCE")
    sources, references = _parallel(options.source, options.reference)
    translator = _load(model, options.compute)
    compared_model = None if options.other is None else _load(options.other, options.compute)
    settings = changed(translator.config, overrides, "evaluation", "decoding").scoring
    for name in settings.metrics:
        metric_from(name, settings)  # refuses unknown metrics before anything is translated
    translator, measured = _calibrated(translator, options, sources, references)
    found, count = _translations(translator, overrides, sources)
    if options.write is not None:
        write_file(options.write, "".join(f"{text}\n" for text in found).encode())
    scores = measure(found, references, settings)
    if options.record:
        from translume.checkpoint import append_history, record_evaluation

        files = {"source": str(options.source), "reference": str(options.reference)}
        record_evaluation(model, {**files, **scores.to_dict()})
        for each in measured:
            append_history(model, {"event": "calibrated", **files, **each.to_dict()})
    if compared_model is None:
        values = {**scores.to_dict(), "reached_limit": count.reached}
        lines = [json.dumps(values)] if options.as_json else [str(score) for score in scores]
    else:
        theirs, _ = _translations(compared_model, overrides, sources)
        comparisons = compare(theirs, found, references, settings)
        lines = [json.dumps(each.to_dict()) if options.as_json else str(each) for each in comparisons]
        if not options.as_json:
            note(f"first {options.other}, second {model}; the difference is second minus first")
    lines += [json.dumps(each.to_dict()) if options.as_json else str(each) for each in measured]
    for line in lines:
        click.echo(line)
    count.report()


def _load(model: Path, compute: Compute) -> "Translator":
    from translume.translator import Translator

    return Translator.load(model, compute.to_load())


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


def _translations(
    translator: "Translator", overrides: tuple[str, ...], sources: Sequence[str]
) -> tuple[list[str], LimitCount]:
    """Return the translations, and how many reached their length limit."""
    decoding = changed(translator.config, overrides, "evaluation", "decoding").decoding
    with ProgressBar("translating", unit="lines", total=len(sources)) as bar:
        found, count = [], LimitCount()
        for translation in translator.translate_all(sources, settings=decoding):
            found.append(translation.text)
            count.add(translation)
            bar.advance()
    return found, count


@dataclass(frozen=True, slots=True)
class _CalibrationResult:
    """A result under its JSON name."""

    name: str
    value: "Temperature | Calibration"

    def __str__(self) -> str:
        return str(self.value)

    def to_dict(self) -> dict[str, Any]:
        return {self.name: self.value.to_dict()}


def _check_picture(picture: Path) -> None:
    """Raise DataError if the picture could not be drawn, before anything is computed."""
    from translume.drawing.charts import new_figure

    new_figure(picture, width=1, height=1)
    check_writable(picture)


def _calibrated(
    translator: "Translator", options: EvaluateOptions, sources: Sequence[str], references: Sequence[str]
) -> "tuple[Translator, list[_CalibrationResult]]":
    """Return the translator, with the temperature that --fit-temperature fitted, and the results of --calibration.

    Calibration is measured at temperature 1, and also at the temperature that was fitted now or is in use.
    """
    from translume.checkpoint import store_temperature
    from translume.evaluation import fit_temperature, measure_calibration
    from translume.translator import Translator

    model, calibrate = options.model, options.calibrate
    results = []
    if calibrate.fit:
        with ProgressBar("fitting a temperature", unit="tokens") as bar:
            temperature = fit_temperature(translator, sources, references, progress=bar.advance)
        store_temperature(model, temperature, translator.checkpoint.digest)
        translator = Translator(replace(translator.checkpoint, temperature=temperature))
        results.append(_CalibrationResult("fitted", temperature))
        note(f"{model}: temperature stored; --calibrated or decoding.calibrated = true uses it")
    if calibrate.picture is None:
        return translator, results
    stored = translator.checkpoint.temperature
    used = calibrate.fit or changed(translator.config, options.overrides, "evaluation", "decoding").decoding.calibrated
    measured = []
    for value in [1.0, stored.value] if used and stored is not None else [1.0]:
        with ProgressBar("measuring calibration", unit="tokens") as bar:
            found = measure_calibration(translator, sources, references, temperature=value, progress=bar.advance)
        measured.append(found)
        results.append(_CalibrationResult("calibration", found))
    if calibrate.picture_path is not None:
        from translume.drawing.charts import draw_reliability

        draw_reliability(measured, calibrate.picture_path, title=str(model))
        note(f"{calibrate.picture_path}: written")
    return translator, results
