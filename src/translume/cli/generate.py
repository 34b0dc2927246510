"""translume generate"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import MODEL, Compute, decoding_options, engine_compute_options, json_option, set_option
from translume.cli.terminal import ProgressBar, warn

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.translator import Generation, Generator

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
@decoding_options
@json_option
@set_option
@engine_compute_options
def command(
    model: Path,
    prompt: str | None,
    named: str | None,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Continue PROMPT, or each line of standard input, and print the prompt with its continuation.

    An empty prompt begins a document. On a terminal the text appears as it is generated. If there are several texts, a
    line of five hyphens comes between two. --json prints one object for each prompt.
    """
    from translume.cli.evaluate_language_model import load_generator_with
    from translume.data import read_lines
    from translume.data.lines import STANDARD_INPUT

    if prompt is not None and named is not None:
        raise click.UsageError("PROMPT and --prompt: expected one of them")
    generator = load_generator_with(model, overrides, compute)
    settings = generator.choose(None)
    given = prompt if named is None else named
    with interrupt_hint("Interrupted"), ProgressBar("generating", unit="prompts", prints=True) as bar:
        if given is not None and not as_json and settings.nbest == 1 and sys.stdout.isatty():
            _print_stream(generator, given, settings)
            return
        prompts = read_lines(STANDARD_INPUT) if given is None else [given]
        typed = given is None and sys.stdin.isatty()
        parts = ([each] for each in prompts) if typed else iter([prompts])
        for generation in (each for part in parts for each in generator.generate_all(part, settings=settings)):
            bar.advance()
            for line in _output_lines(generation, first=bar.done == 1, as_json=as_json):
                click.echo(line)
            _print_warnings(generation, "" if given is not None else f"prompt {bar.done}: ")


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
