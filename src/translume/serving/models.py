"""The models of a server, by name and by pair of languages."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, Self

import numpy as np

from translume.checkpoint import Manifest, committed, read_config
from translume.checkpoint.arrays import map_arrays
from translume.checkpoint.loading import WEIGHTS, count_parameters
from translume.config import Config, DecodingSettings, Direction, FrameSettings
from translume.config.languages import SHOWN
from translume.config.sources import RecordingSettings
from translume.errors import SettingsError, TranslumeError, nearest
from translume.kernels.loading import describe_kernels
from translume.serving.api.errors import RequestError, field_error
from translume.serving.api.language_codes import find_language, public
from translume.serving.scheduler import Work
from translume.serving.work import Classifying, Generating, Part, Prompt, Translating
from translume.sources import Frames
from translume.sources.headers import EXTENSIONS
from translume.tasks import task_of
from translume.translator import Translator
from translume.translator.planning import Reading, directions_of

MANIFEST: Final = "manifest_sha256"
"""Name of the fact that is the digest of a model's manifest."""
PROBE: Final = "a"
"""Text with which a model is tested."""
GENERATE_PROBE: Final = DecodingSettings(strategy="greedy", max_length=1)
PROBE_SETTINGS: Final = DecodingSettings(strategy="greedy", max_length=5, max_length_action="truncate")

SIDES: Final = ("encoder", "decoder")

Kind = Literal["translate", "transcribe", "classify", "generate"]
OFFERS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "translate": ("translate", "score", "inspect"),
    "transcribe": ("transcribe", "inspect"),
    "classify": ("classify",),
    "generate": ("generate",),
}
"""The operations of /v1 that each kind of model offers."""
NAMES: Final[Mapping[Kind, tuple[str, str]]] = {
    "translate": ("translator", "no_translator"),
    "transcribe": ("model of recordings, images or arrays", "no_transcriber"),
    "classify": ("classifier", "no_classifier"),
    "generate": ("language model", "no_generator"),
}
"""What a kind of model is called, and the code of an error if there is none."""


class OnDemand:
    """A translator that is loaded when it is first used; only its settings are read before. Threads share it."""

    def __init__(self, config: Config, load: Callable[[], Translator]) -> None:
        self.config, self._load, self._lock = config, load, Lock()
        self._loaded: Translator | None = None

    @property
    def loaded(self) -> bool:
        """Whether the translator is in memory."""
        return self._loaded is not None

    def load(self) -> Translator:
        """Return the translator. Raises the errors of `Translator.load`."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model under its name, or one direction of a translator with several.

    kind: "transcribe" for a translator that reads recordings, images or arrays. Routes for texts do not know it: a
    text would be the path of a file.
    facts: values for clients, besides name and languages.
    source, target: language codes as clients know them; empty if the settings have none, and for a model with several.
    directions: the directions of a model with several, or the one of this view; empty for other models.
    """

    name: str
    model: Any
    kind: Kind
    facts: Mapping[str, Any]
    source: str = ""
    target: str = ""
    directions: tuple[Direction, ...] = ()

    @classmethod
    def from_model(cls, name: str, model: Any) -> Self:
        """Describe a `Translator`, `Classifier` or `Generator`. Runs the self-test of its engine."""
        reads_files = model.config.data.source.reader
        kind: Any = "transcribe" if reads_files else task_of(model.config).command
        facts = {**_facts_of(model, kind), **(_facts_of_reader(model) if reads_files else {})}
        served = cls(name=name, model=model, kind=kind, facts=facts)
        if kind != "translate":
            return served
        offered = directions_of(model.checkpoint).offered
        if len(offered) > 1:
            return replace(served, directions=offered)
        data = model.config.data
        only = offered[0] if offered else Direction(source=data.source_language, target=data.target_language)
        return replace(served, source=public(only.source), target=public(only.target))

    @classmethod
    def on_demand(cls, name: str, folder: Path, load: Callable[[], Translator]) -> Self:
        """Describe a translator between two languages without loading it. Raises ModelFolderError."""
        manifest = Manifest.read(folder)
        config, arrays = read_config(folder, manifest), map_arrays(committed(folder, manifest, WEIGHTS))
        tables = [arrays[table] for side in SIDES if (table := f"{side}.embedding.table.weight") in arrays]
        facts = {
            "parameters": count_parameters(arrays, config),
            "source_vocabulary": len(tables[0]),
            "target_vocabulary": len(tables[-1]),
            "max_positions": config.model.max_positions,
            "engine": {"kind": "unloaded", "dtype": "", "own_kernels": False},
            "offers": list(OFFERS["translate"]),
            "decoding": config.decoding.model_dump(mode="json"),
        }
        codes = public(config.data.source_language), public(config.data.target_language)
        model = OnDemand(config, load)
        return cls(name=name, model=model, kind="translate", facts=facts, source=codes[0], target=codes[1])

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory."""
        return not isinstance(self.model, OnDemand) or self.model.loaded

    def views(self) -> list[Self]:
        """Return the model once for each direction that it offers."""
        return [
            replace(self, source=public(each.source), target=public(each.target), directions=(each,))
            for each in self.directions
        ] or [self]

    @property
    def direction(self) -> Mapping[str, str]:
        """The settings in [decoding] that choose the direction of this view; empty for other models."""
        if len(self.directions) != 1:
            return {}
        return {"from_": self.directions[0].source, "to": self.directions[0].target}

    def probe(self, *, quick: bool = True) -> tuple[Work, Any]:
        """Return work that shows whether the model works, and its item.

        quick: not to search windows of audio, which would take seconds.
        """
        if self.kind == "classify":
            return Classifying(self.model), PROBE
        if self.kind == "generate":
            return Generating(self.model, GENERATE_PROBE), Prompt(text="")
        settings = PROBE_SETTINGS.model_copy(update=dict(self.views()[0].direction))
        return Translating(self.model, settings), self._probed_part(quick=quick)

    def run_probe(self) -> None:
        """Do that work in this thread; raise the error of a model that does not work."""
        work, item = self.probe(quick=False)
        shared, item = work.shared([item])[0] if isinstance(work, Translating) else (work, item)
        batch = shared.begin()
        done: Mapping[int, Any] = {}
        batch.enter({0: item})
        while not done:
            done = batch.run(tuple)
        batch.close()
        if isinstance(done[0], TranslumeError):
            raise done[0]

    def _probed_part(self, *, quick: bool) -> Part:
        """Return a text, or frames: noise, or for windows silence, which is not searched."""
        if self.kind == "translate":
            return Part(text=PROBE)
        source: FrameSettings = self.model.config.data.source
        shape = source.window or 2 << source.convolutions, source.size
        noise = np.random.default_rng(0).random(shape, np.float32)
        return Part(text="", given=Frames(np.zeros(shape, np.float32) if quick and source.window else noise))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values for clients.

        directions: pairs of a source and a target language, of a model with several.
        offers: names of the /v1 operations.  engine: the engine, or the plain model.
        reads: as `responses.Reads` defines it.  languages: of recordings that the model can tell apart.
        """
        several = {"directions": [[each.source, each.target] for each in self.views()]} if self.directions else {}
        pair = {"source": self.source, "target": self.target} if self.kind == "translate" else {}
        return {"name": self.name, **pair, **several, **self.facts}


def _facts_of(model: Any, kind: Kind) -> dict[str, Any]:
    """Return facts for clients."""
    checkpoint, settings = model.checkpoint, model.config
    computes = model.class_engine if kind == "classify" else model.engine
    if computes is None:
        dtype = str(next(checkpoint.model.parameters()).dtype).removeprefix("torch.")
        engine = {"kind": "plain", "dtype": dtype, "own_kernels": False}
    else:
        alone = kind != "classify" and computes.head is not None
        engine = {"kind": "fast", "dtype": computes.dtype, "own_kernels": True, "alone_equals_batched": alone}
        engine["kernels"] = describe_kernels()
    facts: dict[str, Any] = {
        "parameters": checkpoint.parameters,
        "source_vocabulary": len(checkpoint.source_tokenizer),
        "max_positions": model.context if kind == "generate" else settings.model.max_positions,
        "engine": engine,
        "offers": list(OFFERS[kind]),
    }
    if kind == "classify":
        return {**facts, "labels": list(model.labels.names), "several_labels": bool(model.labels.separator)}
    return {
        **facts,
        "target_vocabulary": len(checkpoint.target_tokenizer),
        "decoding": settings.decoding.model_dump(mode="json"),
    }


def _facts_of_reader(model: Translator) -> dict[str, Any]:
    """Return what a model of recordings, images or arrays reads."""
    source: Any = model.config.data.source
    recording = isinstance(source, RecordingSettings)
    kind: Any = source.kind if recording else source.files
    files = list(EXTENSIONS[source.files])
    reads: dict[str, Any] = {"kind": kind, "files": files, "times": source.window > 0}
    if recording:
        limit = Reading.from_settings(model.checkpoint, PROBE_SETTINGS).limit
        longest = math.inf if source.window else limit * source.stride / source.rate
        reads["seconds"] = min(source.max_seconds, longest)
    directions = model.directions
    return {"reads": reads, "languages": list(directions.sources) if directions.speech else []}


class ServedModels:
    """The models of a server. Immutable: a reload replaces it as a whole. Iterates over the translation models."""

    def __init__(self, served: Iterable[ServedModel], pivot: str = "") -> None:
        """pivot: a language through which other pairs are translated, if not empty.

        Raises SettingsError if there is no model, or if two have the same name.
        """
        self._pivot = pivot
        self._all: dict[str, ServedModel] = {}
        for each in served:
            if each.name in self._all:
                raise SettingsError(f"{each.name}: two models have this name; rename one with NAME=MODEL")
            self._all[each.name] = each
        if not self._all:
            raise SettingsError("found no model, expected at least one")
        self._translators = self.of_kind("translate")
        self._views = [view for each in self._translators.values() for view in each.views()]
        directions = {f"{each.name}:{each.source}-{each.target}": each for each in self._views if each.source}
        self._named = {**directions, **self._translators}

    def of_kind(self, kind: Kind) -> dict[str, ServedModel]:
        """Return the models of a kind by name, such as all translators."""
        return {name: each for name, each in self._all.items() if each.kind == kind}

    def only(self, kind: Kind, name: str) -> ServedModel:
        """Return the model of a kind by name, or the only one. Raises RequestError (404 or 422) if there is none."""
        known, (what, code) = self.of_kind(kind), NAMES[kind]
        if not known:
            raise field_error("model", f"this server has no {what}", 404, code)
        if name in known:
            return known[name]
        if name:
            raise field_error("model", f"no such {what}{nearest(name, known)}", 404, "unknown_model")
        if len(known) > 1:
            raise field_error("model", f"found nothing, expected one of: {', '.join(known)}")
        return next(iter(known.values()))

    @property
    def all(self) -> tuple[ServedModel, ...]:
        """The models of every task."""
        return tuple(self._all.values())

    def named(self, name: str) -> ServedModel:
        """Return the translation model of a name. Raises RequestError (404 or 422) if there is none.

        "NAME:SOURCE-TARGET" is one direction of a model with several.
        """
        if name in self._named:
            return self._named[name]
        if name in self._all:
            other = self._all[name]
            kind = "model of files" if other.kind == "transcribe" else task_of(other.model.config).model
            raise field_error("model", f"{name!r} is a {kind}, expected a translator; use /v1/{OFFERS[other.kind][0]}")
        raise field_error("model", f"found {name!r}{nearest(name, self._translators)}", 404, "unknown_model")

    def between(self, source: str, target: str) -> ServedModel | None:
        """Return the first model from one language to another, in any spelling of their codes, or None."""
        into = self.sources()
        first = find_language(source, (each for each, targets in into.items() if targets))
        second = None if first is None else find_language(target, into[first])
        return next((each for each in self._views if (each.source, each.target) == (first, second)), None)

    def route(self, source: str, target: str) -> list[ServedModel]:
        """Return the models to apply one after the other: one, two through the pivot, or none if there are none."""
        direct = self.between(source, target)
        pivot = self._pivot
        steps = [direct] if direct or not pivot else [self.between(source, pivot), self.between(pivot, target)]
        return [each for each in steps if each is not None] if all(steps) else []

    def choose(self, name: str, source: str, target: str) -> ServedModel:
        """Return the model for a request: by name, by both languages, or the only one. Raises RequestError."""
        if name:
            named = self.named(name)
            if len(named.directions) < 2 or not source or not target:
                return named
            return ServedModels([named]).choose("", source, target)
        if source and target:
            served = self.between(source, target)
            if served is None:
                known = sorted({f"{each.source}-{each.target}" for each in self._views if each.source})
                pairs = ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
                raise RequestError(
                    404,
                    f"source, target: found '{source}-{target}', expected one of: {pairs or 'none; name a model'}",
                    code="unknown_pair",
                    field="target",
                )
            return served
        if source or target:
            raise field_error("target" if source else "source", "found nothing, expected both source and target")
        return self.only("translate", "")

    def sources(self) -> dict[str, list[str]]:
        """Return the target languages of each source language. A language that is only a target has an empty list."""
        reachable: dict[str, dict[str, None]] = {}
        for each in self._views:
            if each.source and each.target:
                reachable.setdefault(each.source, {})[each.target] = None
                reachable.setdefault(each.target, {})
        for source, targets in reachable.items():
            if self._pivot in targets:
                targets |= {each: None for each in reachable[self._pivot] if each != source}
        return {source: list(targets) for source, targets in reachable.items()}
