"""`train`: from settings to a model folder, told as events."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from translume.checkpoint import FolderLock, build_network, choose_device, refuse_threads
from translume.config import Config
from translume.data.pairs import SPLITS, origins
from translume.errors import TrainingError
from translume.model.allocator import keep_freed_memory
from translume.model.classifier import Classifier, Network
from translume.training.begin import Plan, Prepared, plan_run, prepare_run
from translume.training.classified import judge_of
from translume.training.decoded import decoder_of
from translume.training.events import Event, Finished, Resumed, Started, Warned
from translume.training.run import Run, end_reason
from translume.training.store import Store, kept_words
from translume.training.validation import Validator, measured_by

Measure = Callable[[Callable[[], bool]], Mapping[str, float] | None]
"""Metrics by name, given a function that says when to stop; None if it did."""


def train(
    config: Config,
    folder: Path | str,
    *,
    source: Path | str | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Iterator[Event]:
    """Events of a run that ends with a model in `folder`; the same call again goes on where the last one ended.

    source: a model folder to fine-tune a copy of; its settings in [model] and [tokenizer] hold.  threads: None for as
    many as the run began with, at first as many as torch takes.
    The run is resumed if `folder` holds one: bit for bit on the same machine's CPU, whatever instant the process died
    at. `updates`, validation, saving and logging settings may have changed; TrainingError names anything else that has,
    a loss that is not finite, and another process that trains in the folder. SIGINT and SIGTERM save and end the run
    with `Interrupted`, if the generator runs in the main thread.
    """
    if not isinstance(config, Config):
        raise TypeError(f"train wants a Config, found {type(config).__name__}; Config.read reads one from a file")
    refuse_threads(threads)
    folder = Path(folder)
    origin = Path(source) if source is not None else None
    for split in SPLITS:
        origins(config.data, split)  # refuses what does not fit before the folder is there
    _refuse_another_readme(folder)
    with FolderLock(folder):
        store = Store(folder)
        plan = plan_run(config, store, origin)
        finished = _finished_already(plan, store)
        if finished is not None:
            yield finished
            return
        place = choose_device(device)
        keep_freed_memory()
        before = torch.get_num_threads()
        wanted = threads or (plan.state.begun.threads if plan.state else before)
        torch.set_num_threads(wanted)
        try:
            prepared = yield from prepare_run(plan, store, source=origin, device=place)
            run = Run(prepared, store, _validator(prepared))
            for event in _opening(plan, prepared, store):
                yield run.tell(event)
            yield from run.events()
        finally:
            torch.set_num_threads(before)


def _refuse_another_readme(folder: Path) -> None:
    """Raise TrainingError if the model's card would be written over a file that is none."""
    if (folder / "README.md").exists() and not (folder / "manifest.json").exists():
        raise TrainingError(f"{folder}/README.md: is there already, and no model; wanted a folder of the model's own")


def _finished_already(plan: Plan, store: Store) -> Finished | None:
    """What to say of a folder whose run is over, before anything is read or built; None if there is something to do."""
    state, settings = plan.state, plan.config.training
    if state is None:
        return None
    reason = end_reason(state.update, state.waiting, settings)
    interrupted = reason == "updates" and state.validated != state.update  # in the last validation
    if reason is None or interrupted or plan.outdated or plan.stored is None:
        return None
    stored = plan.stored.config.training
    nll, metrics = state.kept_quality(stored)
    return Finished(
        update=state.update,
        reason=reason,
        kept=kept_words(state, stored),
        nll=nll,
        metrics=metrics,
        best_update=state.best_update,
        folder=store.folder,
        already=True,
        measure=plan.stored.config.model.head.measure,
    )


def _opening(plan: Plan, prepared: Prepared, store: Store) -> Iterator[Event]:
    """Where the run stands, and what is unlike the last time."""
    state, settings = prepared.state, prepared.model.config.training
    yield Started(
        update=state.update,
        updates=settings.updates,
        folder=store.folder,
        training=prepared.training.account,
        validation=prepared.validation.account,
        training_pairs=prepared.training.pairs,
        validation_pairs=prepared.validation.pairs,
        source_vocabulary=len(prepared.model.source),
        target_vocabulary=len(prepared.model.target),
        parameters=sum(value.numel() for value in prepared.updater.parameters_fp32().values()),
        precision=state.begun.precision,
        device=str(prepared.device),
        threads=torch.get_num_threads(),
    )
    if plan.state is None:
        state.measured_by = measured_by(prepared.model.config, prepared.validation)
        return
    yield Resumed(update=state.update, updates=settings.updates, folder=store.folder)
    for message in _changes(plan, prepared):
        yield Warned(update=state.update, message=message)


def _changes(plan: Plan, prepared: Prepared) -> Iterator[str]:
    """What a person should know of a resumed run's new circumstances; a best that is not comparable is forgotten."""
    state, settings = prepared.state, prepared.model.config.training
    begun, threads = state.begun, torch.get_num_threads()
    for what, then, now in (("threads", begun.threads, threads), ("torch", begun.torch, torch.__version__)):
        if then != now:
            yield f"this run began with {what} {then}, now {now}: its weights may differ in the last bits"
    earlier = plan.stored.config.training.updates if plan.stored else settings.updates
    if settings.schedule == "cosine" and earlier != settings.updates:
        yield f"updates was {earlier}, now {settings.updates}: the learning rate follows the new cosine from here on"
    measured = measured_by(prepared.model.config, prepared.validation)
    if state.metric != settings.metric:
        yield f"metric was {state.metric}, now {settings.metric}: the best so far and the patience begin anew"
        state.forget_best()
    elif state.measured_by not in ("", measured):
        yield "validation is not what it was (data or settings): the best so far and the patience begin anew"
        state.forget_best()
    state.metric, state.measured_by = settings.metric, measured


def _validator(prepared: Prepared) -> Validator:
    """A model of its own in fp32, so that what is measured is what would be saved."""
    model = prepared.model
    with torch.random.fork_rng(devices=[]):
        transformer = build_network(model.config.model, len(model.source), len(model.target)).to(prepared.device)
    transformer.load_state_dict(prepared.transformer.state_dict())  # for what is neither trained nor averaged
    return Validator(
        model=transformer,
        corpus=prepared.validation,
        max_tokens=model.config.training.max_tokens,
        device=prepared.device,
        decode=_measurer(prepared, transformer),
    )


def _measurer(prepared: Prepared, network: Network) -> Measure | None:
    """What measures more than the nll on the validation set with the present weights of `network`, if anything."""
    if isinstance(network, Classifier):
        settings = prepared.model.config.training
        return judge_of(network, prepared.validation, settings.max_tokens, prepared.device)
    return decoder_of(prepared.model, prepared.validation, network)
