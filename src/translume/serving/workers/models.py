"""The models of a server, by name and by pair of languages."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from translume.checkpoint import Checkpoint
from translume.config import Config, DecodingSettings, Direction, FrameSettings
from translume.config.languages import SHOWN
from translume.config.sources import RecordingSettings
from translume.errors import SettingsError, TranslumeError, nearest
from translume.kernels.loading import describe_kernels
from translume.serving.api.errors import RequestError
from translume.serving.api.language_codes import find_language, public
from translume.serving.workers.messages import LoadedModel
from translume.serving.workers.proxy import ClassifierProxy, GeneratorProxy, TranslatorProxy
from translume.serving.workers.work import GENERATE_PROBE, PROBE, PROBE_SETTINGS
from translume.sources import Frames
from translume.sources.headers import EXTENSIONS
from translume.tasks import task_of
from translume.translator import Classifier, Generator, Translator
from translume.translator.loading import ComputeOptions
from translume.translator.planning import Line, Reading, directions_of
from translume.translator.speech import FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A translation model, or one direction of a model with several.

    source, target: language codes as clients know them; empty if the settings have none, and for a model with several.
    directions: the directions of a model with several, or the one of this view; empty for other models.
    facts: values for clients, besides name and languages.
    """

    name: str
    translator: TranslatorProxy
    source: str = ""
    target: str = ""
    directions: tuple[Direction, ...] = ()
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, translator: Translator) -> "Served":
        """Describe a translator of this process, which is a worker. Runs the self-test of its engine."""
        facts = {**_facts_of(translator), "offers": ["translate", "score", "inspect"]}
        # In a worker process, the translator itself takes the place of the proxy.
        return cls._between_languages(name, cast(TranslatorProxy, translator), facts)

    @classmethod
    def load(cls, name: str, folder: Path, computing: ComputeOptions) -> "Served":
        """Load the translator of a model folder into this process."""
        return cls.of(name, Translator.load(folder, computing))

    @classmethod
    def remote(cls, name: str, pool: Any, key: str, loaded: LoadedModel) -> "Served":
        """Return a translator in worker processes."""
        return cls._between_languages(name, TranslatorProxy(pool, key, loaded), loaded.facts)

    @classmethod
    def _between_languages(cls, name: str, translator: TranslatorProxy, facts: Mapping[str, Any]) -> "Served":
        """Return a model with its languages, or with its directions if there are several."""
        offered = directions_of(cast(Checkpoint, translator.checkpoint)).offered
        if len(offered) > 1:
            return cls(name=name, translator=translator, directions=offered, facts=facts)
        data = translator.config.data
        only = offered[0] if offered else Direction(source=data.source_language, target=data.target_language)
        return cls(
            name=name, translator=translator, source=public(only.source), target=public(only.target), facts=facts
        )

    def views(self) -> "list[Served]":
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

    @property
    def probe_settings(self) -> DecodingSettings:
        """The settings of a search that shows whether the model works."""
        return PROBE_SETTINGS.model_copy(update=dict(self.views()[0].direction))

    @property
    def model(self) -> TranslatorProxy:
        """The translator."""
        return self.translator

    def probe(self) -> None:
        """Translate a word, to see that the model works."""
        for _, result in self.translator.translate_each([Line(number=0, text=PROBE)], self.probe_settings):
            if isinstance(result, TranslumeError):
                raise result

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values for clients.

        directions: pairs of a source and a target language, of a model with several.
        offers: names of the /v1 operations.  engine: the engine, or the plain model, and the self-test's result.
        """
        several = {"directions": [[each.source, each.target] for each in self.views()]} if self.directions else {}
        return {"name": self.name, "source": self.source, "target": self.target, **several, **self.facts}


def _facts_of(translator: Translator) -> dict[str, Any]:
    """Return facts for clients. Runs the self-test of the engine."""
    findings: dict[str, Any] = {}
    if translator.engine is not None:
        from translume.engine import self_test

        findings = self_test(translator.engine, translator.checkpoint.model).to_dict()
        findings["kernels"] = describe_kernels()
    settings, checkpoint = translator.config, translator.checkpoint
    weights = list(checkpoint.model.parameters())
    dtype = translator.engine.dtype if translator.engine else str(weights[0].dtype)
    return {
        "parameters": sum(each.numel() for each in weights),
        "source_vocabulary": len(checkpoint.source_tokenizer),
        "target_vocabulary": len(checkpoint.target_tokenizer),
        "max_positions": settings.model.max_positions,
        "decoding": settings.decoding.model_dump(mode="json"),
        "engine": {
            "kind": "fast" if translator.engine else "plain",
            "dtype": dtype.removeprefix("torch."),
            "own_kernels": translator.engine is not None and translator.engine.encoder is not None,
            **findings,
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTranscriber:
    """A model of recordings, images or arrays. Routes for texts do not know it: a text would be the path of a file.

    facts: values for clients, besides the name.
    """

    name: str
    transcriber: TranslatorProxy
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, translator: Translator) -> "ServedTranscriber":
        """Describe a translator of this process, which is a worker. Runs the self-test of its engine."""
        source: FrameSettings = cast(FrameSettings, translator.config.data.source)
        medium: Any = "audio" if isinstance(source, RecordingSettings) else source.kind
        reads: dict[str, Any] = {"kind": source.kind, "files": list(EXTENSIONS[medium]), "times": source.window > 0}
        limit = Reading.from_settings(translator.checkpoint, PROBE_SETTINGS).limit
        if isinstance(source, RecordingSettings):
            longest = math.inf if source.window else (limit << source.convolutions) / FRAMES_PER_SECOND
            reads["seconds"] = min(source.max_seconds, longest)
        directions = translator.directions
        facts = {
            **_facts_of(translator),
            "offers": ["transcribe", "inspect"],
            "reads": reads,
            "languages": list(directions.sources) if directions.speech else [],
        }
        return cls(name=name, transcriber=cast(TranslatorProxy, translator), facts=facts)

    @classmethod
    def load(cls, name: str, folder: Path, computing: ComputeOptions) -> "ServedTranscriber":
        """Load the translator of a model folder into this process."""
        return cls.of(name, Translator.load(folder, computing))

    @classmethod
    def remote(cls, name: str, pool: Any, key: str, loaded: LoadedModel) -> "ServedTranscriber":
        """Return a translator in worker processes."""
        return cls(name=name, transcriber=TranslatorProxy(pool, key, loaded), facts=loaded.facts)

    @property
    def model(self) -> TranslatorProxy:
        """The translator."""
        return self.transcriber

    @property
    def direction(self) -> Mapping[str, str]:
        """The settings in [decoding] that choose a direction: none, a request does."""
        return {}

    @property
    def health_probe(self) -> Frames:
        """A source that is read within milliseconds. Windows of silence are not searched: one would take seconds."""
        return self._probe(silent=self.transcriber.config.data.source.window > 0)

    def probe(self) -> None:
        """Transcribe noise, to see that the model works."""
        line = Line(number=0, text="", given=self._probe(silent=False))
        for _, result in self.transcriber.translate_each([line], PROBE_SETTINGS):
            if isinstance(result, TranslumeError):
                raise result

    def _probe(self, *, silent: bool) -> Frames:
        source: FrameSettings = cast(FrameSettings, self.transcriber.config.data.source)
        shape = source.window or 2 << source.convolutions, source.size
        noise = np.random.default_rng(0).random(shape, np.float32)
        return Frames(np.zeros(shape, np.float32) if silent else noise)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values for clients.

        reads: as `responses.Reads` defines it.  languages: of recordings that the model can tell apart; empty for other
        models.
        """
        return {"name": self.name, **self.facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedClassifier:
    """A classification model.  facts: values for clients, besides the name."""

    name: str
    classifier: ClassifierProxy
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, classifier: Classifier) -> "ServedClassifier":
        """Describe a classifier of this process, which is a worker."""
        checkpoint = classifier.checkpoint
        weights = list(checkpoint.model.parameters())
        facts = {
            "parameters": sum(each.numel() for each in weights),
            "source_vocabulary": len(checkpoint.source_tokenizer),
            "max_positions": classifier.config.model.max_positions,
            "labels": list(classifier.labels.names),
            "several_labels": bool(classifier.labels.separator),
            "engine": {"kind": "plain", "dtype": str(weights[0].dtype).removeprefix("torch."), "own_kernels": False},
            "offers": ["classify"],
        }
        return cls(name=name, classifier=cast(ClassifierProxy, classifier), facts=facts)

    @classmethod
    def load(cls, name: str, folder: Path, computing: ComputeOptions) -> "ServedClassifier":
        """Load the classifier of a model folder into this process."""
        return cls.of(name, Classifier.load(folder, computing))

    @classmethod
    def remote(cls, name: str, pool: Any, key: str, loaded: LoadedModel) -> "ServedClassifier":
        """Return a classifier in worker processes."""
        return cls(name=name, classifier=ClassifierProxy(pool, key, loaded), facts=loaded.facts)

    @property
    def model(self) -> ClassifierProxy:
        """The classifier."""
        return self.classifier

    def probe(self) -> None:
        """Classify a word, to see that the model works."""
        list(self.classifier.classify_all([PROBE]))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values for clients."""
        return {"name": self.name, **self.facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedGenerator:
    """A language model.  facts: values for clients, besides the name."""

    name: str
    generator: GeneratorProxy
    facts: Mapping[str, Any]

    @property
    def direction(self) -> Mapping[str, str]:
        """The settings in [decoding] that choose a direction: none."""
        return {}

    @classmethod
    def of(cls, name: str, generator: Generator) -> "ServedGenerator":
        """Describe a language model of this process, which is a worker. Runs the self-test of its engine."""
        findings: dict[str, Any] = {}
        if generator.engine is not None:
            from translume.engine import self_test

            findings = self_test(generator.engine, generator.checkpoint.model).to_dict()
            findings["kernels"] = describe_kernels()
        weights = list(generator.checkpoint.model.parameters())
        dtype = generator.engine.dtype if generator.engine else str(weights[0].dtype)
        facts = {
            "parameters": sum(each.numel() for each in weights),
            "source_vocabulary": len(generator.tokenizer),
            "target_vocabulary": len(generator.tokenizer),
            "max_positions": generator.context,
            "decoding": generator.config.decoding.model_dump(mode="json"),
            "engine": {
                "kind": "fast" if generator.engine else "plain",
                "dtype": dtype.removeprefix("torch."),
                "own_kernels": generator.engine is not None and generator.engine.decoder.indirect_slots,
                **findings,
            },
            "offers": ["generate"],
        }
        return cls(name=name, generator=cast(GeneratorProxy, generator), facts=facts)

    @classmethod
    def load(cls, name: str, folder: Path, computing: ComputeOptions) -> "ServedGenerator":
        """Load the language model of a model folder into this process."""
        return cls.of(name, Generator.load(folder, computing))

    @classmethod
    def remote(cls, name: str, pool: Any, key: str, loaded: LoadedModel) -> "ServedGenerator":
        """Return a language model in worker processes."""
        return cls(name=name, generator=GeneratorProxy(pool, key, loaded), facts=loaded.facts)

    @property
    def model(self) -> GeneratorProxy:
        """The language model."""
        return self.generator

    def probe(self) -> None:
        """Generate a token, to see that the model works."""
        list(self.generator.generate_all([""], settings=GENERATE_PROBE))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values for clients."""
        return {"name": self.name, **self.facts}


AnyServed = Served | ServedTranscriber | ServedClassifier | ServedGenerator
"""A model of any task under its name."""
S = TypeVar("S")


def served_class(config: Config) -> type[AnyServed]:
    """Return the class that holds a model in a server."""
    if config.data.source.reader:
        return ServedTranscriber
    found: type[AnyServed] = task_of(config).served_class()
    return found


class ServedModels:
    """The models of a server. Immutable: a reload replaces it as a whole. Iterates over the translation models."""

    def __init__(self, served: Iterable[AnyServed]) -> None:
        """Raises SettingsError if there is no model, or if two have the same name."""
        self._all: dict[str, AnyServed] = {}
        for each in served:
            if each.name in self._all:
                raise SettingsError(f"{each.name}: two models have this name; rename one with NAME=MODEL")
            self._all[each.name] = each
        if not self._all:
            raise SettingsError("found no model, expected at least one")
        self._served = self.of(Served)
        self._views = {
            (name, each.source, each.target): each for name, served in self._served.items() for each in served.views()
        }
        self.classifiers = self.of(ServedClassifier)
        self.generators = self.of(ServedGenerator)
        self.transcribers = self.of(ServedTranscriber)

    def of(self, kind: type[S]) -> dict[str, S]:
        """Return the models of a class by name, such as all translators."""
        return {name: each for name, each in self._all.items() if isinstance(each, kind)}

    def classifier(self, name: str) -> ServedClassifier:
        """Return the classifier of a name, or the only one. Raises RequestError (404 or 422) if there is none."""
        return _named_or_only(name, self.classifiers, "classifier", "no_classifier")

    def generator(self, name: str) -> ServedGenerator:
        """Return the language model of a name, or the only one. Raises RequestError (404 or 422) if there is none."""
        return _named_or_only(name, self.generators, "language model", "no_generator")

    def transcriber(self, name: str) -> ServedTranscriber:
        """Return the model of recordings, images or arrays of a name, or the only one. Raises RequestError."""
        return _named_or_only(name, self.transcribers, "model of recordings, images or arrays", "no_transcriber")

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    @property
    def all(self) -> tuple[AnyServed, ...]:
        """The models of every task."""
        return tuple(self._all.values())

    def named(self, name: str) -> Served:
        """Return the translation model of a name. Raises RequestError (404 or 422) if there is none.

        "NAME:SOURCE-TARGET" is one direction of a model with several.
        """
        model, _, pair = name.rpartition(":")
        for split in range(len(pair)):
            view = self._views.get((model, pair[:split], pair[split + 1 :])) if pair[split] == "-" else None
            if view is not None:
                return view
        if name in self._all and name not in self._served:
            other = self._all[name]
            task, offer = task_of(other.model.config), other.facts["offers"][0]
            kind = "model of files" if isinstance(other, ServedTranscriber) else task.model
            reason = f"model: {name!r} is a {kind}, expected a translator; use /v1/{offer}"
            raise RequestError(422, reason, field="model")
        if name not in self._served:
            raise RequestError(
                404, f"model: found {name!r}{nearest(name, self._served)}", code="unknown_model", field="model"
            )
        return self._served[name]

    def between(self, source: str, target: str) -> Served | None:
        """Return the first model from one language to another, in any spelling of their codes, or None."""
        into = self.sources()
        first = find_language(source, (each for each, targets in into.items() if targets))
        second = None if first is None else find_language(target, into[first])
        return next((each for each in self._views.values() if (each.source, each.target) == (first, second)), None)

    def choose(self, name: str, source: str, target: str) -> Served:
        """Return the model for a request: by name, by both languages, or the only one. Raises RequestError."""
        if name:
            named = self.named(name)
            if len(named.directions) < 2 or not source or not target:
                return named
            return ServedModels([named]).choose("", source, target)
        if source and target:
            found = self.between(source, target)
            if found is None:
                known = sorted({f"{each.source}-{each.target}" for each in self._views.values() if each.source})
                pairs = ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
                raise RequestError(
                    404,
                    f"source, target: found '{source}-{target}', expected one of: {pairs or 'none; name a model'}",
                    code="unknown_pair",
                    field="target",
                )
            return found
        if source or target:
            missing = "target" if source else "source"
            raise RequestError(422, f"{missing}: found nothing, expected both source and target", field=missing)
        if not self._served:
            raise RequestError(404, "model: this server has none that translates", code="no_translator", field="model")
        if len(self._served) > 1:
            raise RequestError(422, f"model: found nothing, expected one of: {', '.join(self._served)}", field="model")
        return next(iter(self))

    def sources(self) -> dict[str, list[str]]:
        """Return the target languages of each source language. A language that is only a target has an empty list."""
        found: dict[str, dict[str, None]] = {}
        for each in self._views.values():
            if each.source and each.target:
                found.setdefault(each.source, {})[each.target] = None
                found.setdefault(each.target, {})
        return {source: list(targets) for source, targets in found.items()}


def _named_or_only(name: str, known: Mapping[str, S], kind: str, absent: str) -> S:
    if not known:
        raise RequestError(404, f"model: this server has no {kind}", code=absent, field="model")
    if name in known:
        return known[name]
    if name:
        raise RequestError(404, f"model: no such {kind}{nearest(name, known)}", code="unknown_model", field="model")
    if len(known) > 1:
        raise RequestError(422, f"model: found nothing, expected one of: {', '.join(known)}", field="model")
    return next(iter(known.values()))
