"""translume generate"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.bulk import FileOptions, FileWork, InputFile, Lines, file_options, json_row, text_files
from translume.cli.group import interrupt_hint
from translume.cli.options import (
    MODEL,
    Compute,
    engine_compute_options,
    generation_options,
    json_option,
    set_option,
)
from translume.cli.terminal import ProgressBar, warn
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.config import DataSettings, DecodingSettings
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
    from translume.cli.language_models import load_generator_with

    if prompt is not None and named is not None:
        raise click.UsageError("PROMPT cannot be combined with --prompt")
    folder = files.folder({"PROMPT": prompt is not None, "--prompt": named is not None})
    generator = load_generator_with(model, overrides, compute, ("decoding",))
    settings = generator.choose(None)
    if folder is not None:
        from translume.translator.workers import generate

        if settings.nbest > 1 and not as_json:
            raise SettingsError("--nbest: expected --json as well with --input, which has all texts of a prompt")
        work = FileWork(
            model=model,
            loaded=generator,
            work=generate,
            settings=settings,
            files=files,
            row=json_row if as_json else partial(json_row, value=_prompt_and_text),
            report=lambda place, each: _print_warnings(each, f"{place}: "),
        )
        if work.process(_prompt_files(files, generator.config.data)):
            click.get_current_context().exit(1)
        return
    given = prompt if named is None else named
    with interrupt_hint("Interrupted"), ProgressBar("generating", unit="prompts", prints=True) as bar:
        if given is not None and not as_json and settings.nbest == 1 and sys.stdout.isatty():
            _print_stream(generator, given, settings)
            return
        found = (
            _generations(generator, settings) if given is None else generator.generate_all([given], settings=settings)
        )
        for generation in found:
            bar.advance()
            for line in _output_lines(generation, first=bar.done == 1, as_json=as_json):
                click.echo(line)
            _print_warnings(generation, "" if given is not None else f"prompt {bar.done}: ")


def _generations(generator: "Generator", settings: "DecodingSettings") -> "Iterator[Generation]":
    """Yield the generations of the prompts of standard input, of typed ones at once."""
    from translume.data import read_lines
    from translume.data.lines import STANDARD_INPUT
    from translume.translator.planning import Line

    failed: list[DataError] = []

    def lines() -> Iterator[Line]:
        try:
            for number, text in enumerate(read_lines(STANDARD_INPUT), 1):
                yield Line(number=number, text=text)
        except DataError as error:  # raised after the prompts before it are continued
            failed.append(error)

    rest = lines()
    while part := list(islice(rest, 1 if sys.stdin.isatty() else PROMPTS)):
        yield from generator.generate_lines(part, settings)
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


def _prompt_and_text(generation: "Generation") -> dict[str, object]:
    return {"prompt": generation.prompt, "text": generation.text}


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
