"""Small translators with random weights, and a live server of them on a free port."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.serving.app import build_app
from translume.serving.detection import Detector
from translume.serving.limits import Limits
from translume.serving.models import Models, Served
from translume.serving.run import listen, uvicorn_server
from translume.serving.server import Server
from translume.text import train_tokenizer
from translume.translator import Translator

ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?"


@pytest.fixture(scope="session")
def make() -> Callable[..., Translator]:
    """Translators from English to German by options of their settings; they read at most 40 tokens and an end mark."""

    def build(*options: str, seed: int = 3) -> Translator:
        tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET])
        model = ModelSettings(
            width=22,
            feed_forward=29,
            encoder_layers=2,
            decoder_layers=1,
            attention_heads=11,
            max_positions=41,
            head=SoftmaxSettings(tie="all"),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build_model(model, len(tokenizer), len(tokenizer)).eval()
            for parameter in network.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        languages = ("data.source_language=en", "data.target_language=de")
        config = Config(model=model).change(*languages, *options)
        checkpoint = Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
        return Translator(checkpoint)

    return build


@pytest.fixture(scope="session")
def translator(make: Callable[..., Translator]) -> Translator:
    return make("decoding.beam=3")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Live:
    """A server in a thread, and a client of it that hides nothing."""

    def __init__(self, server: Server, *, metrics: bool = False, detector: Detector | None = None) -> None:
        self.server = server
        self.bound = listen("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.uvicorn = uvicorn_server(build_app(server, metrics=metrics, detector=detector), server.limits)
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.bound]}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.bound.close()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """The answer to one request on a connection of its own; `content_type` is the header Content-Type."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            found = connection.getresponse()
            return Answer(found.status, found.headers, found.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, value: Any = None, **fields: Any) -> Answer:
        """The answer to a JSON body: `value`, or an object of `fields`."""
        text = json.dumps(fields if value is None else value)
        return self.ask("POST", path, text.encode(), content_type="application/json")

    def form(self, path: str, **fields: str) -> Answer:
        return self.ask("POST", path, urlencode(fields).encode(), content_type="application/x-www-form-urlencoded")


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., Live]]:
    """Starts servers, which are stopped at the end."""
    begun: list[Live] = []

    def begin(*served: Served, metrics: bool = False, detector: Detector | None = None, **limits: float) -> Live:
        server = Server(models=Models(served), limits=Limits(**limits))
        begun.append(Live(server, metrics=metrics, detector=detector))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


@pytest.fixture(scope="session")
def live(start: Callable[..., Live], translator: Translator) -> Live:
    """A server of the translator, called en-de, with small limits."""
    served = Served.of("en-de", translator)
    return start(served, body_bytes=5000, texts=5, lines=50, characters=300, width=6, read_seconds=1.0, metrics=True)
