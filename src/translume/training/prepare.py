"""Prepare a run: settings, vocabularies, data, network and optimiser, for a new, resumed or fine-tuned model."""

import hashlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from translume.checkpoint import (
    AnyCheckpoint,
    FolderLock,
    Manifest,
    build_network,
    load_any,
    load_pretrained,
    mark_separators,
    unique_tensors,
    without_values,
)
from translume.config import Config, ModelSettings, TrainingSettings
from translume.data.buckets import BucketPlan
from translume.data.corpus import TokenizedCorpus
from translume.data.lengths import Lengths, learn_lengths
from translume.data.pairs import SPLITS, origins, refuse_pipes
from translume.data.streaming import Stream, open_stream
from translume.data.token_cache import DataFile, files_of, prepare
from translume.device import GIB, describe, free_bytes, require_memory
from translume.errors import SettingsError, TrainingError
from translume.model import HeadData
from translume.model.classifier import Network
from translume.model.head import Teacher
from translume.model.layers import recompute_layers
from translume.model.low_rank import adapt, merge
from translume.tasks import check_settings, task_of
from translume.text import Labels, Tokenizer
from translume.training.batches import (
    BatchStream,
    BufferPlans,
    EpochPlans,
    PlanKind,
    PlanOptions,
    Plans,
    plan_kind,
    seed_generators,
    seed_of,
)
from translume.training.events import Event, Preparing, Warned
from translume.training.fine_tuning import inherit_settings, load_base
from translume.training.group import Group
from translume.training.mapped import kept
from translume.training.memory import STEP, MemoryNeeds
from translume.training.optimisation import MovingAverage, Precision, Updater, Weights, loss_options, snapshot
from translume.training.precision import choose_precision, refuse_precision
from translume.training.resume import (
    EMA,
    FROZEN,
    OPTIMIZER,
    RAW,
    WEIGHTS,
    Begun,
    Live,
    ModelDescription,
    State,
    Store,
    refuse_other,
    refuse_other_settings,
)
from translume.training.sharded import AnyUpdater, InStep, ShardedUpdater
from translume.training.teacher import TeacherModel, load_teacher
from translume.training.validation import load_weights
from translume.training.vocabularies import extended_vocabularies, named_tokenizer, vocabularies_of

SHORT_UPDATES = 5
"""Maximum number of updates with TRANSLUME_SHORT=1, which examples in the documentation set."""

WORTH_COMPILING = 500
"""Number of updates from which on `training.compile = "auto"` compiles, which takes as long as some hundred updates."""

CACHE = "cache"
"""The folder of tokenized data in a model folder."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """Everything a run needs.

    files: those that the training pairs come from.  ema: None without `training.ema`.  outdated: whether the settings
    now select other weights than the folder's.
    """

    model: ModelDescription
    files: list[DataFile]
    validation: TokenizedCorpus
    updater: AnyUpdater
    transformer: Network
    ema: MovingAverage | None
    state: State
    stream: BatchStream
    device: torch.device
    outdated: bool
    group: Group

    def receive(self) -> None:
        """Replace the weights, their average and the network's other tensors by those of rank 0."""
        self.updater.receive()
        average = () if self.divided else self._average.values()
        self.group.receive([*average, *_buffers(self.updater).values()])

    @property
    def divided(self) -> bool:
        """Whether no process has all weights."""
        return isinstance(self.updater, ShardedUpdater)

    @property
    def _average(self) -> Weights:
        return self.ema.values if self.ema else {}

    def best(self, folder: Path) -> Weights:
        """Return the current weights to keep as the best so far; those that processes divide in rank 0 only."""
        shown = self._average or self.updater.parameters_fp32()
        if isinstance(self.updater, ShardedUpdater):
            return kept(self.updater.whole(shown).items(), folder, self.group)
        return snapshot(shown) if self.group.leads else {}

    def live(self, *, folder: Path | None = None) -> Live:
        """Return the current tensors, including those of the optimiser if they are for a commit to `folder`.

        Of weights that processes divide, those for a commit are in rank 0 only. Otherwise each is gathered when it is
        read, which all processes must do in step.
        """
        if isinstance(self.updater, ShardedUpdater):
            updater = self.updater

            def held(tensors: InStep) -> Mapping[str, Tensor]:
                return tensors if folder is None else kept(tensors.items(), folder, self.group)

            return Live(
                raw=held(updater.whole(updater.parameters_fp32())),
                ema=held(updater.whole(self._average)),
                buffers=_buffers(updater),
                optimizer={} if folder is None else held(updater.whole_state()),
                frozen={},
                merge=lambda trained: trained,
            )
        raw, frozen = self.updater.parameters_fp32(), self.updater.frozen_fp32()
        return Live(
            raw=raw,
            ema=self._average,
            buffers=_buffers(self.updater),
            optimizer={} if folder is None else self.updater.whole_state(folder),
            frozen=frozen,
            merge=partial(merge, self.transformer, frozen),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The settings of a run, checked against the content of its folder.

    base: the model to fine-tune, if any.  base_digest: SHA-256 of its weights file.  unused: a line about stated
    settings that are not used, because those of `base` are.
    """

    config: Config
    state: State | None
    stored: ModelDescription | None
    base: AnyCheckpoint | None
    base_digest: str = ""
    unused: str = ""

    @property
    def outdated(self) -> bool:
        """Whether the settings now select other weights, or another mean of weights, than the folder's."""
        if self.state is None or self.stored is None:
            return False
        return self.stored.config.training.average_last != self.config.training.average_last


def plan_run(config: Config, store: Store, source: Path | None) -> RunPlan:
    """Check the settings of a run against its folder. Raises TrainingError if the folder holds another run."""
    state, stored = store.state(), store.model()
    folder = str(store.folder)
    if os.environ.get("TRANSLUME_SHORT") == "1":
        config = config.with_values("training", {"updates": min(config.training.updates, SHORT_UPDATES)})
    if state is not None and stored is not None:
        _refuse_other_source(folder, state.begun.source_model, source)
        if state.begun.source_model:
            config, _ = inherit_settings(config, stored.config, folder)
        if config.training.max_tokens == "auto":
            config = config.with_values("training", {"max_tokens": stored.config.training.batch_tokens})
        refuse_other_settings(folder, stored.config, config, state.begun.precision)
        return RunPlan(config=config, state=state, stored=stored, base=None)
    if store.has(WEIGHTS):
        raise TrainingError(
            f"{folder}: holds a model, but no run to resume; "
            "train into another folder, or fine-tune this model with --from"
        )
    if source is not None:
        base = load_any(source, device="cpu", dtype="fp32")
        _refuse_named_tokenizers(config, base, str(source))
        config, unused = inherit_settings(config, base.config, str(source))
        digest = Manifest.read(source).files[WEIGHTS].sha256
        return RunPlan(config=config, state=None, stored=None, base=base, base_digest=digest, unused=unused)
    for place, found in (
        ("training.lora_rank", config.training.lora_rank),
        ("tokenizer.extend", config.tokenizer.extend),
    ):
        if found:
            raise SettingsError(
                f"{place}: found {found} without a model to adapt; name one with --from, or leave the setting out"
            )
    same = stored is not None and _vocabulary_settings(stored.config) == _vocabulary_settings(config)
    return RunPlan(config=config, state=None, stored=stored if same else None, base=None)


def _vocabulary_settings(config: Config) -> tuple[object, ...]:
    """Return the settings that vocabularies depend on."""
    return config.tokenizer, config.data, config.model.language_tags, getattr(config.model.head, "labels", None)


def _refuse_other_source(folder: str, began: str, source: Path | None) -> None:
    if source is not None and (not began or source.resolve() != Path(began).resolve()):
        before = f"with --from {began}" if began else "without --from"
        raise TrainingError(f"{folder}: this run began {before}, found --from {source}")


def _refuse_named_tokenizers(config: Config, base: AnyCheckpoint, place: str) -> None:
    """Raise SettingsError if the settings name a tokenizer file other than the base model's tokenizer."""
    for side, (name, held) in enumerate((("path", base.source_tokenizer), ("target_path", base.target))):
        path = getattr(config.tokenizer, name)
        if path and isinstance(held, Tokenizer) and named_tokenizer(Path(path), side).digest != held.digest:
            raise SettingsError(f"tokenizer.{name}: {path} is not the tokenizer of {place}; leave this setting out")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """The vocabularies and the tokenized pairs of a run.

    training: with `data.streaming`, the sample of `stream`.
    """

    model: ModelDescription
    training: TokenizedCorpus
    validation: TokenizedCorpus
    stream: Stream | None = None

    @property
    def digest(self) -> str:
        """A digest of the training pairs, and of the weights and tags of their files."""
        text = f"{self.training.digest} {' '.join(map(repr, self.training.weights))}"
        if self.training.tags is not None:
            text += f" {self.training.tags.source.tolist()} {self.training.tags.target.tolist()}"
        return hashlib.sha256(text.encode()).hexdigest()


def prepare_data(plan: RunPlan, store: Store) -> Generator[Event, None, PreparedData]:
    """Prepare vocabularies and data: yield an event before each long step, and return them (`yield from`).

    The vocabularies are committed to the folder before anything else is computed, so that a resumed run has the same
    ones.
    """
    refuse_pipes(plan.config.data)
    check_settings(plan.config.data, plan.config.model, plan.config.training, str(store.folder))
    for place in origins(plan.config.data, "valid"):  # before hours of work on the training files
        place.check_lengths()
    if plan.unused:
        yield Warned(update=0, message=plan.unused)
    model = yield from _with_tokenizers(plan, store)
    config = model.config
    stream, corpora, parts = None, [], (config.data, model.source, model.target)
    limits: dict[str, Any] = {
        "max_positions": config.model.positions_of_sides,
        "language_tags": config.model.language_tags,
    }
    for split, what in zip(SPLITS, ("training data", "validation data"), strict=True):
        yield Preparing(what=what)
        if split == "train" and config.data.streaming:
            stream = open_stream(*parts, seed=config.training.seed, **limits)
            corpora.append(stream.sample)
        else:
            notes: list[str] = []
            corpora.append(prepare(*parts, store.folder / CACHE, split=split, **limits, note=notes.append))
            for note in notes:
                yield Warned(update=plan.state.update if plan.state else 0, message=note)
    training, validation = corpora
    for message in filter(None, (training.without_pairs, training.shortened)):
        yield Warned(update=0, message=message)
    prepared = PreparedData(model=model, training=training, validation=validation, stream=stream)
    if plan.state is not None:
        refuse_other(str(store.folder), "training data", plan.state.begun.data, prepared.digest)
    return replace(prepared, model=replace(model, lengths=_lengths(plan, model, training)))


def prepare_folder(config: Config, folder: Path) -> Iterator[Event | PreparedData]:
    """Prepare vocabularies and data of a training in `folder`, and yield events and finally the prepared data.

    `train` with the same settings then begins at once. Raises TrainingError if the folder holds a model.
    """
    with FolderLock(folder):
        store = Store(folder)
        yield (yield from prepare_data(plan_run(config, store, None), store))


def fit_memory(
    plan: RunPlan, data: PreparedData, *, group: Group, device: torch.device
) -> Generator[Event, None, PreparedData]:
    """Return the data with a number for `training.max_tokens` = "auto", and yield an event that says it (`yield from`).

    The processes of a group take the smallest of their numbers. Raises SettingsError, before anything is moved to the
    device, if its free memory does not hold the weights, gradients and moments, or if it lacks the precision.
    """
    model, settings = data.model, data.model.config.training
    tokens, where = settings.batch_tokens, str(device)
    with group.together():
        if plan.state is None:
            refuse_precision(settings.precision, device)
        elif plan.state.begun.precision == "fp16" and device.type != "cuda":
            raise TrainingError(f"this run began in fp16, which {device} does not support; resume it on a CUDA device")
        if device.type == "cuda":
            needs, free = _needs(plan, model, group, device), free_bytes(device)
            if settings.max_tokens == "auto":
                tokens, where = needs.tokens(free), f"{free / GIB:.1f} GiB free on {describe(device)}"
            require_memory(
                device,
                needs.state,
                about=needs.state + needs.batch(tokens),
                what="this training",
                advice="stop the other process on the card, lower training.max_tokens or the model's size",
            )
    if settings.max_tokens != "auto":
        return data
    longest = max(data.training.longest + 1, data.stream.widest if data.stream else 0)  # with a mark
    tokens = max(int(min(fits for (fits,) in group.numbers([tokens]))), -(-longest // STEP) * STEP)
    yield Preparing(what=f"training.max_tokens = {tokens}, for {where}")
    return replace(data, model=replace(model, config=model.config.with_values("training", {"max_tokens": tokens})))


def _needs(plan: RunPlan, model: ModelDescription, group: Group, device: torch.device) -> MemoryNeeds:
    """Return the memory that a training needs on a GPU."""
    with torch.random.fork_rng(devices=[]), without_values():
        network = build_network(model.config, len(model.source), len(model.target))
    if plan.state is not None:
        precision = cast(Precision, plan.state.begun.precision)
    else:
        precision = choose_precision(model.config.training.precision, device)
    return MemoryNeeds.from_network(network, model.config, len(model.target), precision, group.size)


@dataclass(slots=True, kw_only=True)
class Untrained:
    """The network of a run before its weights are restored, its batches, its teacher, and the facts about the run."""

    network: Network
    stream: BatchStream
    teacher: TeacherModel
    begun: Begun


def prepare_network(
    plan: RunPlan, store: Store, data: PreparedData, *, source: Path | None, group: Group, device: torch.device
) -> Generator[Event, None, Untrained]:
    """Prepare the network: yield an event before each long step, and return it (`yield from`).

    source: the model to fine-tune, if any. The precision of a new run is chosen here, by this process.
    """
    model, settings = data.model, data.model.config.training
    yield Preparing(what="model")
    if settings.teacher:
        yield Preparing(what="teacher")
    teacher = load_teacher(model, device)
    if plan.state is not None:
        refuse_other(str(store.folder), "weights of the teacher", plan.state.begun.teacher, teacher.digest)
    network, notes = _network(plan, store, model, data.training, device)
    for note in notes:
        yield Preparing(what=note)
    if settings.activation_checkpointing:
        recompute_layers(network)
    options = PlanOptions(
        max_tokens=settings.batch_tokens,
        seed=settings.seed,
        dropout=model.config.tokenizer.dropout,
        kind=cast(PlanKind, plan.state.begun.batches) if plan.state else plan_kind(device),
    )
    plans: Plans
    if data.stream is None:
        plans = sample = EpochPlans(data.training, options, plan.state.epoch if plan.state else 0)
    else:
        plans = BufferPlans(data.stream, options, group, plan.state.place if plan.state else {})
        sample = EpochPlans(data.training, plans.options)
    if plan.state is None and isinstance(sample.plan, BucketPlan):
        yield Preparing(what=sample.plan.summary())
    stream = BatchStream(
        plans,
        position=plan.state.position if plan.state else 0,
        rank=group.rank,
        size=group.size,
        in_step=divides_weights(settings, group),
    )
    if plan.state is not None:
        begun = plan.state.begun
    else:
        precision = choose_precision(settings.precision, device)
        if precision == "fp16" and settings.shard == "full":  # which does not scale its loss
            precision = "fp32"
        begun = Begun(
            source_tokenizer=model.source.digest,
            target_tokenizer=model.target.digest,
            data=data.digest,
            precision=precision,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            source_model=str(source or ""),
            teacher=teacher.digest,
            source_digest=plan.base_digest,
            processes=group.size,
            batches=options.kind,
            compiled=settings.updates >= WORTH_COMPILING,
        )
    return Untrained(network=network, stream=stream, teacher=teacher, begun=begun)


def prepare_run(plan: RunPlan, store: Store, data: PreparedData, untrained: Untrained, group: Group) -> Prepared:
    """Return the parts of a run, with the optimiser and the weights of the last commit."""
    model, begun, network = data.model, untrained.begun, untrained.network
    settings, device = model.config.training, next(network.parameters()).device
    state = plan.state or State(begun=begun, metric=settings.metric)
    updater = _updater(network, model, cast(Precision, begun.precision), device, untrained.teacher.teacher, group)
    ema = _restored(plan, store, updater, settings.ema)
    return Prepared(
        model=model,
        files=list(data.stream.files) if data.stream else files_of(data.training, "train", store.folder / CACHE),
        validation=data.validation,
        updater=updater,
        transformer=network,
        ema=ema,
        state=state,
        stream=untrained.stream,
        device=device,
        outdated=plan.outdated,
        group=group,
    )


def _lengths(plan: RunPlan, model: ModelDescription, corpus: TokenizedCorpus) -> Lengths | None:
    """Return the lengths of the training pairs, merged with those of the model to fine-tune.

    None for a task that does not generate targets for sources.
    """
    if not task_of(model.config).sequence_to_sequence:
        return None
    if plan.state is not None and plan.stored is not None and plan.stored.lengths is not None:
        return plan.stored.lengths
    lengths = learn_lengths(corpus, model.config.data.source_language)
    # Texts are as long as their own noisy sources, which says nothing about translations.
    base = None if plan.base is None or plan.base.config.data.noise else plan.base.lengths
    return lengths if base is None else base.merged(lengths)


def _updater(
    transformer: Network,
    model: ModelDescription,
    precision: Precision,
    device: torch.device,
    teacher: Teacher | None,
    group: Group,
) -> AnyUpdater:
    settings = model.config.training
    specials = model.target.specials if isinstance(model.target, Tokenizer) else None
    options = loss_options(settings, len(model.target), specials)
    smoothed = None if options.smoothed is None else options.smoothed.to(device)
    options = replace(options, teacher=teacher, smoothed=smoothed)
    kind = ShardedUpdater if divides_weights(settings, group) else Updater
    return kind(transformer, settings, options=options, precision=precision, device=device, group=group)


def divides_weights(settings: TrainingSettings, group: Group) -> bool:
    """Return whether the processes of a group divide the weights."""
    return settings.shard == "full" and not group.alone


def facts_of_leader(begun: Begun, group: Group) -> Begun:
    """Return what rank 0 of a group found about a run."""
    return Begun(**json.loads(group.texts(json.dumps(asdict(begun)))[0]))


def _with_tokenizers(plan: RunPlan, store: Store) -> Generator[Event, None, ModelDescription]:
    """Return the settings with the run's vocabularies, after committing both to the folder."""
    config = plan.config
    if plan.state is not None and plan.stored is not None:
        model = ModelDescription(config=config, source=plan.stored.source, target=plan.stored.target)
        store.read_decoding_files(config)  # fails here, not after the first updates
        _refuse_other_tokenizers(store, config, plan.state.begun)
        return model
    if plan.base is not None:
        source, target = plan.base.source_tokenizer, plan.base.target
        if config.tokenizer.extend:
            yield Preparing(what="tokenizer")
            source, target = extended_vocabularies(config, source, target)
    elif plan.stored is not None:
        source, target = plan.stored.source, plan.stored.target
    else:
        yield Preparing(what="tokenizer")
        source, target = vocabularies_of(config)
        _refuse_two_vocabularies(config.model, source, target)
    model = ModelDescription(config=config, source=source, target=target)
    store.begin(model)
    return model


def _refuse_two_vocabularies(settings: ModelSettings, source: Tokenizer, target: Tokenizer | Labels) -> None:
    """Raise SettingsError if `model.head.tie` shares weights between two different vocabularies."""
    if settings.head.tie in ("all", "embeddings") and source.digest != target.digest:
        raise SettingsError(
            f"model.head.tie: '{settings.head.tie}' needs one vocabulary for both sides, found two of {len(source)} "
            f"and {len(target)} tokens; set tokenizer.shared = true or tie = 'target'"
        )


def _refuse_other_tokenizers(store: Store, config: Config, begun: Begun) -> None:
    """Raise TrainingError if the settings name another tokenizer file than the run's."""
    settings = config.tokenizer
    named = [(settings.path, begun.source_tokenizer)]
    if not settings.shared:
        named.append((settings.target_path, begun.target_tokenizer))
    for side, (path, digest) in enumerate(named):
        if path and Path(path).exists():
            refuse_other(str(store.folder), f"tokenizer than {path}", digest, named_tokenizer(Path(path), side).digest)


def _network(
    plan: RunPlan, store: Store, model: ModelDescription, corpus: TokenizedCorpus, device: torch.device
) -> tuple[Network, list[str]]:
    """Return the untrained network on its device, and notes about it; a resumed run then loads its own weights."""
    settings, notes = model.config.model, []
    seed_generators(seed_of(model.config.training.seed), device)
    transformer = build_network(model.config, len(model.source), len(model.target))
    mark_separators(transformer, settings, model.source)
    if plan.base is not None:
        load_base(transformer, plan.base, model.source, model.target)
    elif plan.state is None:
        notes = load_pretrained(transformer, settings, model.source, model.target)
        transformer.encoder.embedding.learn(corpus.checked_frames())
        transformer.head.learn(task_of(model.config).head_data(model.source, model.target, corpus))
    if model.config.training.lora_rank:
        adapt(transformer, model.config.training)
        if plan.state is not None:
            load_weights(transformer, store.tensors(FROZEN))
    return transformer.to(device), notes


def token_head_data(source: Tokenizer, target: Tokenizer, corpus: TokenizedCorpus) -> HeadData:
    """Return the data from which an output head over target tokens computes its tables before training."""
    specials = target.specials
    return HeadData(
        corpus=corpus,
        source_pieces=source.pieces(),
        target_pieces=target.pieces(),
        end=specials.eos,
        specials=specials.marks.union(() if specials.unk is None else (specials.unk,)),
    )


def document_head_data(source: Tokenizer, target: Tokenizer, corpus: TokenizedCorpus) -> HeadData:
    """Return the data from which the output head of a language model computes its tables before training."""
    return replace(token_head_data(source, target, corpus), corpus=_WithoutEnds(corpus))


@dataclass(frozen=True, slots=True)
class _WithoutEnds:
    """Documents as `TrainingPairs`, which have no EOS tokens."""

    documents: TokenizedCorpus

    @property
    def pairs(self) -> int:
        return self.documents.pairs

    def source(self, index: int) -> NDArray[Any]:
        return self.documents.source(index)

    def target(self, index: int) -> NDArray[Any]:
        return self.documents.target(index)[:-1]


def class_head_data(source: Tokenizer, labels: Labels, corpus: TokenizedCorpus) -> HeadData:
    """Return the data from which an output head over classes computes its tables before training."""
    return HeadData(
        corpus=corpus, source_pieces=source.pieces(), target_pieces=labels.pieces(), end=-1, specials=frozenset()
    )


def _buffers(updater: AnyUpdater) -> dict[str, Tensor]:
    """Return the tensors of the network that are not weights."""
    weights = {*updater.parameters_fp32(), *updater.frozen_fp32()}
    return {name: value for name, value in unique_tensors(updater.model).items() if name not in weights}


def _restored(plan: RunPlan, store: Store, updater: AnyUpdater, decay: float) -> MovingAverage | None:
    """Load the tensors of the last commit into model and updater; return its moving average, or a new one."""
    ema = None
    if plan.state is not None:
        buffers = _buffers(updater)
        saved = store.tensors(WEIGHTS) if buffers else {}
        for name, buffer in buffers.items():
            buffer.copy_(saved[name])
        updater.load_parameters(store.tensors(RAW))
        updater.load_state(store.tensors(OPTIMIZER))
    if decay > 0:
        ema = MovingAverage(decay, updater.parameters_fp32())
        if plan.state is not None:
            saved = store.tensors(EMA)
            ema.load(dict(updater.own_parts(saved)) if isinstance(updater, ShardedUpdater) else saved)
    return ema
