"""Sequence to sequence: an encoder reads the source, and a decoder generates the target (Vaswani et al. 2017)."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from translume.errors import SettingsError
from translume.tasks.task import Task

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings


class SequenceTask(Task):
    """Sources to targets."""

    name = "sequence"
    summary = "text to text"
    model = "translator"
    command = "translate"
    example = "pair"
    target = "target tokens"
    keys = ("source", "target")
    missing_target = "empty"
    keep_target = "tokenizer.target_path = '{file}'"
    vocabulary_files = ("source_settings.json", "target_settings.json")
    predicts = "tokens"
    metrics: ClassVar = {
        **dict.fromkeys(("bleu", "chrf", "exact_match", "rouge1", "rouge2", "rougeL"), True),
        **dict.fromkeys(("squad_f1", "squad_exact", "sari", "terminology"), True),
        **dict.fromkeys(("comet", "comet-kiwi", "bertscore", "metricx"), True),
        **dict.fromkeys(("ter", "wer", "per", "cer"), False),
    }

    def metric_names(self) -> list[str]:
        """As `Task.metric_names`, with the metrics from outside."""
        from translume.config.evaluation import METRICS

        return [*super().metric_names(), *(name for name, found in METRICS.items() if not isinstance(found, str))]

    def check(self, data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
        """Raise SettingsError for a model of several target languages that does not read which one is meant."""
        targets = list(dict.fromkeys(corpus.target_language for corpus in data.corpus))
        if len(targets) > 1 and model.language_tags == "none":
            raise SettingsError(
                f"{place}: model.language_tags: found 'none' with the target languages {', '.join(targets)}; "
                "expected 'source' or 'target'"
            )

    def describe_vocabulary(self, source: int, target: int, *, shared: bool) -> str:
        return f"{source:,} tokens, shared" if shared else f"{source:,} source and {target:,} target tokens"

    def next_steps(self, folder: Path, config: "Config") -> str:
        model = shlex.quote(str(folder))
        if config.data.source.reader:
            return f"Next: translume translate {model} < PATHS, or translume evaluate {model} MANIFEST"
        return f"Next: translume translate {model} < TEXT, or translume evaluate {model} SOURCE REFERENCE"

    def vocabulary_class(self) -> Any:
        from translume.text import Tokenizer

        return Tokenizer

    def learn_vocabularies(self, config: "Config", learning: Callable[[tuple[str, ...]], object] | None) -> Any:
        from translume.training.vocabularies import learn_tokenizers

        return learn_tokenizers(config, learning)

    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        ids: list[list[int]] = target.encode_all([pair.target for pair in pairs])
        return ids

    def make_batch(
        self, source: Any, target: Any, tokenizer: Any, vocabulary: Any, lines: tuple[int, ...], tags: Any = None
    ) -> Any:
        from translume.data.batch import padded_batch

        return padded_batch(source, target, tokenizer, vocabulary, lines, tags)

    def build_network(self, settings: "ModelSettings", source_size: int, target_size: int, source: Any) -> Any:
        from translume.checkpoint.building import build_model

        return build_model(settings, source_size, target_size, source)

    def head_data(self, source: Any, target: Any, corpus: Any) -> Any:
        from translume.training.prepare import token_head_data

        return token_head_data(source, target, corpus)

    def validation_metrics(self, model: Any, corpus: Any, network: Any, device: Any, group: Any) -> Any:
        from translume.training.validation import translation_metrics

        return translation_metrics(model, corpus, network, device, group)

    def checkpoint_class(self) -> Any:
        from translume.checkpoint import Checkpoint

        return Checkpoint

    def user_class(self) -> Any:
        from translume.translator import Translator

        return Translator

    def describe_model(self, config: "Config") -> Any:
        from translume.checkpoint.model_card import describe_transformer

        return describe_transformer(config)

    def evaluate(self, options: Any) -> None:
        from translume.cli.evaluate import evaluate_translator

        evaluate_translator(options)

    def inspect_text(self, options: Any) -> None:
        from translume.cli.inspect import inspect_translation

        inspect_translation(options)

    def inspect_corpus(self, options: Any) -> None:
        from translume.cli.inspect import inspect_translations

        inspect_translations(options)

    def recommend(self, data: "DataSettings", count: int) -> Any:
        from translume.experiments.proposals import propose_for_pairs

        return propose_for_pairs(data, count)
