"""`translume evaluate` for a classifier."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from translume.cli.classify import load_classifier_with, note_truncated
from translume.cli.evaluate import EvaluateOptions
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
    from translume.data import read_pairs
    from translume.evaluation.classification import measure_classification

    model, picture = options.model, options.calibrate.picture_path
    if options.reference is not None:
        raise SettingsError(f"evaluate: {model} is a classifier, expected MODEL FILE with texts and labels")
    if options.other is not None or options.calibrate.fit:
        raise SettingsError("evaluate: --compare and --fit-temperature are for translators, found a classifier")
    classifier = load_classifier_with(model, options.overrides, options.compute)
    data = classifier.config.data
    file = str(options.source)
    files = data.model_copy(update={"train": (file,), "train_source": (), "train_target": (), "weights": ()})
    pairs = list(read_pairs(files, "train"))
    gold = [set(classifier.labels.encode(pair.target, f"{pair.file}:{pair.line}")) for pair in pairs]
    with ProgressBar("classifying", unit="lines", total=len(pairs)) as bar:
        answers = []
        for answer in classifier.classify_all(pair.source for pair in pairs):
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

        record_evaluation(model, {"source": file, "reference": file, **scores.to_dict()})
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
