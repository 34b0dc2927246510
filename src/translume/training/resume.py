"""The state of a run: what is stored in `resume/`, and which weights become the model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from translume.checkpoint import (
    FORMAT,
    VOCABULARIES,
    Content,
    Manifest,
    commit,
    committed,
    copy_decoding_files,
    model_files,
    read_config,
    read_lengths,
    read_tensors,
    read_vocabularies,
    stale_decoding_files,
    tensor_file,
    verified,
)
from translume.config import Config, Settings, TrainingSettings
from translume.data.lengths import Lengths
from translume.errors import ModelFolderError, TrainingError
from translume.json_values import adapter
from translume.text import Labels, Tokenizer
from translume.training.optimisation import Weights, mean, mean_by_name

MAY_CHANGE = (
    "updates",
    "validate_every",
    "validation_sentences",
    "save_every",
    "keep",
    "average_last",
    "patience",
    "metric",
    "log_every",
    "shard",
    "activation_checkpointing",
    "compile",
)
"""Settings of [training] that do not change the updates, except `updates` with the schedule "cosine"."""


@dataclass(slots=True, kw_only=True)
class Window:
    """Sums over the updates since the last multiple of `log_every`."""

    objective: float = 0.0
    nll: float | None = 0.0
    tokens: int = 0
    routing: tuple[float, ...] = (0.0, 0.0, 0.0)
    """As `HeadLoss.routing`."""

    def add(self, objective: float, nll: float | None, tokens: int, routing: Sequence[float]) -> None:
        self.objective += objective
        self.nll = None if nll is None or self.nll is None else self.nll + nll
        self.tokens += tokens
        self.routing = tuple(map(sum, zip(self.routing, routing, strict=True)))


@dataclass(slots=True, kw_only=True)
class Begun:
    """Facts that stay fixed for a run: digests, precision, the fine-tuned model and the teacher ("" for none).

    source_digest: SHA-256 of the fine-tuned model's weights file; "" in old folders.  processes: number of them.
    batches: "lengths" or "buckets", the kind of their plans; see `training.batches`.  compiled: what "auto" stands for
    in `training.compile`, on a GPU.
    """

    source_tokenizer: str
    target_tokenizer: str
    data: str
    precision: str
    threads: int
    torch: str
    source_model: str
    teacher: str = ""
    source_digest: str = ""
    processes: int = 1
    compiled: bool = False
    batches: str = "lengths"


@dataclass(slots=True, kw_only=True)
class State:
    """The state of a run after `update` updates. With the settings, it determines all random numbers.

    epoch, place, position: the plan of batches, and how many of them are used; see `training.batches`.
    validated: update of the last complete validation.  best_update, best_nll, best_metrics: the best validation by
    `metric`, None before the first.  waiting: validations since then.
    measured_by: digest of the validation data and of the settings that a metric depends on; "" in old folders.
    candidates: updates whose weights are kept for averaging, oldest first.  mean_nll, mean_metrics: quality of their
    mean, measured at the end of a run.  keeps_best: whether the best is the model because that mean is worse.
    history_bytes: length of history.jsonl at the commit.  seconds: wall time so far.
    """

    begun: Begun
    update: int = 0
    epoch: int = 0
    position: int = 0
    place: dict[str, Any] = field(default_factory=dict)
    validated: int = 0
    metric: str = "nll"
    best_update: int = 0
    best_nll: float | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    waiting: int = 0
    measured_by: str = ""
    candidates: list[int] = field(default_factory=list)
    mean_nll: float | None = None
    mean_metrics: dict[str, float] = field(default_factory=dict)
    keeps_best: bool = False
    window: Window = field(default_factory=Window)
    history_bytes: int = 0
    seconds: float = 0.0

    def forget_best(self) -> None:
        """Discard the best validation, since earlier values are not comparable. The next one becomes the best."""
        self.best_update, self.best_nll, self.best_metrics, self.waiting = 0, None, {}, 0
        self.keeps_best = False

    def forget_mean(self) -> None:
        """Discard the quality of the mean, because the mean has changed."""
        self.mean_nll, self.mean_metrics, self.keeps_best = None, {}, False

    def kept_quality(self, settings: TrainingSettings) -> tuple[float | None, Mapping[str, float]]:
        """Return nll and metrics of the weights that become the model, if measured."""
        if settings.average_last > 1 and not self.keeps_best:
            return self.mean_nll, self.mean_metrics
        return self.best_nll, self.best_metrics

    def to_json(self) -> bytes:
        return adapter(State).dump_json(self, indent=1) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, place: str) -> "State":
        """Read a state; ModelFolderError if the text is not one."""
        try:
            state: State = adapter(State).validate_json(data)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"]))
            raise ModelFolderError(f"{place}: not the state of a run: {where}: {fault['msg']}") from None
        return state


def refuse_other_settings(folder: str, began: Config, current: Config, precision: str) -> None:
    """Raise TrainingError for the first setting that differs and must not change when a run is resumed.

    precision: the one that the run began with, which "auto" resolved to.
    """
    for table, may_change in (("model", ()), ("tokenizer", ("path", "target_path")), ("training", MAY_CHANGE)):
        before, now = getattr(began, table), getattr(current, table)
        for name in type(before).model_fields:
            if name in may_change or (name == "precision" and {before.precision, now.precision} <= {"auto", precision}):
                continue
            old, new = getattr(before, name), getattr(now, name)
            if old != new:
                path, old, new = first_difference(f"{table}.{name}", old, new)
                rule = f"; these may change: {', '.join(MAY_CHANGE)}" if table == "training" else ""
                raise TrainingError(f"{folder}: this run began with {path} = {old!r}, found {new!r}{rule}")
    for name in (
        "source",
        "streaming",
        "objective",
        *(["denoising"] if current.data.noise else []),
        "block_length",
        "label_separator",
        *(["shuffle_buffer"] if current.data.streaming else []),
    ):
        if getattr(began.data, name) != getattr(current.data, name):
            path, old, new = first_difference(f"data.{name}", getattr(began.data, name), getattr(current.data, name))
            raise TrainingError(f"{folder}: this run began with {path} = {old!r}, found {new!r}")


def refuse_other(folder: str, what: str, began: str, current: str) -> None:
    """Raise TrainingError if a digest is not the one a run began with."""
    if began != current:
        raise TrainingError(
            f"{folder}: this run began with other {what} (digest {began[:12]}, now {current[:12]}); "
            "train into another folder, or fine-tune this model with --from"
        )


def first_difference(path: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Return the path and values of the first field in which two groups of settings differ, or of the values given."""
    if isinstance(old, Settings) and type(old) is type(new):
        for name in type(old).model_fields:
            if getattr(old, name) != getattr(new, name):
                return first_difference(f"{path}.{name}", getattr(old, name), getattr(new, name))
    if isinstance(old, Settings) and isinstance(new, Settings):
        return f"{path}.kind", getattr(old, "kind", ""), getattr(new, "kind", "")
    return path, old, new


STATE = "resume/state.json"
RAW = "resume/raw.safetensors"
OPTIMIZER = "resume/optimizer.safetensors"
EMA = "resume/ema.safetensors"
BEST = "resume/best.safetensors"
FROZEN = "resume/frozen.safetensors"
CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"


def candidate(update: int) -> str:
    """Return the file of the weights after `update`, kept for averaging."""
    return f"resume/candidate-{update:08d}.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The tensors of a run at one moment, by name.

    raw: the trained weights, which training continues from.  ema: their moving average, or empty.  buffers: tensors of
    the model besides its weights.  optimizer: moments and step counts.  frozen: weights that are not trained, or empty.
    merge: maps trained weights to those of the model that they change: the same, but for low-rank adapters.
    """

    raw: Mapping[str, Tensor]
    ema: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor]
    merge: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

    def model(self, trained: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return all weights of the model for given trained ones."""
        merged = self.merge(trained)
        return {**self.frozen, **merged} if self.frozen else merged

    @property
    def shown(self) -> Mapping[str, Tensor]:
        """The trained weights to validate, average and keep: their moving average if there is one, else as they are."""
        return self.ema or self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """The content of a model folder besides its weights.  lengths: None until the training data are prepared."""

    config: Config
    source: Tokenizer
    target: Tokenizer | Labels
    lengths: Lengths | None = None


class Store:
    """Reads and commits the model folder of a run. The caller holds its lock, unless it only reads."""

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        """writes: whether commits are made; only rank 0 of several processes makes them."""
        self.folder, self._writes = folder, writes
        self._manifest = Manifest.read(folder) if (folder / "manifest.json").exists() else Manifest(files={})
        self._intact: set[str] = set()
        self._decoding_files: tuple[Config, tuple[Config, dict[str, bytes]]] | None = None

    def has(self, name: str) -> bool:
        """Return whether the last commit contains a file of this name."""
        return name in self._manifest.files

    def tensors(self, name: str) -> Weights:
        """Return the tensors of a committed safetensors file, on the CPU.

        Raises ModelFolderError if it is damaged; the text says how to train on from the model's weights.
        """
        return dict(read_tensors(self._verified(name)))

    def _verified(self, name: str) -> Path:
        """Return the path of a committed file, whose digest is checked the first time."""
        file = committed(self.folder, self._manifest, name)
        if file.name not in self._intact:
            try:
                verified(self.folder, self._manifest, name)
            except ModelFolderError as error:
                raise ModelFolderError(f"{error}; {self._way_out()}") from None
            self._intact.add(file.name)
        return file

    def _way_out(self) -> str:
        """Return what may be done when a file of the run is damaged."""
        try:
            verified(self.folder, self._manifest, WEIGHTS)
        except ModelFolderError:
            return "restore the folder from a copy"
        return f"the model itself is intact: restore this file from a copy, or train on with --from {self.folder}"

    def state(self) -> State | None:
        """Return the state of the run; None before its first saved update, or if `resume/` was deleted."""
        if not self.has(STATE) or not (self.folder / STATE).parent.is_dir():
            return None
        return State.from_json(self._verified(STATE).read_bytes(), place=f"{self.folder}/{STATE}")

    def model(self) -> ModelDescription | None:
        """Return settings and vocabularies of the last commit; None if there was none."""
        if not self.has(CONFIG):
            return None
        source, target = read_vocabularies(self.folder, self._manifest)
        return ModelDescription(
            config=read_config(self.folder, self._manifest),
            source=source,
            target=target,
            lengths=read_lengths(self.folder, self._manifest),
        )

    def read_decoding_files(self, config: Config) -> tuple[Config, dict[str, bytes]]:
        """Read the files that [decoding] names, once. Return the settings with their new names, and their content.

        Raises DataError if a file cannot be read.
        """
        if self._decoding_files is None or self._decoding_files[0] is not config:
            self._decoding_files = config, copy_decoding_files(config)
        return self._decoding_files[1]

    def begin(self, model: ModelDescription) -> None:
        """Commit settings and vocabularies, before the first update."""
        if not self._writes:
            return
        files = self._files(model, {})
        del files[WEIGHTS]
        self._commit(files, [name for name in VOCABULARIES if name not in files])

    def restate(self, config: Config) -> bool:
        """Commit changed settings without new weights. Return whether anything changed."""
        config, named = self.read_decoding_files(config)
        files: dict[str, bytes] = {CONFIG: config.model_copy(update={"format": FORMAT}).to_toml().encode(), **named}
        old = self._manifest.files
        changed = stale_decoding_files(self._manifest, named) or any(
            name not in old or old[name].sha256 != sha256(content).hexdigest() for name, content in files.items()
        )
        if changed and self._writes:
            self._commit(files, [])
        return bool(changed)

    def save(self, state: State, model: ModelDescription, live: Live, best: Weights | None) -> None:
        """Commit the current state of a run.  best: the best weights if they changed since the last commit."""
        if not self._writes:
            return
        weights = {**self.kept(state, model.config.training, live, best), **live.buffers}
        files = self._files(model, weights)
        files[STATE] = state.to_json()
        files[RAW] = tensor_file(live.raw)
        if live.frozen and not self.has(FROZEN):
            files[FROZEN] = tensor_file(live.frozen)
        files[OPTIMIZER] = tensor_file(live.optimizer)
        if live.ema:
            files[EMA] = tensor_file(live.ema)
        if best is not None:
            files[BEST] = tensor_file(best)
        if state.update in state.candidates:
            files[candidate(state.update)] = tensor_file(live.shown)
        wanted = {candidate(update) for update in state.candidates}
        names = [name for name in self._manifest.files if name.startswith("resume/candidate-")]
        self._commit(files, [name for name in names if name not in wanted])

    def kept(self, state: State, settings: TrainingSettings, live: Live, best: Weights | None) -> Mapping[str, Tensor]:
        """Return the weights that become the model: the mean of the last `average_last`, the best, or the current ones.

        With averaging, the best are returned if the mean was measured and is worse.
        """
        if settings.average_last > 1 and not state.keeps_best:
            earlier = averaged_with(state, settings)
            if not earlier:
                return live.model(live.shown)
            if not live.frozen:
                return mean_by_name(list(self._members(earlier, live)))
            return {**live.frozen, **mean(map(live.merge, self._members(earlier, live)))}
        if best is None:
            best = self.tensors(BEST) if state.best_update and self.has(BEST) else None
        return live.model(live.shown if best is None else best)

    def _members(self, earlier: Iterable[int], live: Live) -> Iterator[Mapping[str, Tensor]]:
        for update in earlier:
            yield self.tensors(candidate(update))
        yield live.shown

    def _files(self, model: ModelDescription, weights: Mapping[str, Tensor]) -> dict[str, Content]:
        config, named = self.read_decoding_files(model.config)
        return {**model_files(config, weights, model.source, model.target, model.lengths), **named}

    def _commit(self, files: Mapping[str, Content], remove: Iterable[str]) -> None:
        self._manifest = commit(self.folder, files, remove={*remove, *stale_decoding_files(self._manifest, files)})


def add_candidate(state: State, settings: TrainingSettings) -> bool:
    """Add the current weights to the candidates for averaging if `average_last` is above 1, and drop the oldest.

    Return whether they were added. Their file is written by the next save.
    """
    maximum = max(settings.keep, settings.average_last) if settings.average_last > 1 else 0
    new = maximum > 0 and state.update not in state.candidates
    if new:
        state.candidates.append(state.update)
    del state.candidates[: max(0, len(state.candidates) - maximum)]
    return new


def averaged_with(state: State, settings: TrainingSettings) -> list[int]:
    """Return the updates whose weights are averaged with the current ones."""
    earlier = [update for update in state.candidates if update != state.update]
    return earlier[1 - settings.average_last :] if settings.average_last > 1 else []


def describe_kept_weights(state: State, settings: TrainingSettings) -> str:
    """Describe the weights that `Store.kept` returns."""
    weights = "moving average of the weights" if settings.ema else "weights"
    if settings.average_last > 1 and not state.keeps_best:
        updates = [*averaged_with(state, settings), state.update]
        if len(updates) > 1:
            return f"the mean of the {weights} after updates {', '.join(map(str, updates))}"
        return f"the {weights} after update {state.update}"
    if state.best_update:
        best = f"the {weights} after update {state.best_update}, the best by {settings.metric}"
        if not state.keeps_best:
            return best
        count = len(averaged_with(state, settings)) + 1
        return f"{best} and better than " + (f"the mean of the last {count}" if count > 1 else "the last")
    return f"the {weights} after update {state.update}"
