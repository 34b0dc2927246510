"""translume inspect"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from translume.atomic import check_writable, write_file
from translume.cli.bulk import FileOptions, pair_file_options
from translume.cli.options import (
    FILE,
    MODEL,
    Compute,
    changed,
    compute_options,
    decoding_options,
    json_option,
    set_option,
    workers_option,
)
from translume.cli.terminal import ProgressBar, note, warn
from translume.errors import SettingsError, nearest

if TYPE_CHECKING:
    from rich.text import Text

    from translume.config import DecodingSettings
    from translume.inspection import Edited, Forced, Trace, WhyNot
    from translume.translator import Translator

Method = TypeVar("Method", bound=str)

WHAT_IF_OPTIONS = "--why-not, --force and --edit"
TOP, ALTERNATIVES = 5, 2
"""Tokens listed at each step of a text, and alternatives that the page can force, by default."""
CORPUS_ENTRIES, CORPUS_PAGE_ENTRIES = 10, 50
"""Entries of each list about a corpus, in the terminal and on a page, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """The options of `translume inspect`, for the task of the model. None or empty: not given."""

    model: Path
    text: str | None
    corpus: tuple[Path, ...]
    other: Path | None
    target: str | None
    reference: str | None
    top: int | None
    alternatives: int | None
    attribution: str | None
    why_not: tuple[str, ...]
    force: tuple[tuple[int, str], ...]
    edit: tuple[str, ...]
    html: Path | None
    as_json: bool
    overrides: tuple[str, ...]
    compute: Compute
    files: FileOptions
    workers: int | None

    @property
    def what_if(self) -> bool:
        """Whether one of --why-not, --force and --edit is given."""
        return bool(self.why_not or self.force or self.edit)


def _forced(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Parse STEP=TEXT."""
    pairs = []
    for each in value:
        step, equals, text = each.partition("=")
        if not (equals and text and step.isascii() and step.isdigit() and len(step) <= 9):
            raise SettingsError(f"--force: found '{each}', expected STEP=TEXT such as 3=house; steps count from 0")
        pairs.append((int(step), text))
    return tuple(pairs)


@click.command(
    "inspect",
    short_help="Show what the model predicted, token by token.",
    epilog='Example: translume inspect models/en-de "A man is riding a bicycle." --html out.html',
)
@click.argument("model", type=MODEL)
@click.argument("texts", nargs=-1, metavar="TEXT | SOURCE TARGET | FILE")
@click.option(
    "--corpus",
    is_flag=True,
    help="Inspect parallel files, or a table of pairs such as TSV, instead of a text: --corpus SOURCE TARGET.",
)
@click.option(
    "--compare",
    "other",
    type=MODEL,
    metavar="OTHER_MODEL",
    help="With --corpus: compare with another model, and list where the two differ.",
)
@click.option("--target", metavar="TEXT", help="Inspect this target instead of the model's own translation.")
@click.option("--reference", metavar="TEXT", help="Report whether the search or the model missed this target.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens listed at each step; with --corpus, entries of each list.  "
    "[default: 5; with --corpus 10, on a page 50]",
)
@click.option(
    "--alternatives",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --html: other tokens at each step that the page can force, each decoded to the end.  [default: 2]",
)
@click.option(
    "--attribution",
    metavar="METHOD",
    help="One more attribution method, such as input-gradient or integrated-gradients.",
)
@click.option("--html", type=FILE, help="Write a self-contained page to this file; '-' is standard output.")
@click.option(
    "--why-not",
    multiple=True,
    metavar="TEXT",
    help="Show why this is not the translation: where the two differ, and both scores. Instead of a trace.",
)
@click.option(
    "--force",
    multiple=True,
    metavar="STEP=TEXT",
    callback=_forced,
    help="Force this text at a step (from 0) and continue the translation from there. Instead of a trace.",
)
@click.option(
    "--edit",
    multiple=True,
    metavar="TEXT",
    help="Show how this source changes the translation and its probabilities. Instead of a trace.",
)
@pair_file_options
@decoding_options
@json_option
@set_option
@workers_option
@compute_options
def command(
    model: Path,
    texts: tuple[str, ...],
    corpus: bool,
    other: Path | None,
    target: str | None,
    reference: str | None,
    top: int | None,
    alternatives: int | None,
    attribution: str | None,
    html: Path | None,
    why_not: tuple[str, ...],
    force: tuple[tuple[int, str], ...],
    edit: tuple[str, ...],
    files: FileOptions,
    as_json: bool,
    overrides: tuple[str, ...],
    workers: int | None,
    compute: Compute,
) -> None:
    """Show, for every token of the translation of TEXT, the predicted distribution, the alternatives, how decoding
    ranked them, and which source tokens were attended to.

    For a model of audio, images or features, TEXT is the path of a file, and attention is drawn over its spectrogram or
    image. For a classifier: the classes, and which tokens of TEXT are evidence for and against each. With --corpus,
    texts and labels: how reliable its probabilities are.

    With --corpus, --input and --output, the pairs of many files are scored with one process on each core. Each output,
    NAME.jsonl, has an object for each pair with `gain`, which is low for a target that does not fit its source.
    """
    from translume.checkpoint import read_config
    from translume.tasks import task_of

    folder = files.folder({"SOURCE": texts, "--compare": other, "--top": top, "--html": html, "--json": as_json})
    if folder is not None and not corpus:
        raise SettingsError("--input: found without --corpus, expected both; a TEXT is inspected alone")
    if folder is None and workers is not None:
        raise SettingsError("--workers: found without --input, expected --input and --output")
    if folder is None and not 1 <= len(texts) <= 1 + corpus:
        raise SettingsError("inspect: expected one TEXT, or --corpus with SOURCE TARGET or one file of pairs")
    options = InspectOptions(
        model=model,
        text=None if corpus else texts[0],
        corpus=tuple(map(Path, texts)) if corpus else (),
        other=other,
        target=target,
        reference=reference,
        top=top,
        alternatives=alternatives,
        attribution=attribution,
        why_not=why_not,
        force=force,
        edit=edit,
        html=html,
        as_json=as_json,
        overrides=overrides,
        compute=compute,
        files=files,
        workers=workers,
    )
    _refuse_unused(options)
    if html is not None:
        check_writable(html)
    task_of(read_config(model)).part("inspect")(options)


def _refuse_unused(options: InspectOptions) -> None:
    """Raise SettingsError for an option that would have no effect."""
    given = options.target is not None or options.reference is not None
    traced = options.alternatives is not None or options.attribution is not None
    if not options.corpus and options.files.output is None:
        if options.other is not None:
            raise SettingsError("inspect: --compare is for --corpus, found a TEXT")
        if options.what_if and (given or traced or options.top is not None or options.html is not None):
            raise SettingsError(
                "inspect: --target, --reference, --top, --alternatives, --attribution and --html are for a trace, "
                f"found one of {WHAT_IF_OPTIONS}"
            )
        return
    if given or traced:
        raise SettingsError(
            "inspect: --target, --reference, --alternatives and --attribution are for a TEXT, found --corpus"
        )
    if options.what_if:
        raise SettingsError(f"inspect: {WHAT_IF_OPTIONS} are for a TEXT, found --corpus")
    if options.overrides and options.other is None:
        raise SettingsError("inspect: decoding options are for a TEXT or --compare, found --corpus alone")


def inspect_translator(options: InspectOptions) -> None:
    """Print, or write as a page, the trace of a text, the answers to what-if questions, or the lists of a corpus."""
    from translume.inspection.tracing import ATTRIBUTION_METHODS

    if options.files.output is not None:
        from translume.cli.inspect_corpus import judge_files

        judge_files(options, options.files.output)
        return
    if options.corpus:
        from translume.cli.inspect_corpus import inspect_files

        inspect_files(options)
        return
    chosen_methods(options.attribution, ATTRIBUTION_METHODS)  # refuses unknown methods before the model is loaded
    translator = options.compute.load_plain(options.model)
    if options.what_if:
        _answer(translator, options)
    else:
        _show_trace(translator, options)


def _show_trace(translator: "Translator", options: InspectOptions) -> None:
    """Show the trace of a translation or of a given target, and the record of the search."""
    from translume.inspection import record_beam, trace
    from translume.inspection.tracing import ATTRIBUTION_METHODS, default_parts

    assert options.text is not None
    text, target, html = options.text, options.target, options.html
    settings = changed(translator.config, options.overrides, "decoding").decoding
    methods = (*default_parts(translator.config), *chosen_methods(options.attribution, ATTRIBUTION_METHODS))
    with attribution_errors():
        found = trace(translator, text, target, k=options.top or TOP, settings=settings, show=methods)
    if target is None:
        _note_split(translator, text, settings)
    searched = settings.strategy in ("beam", "greedy")
    beam = record_beam(translator, text, reference=options.reference, settings=settings) if searched else None
    if html is not None:
        from translume.drawing import trace_page

        count = ALTERNATIVES if options.alternatives is None else options.alternatives
        others = _alternatives(translator, found, settings, count if target is None and searched else 0)
        write_file(html, trace_page(found, beam=beam, alternatives=others).encode())
        note(f"{html}: written")
    if options.as_json:
        content = {"trace": found.to_dict(), "beam": None if beam is None else beam.to_dict()}
        click.echo(json.dumps(content, ensure_ascii=False))
    elif html is None:
        from translume.drawing import trace_lines

        print_lines(trace_lines(found, beam=beam))


def _note_split(translator: "Translator", text: str, settings: "DecodingSettings") -> None:
    """Note that `translate` splits the text, so that its translation may differ from the one inspected."""
    from translume.translator.planning import Line

    if translator.config.data.source.reader:
        return
    pieces = translator.plans([Line(number=0, text=text)], settings)[0].pieces
    if len(pieces) > 1:
        note(f"inspected as one text, but translate splits it into {len(pieces)} sentences: inspect each by itself")


def print_lines(lines: "Iterator[Text]") -> None:
    """Print formatted lines on standard output."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line)


def chosen_methods(name: str | None, known: Sequence[Method]) -> list[Method]:
    """Return the attribution method of that name, or none for None. Raises SettingsError for an unknown name."""
    if name is not None and name not in known:
        raise SettingsError(f"attribution: found '{name}'{nearest(name, known)}")
    return [each for each in known if each == name]


@contextmanager
def attribution_errors() -> Iterator[None]:
    """Rename errors about the argument `show` after the option --attribution."""
    try:
        yield
    except SettingsError as error:
        text = str(error)
        raise SettingsError(f"attribution: {text[6:]}" if text.startswith("show: ") else text) from None


def _alternatives(
    translator: "Translator", found: "Trace", settings: "DecodingSettings", count: int
) -> dict[int, dict[int, "Forced"]]:
    """Return, for every step, the translations in which one of the `count` likeliest other tokens is forced."""
    from translume.inspection import force_tokens

    choices = [
        (place, candidate.id)
        for place, (token, step) in enumerate(zip(found.target_tokens, found.steps, strict=True))
        for candidate in [each for each in step.top_used.candidates if each.id != token.id][:count]
    ]
    others: dict[int, dict[int, Forced]] = {}
    if not choices:
        return others
    with ProgressBar("forcing other tokens", unit="tokens", total=len(choices)) as bar:
        results = force_tokens(translator, found.given, choices, settings=settings)
        for (place, id_), forced in zip(choices, results, strict=True):
            if forced is not None:  # otherwise no continuation is allowed; the page says that there is no result
                others.setdefault(place, {})[id_] = forced
            bar.advance()
    return others


def _answer(translator: "Translator", options: InspectOptions) -> None:
    """Print the answers to --why-not, --force and --edit, in this order."""
    from translume.inspection import edit_source, force_token, why_not
    from translume.inspection.inputs import encoded_source

    assert options.text is not None
    text = options.text
    settings = changed(translator.config, options.overrides, "decoding").decoding
    _note_split(translator, text, settings)
    why = [why_not(translator, text, each, settings=settings) for each in options.why_not]
    forced = [force_token(translator, text, step, token, settings=settings) for step, token in options.force]
    edited = [edit_source(translator, text, each, settings=settings) for each in options.edit]
    for place, given in (("source", text), *(("edit", each) for each in options.edit)):
        for warning in encoded_source(translator.checkpoint, given, settings).warnings:
            warn(f"{place}: {warning}")
    if options.as_json:
        content = {
            "why_not": [each.to_dict() for each in why],
            "forced": [each.to_dict() for each in forced],
            "edited": [each.to_dict() for each in edited],
        }
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    named = [(each, token) for each, (_, token) in zip(forced, options.force, strict=True)]
    print_lines(_answer_lines(why, named, edited))


def _answer_lines(why: "list[WhyNot]", forced: "list[tuple[Forced, str]]", edited: "list[Edited]") -> "Iterator[Text]":
    """Yield the lines of all answers, with an empty line between two."""
    from rich.text import Text

    from translume.drawing import edited_lines, forced_lines, why_not_lines

    answers = [*map(why_not_lines, why), *starmap(forced_lines, forced), *map(edited_lines, edited)]
    for number, each in enumerate(answers):
        if number:
            yield Text("")
        yield from each
