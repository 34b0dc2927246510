"""translume evaluate"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from translume.atomic import check_writable, write_file
from translume.cli.classify import note_truncated
from translume.cli.group import interrupt_hint
from translume.cli.length_limit import LimitCount
from translume.cli.options import (
    FILE,
    MODEL,
    CalibrationOptions,
    Compute,
    calibration_options,
    changed,
    decoding_options,
    engine_compute_options,
    ensemble_options,
    evaluation_options,
    json_option,
    load_ensemble,
    set_option,
)
from translume.cli.terminal import ProgressBar, note
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.checkpoint import Temperature
    from translume.config import DecodingSettings, Direction
    from translume.decoding import Average
    from translume.evaluation import Calibration
    from translume.tasks import Task
    from translume.translator import Translator


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """The options of `translume evaluate`, for the task of the model."""

    model: Path
    files: tuple[Path, ...]
    others: tuple[Path, ...]
    average: "Average | None"
    compared: Path | None
    write: Path | None
    record: bool
    as_json: bool
    overrides: tuple[str, ...]
    calibrate: CalibrationOptions
    compute: Compute
    directions: tuple[tuple[str, Path, Path], ...] = ()


@click.command(
    "evaluate",
    short_help="Measure a model, or compare two.",
    epilog="Example: translume evaluate models/en-de test.en test.de --lowercase --compare models/other",
)
@click.argument("paths", type=MODEL, nargs=-1, metavar="[MODEL] FILE...")
@click.option(
    "--hypotheses",
    type=FILE,
    help="Score the lines of this file instead of translating; then MODEL may be left out, and FILE... are references, "
    "or one table of pairs if MODEL was trained on tables.",
)
@click.option(
    "--direction",
    "directions",
    type=(str, FILE, FILE),
    multiple=True,
    metavar="EN-DE SOURCE REFERENCE",
    help="Measure a direction of a model of several languages. May be repeated; the means follow.",
)
@click.option("--source", type=FILE, help="With --hypotheses: the sources, for metrics that compare with them.")
@click.option("--compare", "compared", type=MODEL, help="Another model: is the difference significant?")
@click.option("--write", type=FILE, help="Also write the translations to this file; '-' is standard output.")
@click.option("--record", is_flag=True, help="Add the scores to the model's history and its README.md.")
@ensemble_options
@calibration_options
@evaluation_options
@decoding_options
@json_option
@set_option
@engine_compute_options
def command(
    paths: tuple[Path, ...],
    hypotheses: Path | None,
    directions: tuple[tuple[str, Path, Path], ...],
    source: Path | None,
    others: tuple[Path, ...],
    average: "Average | None",
    compared: Path | None,
    write: Path | None,
    record: bool,
    as_json: bool,
    overrides: tuple[str, ...],
    calibrate: CalibrationOptions,
    compute: Compute,
) -> None:
    """Translate SOURCE, compare with REFERENCE, and print each score with its signature.

    FILE... are SOURCE and REFERENCE, line by line; several files are several references, and so are the columns of a
    REFERENCE named .tsv. Or FILE is one table of pairs (TSV, CSV, JSONL, Parquet) like those of the training.

    For a classifier the references are labels. Prints accuracy, a row for each class, the confusion matrix and the
    calibration error, which --calibration draws.
    """
    from translume.checkpoint import read_config
    from translume.tasks import task_of

    if hypotheses is not None:
        if others or average or directions or compared or write or record or calibrate.fit or calibrate.picture:
            raise SettingsError(f"evaluate: {_MODEL_OPTIONS} need a translation, found --hypotheses")
        evaluate_hypotheses(hypotheses, paths, source, overrides, as_json=as_json)
        return
    if source is not None:
        raise SettingsError("evaluate: --source is for --hypotheses; expected MODEL SOURCE REFERENCE")
    if directions and (len(paths) != 1 or compared or write or calibrate.fit or calibrate.picture):
        raise click.UsageError("--direction: expected only MODEL besides, without --compare, --write and calibration")
    if len(paths) < 2 and not directions:
        raise click.UsageError("expected MODEL SOURCE REFERENCE, or MODEL and one file of pairs")
    model, *files = paths
    with interrupt_hint("Interrupted; nothing was measured"):
        if write is not None:
            check_writable(write)
        if calibrate.picture_path is not None:
            _check_picture(calibrate.picture_path)
        task = task_of(read_config(model))
        if directions:
            _refuse_others(task, "--direction")
        task.part("evaluate")(
            EvaluateOptions(
                model=model,
                files=tuple(files),
                others=others,
                average=average,
                compared=compared,
                write=write,
                record=record,
                as_json=as_json,
                overrides=overrides,
                calibrate=calibrate,
                compute=compute,
                directions=directions,
            )
        )


def _refuse_others(task: "Task", option: str) -> None:
    """Raise SettingsError for a task other than that of translators."""
    if not task.sequence_to_sequence:
        raise SettingsError(f"evaluate: {option} is for translators, found a {task.model}")


def _refuse_stride(overrides: Sequence[str]) -> None:
    """Raise SettingsError for a stride, since only the perplexity of a language model has one."""
    if any(override.partition("=")[0].strip() == "evaluation.stride" for override in overrides):
        raise SettingsError("evaluate: evaluation.stride is for language models, found translations")


_MODEL_OPTIONS = "--ensemble, --average, --direction, --compare, --write, --record, --fit-temperature and --calibration"


def evaluate_hypotheses(
    hypotheses: Path, paths: Sequence[Path], source: Path | None, overrides: Sequence[str], *, as_json: bool
) -> None:
    """Print the scores of existing translations, with the settings of a model if its folder is the first path."""
    from translume.checkpoint import read_config
    from translume.config import Config
    from translume.data import read_lines
    from translume.data.evaluation_files import (
        holds_pairs,
        read_evaluation_set,
        read_references,
        read_sources,
        reads_tables,
        refuse_table,
    )
    from translume.data.pairs import unequal_lengths
    from translume.evaluation import measure
    from translume.tasks import task_of

    named = bool(paths) and paths[0].is_dir()
    references = paths[1:] if named else paths
    if not references:
        raise click.UsageError("expected a file of references after --hypotheses FILE")
    config = read_config(paths[0]) if named else Config()
    _refuse_others(task_of(config), "--hypotheses")
    settings = changed(config, overrides, "evaluation").scoring
    _refuse_stride(overrides)
    refuse_table(hypotheses)
    texts = list(read_lines(hypotheses))
    if named and len(references) == 1 and holds_pairs(references[0], config.data):
        if source is not None:
            raise SettingsError(f"evaluate: --source: found {references[0]}, a table of sources and references")
        note(f"{references[0]}: read as sources and references, in the columns of the training data")
        pairs = read_evaluation_set(references, config.data)
        first, rest, sources = pairs.references[0], [], pairs.sources
        if len(first) != len(texts):
            raise DataError(unequal_lengths(hypotheses, references[0], (len(texts), len(first))))
    else:
        first, *rest = read_references(references, (hypotheses, len(texts)))
        sources = []
    if rest:
        tabs = "; tabs separate those of a .tsv file" if 1 + len(rest) > len(references) else ""
        note(f"{', '.join(map(str, references))}: {1 + len(rest)} references a text{tabs}")
    if source is not None:
        if not reads_tables(config.data):
            refuse_table(source)
        sources = list(read_sources(str(source), config.data))
        if len(sources) != len(texts):
            raise DataError(unequal_lengths(hypotheses, source, (len(texts), len(sources))))
    scores = measure(texts, first, settings, other_references=rest, sources=sources)
    for line in [json.dumps(scores.to_dict())] if as_json else map(str, scores):
        click.echo(line)


def evaluate_translator(options: EvaluateOptions) -> None:
    """Print the scores of a translator, or the differences between two."""
    from translume.checkpoint import read_config
    from translume.data.evaluation_files import read_evaluation_set
    from translume.evaluation import compare, measure
    from translume.evaluation.metrics import check_metrics
    from translume.translator import Translator

    model, overrides = options.model, options.overrides
    _refuse_stride(overrides)
    if options.others and (options.record or options.calibrate.fit):
        raise SettingsError("evaluate: --record and --fit-temperature are for one model, found --ensemble")
    if options.directions:
        _evaluate_directions(options)
        return
    files = read_evaluation_set(options.files, read_config(model).data)
    first, *rest = files.references
    translator = load_ensemble(model, options.others, options.average, options.compute)
    theirs = None if options.compared is None else Translator.load(options.compared, options.compute.to_load())
    changed_config = changed(translator.config, overrides, "evaluation", "decoding")
    decoding = changed_config.decoding
    translator, direction = _in_direction(translator, decoding)
    settings = changed_config.scoring.of_language(direction.target)
    check_metrics(settings)
    translator, measured = _calibrated(translator, options, files.sources, files.targets)
    found, count = _translations(translator, decoding, files.sources)
    if options.write is not None:
        # A line each: translations of cells with line breaks have some too.
        write_file(options.write, "".join(" ".join(text.splitlines()) + "\n" for text in found).encode())
    scores = measure(found, first, settings, other_references=rest, sources=files.sources)
    if options.record:
        from translume.checkpoint import append_history, record_evaluation

        source, *references = map(str, options.files)
        named = {"source": source, "reference": " ".join(references) or source}
        record_evaluation(model, {**named, **scores.to_dict()})
        for each in measured:
            append_history(model, {"event": "calibrated", **named, **each.to_dict()})
    if theirs is None:
        values = {**scores.to_dict(), **_counted(count)}
        lines = [json.dumps(values)] if options.as_json else [str(score) for score in scores]
    else:
        other_decoding = changed(theirs.config, overrides, "evaluation", "decoding").decoding
        others, _ = _translations(theirs, other_decoding, files.sources)
        comparisons = compare(others, found, first, settings, other_references=rest, sources=files.sources)
        lines = [json.dumps(each.to_dict()) if options.as_json else str(each) for each in comparisons]
        if not options.as_json:
            note(f"first {options.compared}, second {model}; the difference is second minus first")
    lines += [json.dumps(each.to_dict()) if options.as_json else str(each) for each in measured]
    for line in lines:
        click.echo(line)
    _report(count)


def _evaluate_directions(options: EvaluateOptions) -> None:
    """Print the scores of a translator in several directions, and their means."""
    from translume.checkpoint import record_evaluation
    from translume.data.evaluation_files import read_evaluation_set
    from translume.evaluation import measure
    from translume.evaluation.metrics import check_metrics

    translator = load_ensemble(options.model, options.others, options.average, options.compute)
    config = changed(translator.config, options.overrides, "evaluation", "decoding")
    parts = []
    for name, source, reference in options.directions:
        direction = translator.directions.parse(name)
        settings = config.scoring.of_language(direction.target)
        check_metrics(settings)
        decoding = config.decoding.model_copy(update={"from_": direction.source, "to": direction.target})
        translator.check(decoding)
        parts.append((direction, settings, decoding, read_evaluation_set((source, reference), config.data)))
    values: dict[str, list[float]] = {}
    for (direction, settings, decoding, files), (_, *paths) in zip(parts, options.directions, strict=True):
        if translator.directions.untrained(direction):
            note(f"{direction}: no training data had this direction (zero-shot)")
        found, count = _translations(translator, decoding, files.sources)
        first, *rest = files.references
        scores = measure(found, first, settings, other_references=rest, sources=files.sources)
        for score in scores:
            values.setdefault(score.name, []).append(score.value)
        named = {"from": direction.source, "to": direction.target}
        if options.record:
            measured = dict(zip(("source", "reference"), map(str, paths), strict=True))
            record_evaluation(options.model, {**measured, **named, **scores.to_dict()})
        if options.as_json:
            click.echo(json.dumps({**named, **scores.to_dict(), **_counted(count)}))
        else:
            for score in scores:
                click.echo(f"{direction}: {score}")
        _report(count)
    means = {name: fmean(each) for name, each in values.items()}
    if options.as_json:
        click.echo(json.dumps({"mean": means}))
    else:
        listed = ", ".join(f"{name} {value:.2f}" for name, value in means.items())
        click.echo(f"mean of {len(parts)} direction{'s' * (len(parts) > 1)}: {listed}")


def _in_direction(translator: "Translator", decoding: "DecodingSettings") -> "tuple[Translator, Direction]":
    """Return the translator with the direction of `decoding` as its default, which calibration uses."""
    from translume.translator import Translator

    direction = translator.direction(to=decoding.to, from_=decoding.from_)
    if not translator.directions.several:
        return translator, direction
    chosen = translator.config.decoding.model_copy(update={"to": direction.target, "from_": direction.source})
    config = translator.config.model_copy(update={"decoding": chosen})
    checkpoint = replace(translator.checkpoint, config=config)
    first, *others = translator.models.members
    models = replace(translator.models, members=(replace(first, checkpoint=checkpoint), *others))
    return Translator(checkpoint, models=models, fusion=translator.fusion), direction


def _translations(
    translator: "Translator", decoding: "DecodingSettings", sources: Sequence[str]
) -> tuple[list[str], LimitCount]:
    """Return the translations, and how many reached their length limit or have a source that was cut."""
    with ProgressBar("translating", unit="lines", total=len(sources)) as bar:
        found, count = [], LimitCount()
        for translation in translator.translate_all(sources, settings=decoding):
            found.append(translation.text)
            count.add(translation)
            bar.advance()
    return found, count


def _counted(count: LimitCount) -> dict[str, int]:
    """Return the counts for --json."""
    return {"reached_limit": count.reached, "truncated": count.truncated}


def _report(count: LimitCount) -> None:
    """Print the counts on standard error, unless they are zero."""
    note_truncated(count.truncated, count.translations)
    count.report()


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
