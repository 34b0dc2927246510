"""The interface of a task, and the table of tasks.

A `Task` contains everything that differs between translation, classification and other tasks. Code outside this package
does not branch on the task's name, but calls the methods of its `Task`. A method imports what it needs when it is
called, so that a task may use any package and reading settings stays fast.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from translume.errors import SettingsError
from translume.parts import find

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings

TASKS: dict[str, Any] = {
    "classification": "translume.tasks.classification:ClassificationTask",
    "language_model": "translume.tasks.language_model:LanguageModelTask",
    "sequence": "translume.tasks.sequence:SequenceTask",
}
"""The class of each task."""


class Task(ABC):
    """A task. Its name in `TASKS` is the value of `data.task`.

    summary: description for `--help`.  model: name of a model of the task in messages, such as "translator".
    command: the subcommand that runs a model, `translume COMMAND`.  example: name of one line of training data.
    target: name of the entries of the target vocabulary.  keys: default keys of JSONL and Parquet files.
    reads: "pairs" of a source and a target, or "documents", which are targets without a source, cut into blocks.
    predicts: the value of `predicts` of suitable output heads.
    metrics: names allowed for `training.metric` besides "nll", and whether a larger value is better.
    missing_target: the reason under which a line without a target is counted.
    keep_target: advice for giving a student the target vocabulary of its teacher: `{file}` is the teacher's file,
    `{count}` the size of the student's vocabulary.
    vocabulary_files: the files of the model folder with source and target vocabulary; a shared one is in
    "tokenizer_settings.json" instead of "source_settings.json" and "target_settings.json".
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    model: ClassVar[str]
    command: ClassVar[str]
    example: ClassVar[str]
    target: ClassVar[str]
    keys: ClassVar[tuple[str, str]]
    reads: ClassVar[Literal["pairs", "documents"]] = "pairs"
    predicts: ClassVar[Literal["tokens", "classes"]]
    metrics: ClassVar[Mapping[str, bool]]
    missing_target: ClassVar[str]
    keep_target: ClassVar[str]
    vocabulary_files: ClassVar[tuple[str, str]]

    @property
    def sequence_to_sequence(self) -> bool:
        """Whether models read sources and generate tokens, as translators do."""
        return self.reads == "pairs" and self.predicts == "tokens"

    def larger_is_better(self, metric: str) -> bool:
        """Return whether a larger value of `training.metric` is better; "nll" is smaller for better models."""
        if metric in self.metrics or metric == "nll":
            return metric != "nll" and self.metrics[metric]
        return bool(getattr(find("metric", metric), "larger_is_better", True))

    def metric_names(self) -> list[str]:
        """Return the names that `training.metric` may have."""
        return ["nll", *self.metrics]

    @abstractmethod
    def check(self, data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
        """Raise SettingsError, naming the place, if settings do not fit the task."""

    @abstractmethod
    def describe_vocabulary(self, source: int, target: int, *, shared: bool) -> str:
        """Return a phrase for the sizes of the vocabularies."""

    @abstractmethod
    def next_steps(self, folder: Path, config: "Config") -> str:
        """Return the commands to run after training."""

    @abstractmethod
    def vocabulary_class(self) -> Any:
        """Return the class of the target vocabulary, `Tokenizer` or `Labels`."""

    @abstractmethod
    def learn_vocabularies(self, config: "Config", learning: Callable[[tuple[str, ...]], object] | None) -> Any:
        """Return the vocabularies of source and target.  learning: see `vocabularies_of`."""

    @abstractmethod
    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        """Return the ids of the targets of pairs.  target: the target vocabulary."""

    @abstractmethod
    def make_batch(
        self, source: Any, target: Any, tokenizer: Any, vocabulary: Any, lines: tuple[int, ...], tags: Any = None
    ) -> Any:
        """Return a `Batch` of ragged ids.  tokenizer, vocabulary: of sources and targets.  tags: of languages."""

    @abstractmethod
    def build_network(self, settings: "ModelSettings", source_size: int, target_size: int, source: Any) -> Any:
        """Return an untrained network for vocabularies of the given sizes.  source: `data.source`."""

    @abstractmethod
    def head_data(self, source: Any, target: Any, corpus: Any) -> Any:
        """Return the `HeadData` from which a head computes its tables.  source, target: the vocabularies."""

    @abstractmethod
    def validation_metrics(self, model: Any, corpus: Any, network: Any, device: Any, group: Any) -> Any:
        """Return a function that measures the metrics of a network in training, or None if there are none."""

    @abstractmethod
    def checkpoint_class(self) -> Any:
        """Return the class of a loaded checkpoint."""

    @abstractmethod
    def user_class(self) -> Any:
        """Return the class of what `translume.load` returns, such as `Translator`."""

    @abstractmethod
    def describe_model(self, config: "Config") -> Any:
        """Return the `CardWords` of the model card."""

    @abstractmethod
    def evaluate(self, options: Any) -> None:
        """Run `translume evaluate`."""

    @abstractmethod
    def inspect_text(self, options: Any) -> None:
        """Run `translume inspect text`."""

    @abstractmethod
    def inspect_corpus(self, options: Any) -> None:
        """Run `translume inspect corpus`."""

    @abstractmethod
    def recommend(self, data: "DataSettings", count: int) -> Any:
        """Return the settings that `translume init` proposes for so many examples."""


def task_names() -> list[str]:
    """Return the names of all tasks."""
    return list(TASKS)


def find_task(name: str) -> Task:
    """Return the task of a name that `task_names` lists."""
    return _task_of_class(find("task", name))


@cache
def _task_of_class(kind: type[Task]) -> Task:
    return kind()


def task_of(config: "Config") -> Task:
    """Return the task that settings name in `data.task`."""
    return find_task(config.data.task)


def metric_names() -> list[str]:
    """Return every name that `training.metric` may have in any task."""
    return list(dict.fromkeys(metric for name in task_names() for metric in find_task(name).metric_names()))


def check_settings(data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
    """Raise SettingsError, naming `place`, if task, output head, metric and loss terms do not fit together."""
    from translume.config.heads import HeadKind  # here, since it loads pydantic

    task = find_task(data.task)
    if model.head.predicts != task.predicts:
        fitting = [kind for kind, head in HeadKind.kinds().items() if head.predicts == task.predicts]
        tasks = " or ".join(f"'{name}'" for name in task_names() if find_task(name).predicts == model.head.predicts)
        expected = f"model.head.kind = '{fitting[0]}'" if len(fitting) == 1 else f"data.task = {tasks}"
        raise SettingsError(
            f"{place}: data.task = '{task.name}' with model.head.kind = '{model.head.kind}', expected {expected}"
        )
    if training.metric not in task.metric_names():
        known = ", ".join(task.metric_names())
        raise SettingsError(f"{place}: training.metric: found '{training.metric}', known for this task: {known}")
    if data.noise is not None:
        _check_noise(data, training, task, place)
    task.check(data, model, training, place)
    if training.ctc_weight and (not data.source.reader or task.predicts != "tokens"):
        raise SettingsError(
            f"{place}: training.ctc_weight: found {training.ctc_weight}, must be 0 for {task.summary} "
            f"with data.source = '{data.source.kind}'"
        )
    if data.context.used:
        teacher, streaming, reader = training.teacher, data.streaming, data.source.reader
        others = {"training.teacher": teacher, "data.streaming": streaming, "data.source": reader}
        others["data.objective = 'denoise'"] = data.noise
        reasons = [f"with {name}" for name, found in others.items() if found]
        if not task.sequence_to_sequence or reasons:
            raise SettingsError(f"{place}: data.context: must be 0 {(*reasons, f'for a {task.model}')[0]}")
    if model.language_tags not in data.source.language_tags:
        wanted = " or ".join(map(repr, data.source.language_tags))
        raise SettingsError(
            f"{place}: model.language_tags: found {model.language_tags!r}, must be {wanted} with data.source = "
            f"'{data.source.kind}'"
        )
    if data.source.reader:
        _check_frames(data, model, task, place)
    if model.segment_pooling != "none":
        _check_pooling(model, task, place)
    for name, reason in model.head.inapplicable_settings.items():
        if found := getattr(training, name):
            off = "none" if isinstance(found, str) else "0"
            raise SettingsError(f"{place}: training.{name}: found {found}, must be {off} with {reason}")


def _check_noise(data: "DataSettings", training: "TrainingSettings", task: Task, place: str) -> None:
    """Raise SettingsError for settings that need pairs, where a model denoises texts."""
    for name, found, expected in (
        ("data.task", task.name, "sequence"),
        ("data.source", data.source.kind, "text"),
        ("data.cleaning.identical", data.cleaning.identical, False),
        ("training.metric", training.metric, "nll"),
        *(("data.target_language", each.target_language, each.source_language) for each in data.corpus or (data,)),
    ):
        if found != expected:
            raise SettingsError(
                f"{place}: {name}: found {found!r}, must be {expected!r} with data.objective = 'denoise'"
            )


def _check_pooling(model: "ModelSettings", task: Task, place: str) -> None:
    """Raise SettingsError for settings that need each token of a source as a position of the encoder."""
    if task.predicts != "tokens":
        raise SettingsError(
            f"{place}: model.segment_pooling: found '{model.segment_pooling}', must be 'none' for a {task.model}"
        )
    if model.head.reads_source:
        raise SettingsError(
            f"{place}: model.head.kind: '{model.head.kind}' reads the tokens of a source; "
            f"model.segment_pooling = '{model.segment_pooling}' joins them"
        )


_OF_TEXT = {"segments": 0, "pretrained_source": ""}
_RULES_OF_TEXT = {"too_long": "drop", "identical": False, "source_script": ""}


def _check_frames(data: "DataSettings", model: "ModelSettings", task: Task, place: str) -> None:
    """Raise SettingsError for settings that need sources of text, where the sources are frames."""
    kind = data.source.kind
    if task.reads == "documents" or task.predicts != "tokens":
        raise SettingsError(f"{place}: data.source: found '{kind}', must be 'text' for a {task.model}")
    if model.head.reads_source:
        raise SettingsError(
            f"{place}: model.head.kind: '{model.head.kind}' reads the tokens of a source; "
            f"data.source = '{kind}' has none"
        )
    if data.corpus:
        raise SettingsError(
            f"{place}: data.corpus: is for sources of text; expected data.train with data.source = '{kind}'"
        )
    for table, settings, wanted in (("model", model, _OF_TEXT), ("data.cleaning", data.cleaning, _RULES_OF_TEXT)):
        for name, value in wanted.items():
            if (found := getattr(settings, name)) != value:
                raise SettingsError(
                    f"{place}: {table}.{name}: found {found!r}, must be {value!r} with data.source = '{kind}'"
                )
