"""`train`: run the training loop and yield its events."""

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translume.checkpoint import (
    Card,
    FolderLock,
    build_network,
    data_of_history,
    model_folder,
    read_history,
    refuse_threads,
    write_card,
)
from translume.config import Config, TrainingSettings
from translume.data.addresses import is_address
from translume.data.batch import Batch
from translume.data.cleaning import Account
from translume.data.pairs import SPLITS, origins
from translume.data.token_cache import files_of
from translume.device import UsageMeter
from translume.errors import ModelFolderError, TrainingError, suggest_keywords
from translume.kernels.allocator import keep_freed_memory, limit_cached_kernels, return_freed_memory
from translume.tasks import task_of
from translume.training.batches import Sums, finite, gather, plan_kind
from translume.training.device_guard import LateNumbers
from translume.training.device_passes import deterministic_kernels
from translume.training.events import (
    Event,
    Finished,
    History,
    Interrupted,
    Preparing,
    Progress,
    Reason,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
)
from translume.training.group import Group, joined
from translume.training.interrupt import Interruption, SignalFlag
from translume.training.live_curve import LiveCurve
from translume.training.mapped import stored
from translume.training.optimisation import Updater, Weights, learning_rate
from translume.training.prepare import (
    CACHE,
    Prepared,
    PreparedData,
    RunPlan,
    divides_weights,
    facts_of_leader,
    fit_memory,
    plan_run,
    prepare_data,
    prepare_network,
    prepare_run,
)
from translume.training.resume import Begun, State, Store, Window, add_candidate, describe_kept_weights
from translume.training.sharded import sent
from translume.training.validation import Quality, Validator, clearly_better, improves, measured_by

_NAMED_PAIRS = 8

MAX_LATE = 2
"""Updates that a device may be behind the host, which prepares their batches."""
MAX_OVERFLOWS = 30
"""Consecutive updates that fp16 may leave out; as many halve the scale of losses to nothing."""
UNCOMPILED = 8
"""Updates on a GPU before the passes are compiled. It is a fixed number, because compiled passes round differently and
draw other dropout: a resumed run must change at the same update."""


@suggest_keywords
def train(
    config: Config,
    folder: Path | str,
    *,
    source: Path | str | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Iterator[Event]:
    """Train a model into `folder`, and yield events. The same call again resumes where the last one ended.

    source: a model folder or hf://owner/name[@revision]; a copy of it is fine-tuned. Settings that `config` does not
    state are those of this model, except [training]; see `inherit_settings`.
    threads: None for the number with which the run began; for a new run, torch's number.
    A run in `folder` is resumed, even if its process was killed; on the same machine's CPU the result is the same, bit
    for bit. `updates` and settings of validation, saving and logging may change in between. Raises TrainingError for
    any other change, for a loss that is not finite, and if another process trains in the folder. On SIGINT, SIGTERM and
    SIGHUP the run is saved and ends with `Interrupted`, if the generator runs in the main thread and the data are
    prepared. In processes that torchrun started, all of them train one model and yield the same events; only rank 0
    writes the folder. In a notebook, one output of the cell shows the losses as they change.
    """
    if not isinstance(config, Config):
        raise TypeError(f"config: found {type(config).__name__}, expected a Config; Config.read reads one from a file")
    refuse_threads(threads)
    with joined() as group, ExitStack() as stack:
        group.refuse_differences({**config.by_path(), "--from": str(source or ""), "torch": torch.__version__})
        with closing(_train(config, Path(folder), source, device, threads, group, stack)) as events:
            yield from map(LiveCurve().shown, events)


def _train(
    config: Config,
    folder: Path,
    source: Path | str | None,
    device: str,
    threads: int | None,
    group: Group,
    stack: ExitStack,
) -> Generator[Event, None, None]:
    """Train as one process of a group.  stack: closes what this process holds when the run ends."""
    with group.in_turn():
        origin = model_folder(source) if source is not None else None
        for split in SPLITS:
            origins(config.data, split)  # refuses impossible settings before the folder is made
        _refuse_another_readme(folder)
        if group.leads:
            stack.enter_context(FolderLock(folder))
        store = Store(folder, writes=group.leads)
        plan = plan_run(config, store, origin)
        plan.config.check_decoding(plan.config.decoding)
        finished, data = _finished_already(plan, store), None
        if finished is None:
            place = group.device(device)
            if place.type == "cuda":
                stack.enter_context(deterministic_kernels(wanted=plan.config.training.deterministic))
            limit_cached_kernels()
            if divides_weights(plan.config.training, group):
                return_freed_memory()
            else:
                keep_freed_memory()
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads or (plan.state.begun.threads if plan.state else torch.get_num_threads()))
            data = yield from prepare_data(plan, store)
        elif _has_data(plan, store):
            yield from _take_over(plan, store, (yield from prepare_data(plan, store)))
    if finished is not None or data is None:
        if finished is not None:
            yield finished
        return
    group.refuse_differences({"the digest of the training pairs": data.digest})
    data = yield from fit_memory(plan, data, group=group, device=place)
    with group.together():
        untrained = yield from prepare_network(plan, store, data, source=origin, group=group, device=place)
    untrained.begun = facts_of_leader(untrained.begun, group)
    with group.together():
        prepared = prepare_run(plan, store, data, untrained, group)
        stack.callback(prepared.stream.plans.close)
        validator = _validator(prepared)
        run = Run(prepared, store, validator)
    prepared.receive()
    for event in _first_events(plan, prepared, store, validator):
        yield run.record(event)
    yield from run.events()


def _refuse_another_readme(folder: Path) -> None:
    """Raise TrainingError if the model card would overwrite another README.md."""
    if (folder / "README.md").exists() and not (folder / "manifest.json").exists():
        raise TrainingError(f"{folder}/README.md: exists, but the folder holds no model; expected an empty folder")


def _finished_already(plan: RunPlan, store: Store) -> Finished | None:
    """Return the last event of a run that is complete, without reading data; None if it must continue."""
    state, settings = plan.state, plan.config.training
    if state is None:
        return None
    reason = end_reason(state.update, state.waiting, settings)
    interrupted = reason == "updates" and state.validated != state.update  # in the last validation
    if reason is None or interrupted or plan.outdated or plan.stored is None:
        return None
    return _finished(state, plan.stored.config, store.folder, reason, already=True)


def _finished(
    state: State, config: Config, folder: Path, reason: Reason, *, already: bool, training: Account | None = None
) -> Finished:
    """Return the last event of a run, with the quality of the weights that are the model."""
    nll, metrics = state.kept_quality(config.training)
    return Finished(
        update=state.update,
        reason=reason,
        kept=describe_kept_weights(state, config.training),
        nll=nll,
        metrics=metrics,
        best_update=state.best_update or state.update,  # without a best, the last are kept
        folder=folder,
        already=already,
        measure=config.model.head.measure,
        training=training,
    )


def _has_data(plan: RunPlan, store: Store) -> bool:
    """Return whether the data of a finished run are there, or others are named, to be compared with those it used."""
    assert plan.stored is not None
    if plan.stored.config.data != plan.config.data:
        return True
    files = [file for split in SPLITS for place in origins(plan.config.data, split) for file in place.files]
    return (store.folder / CACHE).is_dir() and not any(
        not is_address(file) and not Path(file).exists() for file in files
    )


def _take_over(plan: RunPlan, store: Store, data: PreparedData) -> Iterator[Event]:
    """Store settings of a finished run that do not change its weights, such as [decoding], and yield warnings."""
    assert plan.stored is not None
    assert plan.state is not None
    config = plan.config.model_copy(update={"training": plan.stored.config.training})
    measured = measured_by(config, data.validation)
    if store.restate(config):
        yield Preparing(what="changed settings, stored in the folder")
    if plan.state.measured_by not in ("", measured):
        message = (
            "the validation data or settings changed after this run had finished: its validation is the earlier one; "
            "measure the model with `translume evaluate`, or raise training.updates to train on"
        )
        yield Warned(update=plan.state.update, message=message)


def _first_events(plan: RunPlan, prepared: Prepared, store: Store, validator: Validator) -> Iterator[Event]:
    """Yield the first events of a run: its state, and warnings about changes since the last process."""
    state, settings = prepared.state, prepared.model.config.training
    files = prepared.files
    if origins(prepared.model.config.data, "valid"):
        files = [*files, *files_of(prepared.validation, "valid", store.folder / CACHE)]
    training = prepared.stream.plans.account
    yield Started(
        update=state.update,
        updates=settings.updates,
        folder=store.folder,
        training=training,
        validation=prepared.validation.account,
        training_pairs=training.used,
        validation_pairs=prepared.validation.pairs,
        source_vocabulary=len(prepared.model.source),
        target_vocabulary=len(prepared.model.target),
        parameters=validator.parameters,
        trained_parameters=prepared.updater.trained_parameters,
        precision=state.begun.precision,
        device=str(prepared.device),
        threads=torch.get_num_threads(),
        files=tuple(files),
        processes=prepared.group.size,
        streamed=prepared.model.config.data.streaming,
        base=_base_data(Path(state.begun.source_model), plan.base_digest) if plan.base is not None else None,
    )
    if plan.state is None:
        state.measured_by = measured_by(prepared.model.config, prepared.validation)
        return
    yield Resumed(update=state.update, updates=settings.updates, folder=store.folder)
    for message in _changes(plan, prepared):
        yield Warned(update=state.update, message=message)


def _base_data(folder: Path, digest: str) -> dict[str, Any]:
    """Return the base model and the data that went into it, for audits of the fine-tuned model."""
    return {"model": str(folder), "weights_sha256": digest, **data_of_history(read_history(folder))}


def _changes(plan: RunPlan, prepared: Prepared) -> Iterator[str]:
    """Yield warnings about changes since a resumed run began; discard the best validation if it is not comparable."""
    state, settings = prepared.state, prepared.model.config.training
    begun, threads = state.begun, torch.get_num_threads()
    for what, then, now in (
        ("threads", begun.threads, threads),
        ("torch", begun.torch, torch.__version__),
        ("processes", begun.processes, prepared.group.size),
    ):
        if then != now:
            yield f"this run began with {what} {then}, now {now}: weights may differ in the last bits"
    if begun.batches != plan_kind(prepared.device):
        where, kind, here = "GPU", "in buckets", "CPU"
        if begun.batches == "lengths":
            where, kind, here = "CPU", "of similar lengths", "GPU"
        yield (
            f"this run began on a {where} with batches {kind}, now on a {here}: the same batches, which are slower here"
        )
    if plan.stored is not None and prepared.updater.late:
        now = compiles(settings, begun)
        if now != compiles(plan.stored.config.training, begun):
            yield f"compile is now {str(now).lower()}: weights may differ in the last bits"
    earlier = plan.stored.config.training.updates if plan.stored else settings.updates
    if settings.schedule == "cosine" and earlier != settings.updates:
        yield f"updates was {earlier}, now {settings.updates}: the learning rate follows the new cosine from here on"
    measured = measured_by(prepared.model.config, prepared.validation)
    if state.metric != settings.metric:
        yield f"metric was {state.metric}, now {settings.metric}: the best validation and the patience start again"
        state.forget_best()
    elif state.measured_by not in ("", measured):
        yield "the validation data or settings changed: the best validation and the patience start again"
        state.forget_best()
    state.metric, state.measured_by = settings.metric, measured


def _validator(prepared: Prepared) -> Validator:
    """Make a validator with its own fp32 network, so that the measured weights are those that would be saved."""
    model = prepared.model
    with torch.random.fork_rng(devices=[]):
        network = build_network(model.config, len(model.source), len(model.target)).to(prepared.device)
    network.load_state_dict(prepared.live().buffers, strict=False)
    return Validator(
        model=network,
        corpus=prepared.validation,
        max_tokens=model.config.training.batch_tokens,
        device=prepared.device,
        task_metrics=task_of(model.config).validation_metrics(
            model, prepared.validation, network, prepared.device, prepared.group
        ),
        group=prepared.group,
        keeps_memory=not prepared.divided,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """An update that was made, or is being made on a device.

    numbers: objective, nll, norm and tokens of all processes, the objective of this one, and on a device those of its
    batches.
    """

    update: int
    epoch: int
    sums: Sums
    rate: float
    numbers: LateNumbers


class Run:
    """The training loop. Everything that must survive the process is in the store and in the state."""

    def __init__(self, prepared: Prepared, store: Store, validator: Validator) -> None:
        self._prepared, self._store, self._validator, self._group = prepared, store, validator, prepared.group
        self._state, self._settings = prepared.state, prepared.model.config.training
        self._measure = prepared.model.config.model.head.measure
        self._larger = task_of(prepared.model.config).larger_is_better(self._settings.metric)
        self._history = None
        if self._group.leads:
            self._history = History(store.folder, keep_bytes=prepared.state.history_bytes)
        self._new_best: Weights | None = None
        self._saved = self._first = prepared.state.update
        self._unsaved = prepared.outdated
        if prepared.outdated:
            self._state.forget_mean()
        self._log_failure, self._log_warned = "", False
        self._earlier, self._clock = prepared.state.seconds, time.monotonic()
        self._busy, self._busy_tokens = 0.0, 0
        self._late = prepared.updater.late
        self._waiting = deque[_Made]()
        self._copies: torch.cuda.Stream | None = None
        self._overflows, self._most_overflows = 0, MAX_OVERFLOWS if prepared.state.begun.precision == "fp16" else 0
        self._compiles = self._late and compiles(self._settings, prepared.state.begun)
        self._meter = UsageMeter(prepared.device)

    def record(self, event: Event) -> Event:
        """Write an event to history.jsonl, and return it. A log that cannot be written does not end the training."""
        try:
            if self._history is not None:
                self._history.add(event, elapsed=self._elapsed())
        except ModelFolderError as error:
            self._log_failure = self._log_failure or str(error)
        return event

    def events(self) -> Iterator[Event]:
        """Train until the run ends or SIGINT, SIGTERM or SIGHUP was received, and yield events.

        A signal only sets a flag (`SignalFlag`): the update in progress is finished and everything saved before
        `Interrupted`. An update that still waits for its pairs is given up. Raises TrainingError if a loss is not
        finite; earlier commits stay.
        """
        with SignalFlag(always=not self._group.alone) as signals:
            while True:
                self._group.doing = f"update {self._state.update:,}, last saved {self._saved:,}"
                yield from self._log_warning()
                caught = self._group.caught(signals.caught)
                save = self._multiple_of(self._settings.save_every)
                if self._validation_due() or caught or save or self._reason() is not None:
                    yield from self._read()
                if self._validation_due():
                    yield from self._validate(signals)
                    caught = self._group.caught(signals.caught)
                reason = None if self._validation_due() else self._reason()
                if save and add_candidate(self._state, self._settings):
                    self._unsaved = True  # a resumed run with other settings may begin at a saved update
                last: Event | None = None
                if reason is not None:
                    last = self._finished(reason)
                elif caught:
                    update, folder = self._state.update, self._store.folder
                    last = Interrupted(update=update, signal=caught, folder=folder, training=self._streamed())
                if last is not None:
                    self.record(last)
                    yield from self._log_warning()
                if self._unsaved and (save or last is not None):
                    yield self._save()
                if last is not None:
                    yield last
                    return
                yield from self._update(signals)

    def _log_warning(self) -> Iterator[Event]:
        """Yield a warning, once, that history.jsonl cannot be written."""
        if self._log_failure and not self._log_warned:
            self._log_warned = True
            message = f"{self._log_failure}; the training goes on, and lines of this log are missing"
            yield Warned(update=self._state.update, message=message)

    def _multiple_of(self, every: int) -> bool:
        return self._state.update > 0 and self._state.update % every == 0

    def _elapsed(self) -> float:
        return self._earlier + time.monotonic() - self._clock

    def _reason(self) -> Reason | None:
        return end_reason(self._state.update, self._state.waiting, self._settings)

    # ---- validation

    def _validation_due(self) -> bool:
        due = self._state.update >= self._settings.updates or self._multiple_of(self._settings.validate_every)
        return due and self._state.validated != self._state.update

    def _validate(self, signals: SignalFlag) -> Iterator[Event]:
        state, settings, begun = self._state, self._settings, time.monotonic()
        live = self._prepared.live()
        with self._any_kernels():
            quality = self._validator.measure(live.model(live.shown), lambda: bool(signals.caught))
        if quality is None:
            return
        best = improves(self._larger, settings.metric, quality, self._best())
        state.validated, self._unsaved = state.update, True
        if best:
            state.best_update, state.best_nll = state.update, quality.nll
            state.best_metrics, state.waiting = dict(quality.metrics), 0
            with self._group.together():
                weights = self._prepared.best(self._store.folder)
            self._new_best = weights if self._group.leads else None
        else:
            state.waiting += 1
        yield self.record(
            Validated(
                update=state.update,
                nll=quality.nll,
                metrics=quality.metrics,
                reached_limit=quality.reached_limit,
                best=best,
                seconds=time.monotonic() - begun,
                measure=self._measure,
            )
        )

    def _any_kernels(self) -> AbstractContextManager[None]:
        """Return a context for a validation, which changes no weights; not all of its kernels are deterministic."""
        return deterministic_kernels(wanted=False) if self._prepared.device.type == "cuda" else nullcontext()

    def _best(self) -> Quality | None:
        if not self._state.best_update or self._state.best_nll is None:
            return None
        return Quality(nll=self._state.best_nll, metrics=self._state.best_metrics)

    # ---- the end, and commits

    def _finished(self, reason: Reason) -> Finished:
        """Return the last event, with the quality of the kept weights: the mean, or clearly better best ones."""
        state, settings = self._state, self._settings
        state.forget_mean()
        if settings.average_last > 1:
            with self._any_kernels():
                quality = self._validator.measure(self._kept(), lambda: False)
            if quality is not None:
                state.mean_nll, state.mean_metrics = quality.nll, dict(quality.metrics)
                best, metric = self._best(), settings.metric
                leads = best is not None and clearly_better(self._larger, best.value(metric), quality, metric)
                state.keeps_best = leads
        config, folder = self._prepared.model.config, self._store.folder
        return _finished(state, config, folder, reason, already=False, training=self._streamed())

    def _streamed(self) -> Account | None:
        """Return the pairs of a stream that were read so far."""
        return self._prepared.stream.plans.account if self._prepared.model.config.data.streaming else None

    def _kept(self) -> Mapping[str, Tensor]:
        """Return the weights that become the model, which rank 0 reads from its folder.

        It sends each to the others when it is read, which all processes must do in step.
        """
        folder, kept = self._store.folder, None
        with self._group.together():
            live = self._prepared.live(folder=folder if self._prepared.divided else None)
            if self._group.leads:
                kept = self._store.kept(self._state, self._settings, live, self._new_best)
                if self._prepared.divided:
                    kept = stored(kept.items(), folder)
        if self._group.alone and kept is not None:
            return kept
        return sent(kept, self._validator.shapes, self._group)

    def _save(self) -> Event:
        state, prepared = self._state, self._prepared
        state.seconds = self._elapsed()
        with self._group.together():
            live = prepared.live(folder=self._store.folder)
        with self._group.together():
            if self._history is not None:
                state.history_bytes = self._history.size()
                self._store.save(state, prepared.model, live, self._new_best)
                self._saved = state.update
                self._write_card()
        self._new_best, self._saved, self._unsaved = None, state.update, False
        return Saved(update=state.update, folder=self._store.folder)

    def _write_card(self) -> None:
        state, prepared = self._state, self._prepared
        card = Card(
            parameters=self._validator.parameters,
            trained_parameters=prepared.updater.trained_parameters,
            data=self._counts(),
            scores=self._scores(),
            base=state.begun.source_model,
            base_digest=state.begun.source_digest,
        )
        write_card(self._store.folder, prepared.model.config, card)

    def _counts(self) -> str:
        plans = self._prepared.stream.plans
        so_far = self._streamed() is not None and plans.epoch == 0
        return plans.account.summary() + ("\n(so far: the first epoch of the stream has not ended)" if so_far else "")

    def _scores(self) -> list[str]:
        state, settings = self._state, self._settings
        nll, metrics = state.kept_quality(settings)
        of = describe_kept_weights(state, settings)
        if nll is None:  # the mean is measured only at the end of a run
            nll, metrics, of = state.best_nll, state.best_metrics, f"the weights after update {state.best_update}"
        if nll is None:
            return []
        lines = [f"validation {name} = {value:.2f}, of {of}" for name, value in metrics.items()]
        return [f"validation {self._measure} = {nll:.4f} nats per token, of {of}", *lines]

    # ---- updates

    def _update(self, signals: SignalFlag) -> Iterator[Event]:
        state, settings, prepared = self._state, self._settings, self._prepared
        update, stream = state.update + 1, prepared.stream
        begun = time.monotonic()
        try:
            taken = stream.take(settings.accumulate, signals.interruptible)
        except Interruption:  # the state still has the place of the last update
            return
        state.epoch, state.place, state.position = stream.plans.epoch, stream.plans.place, stream.position
        if self._compiles and state.update >= UNCOMPILED:
            yield from self._compile()
            begun = time.monotonic()
        sums = self._gather({key: self._transfer(each) for key, each in taken.items()}, update)
        own = sums.objective
        tokens: int | Tensor = sums.tokens
        if self._late and not self._group.alone:
            sums, tokens = self._summed(sums)
        rate = learning_rate(update, settings, prepared.model.config.model.width)
        norm = prepared.updater.update(tokens, rate, sums.objective)
        state.update, self._unsaved = update, True
        state.forget_mean()
        if prepared.ema is not None:
            prepared.ema.add(prepared.updater.parameters_fp32(), update)
        nll = 0.0 if sums.nll is None else sums.nll
        numbers = LateNumbers([sums.objective, nll, norm, tokens, own, *sums.routing, *sums.objectives])
        self._waiting.append(_Made(update=update, epoch=stream.plans.epoch + 1, sums=sums, rate=rate, numbers=numbers))
        self._busy += time.monotonic() - begun
        yield from self._read(leave=MAX_LATE if self._late else 0)

    def _read(self, *, leave: int = 0) -> Iterator[Event]:
        """Read the numbers of all updates but the last ones, and yield their events. Raises TrainingError as `events`.

        leave: how many need not have been computed yet.
        """
        while len(self._waiting) > leave:
            made = self._waiting.popleft()
            begun = time.monotonic()
            objective, nll, norm, tokens, own, *rest = made.numbers.read()
            routing, each = tuple(rest[:3]), rest[3:]
            self._busy += time.monotonic() - begun
            if not finite(objective):
                which = next((place for place, value in enumerate(each) if not finite(value)), -1)
                message = self._not_finite(made.update, "loss", own, made.sums.lines[which:][:1])
                self._group.agree("" if finite(own) else message)
                self._group.agree(self._not_finite(made.update, "loss", objective, []))
            self._overflows = 0 if finite(norm) else self._overflows + 1
            if self._overflows > self._most_overflows:
                lines = made.sums.lines if self._group.alone else []
                self._group.agree(self._not_finite(made.update, "gradient", norm, lines))
            norm = norm if finite(norm) else 0.0
            self._busy_tokens += int(tokens)
            for note in made.sums.notes:
                yield self.record(Warned(update=made.update, message=note))
            if made.sums.splits:
                message = f"CUDA was out of memory: update {made.update} was computed in {made.sums.splits} more parts"
                yield self.record(Warned(update=made.update, message=message))
            known = None if made.sums.nll is None else nll
            sums = replace(made.sums, objective=objective, nll=known, tokens=int(tokens), routing=routing)
            yield self.record(self._progress(made, sums, norm))

    def _compile(self) -> Iterator[Event]:
        """Compile the passes over all shapes of the batches; see `UNCOMPILED`."""
        self._compiles = False
        yield from self._read()
        examples, updater = self._prepared.stream.examples(self._settings.accumulate), self._prepared.updater
        assert isinstance(updater, Updater)
        for event in updater.compile(examples, self._state.update):
            yield self.record(event)

    def _transfer(self, batch: Batch) -> Batch:
        """Return a batch on the device of the run, where it arrives while earlier updates are computed."""
        device = self._prepared.device
        if device.type != "cuda":
            return batch.to(device)
        if self._copies is None:
            self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's has no types
        computes = torch.cuda.current_stream(device)
        with torch.cuda.stream(self._copies):
            moved = batch.pinned().to(device)
        computes.wait_stream(self._copies)
        moved.record_stream(computes)
        return moved

    def _gather(self, batches: Mapping[tuple[int, ...], Batch], update: int) -> Sums:
        """Accumulate this process's gradients of an update, and return the sums: on CPUs, over all processes.

        Raises TrainingError in all of them if the loss of one is not finite or one is out of memory.
        """
        message = ""
        try:
            sums = gather(self._prepared.updater, batches, seed=self._settings.seed, update=update)
        except TrainingError as error:
            sums, message = Sums(), str(error)
        if self._late:
            if message and not self._group.alone:
                raise self._group.leaving(message)
            if message:
                raise TrainingError(message)
            return sums
        if not finite(sums.objective):
            message = self._not_finite(update, "loss", float(sums.objective), sums.lines[-1:])
        nll = 0.0 if sums.nll is None else float(sums.nll)
        routing = map(float, sums.routing)
        numbers = [float(sums.objective), nll, sums.nll is None, sums.tokens, sums.splits, bool(message), *routing]
        objectives, nlls, without, tokens, splits, failed, *routings = zip(*self._group.numbers(numbers), strict=True)
        if any(failed):
            self._group.agree(message)
        return Sums(
            objective=sum(objectives),
            nll=None if any(without) else sum(nlls),
            tokens=int(sum(tokens)),
            routing=tuple(map(sum, routings)),
            splits=int(sum(splits)),
            lines=sums.lines,
        )

    def _summed(self, sums: Sums) -> tuple[Sums, Tensor]:
        """Return the sums over all processes, and their tokens, which stay on the device."""
        device, nll = self._prepared.device, sums.nll
        own = [sums.objective, 0.0 if nll is None else nll, float(sums.tokens), *sums.routing]
        numbers = torch.stack([torch.as_tensor(each, dtype=torch.float64, device=device) for each in own])
        self._group.add(numbers)
        objective, total, tokens, *routing = numbers.float().unbind()
        return replace(sums, objective=objective, nll=None if nll is None else total, routing=tuple(routing)), tokens

    def _progress(self, made: _Made, sums: Sums, norm: float) -> Progress:
        state, settings = self._state, self._settings
        window = state.window
        routing = [float(each) for each in sums.routing]
        window.add(float(sums.objective), None if sums.nll is None else float(sums.nll), sums.tokens, routing)
        balance, dropped, choices = window.routing
        done = made.update - self._first
        left = (settings.updates - made.update) * (time.monotonic() - self._clock) / done
        logged = made.update % settings.log_every == 0
        usage = self._meter.read()
        progress = Progress(
            update=made.update,
            updates=settings.updates,
            epoch=made.epoch,
            loss=window.objective / window.tokens,
            nll=None if window.nll is None else window.nll / window.tokens,
            balance=balance / window.tokens if choices else None,
            dropped=int(dropped) if choices else None,
            dropped_share=dropped / choices if choices else None,
            tokens=window.tokens,
            tokens_per_second=self._busy_tokens / max(self._busy, 1e-9),
            learning_rate=made.rate,
            gradient_norm=norm,
            seconds_left=left,
            logged=logged,
            processes=self._group.size,
            memory_gib=usage.memory_gib,
            card_memory_gib=usage.card_memory_gib,
            utilization_percent=usage.utilization_percent,
        )
        if logged:
            state.window = Window()
            self._busy, self._busy_tokens = 0.0, 0
        return progress

    def _not_finite(self, update: int, what: str, value: float, batches: list[tuple[int, ...]]) -> str:
        pairs = [number for lines in batches for number in lines]
        named = ", ".join(self._prepared.stream.line(number) for number in pairs[:_NAMED_PAIRS])
        rest = f" and {len(pairs) - _NAMED_PAIRS} more" if len(pairs) > _NAMED_PAIRS else ""
        where = f" on {named}{rest}" if pairs else ""
        good = f"update {self._saved} in {self._store.folder}" if self._saved else "none"
        return (
            f"update {update}: the {what} is {value}{where}; "
            f"last good checkpoint: {good}; try a lower training.learning_rate"
        )


def compiles(settings: TrainingSettings, begun: Begun) -> bool:
    """Return whether passes on a GPU are compiled; "auto" stays what it was when the run began."""
    return begun.compiled if settings.compile == "auto" else settings.compile


def end_reason(update: int, waiting: int, settings: TrainingSettings) -> Reason | None:
    """Return why a run is over; None if it is not."""
    if update >= settings.updates:
        return "updates"
    return "patience" if 0 < settings.patience <= waiting else None
