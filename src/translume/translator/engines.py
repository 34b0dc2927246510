"""Options for where and how a model computes, and the choice of the engine that searches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Literal, Protocol, TypeVar

import torch

from translume.checkpoint import refuse_threads
from translume.engine import Engine, EngineError, build_engine, self_test
from translume.engine.selftest import TOLERANCES
from translume.errors import SettingsError
from translume.model import Transformer
from translume.model.device import is_cpu
from translume.translator.device_searcher import DeviceSearcher

EngineName = Literal["auto", "fast", "plain"]
ModelDtype = Literal["auto", "fp32", "bf16"]


class ModelCheckpoint(Protocol):
    """A loaded checkpoint whose model an engine can replace."""

    @property
    def model(self) -> Transformer:
        """The plain model."""


C = TypeVar("C", bound=ModelCheckpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptions:
    """Where and how a model computes: --engine, --device, --dtype and --threads.

    engine: "fast" searches with weights packed for this machine, "plain" with the model itself in the decoding loop.
        "auto" on a CPU is "fast" if there is an engine for the model and the machine and it passes its self-test, else
        "plain". On a CUDA device, "auto" searches there, without the loop where the search allows it.
    device: "auto" is the CUDA device with the most free memory, or the CPU if there is none.
    dtype: of the packed weights, or of the model if there is no engine. "auto" is bf16 on GPUs that have it, else fp32.
    threads: None keeps torch's setting.
    """

    engine: EngineName = "auto"
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    threads: int | None = None

    @property
    def plain_dtype(self) -> Literal["auto", "fp32", "bf16"]:
        """The dtype of a model without an engine; SettingsError for int8, which only an engine has."""
        if self.dtype == "int8":
            raise SettingsError("dtype: found 'int8', expected auto, fp32 or bf16; int8 is for translators")
        return self.dtype


class DeferredEngine:
    """An engine that is built when it is first needed, once for all threads."""

    def __init__(self, build: Callable[[], Engine | None]) -> None:
        """build: returns None where there is no engine."""
        self._build = build
        self._lock = Lock()
        self._built: tuple[Engine | None] | None = None

    @property
    def is_built(self) -> bool:
        """Whether `get` has been called."""
        return self._built is not None

    def get(self) -> Engine | None:
        """The engine; None where there is none."""
        with self._lock:
            if self._built is None:
                self._built = (self._build(),)
            return self._built[0]

    def __reduce__(self) -> tuple[type["DeferredEngine"], tuple[Callable[[], Engine | None]]]:
        return DeferredEngine, (self._build,)


SearchEngine = Engine | DeferredEngine | DeviceSearcher
"""What searches in place of the plain model."""


def built_engine(engine: SearchEngine | None) -> Engine | None:
    """Return the engine, built now if it was not yet; None for a search without one."""
    found = engine.get() if isinstance(engine, DeferredEngine) else engine
    return None if isinstance(found, DeviceSearcher) else found


def describe_engine(engine: SearchEngine | None) -> str:
    """Return a description of what searches: an engine, a device or the plain model. Builds no engine."""
    if isinstance(engine, DeviceSearcher):
        return f"search on {engine.device} in {engine.dtype}"
    if isinstance(engine, DeferredEngine):
        if not engine.is_built:
            return "engine built when it is first used"
        engine = engine.get()
    return "plain model" if engine is None else f"fast engine {engine.dtype}"


def build_sound_engine(model: Transformer, dtype: Literal["fp32", "bf16"]) -> Engine | None:
    """An engine that passes its self-test against the plain model; None where there is none."""
    try:
        engine = build_engine(model, dtype)
    except EngineError:
        return None
    return engine if self_test(engine, model, alone=False).agrees else None


def refuse_unsound(engine: Engine, model: Transformer) -> None:
    """Raise EngineError if an engine fails its self-test against the plain model."""
    findings = self_test(engine, model, alone=False)
    if not findings.agrees:
        raise EngineError(
            f"engine: found log-probabilities in {engine.dtype} that differ from the plain model's by"
            f" {findings.difference:.2g} nats, expected at most {TOLERANCES[engine.dtype]:g}; --engine plain works"
        )


def with_engine(read: Callable[[ModelDtype], C], options: ComputeOptions) -> tuple[C, SearchEngine | None]:
    """A checkpoint and what searches in place of its model, if anything does.

    read: returns the checkpoint in a dtype.
    Raises EngineError (a SettingsError) if the engine that the options name cannot be built.
    """
    if options.engine == "plain":
        if options.dtype == "int8":
            raise SettingsError("dtype: found 'int8' with --engine plain, expected auto, fp32 or bf16")
        return read(options.dtype), None
    if options.engine == "auto" and options.dtype != "int8" and not is_cpu(options.device):
        checkpoint = read(options.dtype)
        searcher = DeviceSearcher(checkpoint.model)
        if searcher.device.type not in ("cpu", "mps"):  # MPS has no fp64, in which samples are drawn
            return checkpoint, searcher
    # An engine packs the weights of an fp32 model, whatever the dtype it packs them in.
    if options.engine == "fast" or options.dtype == "int8":
        checkpoint = read("fp32")
        required = build_engine(checkpoint.model, "fp32" if options.dtype == "auto" else options.dtype)
        refuse_unsound(required, checkpoint.model)
        return checkpoint, required
    if options.dtype == "bf16":
        checkpoint = read("fp32")
        engine = build_sound_engine(checkpoint.model, "bf16")
        return (checkpoint, engine) if engine else (read("bf16"), None)
    checkpoint = read(options.dtype)
    return checkpoint, DeferredEngine(partial(build_sound_engine, checkpoint.model, "fp32"))


def set_threads(threads: int | None) -> None:
    """Set the number of torch's threads in this process; None leaves it unchanged."""
    refuse_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)
