"""Which settings go together: a task has its heads and its metrics, and a head its losses."""

from translume.config.data import DataSettings
from translume.config.heads import ClassifySettings
from translume.config.model import ModelSettings
from translume.config.training import TrainingSettings
from translume.errors import SettingsError

CLASS_METRICS = ("accuracy", "macro_f1")
"""Metrics of classification; "nll" is one of any task."""


def refuse_unfit(data: DataSettings, model: ModelSettings, training: TrainingSettings, place: str) -> None:
    """Raise SettingsError, naming `place`, where task, head, metric and losses do not go together."""
    classifies = data.task == "classification"
    head = model.head
    if classifies != isinstance(head, ClassifySettings):
        wanted = "model.head.kind = 'classify'" if classifies else "data.task = 'classification'"
        raise SettingsError(f"{place}: data.task = '{data.task}' with model.head.kind = '{head.kind}', wanted {wanted}")
    if training.metric != "nll" and (training.metric in CLASS_METRICS) != classifies:
        known = ", ".join(("nll", *CLASS_METRICS)) if classifies else "nll, bleu, chrf, exact_match, wer"
        raise SettingsError(f"{place}: training.metric: found '{training.metric}', known for this task: {known}")
    if not classifies and data.cleaning.too_long != "drop":
        raise SettingsError(f"{place}: data.cleaning.too_long: found '{data.cleaning.too_long}', but only a text "
                            "to classify may be cut; wanted 'drop'")  # fmt: skip
    if classifies and model.pretrained_target:
        raise SettingsError(f"{place}: model.pretrained_target: a classifier has no target embedding")
    if isinstance(head, ClassifySettings) and head.labels == "several" and not data.label_separator:
        raise SettingsError(f"{place}: data.label_separator: empty, wanted what parts several labels")
    for name, why in head.meaningless.items():
        if found := getattr(training, name):
            wanted = "none" if isinstance(found, str) else "0"
            raise SettingsError(f"{place}: training.{name}: found {found}, wanted {wanted} with {why}")
