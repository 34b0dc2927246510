"""translume classify, and `translume evaluate` and `translume inspect` for a classifier"""

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.evaluate import EvaluateOptions
from translume.cli.group import interrupt_hint
from translume.cli.inspect import CORPUS_ENTRIES, CorpusOptions, TextOptions, attribution_errors, chosen_methods, show
from translume.cli.options import (
    MODEL,
    Compute,
    changed,
    compute_options,
    json_option,
    refuse_options,
    refuse_settings,
    refuse_text,
    set_option,
)
from translume.cli.terminal import ProgressBar, note, note_truncated, print_json, progress_over
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.data.evaluation_files import EvaluationSet
    from translume.evaluation.classification import ClassScores
    from translume.translator import Classification, Classifier


@click.command(
    "classify",
    short_help="Label lines of text.",
    epilog="Example: translume classify models/trec6 --nbest 3 < questions > labels",
)
@click.argument("model", type=MODEL)
@click.argument("file", default="-", metavar="[FILE]")
@click.option("--nbest", type=click.IntRange(min=1), default=1, metavar="N", help="Labels printed for each line.")
@json_option
@set_option
@compute_options
def command(model: Path, file: str, nbest: int, as_json: bool, overrides: tuple[str, ...], compute: Compute) -> None:
    """Label lines of standard input, or of FILE, with a trained classifier, one label for each line.

    With --nbest, every output line has three fields separated by tabs: the number of the input line, the probability,
    the label. --json prints the probabilities of all labels, or of the N likeliest.
    """
    from translume.data.evaluation_files import read_sources

    refuse_settings("classify", overrides, "classifier", allowed=("decoding.max_length_action",))
    refuse_text(file, f"classify {shlex.quote(str(model))}")
    classifier = load_classifier_with(model, overrides, compute)
    truncated = 0
    with ProgressBar("classifying", unit="lines", prints=True) as bar, interrupt_hint(bar.hint):
        lines = read_sources(file, classifier.config.data)
        # A typed line is classified at once; files and pipes are read ahead, for batches of similar lengths.
        parts = ([line] for line in lines) if file == "-" and sys.stdin.isatty() else [lines]
        for answer in (each for part in parts for each in classifier.classify_all(part)):
            bar.advance()
            truncated += bool(answer.warnings)
            for line in _output_lines(answer, bar.done, nbest=nbest, as_json=as_json):
                click.echo(line)
    note_truncated(truncated, bar.done)


def load_classifier_with(model: Path, overrides: tuple[str, ...], compute: Compute) -> "Classifier":
    """Return the classifier in a folder, with overrides of [decoding] and [data]."""
    from translume.translator import Classifier

    loaded = Classifier.load(model, compute.to_load())
    config = changed(loaded.config, overrides, "decoding", "data")
    return loaded.with_checkpoint(loaded.checkpoint.changed(config=config))


def _output_lines(answer: "Classification", line: int, *, nbest: int, as_json: bool) -> Iterator[str]:
    if not answer.source.strip():  # an empty line stays empty
        answer = replace(answer, labels=(), probabilities=())
    if as_json:
        yield json.dumps(answer.to_dict(nbest if nbest > 1 else 0), ensure_ascii=False)
    elif nbest > 1 and answer.probabilities:
        for label, probability in answer.probabilities[:nbest]:
            yield f"{line}\t{probability:.6f}\t{label}"
    else:
        yield f"{line}\t0\t" if nbest > 1 else answer.label


MAX_MATRIX_CLASSES = 12
"""Up to this number of classes the whole confusion matrix is printed."""
MAX_CONFUSED = 20
"""Number of confusions listed instead of a larger matrix."""
BAR_WIDTH = 20
TOP_CLASSES = 3
"""Classes that evidence is shown for, by default."""


def evaluate_classifier(options: EvaluateOptions) -> None:
    """Print the scores of a classifier on a file of texts and labels, or on a file of each."""
    from translume.data.evaluation_files import read_evaluation_set

    model = options.model
    refuse_options("a classifier", "--compare", "--ensemble", "--average", "--fit-temperature")
    if len(options.files) > 2:
        raise SettingsError(f"evaluate: {model} is a classifier, expected MODEL FILE, or MODEL TEXTS LABELS")
    refuse_settings("evaluate", options.overrides, "classifier", allowed=("decoding.max_length_action",))
    classifier = load_classifier_with(model, options.overrides, options.compute)
    answers, scores = _measured(classifier, read_evaluation_set(options.files, classifier.config.data))
    note_truncated(sum(bool(answer.warnings) for answer in answers), len(answers))
    if options.write is not None:
        write_file(options.write, "".join(f"{answer.label}\n" for answer in answers).encode())
    if options.picture is not None:
        from translume.inspection.figures import draw_class_reliability

        draw_class_reliability(scores, options.picture, title=str(model))
        note(f"{options.picture}: written")
    if options.record:
        from translume.checkpoint import record_evaluation

        source, *labels = map(str, options.files)
        record_evaluation(model, {"source": source, "reference": " ".join(labels) or source, **scores.to_dict()})
    if options.as_json:
        print_json(scores.to_dict())
        return
    for line in (*_totals(scores), *_by_class(scores), *_confusions(scores)):
        click.echo(line)


def _measured(classifier: "Classifier", files: "EvaluationSet") -> "tuple[list[Classification], ClassScores]":
    """Return the classifier's answers, and how they compare with the labels."""
    from translume.evaluation.classification import measure_classification

    labels = zip(files.targets, files.places, strict=True)
    gold = [set(classifier.labels.encode(label, place)) for label, place in labels]
    answers = list(progress_over(classifier.classify_all(files.sources), "classifying", unit="lines", total=len(gold)))
    return answers, measure_classification(classifier, answers, gold)


def _totals(scores: "ClassScores") -> Iterator[str]:
    yield from map(str, scores.scores)
    yield scores.calibration


def _by_class(scores: "ClassScores") -> Iterator[str]:
    wide = max(len("class"), *(len(each.label) for each in scores.classes))
    yield f"\n{'class':<{wide}}  texts  precision  recall     F1"
    for each in scores.classes:
        yield f"{each.label:<{wide}}  {each.count:5}  {each.precision:9.2f}  {each.recall:6.2f}  {each.f1:5.2f}"


def _confusions(scores: "ClassScores") -> Iterator[str]:
    if scores.confusion is None:
        return
    table, names = scores.confusion, scores.names
    if len(names) <= MAX_MATRIX_CLASSES:
        wide = max(len("texts of"), *map(len, names))
        columns = [max(len(name), 5) for name in names]
        shown = "  ".join(f"{name:>{width}}" for name, width in zip(names, columns, strict=True))
        yield f"\n{'texts of':<{wide}}  {shown}  (were given)"
        for name, row in zip(names, table, strict=True):
            yield f"{name:<{wide}}  " + "  ".join(f"{n:>{w}}" for n, w in zip(row, columns, strict=True))
        return
    wrong = sorted(
        ((count, gold, chosen) for gold, row in enumerate(table) for chosen, count in enumerate(row) if gold != chosen),
        key=lambda each: (-each[0], each[1:]),
    )
    yield "\nmost confused (all are in --json):"
    for count, gold, chosen in wrong[:MAX_CONFUSED]:
        if count:
            yield f"{count:5}  {names[gold]} taken for {names[chosen]}"


def inspect_class(options: TextOptions) -> None:
    """Show the predicted classes of a text, and which of its tokens are evidence for them."""
    from translume.inspection.classification import ATTRIBUTION_METHODS, DEFAULT_PARTS, trace_classification
    from translume.inspection.terminal import class_lines

    refuse_options("a classifier", "--target", "--reference", "--alternatives")
    refuse_settings("inspect", options.overrides, "classifier", allowed=("decoding.max_length_action",))
    classifier = load_classifier_with(options.model, options.overrides, options.compute)
    methods = (*DEFAULT_PARTS, *chosen_methods(options.attribution, ATTRIBUTION_METHODS))
    with attribution_errors():
        traced = trace_classification(classifier, options.text, k=options.top or TOP_CLASSES, show=methods)
    show(options, {"trace": traced}, traced.to_page, lambda: class_lines(traced))


def inspect_classes(options: CorpusOptions) -> None:
    """Show how reliable the probabilities are on texts and labels, and the most confident mistakes."""
    from translume.data.evaluation_files import read_evaluation_set

    refuse_options("a classifier", "--compare", "--html")
    classifier = load_classifier_with(options.model, options.overrides, options.compute)
    files = read_evaluation_set(options.files, classifier.config.data)
    answers, scores = _measured(classifier, files)
    wrong = [
        (line, label, answer)
        for line, (answer, label) in enumerate(zip(answers, files.targets, strict=True), start=1)
        if answer.label != label
    ]
    wrong.sort(key=lambda each: (-each[2].probabilities[0][1], each[0]))
    wrong = wrong[: options.top or CORPUS_ENTRIES]
    if options.as_json:
        mistakes = [{"line": line, "wanted": label, **answer.to_dict(1)} for line, label, answer in wrong]
        print_json({**scores.to_dict(), "mistakes": mistakes})
        return
    for row in (*_totals(scores), *_reliability(scores), *_mistakes(wrong)):
        click.echo(row)


def _reliability(scores: "ClassScores") -> Iterator[str]:
    yield "\nprobability of the answer   texts   right   (█ right, ░ overconfidence)"
    for each in scores.reliability.bins:
        if not each.count or each.accuracy is None or each.confidence is None:
            continue
        right, sure = round(BAR_WIDTH * each.accuracy), round(BAR_WIDTH * each.confidence)
        bar = "█" * right + "░" * max(0, sure - right)
        yield f"{each.low:8.2f} to {each.high:.2f}        {each.count:10,}  {each.accuracy:6.3f}   {bar}"


def _mistakes(wrong: "list[tuple[int, str, Classification]]") -> Iterator[str]:
    if wrong:
        yield "\nmost confident disagreements with the labels (mistakes, or wrong labels)"
    for line, label, answer in wrong:
        yield f"  line {line}: {answer.label} with {answer.probabilities[0][1]:.3f}, labelled {label}"
        yield f"    {answer.source}"
