"""`translume evaluate` and `translume inspect` for a language model."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.evaluate import EvaluateOptions
from translume.cli.inspect import TextOptions, write_page
from translume.cli.options import Compute, changed, refuse_options, refuse_settings
from translume.cli.terminal import print_json, warn
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.inspection.values import TextTrace
    from translume.translator import Generator

LISTED = 3
"""Candidates listed for each token, by default."""


def evaluate_language_model(options: EvaluateOptions) -> None:
    """Print the perplexities of a language model on the documents of a file."""
    from translume.data import read_pairs
    from translume.data.evaluation_files import settings_for_files
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
    from translume.inspection.tracing import TEXT_PARTS, trace_text

    refuse_options("a language model", "--target", "--reference", "--alternatives", "--attribution")
    refuse_settings("inspect", options.overrides, "language model")
    generator = load_generator_with(options.model, options.overrides, options.compute)
    all_parts = options.as_json or options.html is not None
    traced = trace_text(generator, options.text, k=options.top or LISTED, show=TEXT_PARTS if all_parts else ())
    if options.html is not None:
        write_page(options.html, traced.to_page())
    if options.as_json:
        print_json({"trace": traced})
    elif options.html is None:
        for line in _lines(traced):
            click.echo(line)


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
    config = changed(loaded.config, overrides, *tables)
    return loaded.with_checkpoint(replace(loaded.checkpoint, config=config))
