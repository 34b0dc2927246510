"""The main module of a worker process: it loads models, and translates, scores, classifies and inspects with them."""

import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from translume.config import FrameSettings
from translume.errors import DataError, TranslumeError
from translume.processes import Connection, Request, connect, requests
from translume.serving.api.errors import RequestError
from translume.serving.api.inspection import entropies, inspect, inspection_of
from translume.serving.settings import Limits
from translume.serving.workers.loading import load_served, state_of
from translume.serving.workers.messages import (
    CLASSIFICATION,
    GENERATION,
    HYPOTHESIS,
    NUMBERS,
    SCORE,
    LoadedModel,
    encode_error,
)
from translume.serving.workers.models import AnyServed, ServedModels
from translume.serving.workers.sharing import translate_shared
from translume.sources import Frames, describe, frame_reader
from translume.translator.loading import ComputeOptions
from translume.translator.messages import decode_settings, encode

NICENESS: Final = 2
"""Added to the nice value of a worker, so that the server process stays responsive."""
SWITCH_SECONDS: Final = 0.0005
"""Python's thread switch interval. With the default, 5 ms, a lane would wait for the others after every few steps."""
THREADS: Final = {
    "load": "load",
    "unload": "load",
    "check": "check",
    "read": "read",
    "translate": "work",
    "score": "work",
    "classify": "work",
    "generate": "work",
    "inspect": "background",
    "entropies": "background",
}
"""The thread for each method. Requests of one thread run one after another; "work" are several."""


class _Waiting:
    """Requests that wait for a thread, in order."""

    def __init__(self) -> None:
        self._requests = deque[Request]()
        self._changed = threading.Condition()
        self._idle = 0  # threads that wait

    def put(self, request: Request) -> None:
        """Add a request."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify()

    def take(self) -> Request:
        """Return the first request, once there is one."""
        with self._changed:
            self._idle += 1
            while not self._requests:
                self._changed.wait()
            self._idle -= 1
            return self._requests.popleft()

    def take_like(self, first: Request) -> list[Request]:
        """Take the requests that can share a search with `first`, up to one that cannot.

        Idle threads come first: one request is left to each.
        """
        found: list[Request] = []
        with self._changed:
            while len(self._requests) > self._idle and _can_share(first, self._requests[0]):
                found.append(self._requests.popleft())
        return found


def _can_share(first: Request, request: Request) -> bool:
    names = ("model", "settings")
    return request.method == "translate" and all(request.values[name] == first.values[name] for name in names)


class Worker:
    """Holds models, and handles the requests of the server."""

    def __init__(self) -> None:
        self._lanes = 0
        self._models: dict[str, AnyServed] = {}
        names = set(THREADS.values()) - {"work"}
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in names}
        self._waiting = _Waiting()  # for the threads for work

    def serve(self, connection: Connection) -> None:
        """Handle requests until the server closes the connection."""
        for request in requests(connection):
            thread = THREADS[request.method]
            if thread == "work":
                self._waiting.put(request)
            else:
                self._threads[thread].submit(request.handle, self.handle, encode_error)

    def handle(self, request: Request) -> None:
        """Handle one request."""
        key = request.values["model"]
        if request.method == "load":
            request.respond(asdict(self._load(request)))
        elif request.method == "unload":
            self._models.pop(key, None)
        else:
            for body in _results(request, self._served(request)):
                request.respond(body=body)

    def _served(self, request: Request) -> AnyServed:
        """Return the model of a request."""
        served = self._models.get(request.values["model"])
        if served is None:
            reason = "the model is not available now; try later"
            raise RequestError(503, reason, code="model_unavailable", retry_after=10)
        return served

    def _start_lanes(self, count: int) -> None:
        """Start threads for work until there are `count`. They share all models, and call the kernels in parallel."""
        for number in range(self._lanes, count):
            threading.Thread(target=self._work, name=f"work_{number}", daemon=True).start()
        self._lanes = max(self._lanes, count)

    def _work(self) -> None:
        """Handle requests in order. Those to translate share a search with the next ones with the same settings."""
        while True:
            request = self._waiting.take()
            if request.method == "translate":
                more = partial(self._waiting.take_like, request)
                translate_shared(request, partial(self._translator, request), more)
                del more
            else:
                request.handle(self.handle, encode_error)
            del request  # it must not keep a model alive

    def _translator(self, request: Request) -> Any:
        return self._served(request).model

    def _load(self, request: Request) -> LoadedModel:
        values = request.values
        self._start_lanes(values["lanes"])
        folder = Path(values["folder"])
        state = state_of(folder)
        if values["state"] not in ("", state):
            raise TranslumeError(f"{folder}: the model has changed since the server loaded it; reload the server")
        served = self._models[values["model"]] = load_served(
            values["name"], folder, ComputeOptions(**values["computing"])
        )
        checkpoint: Any = served.model.checkpoint
        source, target = checkpoint.source_tokenizer, checkpoint.target
        return LoadedModel(
            state=state,
            task=checkpoint.config.data.task,
            facts=dict(served.facts),
            config=checkpoint.config.to_toml(),
            source=source.to_json(),
            target="" if target is source else target.to_json(),
            lengths=checkpoint.lengths.to_json() if checkpoint.lengths else "",
        )


def _results(request: Request, served: Any) -> Iterator[bytes]:
    """Yield the bodies of the responses to a request that needs a model."""
    values = request.values
    model = served.model

    def check_cancelled() -> None:
        if request.cancelled.is_set():
            raise RequestError(499, "the request was cancelled")

    match request.method:
        case "classify":
            yield from (encode(CLASSIFICATION, each) for each in model.classify_all(values["texts"]))
        case "generate":

            def send_text(place: int, text: str) -> None:
                request.respond({"place": place, "text": text})

            on_text = {place: partial(send_text, place) for place in values["watched"]}
            found = model.generate_all(
                values["prompts"],
                settings=decode_settings(values["settings"]),
                on_text=on_text,
                check_cancelled=check_cancelled,
            )
            yield from (encode(GENERATION, each) for each in found)
        case "check":
            model.check(decode_settings(values["settings"]))
        case "score":
            pairs = ((source, target) for source, target in values["pairs"])
            yield from (encode(SCORE, each) for each in model.score_all(pairs, to=values["to"], from_=values["from_"]))
        case "inspect":
            limits = Limits.model_validate(values["limits"])
            frames = None
            if values["file"]:
                frames = Frames(np.frombuffer(request.body, np.float32).reshape(-1, model.config.data.source.size))
            chosen, wanted = served, values["values"]
            if not values["file"]:
                chosen = ServedModels([served]).choose(
                    *(wanted.get(name, "") for name in ("model", "source", "target"))
                )
            inspection = inspection_of(chosen, wanted, limits, frames)
            yield inspect(inspection, limits, values["form"], check_cancelled).encode()
        case "read":
            limits = Limits.model_validate(values["limits"])
            seconds = min(limits.seconds, served.facts["reads"].get("seconds", limits.seconds))
            source = model.config.data.source.within(seconds=seconds, pixels=limits.pixels)
            yield _read(source, request.body, limits).tobytes()
        case "entropies":
            target = HYPOTHESIS.validate_python(values["target"])
            settings = decode_settings(values["settings"])
            yield encode(NUMBERS, entropies(model, values["source"], target, settings))


def _read(source: FrameSettings, content: bytes, limits: Limits) -> NDArray[np.float32]:
    """Return the frames of an uploaded file. Raises RequestError if it is too large (413) or cannot be read (422)."""
    reader = frame_reader(source, limits.unpacked_bytes)
    assert reader is not None
    try:
        return reader.read(content)
    except DataError as error:
        reason, _, setting = str(error).removeprefix(f"{describe(content)}: ").partition(" (data.source.")
        large = setting.startswith("max_")
        code = "file_too_large" if large else "invalid_file"
        raise RequestError(413 if large else 422, f"file: {reason}", code=code, field="file") from None


def freeze_startup_objects() -> None:
    """Exclude objects created at startup from garbage collection.

    Traversing the objects of torch and pydantic takes 0.1 s or more, during which no other thread runs. They are still
    freed by reference counting.
    """
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run a worker process. It ends when the server closes the connection, not on signals to the process group."""
    connection = connect(shield=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    os.nice(NICENESS)
    sys.setswitchinterval(SWITCH_SECONDS)
    freeze_startup_objects()
    Worker().serve(connection)
    os._exit(0)  # threads may still be processing requests whose results are no longer needed
