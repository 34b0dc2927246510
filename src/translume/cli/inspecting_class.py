"""`translume inspect` of a classifier: a text, or a file of texts and one of their labels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.attributing import blaming_attribution, methods_told
from translume.cli.classify import load_as_told
from translume.cli.inspect import COMMANDLINE, ENTRIES, VIEW
from translume.cli.terminal import Meter, note
from translume.cli.what_if import NAMES, questions
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.evaluation.classification import ClassScores
    from translume.inspection import ClassTrace
    from translume.translator import Classification, Classifier

BAR = 20
CLASSES = 3
"""Classes that evidence is shown for, unless --top says otherwise."""


def inspect_classifier(
    model: Path,
    text: str | None,
    corpus: tuple[Path, Path] | None,
    *,
    target: str | None,
    reference: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show the classes of TEXT and the evidence for them, or calibration and mistakes on two files."""
    context = click.get_current_context()
    view = context.meta[VIEW]
    if questions():
        raise SettingsError(f"inspect: {NAMES} are for translators, found a classifier")
    alternatives = context.get_parameter_source("alternatives") == COMMANDLINE
    if target is not None or reference is not None or view["compare"] is not None or alternatives:
        raise SettingsError(
            "inspect: --target, --reference, --alternatives and --compare are for translators, found a classifier"
        )
    if corpus is not None and html is not None:
        raise SettingsError("inspect: --html of a classifier is for a TEXT, found --corpus")
    top = view["top"] if context.get_parameter_source("top") == COMMANDLINE else None
    classifier = load_as_told(model)
    if corpus is not None:
        inspect_labelled(classifier, corpus, count=top or ENTRIES, as_json=as_json)
        return
    assert text is not None
    inspect_text(classifier, text, k=top or CLASSES, attribution=view["attribution"], html=html, as_json=as_json)


def inspect_text(
    classifier: "Classifier", text: str, *, k: int, attribution: str | None, html: Path | None, as_json: bool
) -> None:
    """Show what the classifier believed about a text, and which of its tokens made it."""
    from translume.inspection.classification import EVERYTHING, METHODS, trace_classification

    more = methods_told(attribution, METHODS)
    with blaming_attribution():
        found = trace_classification(classifier, text, k=k, show=(*EVERYTHING, *more))
    if html is not None:
        from translume.drawing import class_page

        write_file(html, class_page(found).encode())
        note(f"{html}: written")
    if as_json:
        click.echo(json.dumps({"trace": found.to_dict()}, ensure_ascii=False))
    elif html is None:
        _print(found)


def _print(found: "ClassTrace") -> None:
    from rich.console import Console

    from translume.drawing import class_lines

    console = Console(highlight=False, soft_wrap=True)
    for line in class_lines(found):
        console.print(line)


def inspect_labelled(classifier: "Classifier", files: tuple[Path, Path], *, count: int, as_json: bool) -> None:
    """Show how far the classifier may be believed on texts and labels, a line each, and its surest mistakes."""
    from translume.data import read_lines
    from translume.evaluation.classification import measure_classification

    texts, labels = (list(read_lines(file)) for file in files)
    if len(texts) != len(labels):
        raise DataError(f"{files[0]}: {len(texts):,} lines, but {files[1]} has {len(labels):,}, wanted equally many")
    gold = [set(classifier.labels.encode(text, f"{files[1]}:{line}")) for line, text in enumerate(labels, start=1)]
    with Meter("classifying", unit="lines", total=len(texts)) as meter:
        answers = []
        for answer in classifier.classify_all(texts):
            answers.append(answer)
            meter.advance()
    scores = measure_classification(classifier, answers, gold)
    wrong = _surest_mistakes(answers, labels, count)
    if as_json:
        content = {
            **scores.to_dict(),
            "mistakes": [{"line": line, "wanted": own, **each.to_dict(1)} for line, own, each in wrong],
        }
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    for shown in (*_reliability(scores), *_mistakes(wrong)):
        click.echo(shown)


def _surest_mistakes(
    answers: "list[Classification]", labels: list[str], count: int
) -> "list[tuple[int, str, Classification]]":
    """Line, right label and answer of the texts that were given another label with the largest probability."""
    wrong = [
        (line, label, answer)
        for line, (answer, label) in enumerate(zip(answers, labels, strict=True), start=1)
        if answer.label != label
    ]
    return sorted(wrong, key=lambda each: (-each[2].probabilities[0][1], each[0]))[:count]


def _reliability(scores: "ClassScores") -> Iterator[str]:
    yield from map(str, scores.scores)
    yield scores.calibration
    yield "\nprobability of the answer   texts   right   (█ right, ░ as sure as right)"
    for each in scores.reliability.bins:
        if not each.count or each.accuracy is None or each.confidence is None:
            continue
        right, sure = round(BAR * each.accuracy), round(BAR * each.confidence)
        bar = "█" * right + "░" * max(0, sure - right)
        yield f"{each.low:8.2f} to {each.high:.2f}        {each.count:10,}  {each.accuracy:6.3f}   {bar}"


def _mistakes(wrong: "list[tuple[int, str, Classification]]") -> Iterator[str]:
    if wrong:
        yield "\nsurest of what the labels contradict (mistakes, or labels that are wrong)"
    for line, label, answer in wrong:
        yield f"  line {line}: {answer.label} with {answer.probabilities[0][1]:.3f}, labelled {label}"
        yield f"    {answer.source}"
