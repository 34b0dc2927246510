"""Classification: an encoder reads a text, and a head predicts its label or labels. There is no decoder."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from translume.errors import SettingsError
from translume.tasks.task import Task, elsewhere

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

    learn_vocabularies = elsewhere("translume.training.vocabularies:learn_labels")
    build_network = elsewhere("translume.checkpoint.building:build_classifier")
    head_data = elsewhere("translume.training.prepare:class_head_data")
    validation_metrics = elsewhere("translume.training.validation:classification_metrics")
    describe_model = elsewhere("translume.checkpoint.model_card:describe_classifier")
    evaluate = elsewhere("translume.cli.classify:evaluate_classifier")
    inspect_text = elsewhere("translume.cli.classify:inspect_class")
    inspect_corpus = elsewhere("translume.cli.classify:inspect_classes")
    recommend = elsewhere("translume.experiments.proposals:propose_for_labels")

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
        return resolve_name("translume.text:Labels")

    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        # The place is for an error about an unknown label.
        return [target.encode(pair.target, f"{pair.target_file or pair.file}:{pair.line}") for pair in pairs]

    def make_batch(
        self, source: Any, target: Any, tokenizer: Any, vocabulary: Any, lines: tuple[int, ...], tags: Any = None
    ) -> Any:
        from translume.data.batch import labelled_batch

        return labelled_batch(source, target, tokenizer, vocabulary, lines)

    def checkpoint_class(self) -> Any:
        return resolve_name("translume.checkpoint:ClassifierCheckpoint")

    def user_class(self) -> Any:
        return resolve_name("translume.translator:Classifier")
