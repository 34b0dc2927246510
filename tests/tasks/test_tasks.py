"""A task is one module: its parts exist, and a third one trains, saves and loads without a change elsewhere."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import translume
from translume import parts
from translume.checkpoint import load_any, read_config
from translume.config import Config
from translume.config.evaluation import METRICS
from translume.errors import ModelFolderError, SettingsError
from translume.tasks import Task, find_task, metric_names, task_names
from translume.tasks.task import TASKS
from translume.training import Finished, Validated, train

TOY = '''
"""Copying: a sequence task that measures how many target tokens the encoder's source holds."""

from translume.checkpoint import Checkpoint, load_any
from translume.parts import part
from translume.tasks.sequence import SequenceTask
from translume.training.validation import TaskMetrics


class CopyCheckpoint(Checkpoint):
    MODEL = "copier"


class Copier:
    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    @classmethod
    def load(cls, folder, options):
        return cls(load_any(folder, device=options.device))

    @property
    def config(self):
        return self.checkpoint.config


@part("task", "copying", interface=1)
class CopyingTask(SequenceTask):
    name = "copying"
    summary = "a copy of a text"
    model = "copier"
    command = "copy"
    metrics = {"pairs": True}

    def checkpoint_class(self):
        return CopyCheckpoint

    def user_class(self):
        return Copier

    def validation_metrics(self, model, corpus, network, device, group):
        return lambda stop: TaskMetrics(values={"pairs": float(corpus.pairs)})
'''


def test_the_parts_of_a_task_are_classes_of_its_name() -> None:
    classes = {name: find_task(name).user_class().__name__ for name in task_names()}
    assert classes == {"classification": "Classifier", "language_model": "Generator", "sequence": "Translator"}
    with pytest.raises(TypeError, match="abstract"):
        type("Incomplete", (Task,), {})()


def test_metrics_of_tasks_have_names() -> None:
    assert task_names() == ["classification", "language_model", "sequence"]
    assert metric_names()[:5] == ["nll", "accuracy", "macro_f1", "perplexity", "bits_per_byte"]
    assert {*find_task("sequence").metrics} == {*METRICS}
    with pytest.raises(SettingsError) as caught:
        Config.parse('[data]\ntask = "sequense"', place="a.toml")
    assert str(caught.value) == "a.toml: data.task: found 'sequense'; did you mean 'sequence'?"


@pytest.fixture
def copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A third task, in a module of its own, and settings for it."""
    (tmp_path / "copying.py").write_text(TOY)
    monkeypatch.setenv(parts.VARIABLE, "")
    monkeypatch.setattr(parts, "_modules", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    parts.load_parts([str(tmp_path / "copying.py")])
    random.seed(1)
    lines = [" ".join(random.choice("abcdefgh") for _ in range(random.randint(1, 9))) for _ in range(101)]
    (tmp_path / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "valid.txt").write_text("".join(f"{line}\n" for line in lines[:13]))
    files = {
        f"{split}_{side}": str(tmp_path / f"{split}.txt")
        for split in ("train", "valid")
        for side in ("source", "target")
    }
    yield Config.build(
        {
            "data": {"task": "copying", **files},
            "tokenizer": {"kind": "word", "size": 29, "unknown": "token"},
            "model": {"width": 12, "feed_forward": 23, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2},
            "training": {
                "updates": 3,
                "validate_every": 2,
                "warmup_updates": 1,
                "metric": "pairs",
                "precision": "fp32",
            },
        }
    )
    sys.modules.pop("copying", None)
    del TASKS["copying"]


def test_a_third_task_is_one_module(copying: Config, tmp_path: Path) -> None:
    """Build, train, validate by the task's metric, save, load, resume."""
    folder = tmp_path / "model"
    events = list(train(copying, folder, device="cpu", threads=1))
    assert isinstance(events[-1], Finished)
    assert [event.metrics for event in events if isinstance(event, Validated)] == [{"pairs": 13.0}] * 2
    model = translume.load(folder, device="cpu")
    assert type(model).__name__ == "Copier"
    assert model.config.data.task == "copying"
    again = list(train(copying.change("training.updates=5"), folder, device="cpu", threads=1))
    assert isinstance(again[-1], Finished)
    assert again[-1].update == 5
    assert "translume copy model < source > target" in (folder / "README.md").read_text()


def test_commands_and_classes_of_another_task_refuse_it(copying: Config, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    list(train(copying, folder, device="cpu", threads=1))
    from translume.translator import Classifier, Translator

    for kind, expected in ((Translator, "translator"), (Classifier, "classifier")):
        with pytest.raises(ModelFolderError) as caught:
            kind.load(folder)
        assert (
            str(caught.value)
            == f"{folder}: is a copier, expected a {expected}; its commands are copy, evaluate and inspect"
        )
    assert read_config(folder).data.task == "copying"
    assert load_any(folder).MODEL == "copier"


def test_settings_of_another_task_are_refused(copying: Config) -> None:
    for change, reason in (
        ("training.metric=bleu", "--set: training.metric: found 'bleu', known for this task: nll, pairs"),
        (
            "data.task=classification",
            "--set: data.task = 'classification' with model.head.kind = 'softmax', "
            "expected model.head.kind = 'classify'",
        ),
    ):
        with pytest.raises(SettingsError) as caught:
            copying.change(change)
        assert str(caught.value) == reason


def test_only_the_sequence_task_generates_targets_for_sources() -> None:
    assert [name for name in task_names() if find_task(name).sequence_to_sequence] == ["sequence"]


def test_a_task_says_which_metrics_grow() -> None:
    assert [find_task("sequence").larger_is_better(name) for name in ("nll", "bleu", "wer")] == [False, True, False]
