"""translume generate, and `translume evaluate` and `translume inspect` for a language model"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.bulk import FileOptions, FileWork, InputFile, Lines, file_options, json_row, text_files
from translume.cli.evaluate import EvaluateOptions
from translume.cli.group import interrupt_hint
from translume.cli.inspect import TextOptions, show
from translume.cli.options import (
    MODEL,
    Compute,
    changed,
    engine_compute_options,
    generation_options,
    json_option,
    refuse_options,
    refuse_settings,
    set_option,
)
from translume.cli.terminal import ProgressBar, print_json, warn
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.config import DataSettings, DecodingSettings
    from translume.inspection.values import TextTrace
    from translume.translator import Generation, Generator

PROMPTS = 1024
"""Number of prompts of standard input that are read before the first is continued."""
SEPARATOR = "-----"
"""The line between two texts."""


@click.command(
    "generate",
    short_help="Continue prompts with a language model.",
    epilog='Example: translume generate models/plays "To be" --strategy sampling --top-p 0.95 --max-length 200',
)
@click.argument("model", type=MODEL)
@click.argument("prompt", required=False)
@click.option(
    "--prompt", "named", metavar="TEXT", help="The prompt, instead of PROMPT, such as one that begins with -."
)
@generation_options
@file_options
@json_option
@set_option
@engine_compute_options
def command(
    model: Path,
    prompt: str | None,
    named: str | None,
    files: FileOptions,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Continue PROMPT, or each line of standard input, and print the prompt with its continuation.

    An empty prompt begins a document. On a terminal the text appears as it is generated. If there are several texts, a
    line of five hyphens comes between two. --json prints one object for each prompt.

    With --input and --output, the prompts in many files are continued, with --workers N by N processes. Each output,
    NAME.jsonl, has an object with `prompt` and `text` for each prompt, or with --json all of the generation. It appears
    when it is complete, so the same command continues after an interruption.
    """
    if prompt is not None and named is not None:
        raise click.UsageError("PROMPT cannot be combined with --prompt")
    folder = files.folder("PROMPT", "--prompt")
    generator = load_generator_with(model, overrides, compute, ("decoding",))
    settings = generator.choose(None)
    if folder is not None:
        from translume.translator import Generator

        if settings.nbest > 1 and not as_json:
            raise SettingsError("--nbest: expected --json as well with --input, which has all texts of a prompt")
        work = FileWork(
            model=model,
            loaded=generator,
            work=Generator.generate_lines,
            settings=settings,
            files=files,
            row=json_row
            if as_json
            else partial(json_row, value=lambda each: {"prompt": each.prompt, "text": each.text}),
            report=lambda place, each: _print_warnings(each, f"{place}: "),
        )
        work.run(_prompt_files(files, generator.config.data))
        return
    single = prompt if named is None else named
    with interrupt_hint("Interrupted"), ProgressBar("generating", unit="prompts", prints=True) as bar:
        if single is not None and not as_json and settings.nbest == 1 and sys.stdout.isatty():
            _print_stream(generator, single, settings)
            return
        generations = (
            _generations(generator, settings) if single is None else generator.generate_all([single], settings=settings)
        )
        for generation in generations:
            bar.advance()
            for line in _output_lines(generation, first=bar.done == 1, as_json=as_json):
                click.echo(line)
            _print_warnings(generation, "" if single is not None else f"prompt {bar.done}: ")


def _generations(generator: "Generator", settings: "DecodingSettings") -> "Iterator[Generation]":
    """Yield the generations of the prompts of standard input, of typed ones at once."""
    from translume.data.lines import STANDARD_INPUT, read_lines
    from translume.translator.planning import Line
    from translume.translator.translator import up_to_an_error

    failed: list[DataError] = []

    def lines() -> Iterator[Line]:
        try:
            for number, text in enumerate(read_lines(STANDARD_INPUT), 1):
                yield Line(number=number, text=text)
        except DataError as error:  # raised after the prompts before it are continued
            failed.append(error)

    rest = lines()
    while part := list(islice(rest, 1 if sys.stdin.isatty() else PROMPTS)):
        yield from up_to_an_error(partial(generator.generate_lines, settings=settings), part)
    if failed:
        raise failed[0]


def _prompt_files(files: FileOptions, data: "DataSettings") -> list[InputFile]:
    """Return the files of prompts with their outputs. Raises SettingsError for a table without --column."""
    from translume.data.tables import KINDS, suffix_of
    from translume.translator.planning import Line

    def lines(prompts: Iterator[str]) -> Lines:
        return ((Line(number=number, text=text), len(text)) for number, text in enumerate(prompts, 1))

    inputs = text_files(files, data, lines, ".jsonl", line_breaks=True)
    for each in inputs:
        if files.columns is None and suffix_of(each.source) in KINDS:
            raise SettingsError(f"{each.source}: a table, expected --column, that of the prompts")
    return inputs


def _print_stream(generator: "Generator", prompt: str, settings: "DecodingSettings") -> None:
    """Print a prompt, and its continuation as it is generated."""
    click.echo(prompt, nl=False)
    parts = generator.stream(prompt, settings=settings)
    while True:
        try:
            click.echo(next(parts), nl=False)
        except StopIteration as stop:
            click.echo()
            _print_warnings(stop.value, "")
            return


def _print_warnings(generation: "Generation", place: str) -> None:
    for warning in generation.warnings:
        warn(f"{place}{warning}")


def _output_lines(generation: "Generation", *, first: bool, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(generation.to_dict(), ensure_ascii=False)
        return
    for hypothesis in generation.hypotheses:
        if not first:
            yield SEPARATOR
        first = False
        yield generation.prompt + hypothesis.text


LISTED = 3
"""Candidates listed for each token, by default."""


def evaluate_language_model(options: EvaluateOptions) -> None:
    """Print the perplexities of a language model on the documents of a file."""
    from translume.data.evaluation_files import settings_for_files
    from translume.data.pairs import read_pairs
    from translume.evaluation.metrics import perplexity_scores

    model, (file, *more) = options.model, options.files
    if more:
        raise SettingsError(
            f"evaluate: {model} is a language model: found {len(options.files)} files, expected one with documents"
        )
    unused = ("--compare", "--ensemble", "--average", "--write", "--calibration", "--fit-temperature")
    refuse_options("a language model", *unused)
    refuse_settings("evaluate", options.overrides, "language model", allowed=("evaluation.stride",))
    generator = load_generator_with(model, options.overrides, options.compute)
    data = settings_for_files([file], generator.config.data)
    texts = (pair.target for pair in read_pairs(data, "train"))
    perplexity = generator.perplexity(texts, stride=generator.config.evaluation.stride)
    if perplexity.empty:
        warn(f"{file}: {perplexity.empty:,} empty documents were not counted")
    if perplexity.unknown:
        warn(
            f"{file}: {perplexity.unknown:,} of {perplexity.tokens:,} tokens are not in the vocabulary; "
            "figures by word, byte and character look better than they are"
        )
    scores = perplexity_scores(perplexity)
    if options.record:
        from translume.checkpoint import record_evaluation

        values = {"scores": [score.to_dict() for score in scores], **perplexity.to_dict()}
        record_evaluation(model, {"source": str(file), "reference": "", **values})
    if options.as_json:
        print_json(perplexity.to_dict())
        return
    for score in scores:
        click.echo(str(score))


def inspect_language_model(options: TextOptions) -> None:
    """Print the predicted distribution before each token of a text."""
    from rich.text import Text

    from translume.inspection.tracing import TEXT_PARTS, trace_text

    refuse_options("a language model", "--target", "--reference", "--alternatives", "--attribution")
    refuse_settings("inspect", options.overrides, "language model")
    generator = load_generator_with(options.model, options.overrides, options.compute)
    all_parts = options.as_json or options.html is not None
    traced = trace_text(generator, options.text, k=options.top or LISTED, show=TEXT_PARTS if all_parts else ())
    show(options, {"trace": traced}, traced.to_page, lambda: map(Text, _lines(traced)))


def _lines(traced: "TextTrace") -> Iterator[str]:
    wide = max(len("token"), *(len(repr(token.text)) for token in traced.tokens))
    yield f"log p {traced.log_p:.3f} nats, {len(traced.steps)} tokens with EOS"
    yield f"{'token':<{wide}}       p   rank  entropy  likeliest"
    for token, step in zip(traced.tokens, traced.steps, strict=True):
        likeliest = "  ".join(f"{each.text!r} {each.p_model:.3f}" for each in step.top.candidates)
        yield f"{token.text!r:<{wide}}  {step.p:.4f}  {step.rank:5}  {step.entropy:7.3f}  {likeliest}"


def load_generator_with(
    model: Path,
    overrides: tuple[str, ...],
    compute: Compute,
    tables: tuple[str, ...] = ("decoding", "evaluation", "data"),
) -> "Generator":
    """Return the language model in a folder, with overrides of these tables."""
    from translume.translator import Generator

    loaded = Generator.load(model, compute.to_load())
    return loaded.with_checkpoint(loaded.checkpoint.changed(config=changed(loaded.config, overrides, *tables)))
