"""`translume inspect` for a language model."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.evaluate_language_model import load_generator_with
from translume.cli.inspect import InspectOptions
from translume.cli.options import refuse_settings
from translume.cli.terminal import note
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.inspection.text import TextTrace

LISTED = 3
"""Candidates listed for each token, by default."""


def inspect_language_model(options: InspectOptions) -> None:
    """Print the predicted distribution before each token of a text."""
    from translume.inspection.text import PARTS, trace_text

    given = (options.target, options.reference, options.other, options.alternatives, options.attribution)
    if options.what_if or any(each is not None for each in given) or options.corpus or options.files.output:
        raise SettingsError("inspect: found a language model, which allows only TEXT, --top, --html and --json")
    refuse_settings("inspect", options.overrides, "language model")
    generator = load_generator_with(options.model, options.overrides, options.compute)
    assert options.text is not None
    whole = options.as_json or options.html is not None
    found = trace_text(generator, options.text, k=options.top or LISTED, show=PARTS if whole else ())
    if options.html is not None:
        from translume.drawing import text_page

        write_file(options.html, text_page(found).encode())
        note(f"{options.html}: written")
    if options.as_json:
        click.echo(json.dumps({"trace": found.to_dict()}, ensure_ascii=False))
    elif options.html is None:
        for line in _lines(found):
            click.echo(line)


def _lines(found: "TextTrace") -> Iterator[str]:
    wide = max(len("token"), *(len(repr(token.text)) for token in found.tokens))
    yield f"log p {found.log_p:.3f} nats, {len(found.steps)} tokens with the end mark"
    yield f"{'token':<{wide}}       p   rank  entropy  likeliest"
    for token, step in zip(found.tokens, found.steps, strict=True):
        likeliest = "  ".join(f"{each.text!r} {each.p_model:.3f}" for each in step.top.candidates)
        yield f"{token.text!r:<{wide}}  {step.p:.4f}  {step.rank:5}  {step.entropy:7.3f}  {likeliest}"
