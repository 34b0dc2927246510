"""translume inspect, and what its commands do for translators"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from translume import checkpoint, inspection
from translume.atomic import check_writable, write_file
from translume.cli.bulk import FileOptions, FileWork, json_row, pair_file_options, pair_files
from translume.cli.group import CommandGroup
from translume.cli.options import (
    FILE,
    MODEL,
    Command,
    Compute,
    changed,
    collected,
    compute_options,
    decoding_options,
    direction_options,
    in_direction,
    json_option,
    set_option,
)
from translume.cli.terminal import ProgressBar, note, print_json, print_lines, progress_over, warn
from translume.errors import SettingsError, nearest
from translume.tasks import task_of

if TYPE_CHECKING:
    from rich.text import Text

    from translume.config import DataSettings, DecodingSettings
    from translume.translator import Translator

A = TypeVar("A")
Method = TypeVar("Method", bound=str)

TOP, ALTERNATIVES = 5, 2
"""Tokens listed at each step of a text, and alternatives that the page can force, by default."""
CORPUS_ENTRIES, CORPUS_PAGE_ENTRIES = 10, 50
"""Entries of each list about a corpus, in the terminal and on a page, by default."""
_DIRECTION = ("decoding.to", "decoding.from_")
"""The settings of decoding that forced decoding reads, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """The options of all commands of `translume inspect`."""

    model: Path
    as_json: bool
    overrides: tuple[str, ...]
    compute: Compute


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions(InspectOptions):
    """The options of `translume inspect text`, for the task of the model. None or empty: not given."""

    text: str
    target: str | None
    reference: str | None
    top: int | None
    alternatives: int | None
    attribution: str | None
    html: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions(InspectOptions):
    """The options of `translume inspect corpus`, for the task of the model. None or empty: not given."""

    files: tuple[Path, ...]
    other: Path | None
    top: int | None
    html: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions(InspectOptions):
    """The options of a command that answers what-if questions about a text."""

    text: str
    questions: tuple[str, ...]


class _InspectGroup(CommandGroup):
    """Runs `inspect text` if the first word is none of its commands, nor like one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            misspelt = get_close_matches(args[0], self.commands, cutoff=0.8) and not Path(args[0]).exists()
            args = args if misspelt else ["text", *args]
        return super().parse_args(ctx, args)


@click.group("inspect", cls=_InspectGroup, short_help="Show what the model predicted, token by token.")
def command() -> None:
    """Show what the model predicted, and why.

    `translume inspect MODEL TEXT` is `translume inspect text MODEL TEXT`.
    """


def _top_option(help: str) -> Callable[[Command], Command]:
    return click.option("--top", type=click.IntRange(min=1), metavar="N", help=help)


_MODEL = click.argument("model", type=MODEL)
_TEXT = click.argument("text")
_HTML = click.option("--html", type=FILE, help="Write a self-contained page to this file; '-' is standard output.")


def _shared_options(command: Command) -> Command:
    """Add the options of commands that search."""
    return decoding_options(json_option(set_option(compute_options(command))))


@command.command(
    "text",
    short_help="Show the distribution and the attention at each token; `text` may be omitted.",
    epilog='Example: translume inspect text models/en-de "A man is riding a bicycle." --html out.html',
)
@_MODEL
@_TEXT
@click.option("--target", metavar="TEXT", help="Inspect this target instead of the model's own translation.")
@click.option("--reference", metavar="TEXT", help="Report whether the search or the model missed this target.")
@_top_option("Tokens listed at each step.  [default: 5]")
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
@_HTML
@_shared_options
@collected(TextOptions)
def text(options: TextOptions) -> None:
    """Show, for every token of the translation of TEXT, the predicted distribution, the alternatives, how decoding
    ranked them, and which source tokens were attended to.

    For a model of audio, images or features, TEXT is the path of a file, and attention is drawn over its spectrogram or
    image. For a classifier: the classes, and which tokens of TEXT are evidence for and against each. For a language
    model: the distribution before each token of TEXT.
    """
    if options.html is not None:
        check_writable(options.html)
    task_of(checkpoint.read_config(options.model)).inspect_text(options)


@command.command(
    "corpus",
    short_help="Show what the model predicts for a corpus, or compare two models.",
    epilog="Example: translume inspect corpus models/en-de test.en test.de --compare models/other",
)
@_MODEL
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="SOURCE [TARGET]")
@click.option("--compare", "other", type=MODEL, metavar="OTHER_MODEL", help="Another model: list where the two differ.")
@_top_option("Entries of each list.  [default: 10, on a page 50]")
@_HTML
@_shared_options
@collected(CorpusOptions)
def corpus(options: CorpusOptions) -> None:
    """Show how the model predicts the targets of parallel files, or of SOURCE alone, a table of pairs such as TSV:
    calibration, rare tokens, hard pairs, and pairs that may be misaligned.

    For a classifier TARGET has labels: how reliable its probabilities are, and its most confident mistakes.
    """
    if len(options.files) > 2:
        raise click.UsageError("expected MODEL SOURCE TARGET, or MODEL and one file of pairs")
    searching = [each for each in options.overrides if each.partition("=")[0].strip() not in _DIRECTION]
    if searching and options.other is None:
        raise SettingsError("inspect corpus: decoding options: expected --compare as well")
    if options.html is not None:
        check_writable(options.html)
    task_of(checkpoint.read_config(options.model)).inspect_corpus(options)


@command.command(
    "pairs",
    short_help="Write how much each target of many files is worth to its source.",
    epilog="Example: translume inspect pairs models/en-de --input 'pairs.*.tsv' --columns 0,1 --output judged",
)
@_MODEL
@direction_options
@pair_file_options
@compute_options
def pairs(model: Path, to: str | None, from_: str | None, files: FileOptions, compute: Compute) -> None:
    """Write, for each pair of many files, how probable its target is with and without its source.

    Each output, NAME.jsonl, has an object for each pair with `gain`, which is low for a target that does not fit its
    source. An output is written when it is complete, so the same command continues after an interruption.
    """
    from translume.inspection.corpus import judge_lines

    if files.folder() is None:
        raise SettingsError("inspect pairs: expected --input and --output")
    translator = compute.load_plain(model)
    if translator.config.data.source.reader:
        kind = translator.config.data.source.kind
        raise SettingsError(f"--input: found data.source = '{kind}', expected texts to compare with an empty one")
    direction = translator.direction(to=to, from_=from_)
    languages = {"from_": direction.source, "to": direction.target}
    settings = translator.config.decoding.model_copy(update=languages)
    work = FileWork(model=model, loaded=translator, work=judge_lines, settings=settings, files=files, row=json_row)
    work.run(pair_files(files, translator.config, ".jsonl"))


@command.command(
    "why-not",
    short_help="Show why other targets are not the translation.",
    epilog='Example: translume inspect why-not models/en-de "A man is riding a bicycle." "Ein Mann fährt Rad."',
)
@_MODEL
@_TEXT
@click.argument("questions", nargs=-1, required=True, metavar="TARGET...")
@_shared_options
@collected(QuestionOptions)
def why_not_(options: QuestionOptions) -> None:
    """Show where each TARGET and the translation of TEXT differ first, and the scores of both."""
    from translume.inspection.terminal import why_not_lines

    _show_answers(options, options.questions, inspection.why_not, lambda answer, target: why_not_lines(answer))


@command.command(
    "force",
    short_help="Force other tokens, and continue the translation.",
    epilog='Example: translume inspect force models/en-de "A man is riding a bicycle." 1=Mensch',
)
@_MODEL
@_TEXT
@click.argument("questions", nargs=-1, required=True, metavar="STEP=TEXT...")
@_shared_options
@collected(QuestionOptions)
def force(options: QuestionOptions) -> None:
    """Show the translation of TEXT that each STEP=TEXT gives, forced alone. Steps count from 0."""
    from translume.inspection.terminal import forced_lines

    _show_answers(
        options,
        [_step_and_text(each) for each in options.questions],
        lambda translator, text, token, settings: inspection.force_token(translator, text, *token, settings=settings),
        lambda answer, token: forced_lines(answer, token[1]),
    )


def _step_and_text(token: str) -> tuple[int, str]:
    """Parse STEP=TEXT."""
    step, equals, text = token.partition("=")
    if not (equals and text and step.isascii() and step.isdigit() and len(step) <= 9):
        raise SettingsError(f"inspect force: found '{token}', expected STEP=TEXT such as 3=house; steps count from 0")
    return int(step), text


@command.command(
    "edit",
    short_help="Show how other sources change the translation.",
    epilog='Example: translume inspect edit models/en-de "A man is riding a bicycle." "A woman is riding a bicycle."',
)
@_MODEL
@_TEXT
@click.argument("questions", nargs=-1, required=True, metavar="SOURCE...")
@_shared_options
@collected(QuestionOptions)
def edit(options: QuestionOptions) -> None:
    """Show how each SOURCE, in place of TEXT, changes the translation and its probabilities."""
    from translume.inspection.terminal import edited_lines

    sources = options.questions
    _show_answers(options, sources, inspection.edit_source, lambda answer, source: edited_lines(answer), edits=sources)


def _show_answers(
    options: QuestionOptions,
    questions: Sequence[A],
    ask: Callable[..., Any],
    lines: "Callable[[Any, A], Iterator[Text]]",
    *,
    edits: Sequence[str] = (),
) -> None:
    """Print the answers to what-if questions, with an empty line between two.

    ask: is called with the translator, the text, a question and `settings`.  lines: of an answer and its question.
    edits: further sources.
    """
    from rich.text import Text

    from translume.inspection.inputs import encoded_source

    translator, text = options.compute.load_plain(options.model), options.text
    settings = changed(translator.config, options.overrides, "decoding").decoding
    _note_split(translator, text, settings)
    answers = [ask(translator, text, each, settings=settings) for each in questions]
    for place, source in (("source", text), *(("edit", each) for each in edits)):
        for warning in encoded_source(translator.checkpoint, source, settings).warnings:
            warn(f"{place}: {warning}")
    if options.as_json:
        for answer in answers:
            print_json(answer)
        return
    parts = [lines(answer, question) for answer, question in zip(answers, questions, strict=True)]
    print_lines(chain(parts[0], *(chain([Text("")], each) for each in parts[1:])))


def inspect_translation(options: TextOptions) -> None:
    """Show the trace of a translation or of a given target, and the record of the search."""
    from translume.inspection.terminal import trace_lines
    from translume.inspection.tracing import ATTRIBUTION_METHODS, default_parts

    text, target = options.text, options.target
    methods = chosen_methods(options.attribution, ATTRIBUTION_METHODS)  # refuses others before the model is loaded
    translator = options.compute.load_plain(options.model)
    settings = changed(translator.config, options.overrides, "decoding").decoding
    parts = (*default_parts(translator.config), *methods)
    with attribution_errors():
        traced = inspection.trace(translator, text, target, k=options.top or TOP, settings=settings, show=parts)
    if target is None:
        _note_split(translator, text, settings)
    records = settings.strategy in ("beam", "greedy")
    beam = inspection.record_beam(translator, text, reference=options.reference, settings=settings) if records else None

    def page() -> str:
        count = ALTERNATIVES if options.alternatives is None else options.alternatives
        others = _alternatives(translator, traced, settings, count if target is None and records else 0)
        return traced.to_page(beam=beam, alternatives=others)

    show(options, {"trace": traced, "beam": beam}, page, lambda: trace_lines(traced, beam=beam))


def _note_split(translator: "Translator", text: str, settings: "DecodingSettings") -> None:
    """Note that `translate` splits the text, so that its translation may differ from the one inspected."""
    from translume.translator.planning import Line

    if translator.config.data.source.reader:
        return
    pieces = translator.plans([Line(number=0, text=text)], settings)[0].pieces
    if len(pieces) > 1:
        note(f"inspected as one text, but translate splits it into {len(pieces)} sentences: inspect each by itself")


def show(
    options: TextOptions | CorpusOptions, value: object, page: Callable[[], str], lines: "Callable[[], Iterable[Text]]"
) -> None:
    """Write a page if there is a file for it, and print a value as JSON, or the lines if there is no page."""
    if options.html is not None:
        write_file(options.html, page().encode())
        note(f"{options.html}: written")
    if options.as_json:
        print_json(value)
    elif options.html is None:
        print_lines(lines())


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
    translator: "Translator", traced: "inspection.Trace", settings: "DecodingSettings", count: int
) -> dict[int, dict[int, "inspection.Forced"]]:
    """Return, for every step, the translations in which one of the `count` likeliest other tokens is forced."""
    choices = [
        (place, candidate.id)
        for place, (token, step) in enumerate(zip(traced.target_tokens, traced.steps, strict=True))
        for candidate in [each for each in step.top_used.candidates if each.id != token.id][:count]
    ]
    others: dict[int, dict[int, inspection.Forced]] = {}
    if choices:
        results = inspection.force_tokens(translator, traced.given, choices, settings=settings)
        results = progress_over(results, "forcing other tokens", unit="tokens", total=len(choices))
        for (place, id_), forced in zip(choices, results, strict=True):
            if forced is not None:  # otherwise no continuation is allowed; the page says that there is no result
                others.setdefault(place, {})[id_] = forced
    return others


def inspect_translations(options: CorpusOptions) -> None:
    """Print, or write as a page, what a model predicts for files of pairs."""
    from translume.data.corpus import cached_target_counts
    from translume.data.evaluation_files import refuse_tables, settings_for_files
    from translume.data.pairs import read_pairs
    from translume.inspection.comparison import compare_on_corpus
    from translume.inspection.corpus import inspect_corpus
    from translume.inspection.terminal import corpus_lines

    model = options.model
    count = options.top or (CORPUS_ENTRIES if options.html is None else CORPUS_PAGE_ENTRIES)
    data = checkpoint.read_config(model).data
    if len(options.files) == 2:
        refuse_tables(*options.files, data)
    files = settings_for_files(options.files, data)
    total = _length(files)
    searches, models = [], []
    for each in [model] if options.other is None else [model, options.other]:
        loaded = options.compute.load_plain(each)
        searches.append(changed(loaded.config, options.overrides, "decoding").decoding)
        loaded.check(searches[-1])
        models.append(in_direction(loaded, searches[-1])[0])
    translator, compared = models[0], models[1] if len(models) > 1 else None
    tokenizers = translator.checkpoint.source_tokenizer, translator.checkpoint.target_tokenizer
    frequencies = cached_target_counts(model / "cache", translator.config.data, tokenizers)
    read: Iterable[tuple[str, str]] = ((pair.source, pair.target) for pair in read_pairs(files, "train"))
    kept = [] if compared is None else list(read)  # read by both models
    with ProgressBar("inspecting", unit="pairs", total=total) as bar:
        lens = inspect_corpus(
            translator,
            kept or read,
            show=count,
            frequencies=None if frequencies is None else frequencies.tolist(),
            progress=bar.advance,
        )
    if compared is not None:
        with ProgressBar("translating with both", unit="pairs", total=total) as bar:
            first, second = searches
            comparison = compare_on_corpus(
                translator, compared, kept, settings=(first, second), show=count, progress=bar.advance
            )
        lens = replace(lens, comparison=comparison)
    against = "" if options.other is None else f", compared with {options.other.name}"
    title = f"{model.name} on {' and '.join(file.name for file in options.files)}{against}"
    show(options, lens, lambda: lens.to_page(title=title), lambda: corpus_lines(lens))


def _length(files: "DataSettings") -> int | None:
    """Return the number of pairs, or None if standard input is read. Raises DataError for files of unequal length."""
    from translume.data.lines import STANDARD_INPUT, count_lines, refuse_one_input
    from translume.data.pairs import origins

    (origin,) = origins(files, "train")
    if origin.target_file:
        refuse_one_input(origin.file, origin.target_file)
    if STANDARD_INPUT in origin.files:
        return None
    origin.check_lengths()
    return count_lines(origin.file)
