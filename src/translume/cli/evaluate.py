"""translume evaluate, and what it does for translators"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from translume import checkpoint
from translume.atomic import check_writable, write_file
from translume.cli.group import interrupt_hint
from translume.cli.options import (
    FILE,
    MODEL,
    Compute,
    changed,
    collected,
    decoding_options,
    engine_compute_options,
    ensemble_options,
    evaluation_options,
    excludes,
    in_direction,
    json_option,
    load_ensemble,
    refuse_options,
    requires,
    set_option,
)
from translume.cli.terminal import LimitCount, ProgressBar, note, note_truncated, print_json, progress_over, warn
from translume.errors import DataError, SettingsError, TranslumeError, nearest
from translume.tasks import Task, task_of

if TYPE_CHECKING:
    from translume.checkpoint import Temperature
    from translume.config import DecodingSettings, EvaluationSettings
    from translume.data.evaluation_files import EvaluationSet
    from translume.decoding import Average
    from translume.evaluation import Calibration, Scores
    from translume.evaluation.groups import Groups
    from translume.evaluation.judgements import Systems
    from translume.evaluation.scores import Test
    from translume.translator import Translator


FEW_SENTENCES = 100
"""With fewer sentences, resampling says little about the difference of two systems."""
FEW_PAIRS, SWAPPED_NATS = 20, 1.0
"""Pairs that are scored in both directions, and by how many nats a token the other one is likelier if swapped."""
_SHEET = (click.Choice(["mqm", "esa"]), FILE)
_TESTS = click.Choice(["bootstrap", "randomisation"])
_OF_JUDGEMENTS = ("paths", "judgements", "significance", "as_json")
"""What `--judgements` reads."""
_NEEDED = {"length": "--source FILE, the sources", "rare": "--train FILE, the training targets"}
"""What the groups of --by need, apart from columns of tables."""
_TABLES = ("evaluation", "decoding")
"""The tables of settings that a trained model can be measured with other values of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """The options of `translume evaluate`, for the task of the model.

    paths: the model and then the files; with `hypotheses`, perhaps the files alone.
    calibration: the picture to draw; "-" measures without a picture, None does not measure.
    """

    paths: tuple[Path, ...]
    hypotheses: tuple[Path, ...]
    judgements: Path | None
    source: Path | None
    by: str | None
    training: Path | None
    sheet: tuple[str, Path] | None
    significance: "Test"
    directions: tuple[tuple[str, Path, Path], ...]
    others: tuple[Path, ...]
    average: "Average | None"
    compared: Path | None
    write: Path | None
    record: bool
    calibration: Path | None
    fit_temperature: bool
    as_json: bool
    overrides: tuple[str, ...]
    compute: Compute

    @property
    def model(self) -> Path:
        """The folder of the model."""
        return self.paths[0]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files to translate and to compare with."""
        return self.paths[1:]

    @property
    def picture(self) -> Path | None:
        """The picture to draw, or None."""
        return None if self.calibration is None or str(self.calibration) == "-" else self.calibration


@click.command(
    "evaluate",
    short_help="Measure a model, or compare two.",
    epilog="Example: translume evaluate models/en-de test.en test.de --lowercase --compare models/other",
)
@click.argument("paths", type=MODEL, nargs=-1, metavar="[MODEL] FILE...")
@click.option(
    "--hypotheses",
    type=FILE,
    multiple=True,
    help="Score the lines of this file instead of translating; then MODEL may be left out, and FILE... are references, "
    "or one table of pairs if MODEL was trained on tables. May be repeated; the others are compared with the first.",
)
@click.option("--by", metavar="NAMES", help="Also scores by length, rare (words) or a table's column: length,domain.")
@click.option("--train", "training", type=FILE, help="For --by rare: training targets, whose words are counted.")
@click.option("--significance", type=_TESTS, default="bootstrap", help="The test of differences.")
@click.option(
    "--sheet", type=_SHEET, metavar="mqm|esa FILE.tsv", help="Also write a sheet for judges, and FILE.key.tsv."
)
@click.option("--judgements", type=FILE, metavar="KEY", help="Score the sheets FILE... of judges, whose key is KEY.")
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
@click.option(
    "--calibration",
    type=FILE,
    metavar="PICTURE",
    help="Measure calibration and draw it (.png, .svg, .pdf); '-' draws nothing.",
)
@click.option(
    "--fit-temperature",
    is_flag=True,
    help="Fit a temperature to these pairs and store it with the model, for --calibrated.",
)
@ensemble_options
@evaluation_options
@decoding_options
@json_option
@set_option
@engine_compute_options
@excludes(
    "--hypotheses",
    *("--ensemble", "--average", "--direction", "--compare", "--write", "--record", "--fit-temperature"),
    "--calibration",
)
@excludes("--by", "--direction", "--compare")
@excludes("--sheet", "--direction")
@requires("--train", "--by")
@excludes("--direction", "--compare", "--write", "--fit-temperature", "--calibration")
@excludes("--ensemble", "--record", "--fit-temperature")
@requires("--source", "--hypotheses")
@collected(EvaluateOptions)
def command(options: EvaluateOptions) -> None:
    """Translate SOURCE, compare with REFERENCE, and print each score with its signature.

    FILE... are SOURCE and REFERENCE, line by line; several files are several references, and so are the columns of a
    REFERENCE named .tsv. Or FILE is one table of pairs (TSV, CSV, JSONL, Parquet) like those of the training.

    For a classifier the references are labels. Prints accuracy, a row for each class, the confusion matrix and the
    calibration error, which --calibration draws.
    """
    if options.judgements is not None:
        every = click.get_current_context().command.params
        refuse_options("--judgements", *(each.opts[0] for each in every if each.name not in _OF_JUDGEMENTS))
        _print_judgements(options, options.judgements)
        return
    if options.compared is None and len(options.hypotheses) < 2:
        refuse_options("one system; --compare or --hypotheses names another", "--significance")
    if options.sheet is not None:
        from translume.evaluation.judgements import check_sheet

        check_sheet(options.sheet[1])
    if options.hypotheses:
        evaluate_hypotheses(options)
        return
    if options.directions and len(options.paths) != 1:
        raise click.UsageError("--direction: expected only MODEL besides")
    if len(options.paths) < 2 and not options.directions:
        raise click.UsageError("expected MODEL SOURCE REFERENCE, or MODEL and one file of pairs")
    with interrupt_hint("Interrupted; nothing was measured"):
        if options.write is not None:
            check_writable(options.write)
        if options.picture is not None:
            from translume.inspection.figures import check_image_format

            check_image_format(options.picture)
            check_writable(options.picture)
        task = task_of(checkpoint.read_config(options.model))
        _must_translate(task, "--direction", "--by", "--sheet")
        task.evaluate(options)


def _must_translate(task: "Task", *options: str) -> None:
    """Raise SettingsError if one of the options was given for a model that is not a translator."""
    if not task.sequence_to_sequence:
        refuse_options(f"a {task.model}", *options)


def _refuse_stride(overrides: Sequence[str]) -> None:
    """Raise SettingsError for a stride, since only the perplexity of a language model has one."""
    if any(override.partition("=")[0].strip() == "evaluation.stride" for override in overrides):
        raise SettingsError("evaluate: evaluation.stride is for language models, found translations")


def evaluate_hypotheses(options: EvaluateOptions) -> None:
    """Print the scores of existing translations, with the settings of a model if its folder is the first path."""
    from translume.config import Config
    from translume.data.evaluation_files import (
        EvaluationSet,
        holds_pairs,
        read_evaluation_set,
        read_references,
        read_sources,
        reads_tables,
        refuse_table,
        separators_of,
    )
    from translume.data.lines import read_lines
    from translume.evaluation import measure

    files, source = options.hypotheses, options.source
    has_model = bool(options.paths) and options.model.is_dir()
    references = options.files if has_model else options.paths
    if not references and source is None:
        raise click.UsageError("expected a file of references after --hypotheses FILE")
    config = checkpoint.read_config(options.model) if has_model else Config()
    _must_translate(task_of(config), "--hypotheses")
    for name in (override.partition("=")[0].strip() for override in options.overrides):
        if name.startswith("decoding."):
            raise SettingsError(f"evaluate: {name} has no effect with --hypotheses: nothing is translated")
    settings = changed(config, options.overrides, "evaluation").scoring
    _refuse_stride(options.overrides)
    systems = dict[str, list[str]]()
    hypotheses, texts = files[0], list(read_lines(files[0]))
    for file in files:
        refuse_table(file)
        systems[str(file)] = list(read_lines(file))
        _refuse_unequal(hypotheses, texts, file, systems[str(file)])
    test_set = EvaluationSet(sources=[], references=[[None] * len(texts)], places=[])  # for metrics without references
    if has_model and len(references) == 1 and holds_pairs(references[0], config.data):
        refuse_options(f"{references[0]}, a table of sources and references", "--source")
        note(f"{references[0]}: read as sources and references, in the columns of the training data")
        test_set = read_evaluation_set(references, config.data)
        _refuse_unequal(hypotheses, texts, references[0], test_set.sources)
    elif references:
        test_set = replace(test_set, references=read_references(references, (hypotheses, len(texts))))
    if (count := len(test_set.references)) > 1:
        tabs = "; tabs separate those of a .tsv file" if count > len(references) else ""
        note(f"{', '.join(map(str, references))}: {count} references a text{tabs}")
    if source is not None:
        if not reads_tables(config.data):
            refuse_table(source)
        test_set = replace(test_set, sources=list(read_sources(str(source), config.data)))
        _refuse_unequal(hypotheses, texts, source, test_set.sources)
    sources, (first, *others) = test_set.sources, test_set.references
    columns: list[list[Any]] = [*systems.values(), first, *others, *filter(None, [sources])]
    for number in reversed(separators_of(config.data, *columns)):
        for column in columns:
            del column[number]
    texts = systems[str(hypotheses)]
    settings = _tokenized(settings, texts, first)
    if options.sheet is not None and not sources:
        raise SettingsError("--sheet: expected the sources, which judges read; --source FILE names them")
    groups = _groups(options, test_set)
    for name, outputs in systems.items():
        if len(systems) > 1 and not options.as_json:
            click.echo(f"{name}:")
        with ProgressBar("rating", unit="texts") as bar:
            scores = measure(outputs, first, settings, other_references=others, sources=sources, progress=bar.update)
        _print(scores, as_json=options.as_json, **({"hypotheses": name} if len(systems) > 1 else {}))
        _print_groups(options, settings, test_set, groups, outputs)
    for name in list(systems)[1:]:
        note(f"first {hypotheses}, second {name}; the difference is second minus first")
        _compare(options, settings, test_set, texts, systems[name])
    _write_sheet(options, sources, systems)


def _refuse_unequal(file: Path | str, texts: Sequence[str], other: Path | str, others: Sequence[str]) -> None:
    """Raise DataError if two files have different numbers of texts."""
    from translume.data.lines import unequal_lengths

    if len(texts) != len(others):
        raise DataError(unequal_lengths(file, other, (len(texts), len(others))))


def _compare(
    options: EvaluateOptions, settings: "EvaluationSettings", files: "EvaluationSet", *systems: Sequence[str]
) -> None:
    """Print the differences between two systems, the second minus the first."""
    from translume.evaluation import compare

    (one, two), (first, *others), sources, test = systems, files.references, files.sources, options.significance
    for each in compare(one, two, first, settings, other_references=others, sources=sources, test=test):
        print_json(each.to_dict()) if options.as_json else click.echo(str(each))


def _groups(options: EvaluateOptions, files: "EvaluationSet") -> "dict[str, Groups]":
    """Return rank and name of the group of each sentence, for each name of --by."""
    from translume.data.evaluation_files import is_table, read_column
    from translume.data.lines import read_lines
    from translume.evaluation.groups import by_length, by_rarest_word

    groups: dict[str, Groups] = {}
    tables = [str(path) for path in (*options.paths, options.source) if path and is_table(path)]
    for name in options.by.split(",") if options.by else ():
        if name == "length" and files.sources:
            groups[name] = by_length(files.sources)
        elif name == "rare" and options.training is not None:
            groups[name] = by_rarest_word(files.targets, read_lines(options.training))
        elif name in _NEEDED or not tables:
            expected = _NEEDED.get(name, f"a table with this column{nearest(name, _NEEDED)}")
            raise SettingsError(f"--by {name}: expected {expected}")
        else:
            values = list(read_column(tables[0], name))
            _refuse_unequal(tables[0], values, "the test set", files.targets)
            groups[name] = [(0, text) for text in values]
    return groups


def _print_groups(
    options: EvaluateOptions,
    settings: "EvaluationSettings",
    files: "EvaluationSet",
    groups: "dict[str, Groups]",
    texts: Sequence[str],
) -> None:
    """Print the scores of groups, a table for each name of --by, or an object for each group."""
    from translume.evaluation.groups import aligned, group_scores
    from translume.json_values import to_values

    for name, each in groups.items():
        scored = group_scores(each, texts, files.references, settings, files.sources)
        rows = [[group, f"{count:,}", *(f"{score.value:.2f}" for score in scores)] for group, count, scores in scored]
        head = [f"by {name}", "sentences", *(score.title for score in scored[0][2])]
        for line in () if options.as_json else ("", *aligned(head, rows)):
            click.echo(line)
        for group, count, scores in scored if options.as_json else ():
            print_json({"by": name, "group": group, "sentences": count, "scores": to_values(scores)})


def _write_sheet(options: EvaluateOptions, sources: Sequence[str], systems: "Systems") -> None:
    """Write the sheet of --sheet, if it was given."""
    from translume.evaluation.judgements import key_of, write_sheet

    if options.sheet is not None:
        rows = write_sheet(*options.sheet, sources, systems)
        note(f"{options.sheet[1]}: {rows} rows for judges; {key_of(options.sheet[1])} says whose they are")


def _print_judgements(options: EvaluateOptions, key: Path) -> None:
    """Print the mean of each system in judged sheets, its interval, and the differences between systems."""
    from translume.evaluation.judgements import read_judgements
    from translume.evaluation.significance import compare_counts
    from translume.json_values import to_values

    if not options.paths:
        raise click.UsageError("expected judged sheets FILE... after --judgements KEY")
    judgements = read_judgements(key, options.paths)
    for name, counts in judgements.systems.items():
        score, shown = judgements.score(counts.sum(0)), compare_counts(judgements, [counts, counts]).first_interval
        value = {"system": name, **score.to_dict(), "interval": to_values(shown)}
        print_json(value) if options.as_json else click.echo(f"{name}: {score} [{shown.low:.2f}, {shown.high:.2f}]")
    for first, second in combinations(judgements.systems, 2):
        difference = compare_counts(
            judgements, [judgements.systems[first], judgements.systems[second]], test=options.significance
        )
        value = {"systems": [first, second], **difference.to_dict()}
        print_json(value) if options.as_json else click.echo(f"{first} and {second}: {difference}")


def _tokenized(
    settings: "EvaluationSettings", texts: Sequence[str], references: Sequence[str | None]
) -> "EvaluationSettings":
    """Return settings with a tokenizer for BLEU, with a note if it was chosen by the references or may be wrong."""
    from translume.evaluation.metrics import of_texts

    chosen = of_texts(settings, references)
    if chosen != settings and chosen.tokenize != "13a":
        note(f"evaluation.tokenize = '{chosen.tokenize}', chosen by the letters of the references; --tokenize sets it")
    if chosen.tokenize != "none" and (ends := sum(text.endswith(" .") for text in texts)) >= max(2, len(texts) // 2):
        warn(
            f"warning: {ends:,} of {len(texts):,} translations end in ' .', as tokenized text does, whose BLEU is "
            "higher; detokenize both files, or score words as they are with --tokenize none"
        )
    return chosen


def _print(scores: "Scores", *, as_json: bool, **more: int | str) -> None:
    """Print scores, one a line; with --json, one object with counts and names, too."""
    if as_json:
        print_json({**scores.to_dict(), **more})
        return
    for score in scores:
        click.echo(str(score))


def evaluate_translator(options: EvaluateOptions) -> None:
    """Print the scores of a translator, or the differences between two."""
    from translume.data.evaluation_files import read_evaluation_set
    from translume.evaluation.metrics import check_metrics
    from translume.translator import Translator

    model, overrides = options.model, options.overrides
    _refuse_stride(overrides)
    if options.directions:
        _evaluate_directions(options)
        return
    files = read_evaluation_set(options.files, checkpoint.read_config(model).data)
    groups = _groups(options, files)
    translator = load_ensemble(model, options.others, options.average, options.compute)
    compared = None if options.compared is None else Translator.load(options.compared, options.compute.to_load())
    config = changed(translator.config, overrides, *_TABLES)
    translator, direction = in_direction(translator, config.decoding)
    settings = config.scoring.of_language(direction.target)
    check_metrics(settings)
    translator, calibrations = _calibrated(translator, options, files)
    settings = _tokenized(settings, (), files.targets)
    texts, scores, count = _measured(translator, config.decoding, settings, files)
    if _looks_swapped(translator, files):
        warn(
            "warning: sources and references look swapped: the model finds the sources likelier as translations of "
            "the references than the other way round"
        )
    if options.write is not None:
        lines = [" ".join(text.splitlines()) for text in texts]  # those of cells with line breaks have some too
        for number in files.separators:
            lines.insert(number, "")
        write_file(options.write, "".join(line + "\n" for line in lines).encode())
    if options.record:
        source, *references = map(str, options.files)
        paths = {"source": source, "reference": " ".join(references) or source}
        checkpoint.record_evaluation(model, {**paths, **scores.to_dict()})
        for name, value in calibrations:
            checkpoint.append_history(model, {"event": "calibrated", **paths, name: value.to_dict()}, synced=True)
    systems: dict[str, Sequence[str]] = {str(model): texts}
    if compared is None:
        _print(scores, as_json=options.as_json, **_counted(count))
        _print_groups(options, settings, files, groups, texts)
    else:
        decoding = changed(compared.config, overrides, *_TABLES).decoding
        other_texts, *_ = _measured(compared, decoding, settings, files)  # its ratings are kept for `compare`
        systems = {str(options.compared): other_texts} | systems
        _compare(options, settings, files, other_texts, texts)
        if len(files.sources) < FEW_SENTENCES:
            few = f"{len(files.sources):,} sentence" + "s" * (len(files.sources) != 1)
            note(f"{few}: too few for p to mean much; expected at least {FEW_SENTENCES}")
        if not options.as_json:
            note(f"first {options.compared}, second {model}; the difference is second minus first")
    _write_sheet(options, files.sources, systems)
    for name, value in calibrations:
        print_json({name: value}) if options.as_json else click.echo(str(value))
    _report(count)


def _looks_swapped(translator: "Translator", files: "EvaluationSet") -> bool:
    """Return whether some references have far likelier translations in their sources than the other way round."""
    if translator.reads_frames:
        return False
    pairs = list(zip(files.sources, files.targets, strict=True))[:FEW_PAIRS]
    try:
        forward, back = (
            [score.log_prob / max(len(score.tokens), 1) for score in translator.score_all(each)]
            for each in (pairs, [(target, source) for source, target in pairs])
        )
    except TranslumeError:  # a text that is too long, for example
        return False
    return fmean(back) > fmean(forward) + SWAPPED_NATS


def _evaluate_directions(options: EvaluateOptions) -> None:
    """Print the scores of a translator in several directions, and their means."""
    from translume.data.evaluation_files import read_evaluation_set
    from translume.evaluation.metrics import check_metrics

    translator = load_ensemble(options.model, options.others, options.average, options.compute)
    config = changed(translator.config, options.overrides, *_TABLES)
    parts = []
    for name, source, reference in options.directions:
        direction = translator.directions.parse(name)
        settings = config.scoring.of_language(direction.target)
        check_metrics(settings)
        decoding = config.decoding.model_copy(update={"from_": direction.source, "to": direction.target})
        translator.check(decoding)
        files = read_evaluation_set((source, reference), config.data)
        parts.append((direction, settings, decoding, files, {"source": str(source), "reference": str(reference)}))
    values: dict[str, list[float]] = {}
    for direction, settings, decoding, files, paths in parts:
        if translator.directions.untrained(direction):
            note(f"{direction}: no training data had this direction (zero-shot)")
        _, scores, count = _measured(translator, decoding, settings, files)
        languages = {"from": direction.source, "to": direction.target}
        if options.record:
            checkpoint.record_evaluation(options.model, {**paths, **languages, **scores.to_dict()})
        if options.as_json:
            print_json({**languages, **scores.to_dict(), **_counted(count)})
        for score in scores:
            values.setdefault(score.name, []).append(score.value)
            if not options.as_json:
                click.echo(f"{direction}: {score}")
        _report(count)
    means = {name: fmean(each) for name, each in values.items()}
    if options.as_json:
        print_json({"mean": means})
    else:
        listed = ", ".join(f"{name} {value:.2f}" for name, value in means.items())
        click.echo(f"mean of {len(parts)} direction{'s' * (len(parts) > 1)}: {listed}")


def _measured(
    translator: "Translator", decoding: "DecodingSettings", settings: "EvaluationSettings", files: "EvaluationSet"
) -> "tuple[list[str], Scores, LimitCount]":
    """Return the translations of a test set, their scores, and how many reached their limit or have a cut source."""
    from translume.evaluation import measure
    from translume.evaluation.metrics import document_bleu

    texts, count, (first, *others) = list[str](), LimitCount(), files.references
    documents = files.documents if translator.config.data.context.used else None
    translations = translator.translate_all(files.sources, settings=decoding, documents=documents)
    for translation in progress_over(translations, "translating", unit="lines", total=len(files.sources)):
        texts.append(translation.text)
        count.add(translation)
    with ProgressBar("rating", unit="texts") as bar:
        scores = measure(texts, first, settings, other_references=others, sources=files.sources, progress=bar.update)
    if files.documents and "bleu" in settings.names:
        more = document_bleu(texts, files.references, files.documents, settings)
        scores = replace(scores, scores=(*scores.scores, more))
    return texts, scores, count


def _counted(count: LimitCount) -> dict[str, int]:
    """Return the counts for --json."""
    return {"reached_limit": count.reached, "truncated": count.truncated}


def _report(count: LimitCount) -> None:
    """Print the counts on standard error, unless they are zero."""
    note_truncated(count.truncated, count.translations)
    count.report()


def _calibrated(
    translator: "Translator", options: EvaluateOptions, files: "EvaluationSet"
) -> "tuple[Translator, list[tuple[str, Temperature | Calibration]]]":
    """Return the translator, with the temperature that --fit-temperature fitted, and the results under their names.

    Calibration is measured at temperature 1, and also at the temperature that was fitted now or is in use.
    """
    from translume.evaluation import fit_temperature, measure_calibration
    from translume.translator import Translator

    model, documents = options.model, files.documents or False
    results: list[tuple[str, Temperature | Calibration]] = []
    if options.fit_temperature:
        with ProgressBar("fitting a temperature", unit="tokens") as bar:
            temperature = fit_temperature(
                translator, files.sources, files.targets, documents=documents, progress=bar.advance
            )
        checkpoint.store_temperature(model, temperature, translator.checkpoint.digest)
        translator = Translator(translator.checkpoint.changed(temperature=temperature))
        results.append(("fitted", temperature))
        note(f"{model}: temperature stored; --calibrated or decoding.calibrated = true uses it")
    if options.calibration is None:
        return translator, results
    stored, config = translator.checkpoint.temperature, changed(translator.config, options.overrides, *_TABLES)
    used = options.fit_temperature or config.decoding.calibrated
    measured = []
    for value in [1.0, stored.value] if used and stored is not None else [1.0]:
        with ProgressBar("measuring calibration", unit="tokens") as bar:
            calibration = measure_calibration(
                translator,
                files.sources,
                files.targets,
                temperature=value,
                documents=documents,
                progress=bar.advance,
            )
        measured.append(calibration)
    if options.picture is not None:
        from translume.inspection.figures import draw_reliability

        draw_reliability(measured, options.picture, title=str(model))
        note(f"{options.picture}: written")
    return translator, [*results, *(("calibration", each) for each in measured)]
