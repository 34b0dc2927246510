"""`translume evaluate` for a language model."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from translume.cli.evaluate import EvaluateOptions
from translume.cli.options import Compute, changed, refuse_settings
from translume.cli.terminal import warn
from translume.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from translume.translator import Generator


def evaluate_language_model(options: EvaluateOptions) -> None:
    """Print the perplexities of a language model on the documents of a file."""
    from translume.data import read_pairs
    from translume.data.evaluation_files import settings_for_files
    from translume.evaluation.language_model import perplexity_scores

    model = options.model
    if len(options.files) > 1:
        raise SettingsError(
            f"evaluate: {model} is a language model: found {len(options.files)} files, expected one with documents"
        )
    if options.compared is not None or options.others or options.average is not None or options.write is not None:
        raise SettingsError(
            "evaluate: --compare, --ensemble, --average and --write are for translators, found a language model"
        )
    if options.calibrate.fit or options.calibrate.picture is not None:
        raise SettingsError("evaluate: --calibration and --fit-temperature are for translators, found a language model")
    refuse_settings("evaluate", options.overrides, "language model", allowed=("evaluation.stride",))
    generator = load_generator_with(model, options.overrides, options.compute)
    file = str(options.files[0])
    data = settings_for_files([file], generator.config.data)
    texts = (pair.target for pair in read_pairs(data, "train"))
    found = generator.perplexity(texts, stride=generator.config.evaluation.stride)
    if found.empty:
        warn(f"{file}: {found.empty:,} empty documents were not counted")
    if found.unknown:
        warn(
            f"{file}: {found.unknown:,} of {found.tokens:,} tokens are not in the vocabulary; "
            "figures by word, byte and character look better than they are"
        )
    scores = perplexity_scores(found)
    if options.record:
        from translume.checkpoint import record_evaluation

        values = {"scores": [score.to_dict() for score in scores], **found.to_dict()}
        record_evaluation(model, {"source": file, "reference": "", **values})
    for line in [json.dumps(found.to_dict())] if options.as_json else map(str, scores):
        click.echo(line)


def load_generator_with(
    model: "Path",
    overrides: tuple[str, ...],
    compute: Compute,
    tables: tuple[str, ...] = ("decoding", "evaluation", "data"),
) -> "Generator":
    """Return the language model in a folder, with overrides of these tables."""
    from translume.translator import Generator

    loaded = Generator.load(model, compute.to_load())
    config = changed(loaded.config, overrides, *tables)
    return loaded.with_checkpoint(replace(loaded.checkpoint, config=config))
