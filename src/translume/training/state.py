"""What a resumed run needs besides tensors, and which settings may differ when it goes on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from translume.config import Config, Settings, TrainingSettings
from translume.errors import ModelFolderError, TrainingError

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
)
"""Settings of [training] that do not touch how weights move, but for `updates` with the schedule "cosine"."""


@dataclass(slots=True, kw_only=True)
class Window:
    """Sums over the updates since the last multiple of `log_every`."""

    objective: float = 0.0
    nll: float | None = 0.0
    tokens: int = 0

    def add(self, objective: float, nll: float | None, tokens: int) -> None:
        self.objective += objective
        self.nll = None if nll is None or self.nll is None else self.nll + nll
        self.tokens += tokens


@dataclass(slots=True, kw_only=True)
class Begun:
    """What a run began with and keeps: digests, arithmetic, the model it came from, its teacher ("" for none)."""

    source_tokenizer: str
    target_tokenizer: str
    data: str
    precision: str
    attention: str
    threads: int
    torch: str
    source_model: str
    teacher: str = ""


@dataclass(slots=True, kw_only=True)
class State:
    """Where a run stands after `update` updates; everything random follows from this and the settings.

    epoch, position: batches used.  validated: update of the last whole validation.  best_update, best_nll,
    best_metrics: the best validation by `metric`, None before the first.  waiting: validations since then.
    measured_by: digest of the validation data and of what a metric depends on, "" in folders older than it.
    candidates: updates whose weights are kept for averaging, oldest first.  mean_nll, mean_metrics: quality of their
    mean, measured when a run ends.  keeps_best: whether the best is the model, since that mean is worse.
    history_bytes: length of history.jsonl at the commit.  seconds: wall time so far.
    """

    begun: Begun
    update: int = 0
    epoch: int = 0
    position: int = 0
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
        """Let the next validation be the best whatever it finds: what was measured so far is not comparable."""
        self.best_update, self.best_nll, self.best_metrics, self.waiting = 0, None, {}, 0
        self.keeps_best = False

    def forget_mean(self) -> None:
        """The weights that would be averaged are others now."""
        self.mean_nll, self.mean_metrics, self.keeps_best = None, {}, False

    def kept_quality(self, settings: TrainingSettings) -> tuple[float | None, Mapping[str, float]]:
        """nll and metrics of the weights that are the model, as far as they were measured."""
        if settings.average_last > 1 and not self.keeps_best:
            return self.mean_nll, self.mean_metrics
        return self.best_nll, self.best_metrics

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, place: str) -> "State":
        """Raises ModelFolderError if the text is not a state."""
        try:
            values: dict[str, Any] = json.loads(data)
            begun, window = Begun(**values.pop("begun")), Window(**values.pop("window"))
            return cls(begun=begun, window=window, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelFolderError(f"{place}: not the state of a run: {error}") from None


def refuse_other_settings(folder: str, began: Config, found: Config, precision: str) -> None:
    """Raise TrainingError naming the first setting that a resumed run cannot change.

    precision: the one the run began with, which "auto" stands for.
    """
    for room, may_change in (("model", ()), ("tokenizer", ("path", "target_path")), ("training", MAY_CHANGE)):
        before, now = getattr(began, room), getattr(found, room)
        for name in type(before).model_fields:
            if name in may_change or (name == "precision" and {before.precision, now.precision} <= {"auto", precision}):
                continue
            old, new = getattr(before, name), getattr(now, name)
            if old != new:
                path, old, new = _inner(f"{room}.{name}", old, new)
                rule = f"; these may change: {', '.join(MAY_CHANGE)}" if room == "training" else ""
                raise TrainingError(f"{folder}: this run began with {path} = {old!r}, found {new!r}{rule}")


def refuse_other(folder: str, what: str, began: str, found: str) -> None:
    """Raise TrainingError if a digest is not the one a run began with."""
    if began != found:
        raise TrainingError(
            f"{folder}: this run began with other {what} (digest {began[:12]}, found {found[:12]}); "
            "train into another folder, or go on from this model with --from"
        )


def _inner(path: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """The first differing field of two groups of settings of one class; other values as they are."""
    if isinstance(old, Settings) and type(old) is type(new):
        for name in type(old).model_fields:
            if getattr(old, name) != getattr(new, name):
                return _inner(f"{path}.{name}", getattr(old, name), getattr(new, name))
    if isinstance(old, Settings) and isinstance(new, Settings):
        return f"{path}.kind", getattr(old, "kind", ""), getattr(new, "kind", "")
    return path, old, new
