"""`translume inspect` for a classifier: a text, or a file of texts and a file of their labels."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.classify import load_classifier_with
from translume.cli.inspect import (
    CORPUS_ENTRIES,
    WHAT_IF_OPTIONS,
    InspectOptions,
    attribution_errors,
    chosen_methods,
    print_lines,
)
from translume.cli.options import refuse_settings
from translume.cli.terminal import ProgressBar, note
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.evaluation.classification import ClassScores
    from translume.translator import Classification, Classifier

BAR_WIDTH = 20
TOP_CLASSES = 3
"""Classes that evidence is shown for, by default."""


def inspect_classifier(options: InspectOptions) -> None:
    """Print, or write as a page, the classes of a text and their evidence, or the reliability on a corpus."""
    if options.what_if:
        raise SettingsError(f"inspect: {WHAT_IF_OPTIONS} are for translators, found a classifier")
    given = options.target is not None or options.reference is not None
    if given or options.other is not None or options.alternatives is not None:
        raise SettingsError(
            "inspect: --target, --reference, --alternatives and --compare are for translators, found a classifier"
        )
    if options.files.output is not None:
        raise SettingsError("--input: found a classifier, expected a translator")
    if options.corpus and options.html is not None:
        raise SettingsError("inspect: --html of a classifier is for a TEXT, found --corpus")
    refuse_settings("inspect", options.overrides, "classifier", allowed=("decoding.max_length_action",))
    classifier = load_classifier_with(options.model, options.overrides, options.compute)
    if options.corpus:
        _inspect_labelled(classifier, options)
    else:
        assert options.text is not None
        _inspect_text(classifier, options.text, options)


def _inspect_text(classifier: "Classifier", text: str, options: InspectOptions) -> None:
    """Show the predicted classes of a text, and which of its tokens speak for them."""
    from translume.inspection.classification import ATTRIBUTION_METHODS, DEFAULT_PARTS, trace_classification

    methods = (*DEFAULT_PARTS, *chosen_methods(options.attribution, ATTRIBUTION_METHODS))
    with attribution_errors():
        found = trace_classification(classifier, text, k=options.top or TOP_CLASSES, show=methods)
    if options.html is not None:
        from translume.drawing import class_page

        write_file(options.html, class_page(found).encode())
        note(f"{options.html}: written")
    if options.as_json:
        click.echo(json.dumps({"trace": found.to_dict()}, ensure_ascii=False))
    elif options.html is None:
        from translume.drawing import class_lines

        print_lines(class_lines(found))


def _inspect_labelled(classifier: "Classifier", options: InspectOptions) -> None:
    """Show how reliable the probabilities are on texts and labels, one a line, and the surest mistakes."""
    from translume.data.evaluation_files import read_evaluation_set
    from translume.evaluation.classification import measure_classification

    files = read_evaluation_set(options.corpus, classifier.config.data)
    texts, labels = files.sources, files.targets
    gold = [set(classifier.labels.encode(text, place)) for text, place in zip(labels, files.places, strict=True)]
    with ProgressBar("classifying", unit="lines", total=len(texts)) as bar:
        answers = []
        for answer in classifier.classify_all(texts):
            answers.append(answer)
            bar.advance()
    scores = measure_classification(classifier, answers, gold)
    wrong = _surest_mistakes(answers, labels, options.top or CORPUS_ENTRIES)
    if options.as_json:
        content = {
            **scores.to_dict(),
            "mistakes": [{"line": line, "wanted": own, **each.to_dict(1)} for line, own, each in wrong],
        }
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    for line in (*_reliability(scores), *_mistakes(wrong)):
        click.echo(line)


def _surest_mistakes(
    answers: "list[Classification]", labels: list[str], count: int
) -> "list[tuple[int, str, Classification]]":
    """Return line, correct label and answer of the wrongly labelled texts, most probable answers first."""
    wrong = [
        (line, label, answer)
        for line, (answer, label) in enumerate(zip(answers, labels, strict=True), start=1)
        if answer.label != label
    ]
    return sorted(wrong, key=lambda each: (-each[2].probabilities[0][1], each[0]))[:count]


def _reliability(scores: "ClassScores") -> Iterator[str]:
    yield from map(str, scores.scores)
    yield scores.calibration
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
