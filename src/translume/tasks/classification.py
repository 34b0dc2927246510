"""Classification: an encoder reads a text, and a head predicts its label or labels. There is no decoder."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from translume.errors import SettingsError
from translume.tasks.task import Task

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings


def _check(data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
    if model.pretrained_target:
        raise SettingsError(f"{place}: model.pretrained_target: a classifier has no target embedding")
    if data.corpus:
        raise SettingsError(f"{place}: data.corpus: a classifier has no languages of targets; expected data.train")
    if model.language_tags != "none":
        raise SettingsError(f"{place}: model.language_tags: found '{model.language_tags}', a classifier has no target")
    if getattr(model.head, "labels", "one") == "several" and not data.label_separator:
        raise SettingsError(f"{place}: data.label_separator: empty, expected the text that separates several labels")


def _describe_vocabulary(source: int, target: int, shared: bool) -> str:
    return f"{source:,} tokens, {target:,} labels"


def _next_steps(folder: Path, config: "Config") -> str:
    model = shlex.quote(str(folder))
    return f"Next: translume classify {model} < TEXT, or translume evaluate {model} FILE.tsv"


TASK = Task(
    name="classification",
    summary="the label of a text",
    model="classifier",
    command="classify",
    example="text",
    target="labels",
    keys=("text", "label"),
    missing_target="without a label",
    keep_target="the {count} of the data",
    vocabulary_files=("tokenizer_settings.json", "labels.json"),
    predicts="classes",
    metrics={"accuracy": True, "macro_f1": True},
    check=_check,
    describe_vocabulary=_describe_vocabulary,
    next_steps=_next_steps,
    vocabulary="translume.text:Labels",
    network="translume.checkpoint.building:build_classifier",
    vocabularies="translume.training.vocabularies:learn_labels",
    encode_targets="translume.data.token_cache:encode_labels",
    make_batch="translume.data.batch:labelled_batch",
    loss_options="translume.training.optimisation:class_loss_options",
    head_data="translume.training.prepare:class_head_data",
    validation="translume.training.validation:classification_metrics",
    checkpoint="translume.checkpoint:ClassifierCheckpoint",
    user_class="translume.translator:Classifier",
    card="translume.checkpoint.model_card:describe_classifier",
    evaluate="translume.cli.evaluate_classifier:evaluate_classifier",
    inspect="translume.cli.inspect_classifier:inspect_classifier",
    recommend="translume.recommend.classification:propose_for_labels",
    served="translume.serving.workers.models:ServedClassifier",
)
