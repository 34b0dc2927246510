"""`translume evaluate` for a classifier."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from translume.cli.classify import load_classifier_with, note_truncated
from translume.cli.evaluate import EvaluateOptions
from translume.cli.options import refuse_settings
from translume.cli.terminal import ProgressBar, note
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.evaluation.classification import ClassScores

MAX_MATRIX_CLASSES = 12
"""Up to this number of classes the whole confusion matrix is printed."""
MOST_CONFUSED = 20
"""Number of confusions listed instead of a larger matrix."""


def evaluate_classifier(options: EvaluateOptions) -> None:
    """Print the scores of a classifier on a TSV or JSONL file with texts and labels."""
    from translume.data.evaluation_files import read_evaluation_set
    from translume.evaluation.classification import measure_classification

    model, picture = options.model, options.calibrate.picture_path
    if options.compared is not None or options.others or options.average is not None or options.calibrate.fit:
        raise SettingsError(
            "evaluate: --compare, --ensemble, --average and --fit-temperature are for translators, found a classifier"
        )
    if len(options.files) > 2:
        raise SettingsError(f"evaluate: {model} is a classifier, expected MODEL FILE, or MODEL TEXTS LABELS")
    refuse_settings("evaluate", options.overrides, "classifier", allowed=("decoding.max_length_action",))
    classifier = load_classifier_with(model, options.overrides, options.compute)
    files = read_evaluation_set(options.files, classifier.config.data)
    gold = [
        set(classifier.labels.encode(label, place)) for label, place in zip(files.targets, files.places, strict=True)
    ]
    with ProgressBar("classifying", unit="lines", total=len(gold)) as bar:
        answers = []
        for answer in classifier.classify_all(files.sources):
            answers.append(answer)
            bar.advance()
    note_truncated(sum(bool(answer.warnings) for answer in answers), len(answers))
    if options.write is not None:
        from translume.atomic import write_file

        write_file(options.write, "".join(f"{answer.label}\n" for answer in answers).encode())
    scores = measure_classification(classifier, answers, gold)
    if picture is not None:
        from translume.drawing.charts import draw_class_reliability

        draw_class_reliability(scores, picture, title=str(model))
        note(f"{picture}: written")
    if options.record:
        from translume.checkpoint import record_evaluation

        source, *labels = map(str, options.files)
        record_evaluation(model, {"source": source, "reference": " ".join(labels) or source, **scores.to_dict()})
    for line in [json.dumps(scores.to_dict(), ensure_ascii=False)] if options.as_json else _lines(scores):
        click.echo(line)


def _lines(scores: "ClassScores") -> Iterator[str]:
    yield from map(str, scores.scores)
    yield scores.calibration
    wide = max(len("class"), *(len(each.label) for each in scores.classes))
    yield f"\n{'class':<{wide}}  texts  precision  recall     F1"
    for each in scores.classes:
        yield f"{each.label:<{wide}}  {each.count:5}  {each.precision:9.2f}  {each.recall:6.2f}  {each.f1:5.2f}"
    yield from _confusions(scores)


def _confusions(scores: "ClassScores") -> Iterator[str]:
    if scores.confusion is None:
        return
    table = scores.confusion
    names = scores.names
    if len(names) <= MAX_MATRIX_CLASSES:
        wide = max(len("texts of"), *map(len, names))
        columns = [max(len(name), 5) for name in names]
        shown = "  ".join(f"{name:>{width}}" for name, width in zip(names, columns, strict=True))
        yield f"\n{'texts of':<{wide}}  {shown}  (were given)"
        for name, row in zip(names, table, strict=True):
            yield f"{name:<{wide}}  " + "  ".join(f"{n:>{w}}" for n, w in zip(row, columns, strict=True))
        return
    wrong = sorted(
        ((count, one, other) for one, row in enumerate(table) for other, count in enumerate(row) if one != other),
        key=lambda each: (-each[0], each[1:]),
    )
    yield "\nmost confused (all are in --json):"
    for count, one, other in wrong[:MOST_CONFUSED]:
        if count:
            yield f"{count:5}  {names[one]} taken for {names[other]}"
