"""Language modelling: a decoder without cross-attention predicts each token of a document from those before it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from translume.errors import SettingsError
from translume.tasks.task import Task, elsewhere

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings

_SOURCE_SETTINGS = ("segments", "pretrained_source", "language_tags")
_PAIR_RULES = ("too_long", "max_ratio", "identical", "source_script")
"""Cleaning rules that compare two sides, or cut."""


class LanguageModelTask(Task):
    """Documents, predicted token by token."""

    name = "language_model"
    summary = "the next tokens of a text"
    model = "language model"
    command = "generate"
    example = "document"
    target = "tokens"
    keys = ("text", "text")
    reads = "documents"
    missing_target = "empty"
    keep_target = "tokenizer.path = '{file}'"
    vocabulary_files = ("source_settings.json", "target_settings.json")
    predicts = "tokens"
    metrics: ClassVar = {"perplexity": False, "bits_per_byte": False, "nats_per_character": False}

    learn_vocabularies = elsewhere("translume.training.vocabularies:learn_document_tokenizer")
    build_network = elsewhere("translume.checkpoint.building:build_language_model")
    head_data = elsewhere("translume.training.prepare:document_head_data")
    validation_metrics = elsewhere("translume.training.validation:perplexity_metrics")
    describe_model = elsewhere("translume.checkpoint.model_card:describe_language_model")
    evaluate = elsewhere("translume.cli.generate:evaluate_language_model")
    inspect_text = elsewhere("translume.cli.generate:inspect_language_model")
    recommend = elsewhere("translume.experiments.proposals:propose_for_documents")

    def check(self, data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
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
            value, usual = getattr(settings, name), type(settings).model_fields[name].default
            if value != usual:
                raise SettingsError(f"{place}: {group}.{name}: found {value!r}, must be {usual!r} for a language model")
        if data.corpus:
            raise SettingsError(
                f"{place}: data.corpus: a language model has no pairs of languages; expected data.train"
            )
        if data.block_length > model.max_positions:
            raise SettingsError(
                f"{place}: data.block_length: found {data.block_length}, "
                f"expected at most model.max_positions, {model.max_positions}"
            )

    def describe_vocabulary(self, source: int, target: int, *, shared: bool) -> str:
        return f"{target:,} tokens"

    def next_steps(self, folder: Path, config: "Config") -> str:
        model = shlex.quote(str(folder))
        return f"Next: translume generate {model} PROMPT, or translume evaluate {model} FILE"

    def vocabulary_class(self) -> Any:
        return resolve_name("translume.text:Tokenizer")

    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        documents = target.encode_all([pair.target for pair in pairs])
        return [[*ids, target.specials.eos] if ids else [] for ids in documents]  # nothing without tokens

    def make_batch(
        self, source: Any, target: Any, tokenizer: Any, vocabulary: Any, lines: tuple[int, ...], tags: Any = None
    ) -> Any:
        from translume.data.batch import block_batch

        return block_batch(source, target, tokenizer, vocabulary, lines)

    def checkpoint_class(self) -> Any:
        return resolve_name("translume.checkpoint:LanguageModelCheckpoint")

    def user_class(self) -> Any:
        return resolve_name("translume.translator:Generator")

    def inspect_corpus(self, options: Any) -> None:
        raise SettingsError("inspect corpus cannot be combined with a language model")
