"""What users load from a model folder: where and how it computes, its engine, how it is shown and pickled."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

from translume.checkpoint import (
    Checkpoint,
    ClassifierCheckpoint,
    load_any,
    load_checkpoint,
    model_folder,
    refuse_threads,
)
from translume.config import Config, DecodingOptions, DecodingSettings
from translume.decoding import Stepper, resolve_strategy
from translume.device import is_cpu
from translume.engine import Draft, Engine, EngineError, build_engine
from translume.engine.network import Network
from translume.engine.packed_file import PackedFile
from translume.engine.packing import Dtype as PackedDtype
from translume.errors import ModelFolderError, SettingsError, check_known, refuse_unknown_keywords
from translume.kernels.loading import has_kernels, kernels
from translume.kernels.loading import set_threads as set_kernel_threads
from translume.lazy import is_imported, torch

if TYPE_CHECKING:
    from translume.translator.device_searcher import DeviceSearcher

EngineName = Literal["auto", "fast", "plain"]
Dtype = Literal["auto", "fp32", "bf16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptions:
    """Where and how a model computes: --engine, --device, --dtype and --threads.

    engine: "fast" searches with weights packed for this machine, "plain" with the model itself in the decoding loop.
        "auto" on a CPU is "fast" if there is an engine for the model and the machine, else "plain". On a CUDA device,
        "auto" searches there, without the loop where the search allows it.
    device: "auto" is the CUDA device with the most free memory, or the CPU if there is none.
    dtype: of the packed weights, or of the model if there is no engine. "auto" is bf16 on GPUs that have it, else fp32.
    threads: of the whole process; None keeps the setting, all cores unless $OMP_NUM_THREADS says otherwise.
    """

    engine: EngineName = "auto"
    device: str = "auto"
    dtype: Dtype = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("engine", get_args(EngineName)), ("dtype", get_args(Dtype))):
            check_known(name, getattr(self, name), known)

    @property
    def plain_dtype(self) -> Literal["auto", "fp32", "bf16"]:
        """The dtype of a model without an engine; SettingsError for int8, which only an engine has."""
        if self.dtype == "int8":
            raise SettingsError("dtype: found 'int8', expected auto, fp32 or bf16; int8 is for translators")
        return self.dtype


def describe_engine(engine: Stepper | None) -> str:
    """Return a description of what searches: an engine, a device, other steps or the plain model."""
    if isinstance(engine, Engine):
        return f"fast engine {engine.dtype}"
    from translume.translator.device_searcher import DeviceSearcher

    if isinstance(engine, DeviceSearcher):
        return f"search on {engine.device} in {engine.dtype}"
    return "plain model" if engine is None else f"steps of {type(engine).__name__}"


def with_engine(read: Callable[..., Any], options: ComputeOptions) -> "tuple[Any, Engine | DeviceSearcher | None]":
    """A checkpoint and what searches in place of its model, if anything does.

    read: returns the checkpoint in a `dtype`.
    Raises EngineError (a SettingsError) if the engine that the options name cannot be built.
    """
    dtype = options.dtype
    if options.engine == "plain":
        if dtype == "int8":
            raise SettingsError("dtype: found 'int8' with --engine plain, expected auto, fp32 or bf16")
        return read(dtype=dtype), None
    required = options.engine == "fast" or dtype == "int8"
    if not required and not is_cpu(options.device):
        from translume.translator.device_searcher import DeviceSearcher

        checkpoint = read(dtype=dtype)
        searcher = DeviceSearcher(checkpoint.model)
        if searcher.device.type not in ("cpu", "mps"):  # MPS has no fp64, in which samples are drawn
            return checkpoint, searcher
    # An engine packs weights in fp32, whatever the dtype it packs them in.
    checkpoint = read(dtype="fp32" if required or dtype == "bf16" else dtype)
    try:
        return checkpoint, engine_of(checkpoint, "fp32" if dtype == "auto" else dtype)
    except EngineError:
        if required:
            raise
    return (read(dtype="bf16") if dtype == "bf16" else checkpoint), None


def engine_of(checkpoint: Checkpoint, dtype: PackedDtype, *, pack: bool | None = None) -> Engine:
    """Return the engine of a loaded model, which needs no torch; EngineError if there is none.

    It reads the packed file of the weights if there is one. pack: whether to write one; None: as `PackedFile.wanted`.
    """
    if not checkpoint.on_cpu:
        return build_engine(checkpoint.model, dtype)  # raises the error
    network, unbuilt = network_of(checkpoint), checkpoint.unbuilt
    if unbuilt is None or not has_kernels():
        return Engine(network, dtype, lambda: checkpoint.model)
    file = PackedFile(unbuilt.file, checkpoint.digest, dtype)
    network.kept.update(file.read(network.weights))
    packed = bool(network.kept)
    engine = Engine(network, dtype, lambda: checkpoint.model)
    engine.packed_file = file.path if packed else None
    if not packed and (file.wanted if pack is None else pack):
        try:
            engine.packed_file = file.write(network.weights, network.kept)
        except ModelFolderError:  # as in a full or read-only folder
            if pack:
                raise
    return engine


def draft_of(checkpoint: Checkpoint, engine: Engine, settings: DecodingSettings) -> Draft | None:
    """Return the small model that [decoding] names, which guesses tokens for a model. The model's engine keeps it.

    None, with a warning, if the model's own settings name a folder that is missing, as on another machine.
    Raises ModelFolderError for another missing folder, SettingsError for a draft that cannot guess for this model.
    """
    if settings.draft not in engine.drafts:
        try:
            engine.drafts[settings.draft] = _load_draft(checkpoint, settings.draft)
        except ModelFolderError as error:
            if settings.draft != checkpoint.config.decoding.draft:
                raise
            import logging  # takes milliseconds, and most starts need none

            logging.getLogger(__name__).warning("%s; searched without a draft", error)
            engine.drafts[settings.draft] = None
    draft = engine.drafts[settings.draft]
    return None if draft is None else replace(draft, count=settings.draft_tokens)


def _load_draft(checkpoint: Checkpoint, folder: str) -> Draft:
    place = f"decoding.draft: {folder}"
    try:
        small = load_checkpoint(folder, device="cpu", dtype="fp32")
    except ModelFolderError as error:
        raise ModelFolderError(f"decoding.draft: {error}") from None
    for side in ("source", "target"):
        wanted, present = getattr(checkpoint, f"{side}_tokenizer"), getattr(small, f"{side}_tokenizer")
        if present.digest != wanted.digest:
            raise SettingsError(f"{place}: it has another {side} vocabulary than the model, expected the same")
    tags, wanted_tags = small.config.model.language_tags, checkpoint.config.model.language_tags
    if tags != wanted_tags:
        raise SettingsError(f"{place}: it has model.language_tags = '{tags}', expected '{wanted_tags}' as the model")
    try:
        draft = engine_of(small, "int8" if kernels().int8 else "fp32").as_draft
    except EngineError as error:
        raise SettingsError(f"{place}: {error}") from None
    if draft is None:
        raise SettingsError(f"{place}: its head is not one linear map, so it has no search in the kernels")
    return draft


def network_of(checkpoint: Checkpoint | ClassifierCheckpoint) -> Network:
    """Return a loaded model as an engine reads it."""
    unbuilt, config, place = checkpoint.unbuilt, checkpoint.config, checkpoint.place
    settings, source = config.model, config.data.source
    if unbuilt is None or unbuilt.stored is None:
        return Network(settings=settings, source=source, weights=checkpoint.arrays(), place=place)
    return Network(settings=settings, source=source, weights=unbuilt.stored, place=place, check=unbuilt.check)


def set_threads(threads: int | None) -> None:
    """Set the number of threads of the kernels and of torch in this process; None leaves it unchanged."""
    refuse_threads(threads)
    if threads is None:
        return
    set_kernel_threads(threads)
    if is_imported():
        torch.set_num_threads(threads)


C = TypeVar("C", bound=Checkpoint | ClassifierCheckpoint)


class LoadedModel(ABC, Generic[C]):
    """A model of a folder. No call changes it, so threads may share it.

    checkpoint_class: of its checkpoints.  has_engine: whether an engine can search in place of the model.
    """

    checkpoint_class: ClassVar[type[Any]]
    has_engine: ClassVar[bool] = True

    def __init__(self, checkpoint: C, engine: Stepper | None = None) -> None:
        """checkpoint: its model is used in the mode, training or evaluation, that it is in.

        engine: searches instead of the plain model, which scores.
        """
        self.checkpoint, self._engine = checkpoint, engine
        self.folder: Path | None = None
        """The model folder that it was loaded from, if any."""
        self.options: ComputeOptions | None = None
        """How it was loaded; None for one that was made from a checkpoint or from other models."""
        self._made_by: tuple[Callable[..., Self], tuple[Any, ...]] | None = None
        """The function and arguments that returned it, for `__reduce__`."""

    @classmethod
    def load(cls, folder: Path | str, options: ComputeOptions | None = None) -> Self:
        """The model in a folder, with its engine.

        Raises ModelFolderError if the folder holds a model of another kind, EngineError (a SettingsError) if the engine
        that the options name cannot be built.
        """
        folder, options = model_folder(folder), options or ComputeOptions()
        set_threads(options.threads)
        read = partial(load_any, folder, device=options.device, expected=cls.checkpoint_class)
        if cls.has_engine:
            model = cls(*with_engine(read, options))
        elif options.engine == "fast":
            raise SettingsError(f"engine: found 'fast', expected 'auto' or 'plain'; a {cls.__name__.lower()} has none")
        else:
            model = cls(read(dtype=options.plain_dtype))
        model.options = options
        absolute = folder.absolute()  # messages name the folder as given
        return model.remember(absolute, cls.load, absolute, options)

    def remember(self, folder: Path | None, function: Callable[..., Self], *arguments: Any) -> Self:
        """Set the folder, and the call that returned this new model, for pickling; return the model."""
        self.folder, self._made_by = folder, (function, arguments)
        return self

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        """Pickle by the model's folder and options; TypeError for a model that no folder holds.

        Unpickling loads the model again.
        """
        if self._made_by is None:
            raise TypeError(f"{type(self).__name__}: it has no model folder, so it cannot be pickled; load(folder) can")
        return self._made_by

    def __repr__(self) -> str:
        subject, facts = self._facts()
        parts = [f"{self.checkpoint.parameters:,} parameters", *facts]
        if self.folder is not None:
            parts.append(str(self.folder))
        return f"<{type(self).__name__}{subject and ' '}{subject}: {', '.join(parts)}>"

    @abstractmethod
    def _facts(self) -> tuple[str, list[str]]:
        """The languages, and phrases about the model, for `repr`."""

    @property
    def config(self) -> Config:
        """The settings the model was trained with."""
        return self.checkpoint.config

    @property
    def engine(self) -> Engine | None:
        """The engine that searches; None if the plain model or a GPU does."""
        return self._engine if isinstance(self._engine, Engine) else None

    def check(self, settings: DecodingSettings) -> None:
        """Raise SettingsError if settings contradict each other or need what this model does not have."""
        self.config.check_decoding(settings)

    def choose(
        self,
        settings: DecodingSettings | None,
        options: DecodingOptions | None = None,
        *,
        function: str = "decoding",
        others: Sequence[str] = ("settings",),
    ) -> DecodingSettings:
        """The settings, or the model's own, with single options replaced; SettingsError if they do not fit the model.

        function: for errors.  others: further keywords of the function.
        """
        options = options or {}
        refuse_unknown_keywords(function, options, (*others, *DecodingSettings.model_fields))
        if settings is not None and not isinstance(settings, DecodingSettings):
            raise TypeError(f"settings: found {type(settings).__name__}, expected DecodingSettings or None")
        chosen = settings or self.config.decoding
        if options:
            values = {"decoding": {**chosen.model_dump(), **options}}
            chosen = resolve_strategy(Config.build(values, place=function).decoding, options)
        self.check(chosen)
        return chosen
