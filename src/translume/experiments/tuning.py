"""`translume tune`: a search over settings within a budget of time, by Optuna, which continues where it was stopped."""

import math
import shutil
import signal
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from translume.atomic import make_folder
from translume.checkpoint import FolderLock
from translume.config import Config
from translume.data.corpus import texts_of
from translume.data.pairs import SPLITS, read_pairs
from translume.errors import DataError, SettingsError, TrainingError
from translume.experiments.combinations import KIND, assignments, with_seed
from translume.experiments.measuring import Measured, measure_training, validation_corpus
from translume.experiments.processes import Began, Run, Stopped, Task, run_tasks
from translume.experiments.search_space import Dimension, check_space, describe
from translume.tasks import task_of
from translume.training.events import Event, Finished, Interrupted, Progress, Started, Validated
from translume.training.resume import Store

if TYPE_CHECKING:
    from optuna import Study, Trial

SHARE = 0.5
"""Share of the time that is kept for repeating the best trials with other seeds."""
BEST = 3
"""Number of trials that are repeated."""
RUNGS = (0.25, 0.5, 1.0)
"""Shares of the time of a training after which it is measured."""
SPARE = 1.15
"""Time of a training with its starts and measurements, relative to that of its updates."""
SAVES = 40
"""Commits in a training of full length, of which the last ones are averaged."""
STARTS = 5
"""Number of random trials, after which the sampler models which values are good."""
MAX_REFUSED = 50
"""Consecutive combinations that the settings may refuse before the search gives up."""
MAX_FAILED = 5
"""Consecutive trainings that may fail before the search gives up, since the machine is then at fault."""
NEVER = 10**9
PER_CHARACTER = "nll per character"


@dataclass(frozen=True, slots=True)
class Segment(Task):
    """A part of a training: `seconds` of updates, then a measurement.

    since: time of the run when the part began, with earlier measurements.  trial: its number.
    seed: of a repetition with another seed; None in the search.  metric: what is measured as well as the nll.
    """

    seconds: float = math.inf
    since: float = 0.0
    trial: int = 0
    seed: int | None = None
    metric: str = "nll"

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
        other = self.metric != self.config.training.metric
        if (over and isinstance(last, Interrupted)) or (other and isinstance(last, Finished)):
            # A run that ends with this update measures the weights that it keeps; one that had ended needs another.
            updates = last.update + isinstance(last, Finished)
            config = self.config.with_values("training", {"updates": updates, "metric": self.metric})
            for event in train(config, self.folder, device=self.device, threads=self.threads):
                last = event
                if isinstance(event, Validated | Finished):
                    send(event)
        if isinstance(last, Finished):
            send(self._measured())

    def _measured(self) -> Measured:
        """Return what the training measured, and the nats per character, if the head has a nll."""
        measured, model = measure_training(self.folder), Store(self.folder).model()
        nll = measured.measures.nll
        if nll is None or model is None:
            return measured
        if task_of(self.config).predicts == "tokens":
            corpus = validation_corpus(self.config, model.source, model.target, self.folder)
            _, targets = texts_of(corpus, range(corpus.pairs))
            tokens = int(corpus.target_lengths.sum()) + corpus.pairs  # each target has an EOS
            nll *= tokens / max(1, sum(map(len, targets)))
        return replace(
            measured, measures=replace(measured.measures, scores=(*measured.measures.scores, (PER_CHARACTER, nll, "")))
        )


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
    """A search in a folder, where an SQLite file holds the trials and each trial has the folder of its model.

    A trial is trained for a quarter of the time of a training, then to a half and to the whole if it is in the better
    half of the trials that came as far before (asynchronous successive halving, Li et al. 2020). The first trial has
    the given settings, and is always trained to the end.

    Halves are compared by the nll per character of the validation targets, unless heads vary or have none. It is cheap,
    while translations of young models run to their length limit, and their metrics are 0 or chance.

    base: the given settings.  metric, larger: what is compared at the end, and whether larger values are better.
    early, early_sign: what is compared before, and the sign that makes it better where `metric` is.
    seconds: the time of the updates of one training.
    """

    def __init__(
        self, file: Path, overrides: Sequence[str], space: Sequence[Dimension], folder: Path, budget: Budget
    ) -> None:
        """Open the search, or begin it.

        Raises SettingsError if it began with other settings, DataError for a missing or empty file.
        """
        self.base = Config.read(file, overrides)
        metric = self.base.training.metric
        self.metric = PER_CHARACTER if metric == "nll" else metric
        self.larger = task_of(self.base).larger_is_better(metric)
        check_space(space, self.base)
        has_nll = self.base.model.head.measure == "nll"
        if metric == "nll" and not has_nll:
            raise SettingsError(f"{file}: training.metric: found 'nll', which the head does not have, expected another")
        alike = has_nll and all(each.path != KIND for each in space)
        self.early = PER_CHARACTER if alike else self.metric
        self.early_sign = -1 if alike and self.larger else 1
        for split in SPLITS:  # a missing or empty file is an error now, before a study is begun
            next(read_pairs(self.base.data, split), None)
        storage = storage_in(folder)
        self.folder, self.space, self.budget = folder, space, budget
        self._file, self._overrides = file, overrides
        self.study = open_study(storage, larger=self.larger, seed=self.base.training.seed)
        self._begin_or_refuse()
        self.seconds = float(self.study.user_attrs["seconds"])
        self._before, self._clock = float(self.study.user_attrs.get("spent", 0.0)), time.monotonic()
        self._ready: list[Trial] = []
        self._failed = 0  # trainings in a row

    @property
    def spent(self) -> float:
        """The seconds that all calls took so far."""
        return self._before + time.monotonic() - self._clock

    @property
    def left(self) -> float:
        """The seconds that are left for all of it."""
        return max(0.0, 60 * self.budget.minutes - self.spent)

    def run(self) -> Iterator[tuple[Task, Began | Event | Run] | Stopped]:
        """Search, then repeat the best; yield what `run_tasks` yields."""
        with FolderLock(self.folder):  # before the trials of a search that another process runs are touched
            for trial in map(self._trial, self._numbers("RUNNING")):
                self._decide(trial) if self._parts(trial.number) else self._ready.append(trial)
            for tasks in (self._segments(), self._repetitions()):
                for message in run_tasks(tasks, workers=self.budget.workers):
                    if isinstance(message, Stopped) or isinstance(message[1], Run):
                        self.study.set_user_attr("spent", self.spent)
                    if isinstance(message, Stopped):
                        yield message
                        return
                    if isinstance(message[0], Segment) and isinstance(message[1], Run):
                        self._complete(message[0], message[1])
                    yield message

    def chosen(self, trial: int) -> dict[str, str]:
        """Return the values of a trial by path, as text; empty for the first one."""
        return dict(self.study.trials[trial].user_attrs.get("chosen", {}))

    def config(self, trial: int) -> Config:
        """Return the settings of a trial, as a user would train with them. Raises SettingsError if they are refused."""
        return Config.read(self._file, [*self._overrides, *assignments(self.base, self.chosen(trial))])

    def ranked(self) -> list[int]:
        """Return the numbers of the trials that were trained to the end, best first."""
        trials = self.study.trials
        return sorted(self._numbers("COMPLETE"), key=lambda number: self._cost(trials[number].value))

    def curve(self, trial: int) -> list[float]:
        """Return the values of a trial by `early` after the rungs that it reached."""
        return [part["early"] for part in self._parts(trial)]

    def updates(self, trial: int) -> int:
        """Return the number of updates of a trial."""
        return int(self._parts(trial)[-1]["updates"]) if self._parts(trial) else 0

    def repeated(self, trial: int) -> dict[str, float]:
        """Return the values of the repetitions of a trial by seed."""
        return dict(self.study.user_attrs.get(f"repeated {trial}", {}))

    def best(self) -> int | None:
        """Return the best trial by its mean over other seeds, where it was repeated; else by its own value.

        It is one of the best three or the first, whose own value was not chosen; None if none came to its end. If any
        was repeated, others cannot be the best by a value that was the best of many.
        """
        trials = self.study.trials
        ranked = [each for place, each in enumerate(self.ranked()) if place < BEST or each == 0]
        if any(self.repeated(each) for each in ranked):
            ranked = [each for each in ranked if self.repeated(each) or each == 0]

        def cost(trial: int) -> float:
            repeated = self.repeated(trial).values()
            return self._cost(statistics.fmean(repeated) if repeated else trials[trial].value)

        return min(ranked, key=cost, default=None)

    def _cost(self, value: float | None) -> float:
        return math.inf if value is None else -value if self.larger else value

    # ---- what is trained next

    def _segments(self) -> Iterator[Segment | None]:
        """Yield the next part of a trial; None if there is no time for one, or only for those that are running."""
        while True:
            trial = next(
                (each for each in self._ready if each.number == 0 or self._fits(len(self._parts(each.number)))), None
            )
            if trial is not None:
                self._ready.remove(trial)
            elif self._fits(0):
                trial = self._ask()
            yield None if trial is None else self._segment(trial)

    def _fits(self, rung: int) -> bool:
        """Return whether the next part of a trial and the missing repetitions fit in the time that is left.

        The last trials that go on need not leave time for repetitions of others, which would begin too late.
        """
        ranked = self.ranked()
        done = sum(len(self.repeated(number)) for number in ranked[:BEST])
        count = min(BEST, len(ranked) + 1) if rung else BEST
        rounds = math.ceil((count * self.budget.seeds - done) / self.budget.workers)
        return self.left >= SPARE * self.seconds * (_share(rung) + rounds)

    def _ask(self) -> "Trial":
        """Return the next trial whose settings are not refused."""
        for _ in range(MAX_REFUSED):
            trial = self.study.ask()
            try:
                self._choose(trial)
                return trial
            except SettingsError as error:
                self._prune(trial, str(error))
                refused = error
        raise refused

    def _choose(self, trial: "Trial") -> None:
        """Store the values of a trial. Raises SettingsError if they are refused."""
        space = [each for each in self.space if trial.number or each.value_in(self.base) is not None]
        values = {each.path: each.suggest(trial) for each in space}
        if trial.number:
            trial.set_user_attr("chosen", values)
        self.config(trial.number)

    def _segment(self, trial: "Trial") -> Segment:
        number, rung = trial.number, len(self._parts(trial.number))
        if not self.chosen(number):  # also if the process was killed before they were stored
            self._choose(trial)
        values = "" if rung else f" ({describe(self.chosen(number)) or 'the settings as given'})"
        ends = rung + 1 == len(RUNGS)
        return self._task(number, f"trial {number}{values}", _share(rung), ends=ends)

    def _repetitions(self) -> Iterator[Segment]:
        for trial in self.ranked()[:BEST]:
            for seed in range(1, self.budget.seeds + 1):
                name = self.base.training.seed + seed
                if str(name) not in self.repeated(trial) and self.left >= self.seconds:
                    yield self._task(trial, f"trial {trial} again, seed {name}", 1.0, seed)

    def _task(self, trial: int, name: str, share: float, seed: int = 0, *, ends: bool = True) -> Segment:
        """Return the task of a trial, measured only at its end and saved often enough for an average.

        share: of a training.  seed: how many seeds after that of the trial.  ends: whether the training ends with it.
        """
        parts, folder = self._parts(trial), self.folder / f"trial-{trial:03d}"
        every = max(1, int(parts[-1]["updates"] / RUNGS[len(parts) - 1] / SAVES)) if parts else NEVER
        config = with_seed(self.config(trial), seed)
        final, early = config.training.metric, "nll" if self.early == PER_CHARACTER else self.metric
        own_training = {"patience": 0, "validate_every": NEVER, "save_every": every, "metric": early}
        config = config.with_values("training", own_training)
        own: dict[str, Any] = {"trial": trial, "since": parts[-1]["since"] if parts else 0.0}
        if seed:
            folder = folder.with_name(f"{folder.name}-seed-{config.training.seed}")
            own = {"trial": trial, "seed": config.training.seed}
        own |= {
            "metric": final if ends else early,
            "device": self.budget.device,
            "threads": self.budget.threads,
            "seconds": share * self.seconds,
        }
        return Segment(name, config, folder, sentences=0, **own)

    # ---- what is known

    def _value_of(self, run: Run, name: str) -> float:
        """Return what a run measured by this name, `metric` or `early`; NaN if it has not."""
        scores = run.measured.measures.scores if run.measured else ()
        return next((value for measure, value, _ in scores if measure == name), math.nan)

    def _complete(self, task: Segment, run: Run) -> None:
        """Store the result of a task. An interrupted one has none."""
        parts, state = self._parts(task.trial), Store(task.folder).state()
        ends = task.seed is not None or len(parts) + 1 == len(RUNGS)
        value, early = self._value_of(run, self.metric), self._value_of(run, self.early)
        if run.measured is not None and not all(map(math.isfinite, [early, value] if ends else [early])):
            run.failure = f"{self.early} is {early}, {self.metric} {value}"
        if task.seed is not None:
            if run.measured is not None and not run.failure:
                repeated = {**self.repeated(task.trial), str(task.seed): value}
                self.study.set_user_attr(f"repeated {task.trial}", repeated)
        elif run.failure:
            if task.trial == 0:  # which the next call tries again
                raise TrainingError(f"{self._file}: cannot be trained as it is: {run.failure}")
            self._prune(self._trial(task.trial), run.failure)
            self._failed += 1
            if self._failed == MAX_FAILED:
                raise TrainingError(f"{self.folder}: {MAX_FAILED} trials in a row failed, the last with: {run.failure}")
        elif run.measured is not None:
            self._failed = 0
            part = {"updates": run.measured.measures.updates, "since": state.seconds if state else 0.0, "early": early}
            trial = self._trial(task.trial)
            trial.set_user_attr("parts", [*parts, part | ({"value": value} if ends else {})])
            self._decide(trial)

    def _decide(self, trial: "Trial") -> None:
        """Decide whether a trial goes on after its last part. It may be asked again, if the process was killed here."""
        parts = self._parts(trial.number)
        step = 2 ** (len(parts) - 1)
        if step not in self.study.trials[trial.number].intermediate_values:
            trial.report(self.early_sign * parts[-1]["early"], step)
        if "value" in parts[-1]:
            self.study.tell(trial, parts[-1]["value"])
        elif trial.should_prune() and trial.number != 0:
            self._prune(trial)
            shutil.rmtree(self.folder / f"trial-{trial.number:03d}", ignore_errors=True)
        else:
            self._ready.append(trial)

    def _prune(self, trial: "Trial", failure: str = "") -> None:
        """End a trial. One that cannot be trained is pruned, too: the sampler ignores failed trials."""
        from optuna.trial import TrialState

        if failure:
            trial.set_user_attr("failure", failure)
        self.study.tell(trial, state=TrialState.PRUNED)

    def _parts(self, trial: int) -> list[dict[str, Any]]:
        """Return what was measured at the end of each part of a trial, which one write stores.

        "updates", "since": of the run until then, and its time with measurements.  "early", "value": by `early` and, at
        the end of the training, by `metric`.
        """
        return list(self.study.trials[trial].user_attrs.get("parts", []))

    def _trial(self, number: int) -> "Trial":
        from optuna.trial import Trial

        return Trial(self.study, self.study.trials[number]._trial_id)

    def _numbers(self, state: str) -> list[int]:
        return [each.number for each in self.study.trials if each.state.name == state]

    def _begin_or_refuse(self) -> None:
        """Store what must stay the same, or raise SettingsError for the first difference."""
        wanted = {**self.base.by_path(), "--vary": [str(each) for each in self.space]}
        began = self.study.user_attrs.get("began")
        if began is None:
            values = {each.path: value for each in self.space if (value := each.value_in(self.base)) is not None}
            self.study.enqueue_trial(values)
            self.study.set_user_attr("seconds", self.budget.training_seconds)
            self.study.set_user_attr("began", wanted)
        elif path := next((each for each in wanted if began.get(each) != wanted[each]), ""):
            raise SettingsError(
                f"{self.folder}: this search began with {path} = {began.get(path)!r}, found {wanted[path]!r}; "
                "expected the same settings, or another folder"
            )


def _share(rung: int) -> float:
    """Return the share of a training between a rung and the one before."""
    return RUNGS[rung] - (RUNGS[rung - 1] if rung else 0.0)


def open_study(storage: Any, *, larger: bool, seed: int) -> "Study":
    """Return the study in a storage; a new one if there is none."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=storage,
        study_name="tune",
        direction="maximize" if larger else "minimize",
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    )
    # Another seed after each start: the same one would draw the values of the first trials again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), n_startup_trials=STARTS)
    return study


def storage_in(folder: Path) -> Any:
    """Return the address of the SQLite file in a folder. Raises DataError if it cannot be read, or for an odd name."""
    file = folder / "study.db"
    if sign := next((each for each in "?%" if each in str(file)), ""):
        raise DataError(f"{folder}: found '{sign}' in the name, which addresses of SQLite files cannot have")
    make_folder(folder)
    try:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA schema_version").fetchall()
    except sqlite3.Error as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    return f"sqlite:///{file}"
