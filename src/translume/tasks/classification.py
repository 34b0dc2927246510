"""Classification: an encoder reads a text, and a head predicts its label or labels. There is no decoder."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from translume.errors import SettingsError
from translume.tasks.task import Task

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings


class ClassificationTask(Task):
    """Texts to labels."""

    name = "classification"
    summary = "the label of a text"
    model = "classifier"
    command = "classify"
    example = "text"
    target = "labels"
    keys = ("text", "label")
    missing_target = "without a label"
    keep_target = "the {count} of the data"
    vocabulary_files = ("tokenizer_settings.json", "labels.json")
    predicts = "classes"
    metrics: ClassVar = {"accuracy": True, "macro_f1": True}

    def check(self, data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
        if model.pretrained_target:
            raise SettingsError(f"{place}: model.pretrained_target: a classifier has no target embedding")
        if data.corpus:
            raise SettingsError(f"{place}: data.corpus: a classifier has no languages of targets; expected data.train")
        if model.language_tags != "none":
            raise SettingsError(
                f"{place}: model.language_tags: found '{model.language_tags}', a classifier has no target"
            )
        if getattr(model.head, "labels", "one") == "several" and not data.label_separator:
            raise SettingsError(
                f"{place}: data.label_separator: empty, expected the text that separates several labels"
            )

    def describe_vocabulary(self, source: int, target: int, *, shared: bool) -> str:
        return f"{source:,} tokens, {target:,} labels"

    def next_steps(self, folder: Path, config: "Config") -> str:
        model = shlex.quote(str(folder))
        return f"Next: translume classify {model} < TEXT, or translume evaluate {model} FILE.tsv"

    def vocabulary_class(self) -> Any:
        from translume.text import Labels

        return Labels

    def learn_vocabularies(self, config: "Config", learning: Callable[[tuple[str, ...]], object] | None) -> Any:
        from translume.training.vocabularies import learn_labels

        return learn_labels(config, learning)

    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        # The place is for an error about an unknown label.
        return [target.encode(pair.target, f"{pair.target_file or pair.file}:{pair.line}") for pair in pairs]

    def make_batch(
        self, source: Any, target: Any, tokenizer: Any, vocabulary: Any, lines: tuple[int, ...], tags: Any = None
    ) -> Any:
        from translume.data.batch import labelled_batch

        return labelled_batch(source, target, tokenizer, vocabulary, lines)

    def build_network(self, settings: "ModelSettings", source_size: int, target_size: int, source: Any) -> Any:
        from translume.checkpoint.building import build_classifier

        return build_classifier(settings, source_size, target_size, source)

    def head_data(self, source: Any, target: Any, corpus: Any) -> Any:
        from translume.training.prepare import class_head_data

        return class_head_data(source, target, corpus)

    def validation_metrics(self, model: Any, corpus: Any, network: Any, device: Any, group: Any) -> Any:
        from translume.training.validation import classification_metrics

        return classification_metrics(model, corpus, network, device, group)

    def checkpoint_class(self) -> Any:
        from translume.checkpoint import ClassifierCheckpoint

        return ClassifierCheckpoint

    def user_class(self) -> Any:
        from translume.translator import Classifier

        return Classifier

    def describe_model(self, config: "Config") -> Any:
        from translume.checkpoint.model_card import describe_classifier

        return describe_classifier(config)

    def evaluate(self, options: Any) -> None:
        from translume.cli.classify import evaluate_classifier

        evaluate_classifier(options)

    def inspect_text(self, options: Any) -> None:
        from translume.cli.classify import inspect_class

        inspect_class(options)

    def inspect_corpus(self, options: Any) -> None:
        from translume.cli.classify import inspect_classes

        inspect_classes(options)

    def recommend(self, data: "DataSettings", count: int) -> Any:
        from translume.experiments.proposals import propose_for_labels

        return propose_for_labels(data, count)
