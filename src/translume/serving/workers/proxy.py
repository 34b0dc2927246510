"""Models in worker processes, with the methods that the server uses of a `Translator` or `Classifier`."""

import threading
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from translume.checkpoint import Checkpoint
from translume.config import Config, DecodingSettings, FrameSettings
from translume.config.languages import Direction
from translume.data.lengths import Lengths
from translume.errors import SettingsError, TranslumeError
from translume.processes import ProcessLostError
from translume.serving.api.errors import RequestError
from translume.serving.settings import Limits
from translume.serving.workers.messages import CLASSIFICATION, GENERATION, NUMBERS, SCORE, LoadedModel, decode_error
from translume.sources import Frames
from translume.tasks import find_task
from translume.text import Labels, Tokenizer
from translume.translator import Classification, Generation, TargetScore, TextHypothesis, Translation
from translume.translator.assembly import ProgressCallback
from translume.translator.messages import TRANSLATIONS, encode_frames, encode_lines, encode_settings
from translume.translator.planning import Line, Reading, Readings
from translume.translator.search import CancelCheck

if TYPE_CHECKING:
    from translume.serving.workers.pool import WorkerPool

HANG_TIMEOUT_SECONDS: Final = 240.0
"""Seconds without a message after which a worker is killed. Must exceed the longest request timeout."""
CHECK_TIMEOUT_SECONDS: Final = 5.0
"""Time limit for checking the settings of a request, which takes milliseconds."""
VALIDATION_CACHE_SIZE: Final = 1000
"""Maximum number of validated decoding settings to cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProxy:
    """The parts of a checkpoint that the server process holds: all but the weights."""

    config: Config
    source_tokenizer: Tokenizer
    target_tokenizer: Any
    lengths: Lengths | None = None

    @classmethod
    def of(cls, model: LoadedModel) -> "CheckpointProxy":
        """Build the parts from what a worker sent."""
        source = Tokenizer.from_json(model.source, place="source")
        vocabulary = find_task(model.task).vocabulary_class()
        return cls(
            config=Config.build(tomllib.loads(model.config), place="config"),
            source_tokenizer=source,
            target_tokenizer=vocabulary.from_json(model.target, place="target") if model.target else source,
            lengths=Lengths.from_json(model.lengths) if model.lengths else None,
        )


class _CheckingProxy:
    """A model in worker processes that is called with decoding settings. Threads may share it."""

    def __init__(self, pool: "WorkerPool", key: str, model: LoadedModel) -> None:
        self._pool, self._key = pool, key
        self.checkpoint = CheckpointProxy.of(model)
        self._validated: dict[DecodingSettings, str] = {}
        self._lock = threading.Lock()

    @property
    def config(self) -> Config:
        """The settings of the model."""
        return self.checkpoint.config

    def check(self, settings: DecodingSettings) -> None:
        """Raise SettingsError if the model cannot decode with these settings. Results are cached.

        Raises RequestError (503) if the workers are too busy to check them.
        """
        until = time.monotonic() + CHECK_TIMEOUT_SECONDS

        def check_timeout() -> None:
            if time.monotonic() > until:
                reason = f"the settings were not checked within {CHECK_TIMEOUT_SECONDS:g} s; try later"
                raise RequestError(503, reason, code="queue_full", retry_after=1)

        with self._lock:
            reason = self._validated.get(settings)
        if reason is None:
            try:
                self._request("check", {"settings": encode_settings(settings)}, check_timeout)
                reason = ""
            except SettingsError as error:
                reason = str(error)
            with self._lock:
                if len(self._validated) >= VALIDATION_CACHE_SIZE:
                    self._validated.clear()
                self._validated[settings] = reason
        if reason:
            raise SettingsError(reason)

    def _request(
        self, method: str, values: Mapping[str, Any], check_cancelled: CancelCheck | None = None, body: bytes = b""
    ) -> bytes:
        """Return the response to a request that runs while the worker translates. Retry once if the worker ends."""
        try:
            try:
                return self._try(method, values, check_cancelled, body)
            except ProcessLostError:
                return self._try(method, values, check_cancelled, body)
        except ProcessLostError as error:
            raise RequestError(503, f"{error}, for the second time; see the server's log", code="worker_lost") from None

    def _try(self, method: str, values: Mapping[str, Any], check_cancelled: CancelCheck | None, body: bytes) -> bytes:
        call = self._pool.next_worker().request(method, {"model": self._key, **values}, body)
        return b"".join([message.body for message in call.responses(HANG_TIMEOUT_SECONDS, check_cancelled)])


class TranslatorProxy(_CheckingProxy):
    """A translator in worker processes.

    Translating and scoring may raise ProcessLostError, after which the scheduler retries.
    """

    def __init__(self, pool: "WorkerPool", key: str, model: LoadedModel) -> None:
        super().__init__(pool, key, model)
        self._readings = Readings(cast(Checkpoint, self.checkpoint))

    def reading(self, settings: DecodingSettings, direction: Direction | None = None) -> Reading:
        """Return what `Translator.reading` returns."""
        return self._readings.of(settings, direction)

    def translate_each(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        on_progress: Mapping[int, ProgressCallback] | None = None,
        unneeded: Callable[[], Collection[int]] = tuple,
    ) -> Iterator[tuple[int, Translation | TranslumeError]]:
        """Yield what `Translator.translate_each` yields."""
        on_progress, cancelled = on_progress or {}, set[int]()
        values = {"lines": encode_lines(lines), "settings": encode_settings(settings), "watched": list(on_progress)}
        with self._pool.lease() as worker:
            call = worker.request("translate", {"model": self._key, **values}, encode_frames(lines))

            def cancel_unneeded() -> None:
                for place in unneeded():
                    if place not in cancelled:
                        cancelled.add(place)
                        call.cancel_part(place)
                if len(cancelled) == len(lines):
                    raise RequestError(499, "the request was cancelled")

            for message in call.responses(HANG_TIMEOUT_SECONDS, cancel_unneeded):
                found = message.values
                if "prefix" in found:
                    on_progress[found["place"]](found["prefix"])
                elif "error" in found:
                    error = decode_error(found["error"])
                    assert isinstance(error, TranslumeError)
                    yield found["place"], error
                else:
                    yield from zip(found["places"], TRANSLATIONS.validate_json(message.body), strict=True)

    def read_source(self, content: bytes, limits: Limits, check_cancelled: CancelCheck) -> Frames:
        """Return the frames of a file that is no text. Raises RequestError if it is too large or cannot be read."""
        found = self._request("read", {"limits": limits.model_dump()}, check_cancelled, content)
        size: int = cast(FrameSettings, self.config.data.source).size
        return Frames(np.frombuffer(found, np.float32).reshape(-1, size))

    def score_all(
        self, pairs: Iterable[tuple[str, str]], *, to: str | None = None, from_: str | None = None
    ) -> Iterator[TargetScore]:
        """Yield what `Translator.score_all` yields."""
        with self._pool.lease() as worker:
            call = worker.request("score", {"model": self._key, "pairs": list(pairs), "to": to, "from_": from_})
            for message in call.responses(HANG_TIMEOUT_SECONDS):
                yield SCORE.validate_json(message.body)

    def inspected(
        self,
        values: Mapping[str, Any],
        limits: Limits,
        form: str,
        check_cancelled: CancelCheck,
        frames: Frames | None = None,
    ) -> str:
        """Return the response to a request to inspect: JSON or a page, as `inspection.inspect` returns it.

        frames: of an uploaded file.
        """
        about = {"values": values, "limits": limits.model_dump(), "form": form, "file": frames is not None}
        content = b"" if frames is None else np.ascontiguousarray(frames.values, np.float32).tobytes()
        return self._request("inspect", about, check_cancelled, content).decode()

    def entropies(self, source: str, target: TextHypothesis, settings: DecodingSettings) -> list[float]:
        """Return what `inspection.entropies` returns."""
        about = {"source": source, "target": asdict(target), "settings": encode_settings(settings)}
        return NUMBERS.validate_json(self._request("entropies", about))


class GeneratorProxy(_CheckingProxy):
    """A language model in worker processes."""

    def generate_all(
        self,
        prompts: Iterable[str],
        *,
        settings: DecodingSettings,
        on_text: Mapping[int, ProgressCallback] | None = None,
        check_cancelled: CancelCheck | None = None,
    ) -> Iterator[Generation]:
        """Yield what `Generator.generate_all` yields."""
        on_text = on_text or {}
        values = {"prompts": list(prompts), "settings": encode_settings(settings), "watched": list(on_text)}
        with self._pool.lease() as worker:
            call = worker.request("generate", {"model": self._key, **values})
            for message in call.responses(HANG_TIMEOUT_SECONDS, check_cancelled):
                if "text" in message.values:
                    on_text[message.values["place"]](message.values["text"])
                else:
                    yield GENERATION.validate_json(message.body)


class ClassifierProxy:
    """A classifier in worker processes; see `TranslatorProxy`."""

    def __init__(self, pool: "WorkerPool", key: str, model: LoadedModel) -> None:
        self._pool, self._key = pool, key
        self.checkpoint = CheckpointProxy.of(model)
        self.labels: Labels = self.checkpoint.target_tokenizer

    @property
    def config(self) -> Config:
        """The settings of the model."""
        return self.checkpoint.config

    def classify_all(self, texts: Iterable[str]) -> Iterator[Classification]:
        """Yield what `Classifier.classify_all` yields."""
        with self._pool.lease() as worker:
            call = worker.request("classify", {"model": self._key, "texts": list(texts)})
            for message in call.responses(HANG_TIMEOUT_SECONDS):
                yield CLASSIFICATION.validate_json(message.body)
