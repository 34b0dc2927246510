"""Language modelling: a decoder without cross-attention predicts each token of a document from those before it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from translume.errors import SettingsError
from translume.tasks.task import Task

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings

_SOURCE_SETTINGS = ("segments", "pretrained_source", "language_tags")
_PAIR_RULES = ("too_long", "max_ratio", "identical", "source_script")
"""Cleaning rules that compare two sides, or cut."""


def _check(data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
    if model.encoder_layers:
        raise SettingsError(
            f"{place}: model.encoder_layers: found {model.encoder_layers}, must be 0 for a language model"
        )
    if model.head.reads_source:
        raise SettingsError(
            f"{place}: model.head.kind: '{model.head.kind}' reads a source, which a language model lacks"
        )
    for group, name, settings in (
        *(("model", name, model) for name in _SOURCE_SETTINGS),
        *(("data.cleaning", name, data.cleaning) for name in _PAIR_RULES),
    ):
        found, usual = getattr(settings, name), type(settings).model_fields[name].default
        if found != usual:
            raise SettingsError(f"{place}: {group}.{name}: found {found!r}, must be {usual!r} for a language model")
    if data.corpus:
        raise SettingsError(f"{place}: data.corpus: a language model has no pairs of languages; expected data.train")
    if data.block_length > model.max_positions:
        raise SettingsError(
            f"{place}: data.block_length: found {data.block_length}, "
            f"expected at most model.max_positions, {model.max_positions}"
        )


def _describe_vocabulary(source: int, target: int, shared: bool) -> str:
    return f"{target:,} tokens"


def _next_steps(folder: Path, config: "Config") -> str:
    model = shlex.quote(str(folder))
    return f"Next: translume generate {model} PROMPT, or translume evaluate {model} FILE"


TASK = Task(
    name="language_model",
    summary="the next tokens of a text",
    model="language model",
    command="generate",
    example="document",
    target="tokens",
    keys=("text", "text"),
    reads="documents",
    missing_target="empty",
    keep_target="tokenizer.path = '{file}'",
    vocabulary_files=("source_settings.json", "target_settings.json"),
    predicts="tokens",
    metrics={"perplexity": False, "bits_per_byte": False, "nats_per_character": False},
    check=_check,
    describe_vocabulary=_describe_vocabulary,
    next_steps=_next_steps,
    vocabulary="translume.text:Tokenizer",
    network="translume.checkpoint.building:build_language_model",
    vocabularies="translume.training.vocabularies:learn_document_tokenizer",
    encode_targets="translume.data.token_cache:encode_documents",
    make_batch="translume.data.batch:block_batch",
    loss_options="translume.training.optimisation:token_loss_options",
    head_data="translume.training.prepare:document_head_data",
    validation="translume.training.validation:perplexity_metrics",
    checkpoint="translume.checkpoint:LanguageModelCheckpoint",
    user_class="translume.translator:Generator",
    card="translume.checkpoint.model_card:describe_language_model",
    evaluate="translume.cli.evaluate_language_model:evaluate_language_model",
    inspect="translume.cli.inspect_language_model:inspect_language_model",
    recommend="translume.recommend.language_model:propose_for_documents",
    served="translume.serving.workers.models:ServedGenerator",
)
