"""Models in worker processes, as the rest of the server sees them: just like those in its own process."""

import json
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, Self

from translume.config import Config, DecodingSettings
from translume.errors import SettingsError, TranslumeError
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.workers.plain import (
    CLASSIFICATION,
    NUMBERS,
    SCORE,
    TRANSLATIONS,
    lines_text,
    settings_text,
)
from translume.serving.workers.process import Process
from translume.serving.workers.thread import WorkerLostError
from translume.text import Labels, Tokenizer
from translume.translator import (
    Classification,
    Classifier,
    TargetScore,
    TextHypothesis,
    Translation,
    Translator,
)
from translume.translator.plan import Line
from translume.translator.progress import Tell

PATIENCE_SECONDS: Final = 240.0
"""After how long without a word a process is ended for one that hangs."""
CHECKED: Final = 1000
"""Settings of which it is remembered whether they fit a model."""


class Room(Protocol):
    """Where processes are to be had; see `Processes`."""

    def leased(self) -> AbstractContextManager[Process]: ...

    def any(self) -> Process: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a process tells of a model that it has loaded.

    state: of its folder.  facts: for clients.  config: TOML.  source, target: tokenizers as JSON, the target's empty
    where they are one.  labels: of a classifier, as JSON.
    """

    state: str
    facts: dict[str, Any]
    config: str
    source: str
    target: str = ""
    labels: str | None = None

    @classmethod
    def of(cls, text: bytes) -> Self:
        """What `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> bytes:
        """The same as JSON."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabularies:
    """What is known here of a model: all but its weights."""

    config: Config
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


class RemoteTranslator:
    """A translator in worker processes. Threads may share it; a call may raise WorkerLostError, and is tried again."""

    def __init__(self, room: Room, key: str, told: Told) -> None:
        self._room, self._key = room, key
        source = Tokenizer.from_json(told.source, place="source")
        target = Tokenizer.from_json(told.target, place="target") if told.target else source
        self.checkpoint = Vocabularies(
            config=Config.build(tomllib.loads(told.config), place="config"),
            source_tokenizer=source,
            target_tokenizer=target,
        )
        self._checked: dict[DecodingSettings, str] = {}
        self._lock = threading.Lock()

    @property
    def config(self) -> Config:
        """The settings the model came with."""
        return self.checkpoint.config

    def check(self, settings: DecodingSettings) -> None:
        """As `Translator.check`; the answer is remembered."""
        with self._lock:
            reason = self._checked.get(settings)
        if reason is None:
            try:
                self._beside("check", {"settings": settings_text(settings)})
                reason = ""
            except SettingsError as error:
                reason = str(error)
            with self._lock:
                if len(self._checked) >= CHECKED:
                    self._checked.clear()
                self._checked[settings] = reason
        if reason:
            raise SettingsError(reason)

    def translate_lines(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        tell: Mapping[int, Tell] | None = None,
        go_on: Callable[[], None] | None = None,
    ) -> Iterator[Translation]:
        """As `Translator.translate_lines`."""
        tell = tell or {}
        with self._room.leased() as process:
            about = {"lines": lines_text(lines), "settings": settings_text(settings), "told": list(tell)}
            call = process.call("translate", {"key": self._key, **about})
            try:
                for answer in call.answers(PATIENCE_SECONDS, go_on):
                    if answer.head["kind"] == "news":
                        tell[answer.head["line"]](answer.head["text"])
                    else:
                        yield from TRANSLATIONS.validate_json(answer.body)
            except TranslumeError:
                call.tell("leave", {})
                raise

    def score_all(self, pairs: Iterable[tuple[str, str]]) -> Iterator[TargetScore]:
        """As `Translator.score_all`."""
        with self._room.leased() as process:
            call = process.call("score", {"key": self._key, "pairs": list(pairs)})
            for answer in call.answers(PATIENCE_SECONDS):
                yield SCORE.validate_json(answer.body)

    def inspected(self, values: Mapping[str, Any], limits: Limits, form: str, go_on: Callable[[], None]) -> str:
        """What a request to inspect is answered with, as `inspecting.written` writes it."""
        about = {"values": values, "limits": limits.to_dict(), "form": form}
        return self._beside("inspect", about, go_on).decode()

    def entropies(self, source: str, target: TextHypothesis, settings: DecodingSettings) -> list[float]:
        """What `drift.entropies` finds."""
        about = {"source": source, "target": asdict(target), "settings": settings_text(settings)}
        return NUMBERS.validate_json(self._beside("entropies", about))

    def _beside(self, what: str, about: Mapping[str, Any], go_on: Callable[[], None] | None = None) -> bytes:
        """The one result of what is done beside other work, tried once more where a process ends over it."""
        try:
            try:
                return self._asked(what, about, go_on)
            except WorkerLostError:
                return self._asked(what, about, go_on)
        except WorkerLostError as error:
            raise RequestError(503, f"{error}, for the second time; the log says more", code="worker_lost") from None

    def _asked(self, what: str, about: Mapping[str, Any], go_on: Callable[[], None] | None) -> bytes:
        call = self._room.any().call(what, {"key": self._key, **about})
        try:
            return b"".join([answer.body for answer in call.answers(PATIENCE_SECONDS, go_on)])
        except TranslumeError:
            call.tell("leave", {})
            raise


class RemoteClassifier:
    """A classifier in worker processes; see `RemoteTranslator`."""

    def __init__(self, room: Room, key: str, told: Told) -> None:
        self._room, self._key = room, key
        self.labels = Labels.from_json(told.labels or "", "labels")
        source = Tokenizer.from_json(told.source, place="source")
        config = Config.build(tomllib.loads(told.config), place="config")
        self.checkpoint = Vocabularies(config=config, source_tokenizer=source, target_tokenizer=source)

    @property
    def config(self) -> Config:
        """The settings the model came with."""
        return self.checkpoint.config

    def classify_all(self, texts: Iterable[str]) -> Iterator[Classification]:
        """As `Classifier.classify_all`."""
        with self._room.leased() as process:
            call = process.call("classify", {"key": self._key, "texts": list(texts)})
            for answer in call.answers(PATIENCE_SECONDS):
                yield CLASSIFICATION.validate_json(answer.body)


Translates = Translator | RemoteTranslator
"""What translates, here or in other processes."""
Classifies = Classifier | RemoteClassifier
"""What classifies, here or in other processes."""
