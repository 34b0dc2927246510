"""`translume tune`: a search over settings within a budget of time, by Optuna, which continues where it was stopped."""

import math
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from translume.atomic import make_folder
from translume.checkpoint import FolderLock
from translume.config import Config
from translume.data.corpus import texts_of
from translume.data.token_cache import prepare
from translume.errors import DataError, SettingsError, TrainingError
from translume.experiments.combinations import KIND, assignments, with_seed
from translume.experiments.measuring import Measured, measure_training
from translume.experiments.processes import Began, Run, Stopped, Task, run_tasks
from translume.experiments.search_space import Dimension, describe, refuse_unknown
from translume.tasks import find_task, task_of
from translume.training.events import Event, Finished, Interrupted, Progress, Started, Validated, Warned
from translume.training.resume import Store

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import BaseStorage

SHARE = 0.4
"""Share of the time that is kept for repeating the best trials with other seeds."""
BEST = 3
"""Number of trials that are repeated."""
RUNGS = (0.25, 0.5, 1.0)
"""Shares of the time of a training after which it is measured; all but the last are powers of the halving."""
SPARE = 1.15
"""Time of a training with its start and its measurements, relative to the time of its updates."""
SAVES = 40
"""Commits in a training of full length, of which the last ones are averaged."""
STARTS = 5
"""Number of trials before the sampler models which values are good."""
MAX_REFUSED = 50
"""Consecutive combinations that the settings may refuse before the search gives up."""
NEVER = 10**9
PER_CHARACTER = "nll per character"


@dataclass(frozen=True, slots=True)
class Segment(Task):
    """A part of a training: `seconds` of updates, then a measurement.

    since: time of the run when the part began, with earlier measurements.  trial: its number.
    seed: of a repetition with another seed; None in the search.
    """

    seconds: float = math.inf
    since: float = 0.0
    trial: int = 0
    seed: int | None = None

    def work(self, send: Callable[[object], None]) -> None:
        """Train and measure on the validation set, in the worker process; send events and the measures."""
        from translume.training.train import train

        state = Store(self.folder).state()
        left = self.seconds - (state.seconds - self.since if state else 0.0)
        begun, over, last = 0.0, False, None
        for event in train(self.config, self.folder, device=self.device, threads=self.threads):
            send(event)
            last = event
            if isinstance(event, Started):
                begun = time.monotonic()
            if isinstance(event, Progress) and not over and time.monotonic() - begun >= left:
                over = True
                signal.raise_signal(signal.SIGTERM)  # the training saves its state and ends
        if over and isinstance(last, Interrupted):
            # A run that ends with this update measures the weights that it keeps.
            ended = _with_training(self.config, {"updates": last.update})
            for event in train(ended, self.folder, device=self.device, threads=self.threads):
                last = event
                if isinstance(event, Warned | Validated | Finished):
                    send(event)
        if isinstance(last, Finished):
            send(self._measured())

    def _measured(self) -> Measured:
        found = measure_training(self.folder)
        if self.config.training.metric == "nll":
            value = nll_per_character(found.measures.nll, self.config, self.folder)
            scores = (*found.measures.scores, (PER_CHARACTER, value, ""))
            found = replace(found, measures=replace(found.measures, scores=scores))
        return found


def nll_per_character(nll: float | None, config: Config, folder: Path) -> float:
    """Return the validation nll in nats per character of the targets, which tokenizers do not change.

    nll: in nats per token.  folder: of the model.
    """
    if nll is None:
        raise TrainingError(f"{folder}: the head measures no nll, expected training.metric = 'bleu' or another metric")
    if find_task(config.data.task).predicts != "tokens":
        return nll
    model = Store(folder).model()
    assert model is not None
    corpus = prepare(
        config.data,
        model.source,
        model.target,
        folder / "cache",
        split="valid",
        max_positions=config.model.max_positions,
        language_tags=config.model.language_tags,
    )
    tokens = int(corpus.target_lengths.sum()) + corpus.pairs  # each has an EOS
    _, targets = texts_of(corpus, range(corpus.pairs))
    return nll * tokens / max(1, sum(map(len, targets)))


def _with_training(config: Config, values: Mapping[str, int]) -> Config:
    """Return settings with other values in [training]."""
    return config.model_copy(update={"training": config.training.model_copy(update=values)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The time of a search and what it runs on.

    minutes: for all of it.  seeds: other seeds with which the best are repeated.  workers: trainings at a time.
    """

    minutes: float
    seeds: int
    workers: int
    device: str
    threads: int | None

    @property
    def training_seconds(self) -> float:
        """The time of the updates of one training, such that the repetitions take their share."""
        return 60 * self.minutes * SHARE / (SPARE * math.ceil(BEST * self.seeds / self.workers))


class Search:
    """A search in a folder, in which an SQLite file holds the trials and each has the folder of its model.

    A trial is trained for a quarter of the time of a training, then to a half and to the whole if it is in the better
    half of the trials that came so far (asynchronous successive halving, Li et al. 2020). The first trial has the
    settings of `base`, and is always trained to the end.
    """

    def __init__(
        self, file: Path, overrides: Sequence[str], space: Sequence[Dimension], folder: Path, budget: Budget
    ) -> None:
        """Open the search, or begin it. Raises SettingsError if it began with other settings."""
        self.base = Config.read(file, overrides)
        refuse_unknown(space, self.base)
        if self.metric == PER_CHARACTER and any(each.path == KIND for each in space):
            raise SettingsError(f"--vary {KIND}: the nll of heads cannot be compared; set training.metric to 'bleu'")
        make_folder(folder)
        self.folder, self.space, self.budget = folder, tuple(space), budget
        self._file, self._overrides = file, tuple(overrides)
        self.study = open_study(folder, larger=self.larger, seed=self.base.training.seed)
        self._begin_or_refuse()
        self._ready: list[Trial] = [self._trial(each) for each in self._numbers("RUNNING")]
        self._until = time.monotonic() + max(0.0, 60 * budget.minutes - self.spent)
        self._clock = time.monotonic()

    @property
    def metric(self) -> str:
        """What the search compares."""
        return PER_CHARACTER if self.base.training.metric == "nll" else self.base.training.metric

    @property
    def larger(self) -> bool:
        """Whether larger values are better."""
        return task_of(self.base).larger_is_better(self.base.training.metric)

    @property
    def seconds(self) -> float:
        """The time of the updates of one training."""
        return float(self.study.user_attrs["seconds"])

    @property
    def spent(self) -> float:
        """The time of earlier calls in seconds."""
        return float(self.study.user_attrs.get("spent", 0.0))

    @property
    def left(self) -> float:
        """The seconds that are left for all of it."""
        return max(0.0, self._until - time.monotonic())

    def run(self) -> Iterator[tuple[Task, Began | Event | Run] | Stopped]:
        """Search, then repeat the best; yield what `run_tasks` yields."""
        with FolderLock(self.folder):
            for tasks in (self._segments(), self._repetitions()):
                for found in run_tasks(tasks, workers=self.budget.workers):
                    if not isinstance(found, Stopped) and isinstance(found[1], Run):
                        self._complete(found[0], found[1])
                    self._keep_time()
                    yield found
                    if isinstance(found, Stopped):
                        return

    def chosen(self, trial: int) -> dict[str, str]:
        """Return the values of a trial by path, as text; empty for the first one."""
        return dict(self.study.trials[trial].user_attrs.get("chosen", {}))

    def config(self, trial: int) -> Config:
        """Return the settings of a trial, as a user would train with them. Raises SettingsError if they are refused."""
        return Config.read(self._file, [*self._overrides, *assignments(self.base, self.chosen(trial))])

    def ranked(self) -> list[int]:
        """Return the numbers of the trials that were trained to the end, best first."""
        sign = -1 if self.larger else 1
        return sorted(self._numbers("COMPLETE"), key=lambda number: sign * (self.study.trials[number].value or 0.0))

    def repeated(self, trial: int) -> dict[int, float]:
        """Return the values of the repetitions of a trial by seed."""
        found: Mapping[str, float] = self.study.user_attrs.get(f"repeated {trial}", {})
        return {int(seed): value for seed, value in found.items()}

    def best(self) -> int:
        """Return the best trial by its mean over other seeds, where it was repeated; else by its own value.

        It is one of the best three, or the first, whose value is an unbiased one in any case.
        """
        sign = -1 if self.larger else 1

        def value(trial: int) -> float:
            repeated = self.repeated(trial).values()
            return sign * (sum(repeated) / len(repeated) if repeated else self.study.trials[trial].value or 0.0)

        return min(dict.fromkeys([*self.ranked()[:BEST], 0]), key=value)

    def state(self, trial: int) -> str:
        """Return "running" (also of trials that wait), "complete", "pruned" or "failed"."""
        found = self.study.trials[trial]
        return "failed" if "failure" in found.user_attrs else str(found.state.name.lower())

    def outcome(self, task: Task) -> str:
        """Return in words what became of a task that has ended."""
        assert isinstance(task, Segment)
        trial = self.study.trials[task.trial]
        name, found = f"trial {task.trial}", list(trial.intermediate_values.values())
        if task.seed is not None:
            name, found = f"{name}, seed {task.config.training.seed}", [*self.repeated(task.trial).values()]
            return f"{name}: {self.metric} {found[-1]:.3f}" if found else f"{name}: not measured"
        state = {"running": "goes on", "complete": "at its end"}.get(state := self.state(task.trial), state)
        return f"{name}: {self.metric} {found[-1]:.3f}, {state}" if found else f"{name}: not measured"

    # ---- what is trained next

    def _segments(self) -> Iterator[Segment]:
        while True:
            waiting = next((each for each in self._ready if each.number == 0 or self._fits(self._rung(each))), None)
            if waiting is not None:
                self._ready.remove(waiting)
                yield self._segment(waiting)
            elif self._fits(0):
                yield self._segment(self._ask())
            else:
                return

    def _fits(self, rung: int) -> bool:
        """Return whether the next segment of a trial and the repetitions fit in the time that is left."""
        done = sum(len(self.repeated(number)) for number in self.ranked()[:BEST])
        rounds = math.ceil((BEST * self.budget.seeds - done) / self.budget.workers)
        return self.left >= SPARE * self.seconds * (_share(rung) + rounds)

    def _ask(self) -> "Trial":
        """Return the next trial whose settings are not refused."""
        for _ in range(MAX_REFUSED):
            trial = self.study.ask()
            try:
                self._choose(trial)
                return trial
            except SettingsError as error:
                self._fail(trial, str(error))
                refused = error
        raise refused

    def _choose(self, trial: "Trial") -> None:
        """Store the values of a trial. Raises SettingsError if they are refused."""
        if trial.number == 0:
            for each in self.space:
                if each.of(self.base) is not None:
                    each.suggest(trial)
        else:
            trial.set_user_attr("chosen", {each.path: each.suggest(trial) for each in self.space})
        self.config(trial.number)

    def _segment(self, trial: "Trial") -> Segment:
        number, rung = trial.number, self._rung(trial)
        chosen = self.chosen(number)
        if not chosen:  # also if the process was killed before they were stored
            self._choose(trial)
        values = "" if rung else f" ({describe(self.chosen(number)) or 'the settings as given'})"
        return self._task(number, f"trial {number}{values}", share=_share(rung))

    def _repetitions(self) -> Iterator[Segment]:
        for trial in self.ranked()[:BEST]:
            for seed in range(1, self.budget.seeds + 1):
                number = self.base.training.seed + seed
                if number not in self.repeated(trial) and self.left >= SPARE * self.seconds * 0.5:
                    yield self._task(trial, f"trial {trial} again, seed {number}", share=1.0, seed=seed)

    def _task(self, trial: int, name: str, *, share: float, seed: int | None = None) -> Segment:
        """Return the task of a trial, validated only at its end and saved often enough for an average."""
        known = self.study.trials[trial].user_attrs
        every = max(1, int(known["updates"] / known["share"] / SAVES)) if known.get("updates") else NEVER
        config = _with_training(self.config(trial), {"patience": 0, "validate_every": NEVER, "save_every": every})
        folder = self.folder / f"trial-{trial:03d}"
        if seed is not None:
            config = with_seed(config, seed)
            folder = folder.with_name(f"{folder.name}-seed-{config.training.seed}")
        device, threads = self.budget.device, self.budget.threads
        return Segment(
            name,
            config,
            folder,
            sentences=0,
            device=device,
            threads=threads,
            seconds=share * self.seconds,
            since=known.get("since", 0.0) if seed is None else 0.0,
            trial=trial,
            seed=seed,
        )

    # ---- what is known

    def _complete(self, task: Task, run: Run) -> None:
        """Store the result of a segment, and decide whether its trial goes on."""
        assert isinstance(task, Segment)
        value = math.nan
        if run.measured is not None:
            scores = {name: found for name, found, _ in run.measured.measures.scores}
            value = scores[self.metric]
            run.failure = "" if math.isfinite(value) else f"{self.metric} is {value}"
        elif not run.failure:  # interrupted
            return
        if task.seed is not None:
            if not run.failure:
                found = {
                    **self.study.user_attrs.get(f"repeated {task.trial}", {}),
                    str(task.config.training.seed): value,
                }
                self.study.set_user_attr(f"repeated {task.trial}", found)
            return
        self._decide(self._trial(task.trial), task, value, run)

    def _decide(self, trial: "Trial", task: Segment, value: float, run: Run) -> None:
        from optuna.trial import TrialState

        rung = self._rung(trial)
        if run.failure:
            self._fail(trial, run.failure)
            if trial.number == 0:
                raise TrainingError(f"{self._file}: cannot be trained as it is: {run.failure}")
            return
        assert run.measured is not None
        state = Store(task.folder).state()
        found = {
            "updates": run.measured.measures.updates,
            "share": RUNGS[rung],
            "since": state.seconds if state else 0.0,
        }
        for name, each in found.items():
            trial.set_user_attr(name, each)
        trial.report(value, 2**rung)
        if rung + 1 == len(RUNGS):
            self.study.tell(trial, value)
        elif trial.should_prune() and trial.number != 0:
            self.study.tell(trial, state=TrialState.PRUNED)
            shutil.rmtree(task.folder, ignore_errors=True)
        else:
            self._ready.append(trial)

    def _fail(self, trial: "Trial", reason: str) -> None:
        """End a trial that cannot be trained. The sampler ignores failed trials, but learns from pruned ones."""
        from optuna.trial import TrialState

        trial.set_user_attr("failure", reason)
        self.study.tell(trial, state=TrialState.PRUNED)

    def _rung(self, trial: "Trial") -> int:
        """Return the index of the next rung of a trial: the number of its measurements."""
        return len(self.study.trials[trial.number].intermediate_values)

    def _trial(self, number: int) -> "Trial":
        from optuna.trial import Trial

        return Trial(self.study, self.study.trials[number]._trial_id)

    def _numbers(self, state: str) -> list[int]:
        return [each.number for each in self.study.trials if each.state.name == state]

    def _keep_time(self) -> None:
        """Add the time since the last call to what was spent, at most once a second."""
        now = time.monotonic()
        if now - self._clock >= 1:
            self.study.set_user_attr("spent", self.spent + now - self._clock)
            self._clock = now

    def _begin_or_refuse(self) -> None:
        """Store what must stay the same, or raise SettingsError for the first difference."""
        wanted = {**self.base.by_path(), "--vary": [str(each) for each in self.space]}
        began = self.study.user_attrs.get("began")
        if began is None:
            found = {each.path: value for each in self.space if (value := each.of(self.base)) is not None}
            self.study.enqueue_trial(found)
            self.study.set_user_attr("seconds", self.budget.training_seconds)
            self.study.set_user_attr("began", wanted)
            return
        for path in [each for each in wanted if began.get(each) != wanted[each]][:1]:
            raise SettingsError(
                f"{self.folder}: this search began with {path} = {began.get(path)!r}, found {wanted[path]!r}; "
                "expected the same settings, or another folder"
            )


def _share(rung: int) -> float:
    """Return the share of a training between a rung and the one before."""
    return RUNGS[rung] - (RUNGS[rung - 1] if rung else 0.0)


def open_study(folder: Path, *, larger: bool, seed: int) -> "Study":
    """Return the study in a folder; a new one if there is none. Raises DataError if its file cannot be read."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=storage_in(folder),
        study_name="tune",
        direction="maximize" if larger else "minimize",
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    )
    # Another seed after each start: the same one would draw the values of the first trials again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), n_startup_trials=STARTS)
    return study


def storage_in(folder: Path) -> "str | BaseStorage":
    """Return the address of the SQLite file in a folder. Raises DataError if it is there and cannot be read."""
    file = folder / "study.db"
    if "?" in str(file):
        raise DataError(f"{folder}: found '?', expected a folder without it, since SQLite's addresses end there")
    try:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA schema_version").fetchall()
    except sqlite3.Error as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    return f"sqlite:///{file}"
