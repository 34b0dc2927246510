"""Language modelling: a decoder without cross-attention predicts each token of a document from those before it."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from translume.errors import SettingsError
from translume.tasks.task import Task

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
            found, usual = getattr(settings, name), type(settings).model_fields[name].default
            if found != usual:
                raise SettingsError(f"{place}: {group}.{name}: found {found!r}, must be {usual!r} for a language model")
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
        from translume.text import Tokenizer

        return Tokenizer

    def learn_vocabularies(self, config: "Config", learning: Callable[[tuple[str, ...]], object] | None) -> Any:
        from translume.training.vocabularies import learn_document_tokenizer

        return learn_document_tokenizer(config, learning)

    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        found = target.encode_all([pair.target for pair in pairs])
        return [[*ids, target.specials.eos] if ids else [] for ids in found]  # nothing without tokens

    def make_batch(
        self, source: Any, target: Any, tokenizer: Any, vocabulary: Any, lines: tuple[int, ...], tags: Any = None
    ) -> Any:
        from translume.data.batch import block_batch

        return block_batch(source, target, tokenizer, vocabulary, lines)

    def build_network(self, settings: "ModelSettings", source_size: int, target_size: int, source: Any) -> Any:
        from translume.checkpoint.building import build_language_model

        return build_language_model(settings, source_size, target_size, source)

    def head_data(self, source: Any, target: Any, corpus: Any) -> Any:
        from translume.training.prepare import document_head_data

        return document_head_data(source, target, corpus)

    def validation_metrics(self, model: Any, corpus: Any, network: Any, device: Any, group: Any) -> Any:
        from translume.training.validation import perplexity_metrics

        return perplexity_metrics(model, corpus, network, device, group)

    def checkpoint_class(self) -> Any:
        from translume.checkpoint import LanguageModelCheckpoint

        return LanguageModelCheckpoint

    def user_class(self) -> Any:
        from translume.translator import Generator

        return Generator

    def describe_model(self, config: "Config") -> Any:
        from translume.checkpoint.model_card import describe_language_model

        return describe_language_model(config)

    def evaluate(self, options: Any) -> None:
        from translume.cli.generate import evaluate_language_model

        evaluate_language_model(options)

    def inspect_text(self, options: Any) -> None:
        from translume.cli.generate import inspect_language_model

        inspect_language_model(options)

    def inspect_corpus(self, options: Any) -> None:
        raise SettingsError("inspect corpus cannot be combined with a language model")

    def recommend(self, data: "DataSettings", count: int) -> Any:
        from translume.experiments.proposals import propose_for_documents

        return propose_for_documents(data, count)
