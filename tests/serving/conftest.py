"""Fixtures: small translators with random weights, and a live server of them on a free port."""

import faulthandler
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import cache
from typing import Any
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import pytest
import torch
from tests.generators import untrained_generator
from tests.serving.openapi_checker import ResponseChecker

from translume.checkpoint import (
    Checkpoint,
    ClassifierCheckpoint,
    build_model,
    save_model,
)
from translume.checkpoint.building import build_classifier
from translume.config import Config, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.errors import TranslumeError
from translume.model.classifier import Classifier as Network
from translume.serving import models
from translume.serving.access.quotas import Access
from translume.serving.api.app import build_app
from translume.serving.models import ServedModel, ServedModels
from translume.serving.run import listen, uvicorn_server
from translume.serving.server import Server
from translume.serving.settings import Limits, ServeSettings
from translume.text import Labels, train_tokenizer
from translume.text.detection import Detector
from translume.translator import Classifier, Generator, Translator, load

ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?"
LABELS = ("animal", "colour", "fruit")
TOLERANCE = 2e-4
"""For numbers: rounding may depend on the batch, unless the engine's self-test has shown that it does not."""


@pytest.fixture(scope="session")
def make() -> Callable[..., Translator]:
    """Return English-German translators by settings options; sources: at most 40 tokens and end of sentence.

    shape: sizes of the model, such as those that the kernels support.
    """

    def build(*options: str, seed: int = 3, **shape: int) -> Translator:
        tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET])
        sizes = {"width": 22, "feed_forward": 29, "encoder_layers": 2, "decoder_layers": 1, "attention_heads": 11}
        model = ModelSettings(**{**sizes, **shape}, max_positions=41, head=SoftmaxSettings(tie="all"))
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
def translator(make: Callable[..., Translator], tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Return a translator that was loaded from a folder."""
    folder = tmp_path_factory.mktemp("translator") / "model"
    save_model(folder, make("decoding.beam=3").checkpoint)
    return load(folder, device="cpu", dtype="fp32", engine="plain")


@pytest.fixture(scope="session")
def make_transcriber() -> Callable[..., Translator]:
    """Return models with random weights of one kind of source, by settings of [data.source]; at most 97 positions."""

    def build(kind: str, **source: Any) -> Translator:
        config = Config.build(
            {
                "data": {"source": {"kind": kind, "channels": 7, **source}},
                "tokenizer": {"kind": "character", "size": 61, "unknown": "token"},
                "model": {
                    **{"encoder_layers": 1, "decoder_layers": 1, "width": 22, "feed_forward": 29},
                    **{"attention_heads": 11, "max_positions": 97},
                },
                "decoding": {"beam": 3, "max_length": 9},
            }
        )
        tokenizer = train_tokenizer(config.tokenizer, [ALPHABET])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            network = build_model(config.model, len(tokenizer), len(tokenizer), config.data.source).eval()
            for parameter in network.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        return Translator(
            Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
        )

    return build


@pytest.fixture(scope="session")
def generator() -> Generator:
    """Return a language model with random weights that reads 40 tokens."""
    return untrained_generator([ALPHABET], width=22, feed_forward=29, attention_heads=11)


@pytest.fixture(scope="session")
def make_classifier() -> Callable[..., Classifier]:
    """Return classifiers with random weights; sources may have at most 12 tokens and an end-of-sentence token."""

    def build(separator: str = "") -> Classifier:
        config = Config.build(
            {
                "data": {"task": "classification", "label_separator": separator},
                "tokenizer": {"kind": "character", "size": 61, "unknown": "token"},
                "model": {
                    "width": 22,
                    "feed_forward": 29,
                    "encoder_layers": 1,
                    "attention_heads": 11,
                    "max_positions": 13,
                    "head": {"kind": "classify", "labels": "several" if separator else "one"},
                },
                "training": {"metric": "accuracy", "label_smoothing": 0.0},
            },
            place="test",
        )
        tokenizer = train_tokenizer(config.tokenizer, ["abcdefgh ijklm"])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            network = build_classifier(config.model, len(tokenizer), len(LABELS)).eval()
        assert isinstance(network, Network)
        labels = Labels(LABELS, separator)
        checkpoint = ClassifierCheckpoint(config=config, model=network, source_tokenizer=tokenizer, labels=labels)
        return Classifier(checkpoint)

    return build


def nearly_equal(found: Any, wanted: Any) -> bool:
    """Return whether two values are equal, numbers within the tolerance."""
    if isinstance(found, float) or isinstance(wanted, float):
        return abs(found - wanted) <= TOLERANCE
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(nearly_equal(found[name], wanted[name]) for name in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(nearly_equal(*pair) for pair in zip(found, wanted, strict=True))
    return bool(found == wanted)


def message_of(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises."""
    with pytest.raises(TranslumeError) as caught:
        call()
    return str(caught.value)


@cache
def _translation(translator: Translator, text: str) -> str:
    return translator.translate(text).text


def whole(translator: Translator, *texts: str) -> list[str]:
    """Return the translation of each text."""
    return [_translation(translator, text) for text in texts]


def until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < 120
        time.sleep(0.005)


def send_request(port: int, path: str, *, buffer: int = 0, **fields: Any) -> socket.socket:
    """Send a request and return the connection with nothing read.  buffer: size of its receive buffer in bytes."""
    body = json.dumps(fields).encode()
    connection = socket.socket()
    connection.settimeout(30)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def refused(answer: Answer) -> str:
    """Return status, code and text of an error; and its field in brackets, unless the text begins with its name."""
    found = answer.json()
    assert set(found) <= {"error", "code", "field"}
    assert "\n" not in found["error"]
    field = found.get("field", "")
    place = "" if field and found["error"].startswith((f"{field}: ", f"{field} ")) else f"[{field}] "
    return f"{answer.status} {found['code']} {place}{found['error']}"


FORM = "multipart/form-data; boundary=xx"


def form(content: bytes, name: str = "file", **fields: str) -> bytes:
    """Return the body of a form with a file and other fields."""
    head = "".join(f'--xx\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{fields[key]}\r\n' for key in fields)
    head += f'--xx\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--xx--\r\n"


CHECKERS: dict[bool, ResponseChecker] = {}


def checker_of(application: Any, detects: bool) -> ResponseChecker:
    """Return a checker of responses. All servers have the same document, but for the detection of languages."""
    if detects not in CHECKERS:
        CHECKERS[detects] = ResponseChecker(application._app.openapi())
    return CHECKERS[detects].fresh()


class Live:
    """A server in a thread, and an HTTP client for it."""

    def __init__(self, server: Server, *, detector: Detector | None = None) -> None:
        self.server = server
        self.bound = listen("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        application: Any = build_app(server, detector=detector)
        self.checker = checker_of(application, detector is not None)
        self.uvicorn = uvicorn_server(application, server.limits)
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.bound]}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(120)
        if self.thread.is_alive():
            faulthandler.dump_traceback()
        assert not self.thread.is_alive()
        self.bound.close()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send one request on its own connection, check the response against /openapi.json, and return the response.

        `content_type` is the header Content-Type.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            found = connection.getresponse()
            answer = Answer(found.status, found.headers, found.read())
        finally:
            connection.close()
        kind = answer.headers.get("Content-Type", "")
        assert not (problem := self.checker.problem(method, path, answer.status, kind, answer.body)), problem
        return answer

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, value: Any = None, **fields: Any) -> Answer:
        """Send a JSON body: `value`, or an object of `fields`."""
        text = json.dumps(fields if value is None else value)
        return self.ask("POST", path, text.encode(), content_type="application/json")

    def upload(self, path: str, content: bytes, name: str = "file", **fields: str) -> Answer:
        """Send a file as a form, with other fields."""
        return self.ask("POST", path, form(content, name, **fields), content_type=FORM)

    def form(self, path: str, **fields: str) -> Answer:
        return self.ask("POST", path, urlencode(fields).encode(), content_type="application/x-www-form-urlencoded")


@pytest.fixture(scope="session", autouse=True)
def reused_processes() -> Iterator[None]:
    """Use processes for documents again even if the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.serving.files.documents.REUSED_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def remembered_facts() -> Iterator[None]:
    """Test the engine of a translator once, not for each server that has it."""
    find, known = models._facts_of, WeakKeyDictionary[Any, dict[str, Any]]()

    def facts_of(model: Any, kind: models.Kind) -> dict[str, Any]:
        if model not in known:
            known[model] = find(model, kind)
        return known[model]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "_facts_of", facts_of)
        yield


@contextmanager
def servers() -> Iterator[Callable[..., Live]]:
    """Start servers, which are stopped at the end."""
    begun: list[Live] = []

    def begin(
        *served: ServedModel, access: Access | None = None, detector: Detector | None = None, **limits: float
    ) -> Live:
        server = Server(models=ServedModels(served), settings=ServeSettings(limits=Limits(**limits)), access=access)
        begun.append(Live(server, detector=detector))
        return begun[-1]

    yield begin
    for each in begun:
        each.uvicorn.should_exit = True  # All at once: each needs a tenth of a second to see it.
    for each in begun:
        each.stop()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Live]]:
    """Start servers for the tests of a module: fifty that wait take a tenth of a core."""
    with servers() as begin:
        yield begin


@pytest.fixture(scope="session")
def live(translator: Translator) -> Iterator[Live]:
    """Return a server of the translator, named en-de, with small limits."""
    served = ServedModel.from_model("en-de", translator)
    with servers() as begin:
        yield begin(served, body_bytes=5000, texts=5, lines=50, characters=300, width=6, read_seconds=1.0)


SHOWN = """() => {
  const box = document.getElementById("output");
  const text = [...box.childNodes].map((each) => each.textContent).join("");
  return [text, box.querySelectorAll(".coming, .stale").length];
}"""
WATCH = """
addEventListener("DOMContentLoaded", () => {
  window.seen = [];
  if (!document.getElementById("output")) return;
  new MutationObserver(() => {
    window.seen.push([...document.querySelectorAll("#output .coming")].map((each) => each.textContent));
  }).observe(document.getElementById("output"), { childList: true, subtree: true });
});
"""


HURRY = """
if (window === window.top && !window.hurried) {
  const [begun, now, later] = [Date.now(), Date.now.bind(Date), window.setTimeout.bind(window)];
  Date.now = () => begun + 10 * (now() - begun);
  window.setTimeout = (work, delay = 0, ...more) => later(work, delay / 10, ...more);
  window.hurried = true;
}
"""
"""A page's waits become ten times as short, and its clock ten times as fast."""


class Tab:
    """The page of a server in a browser without access to other origins. `faults` lists console errors and warnings."""

    def __init__(self, browser: Any, live: Any, **options: Any) -> None:
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.url = live.url
        shown = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}  # no colours in between
        self.context = browser.new_context(**{**shown, **options})
        self.context.set_default_timeout(60_000)
        self.context.route("**/*", self._only_the_origin)
        self.context.on("page", self._listen)
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()

    def _only_the_origin(self, route: Any) -> None:
        self.asked.append(route.request.url)
        if route.request.url.startswith(self.url + "/"):
            route.continue_()
        else:
            self.faults.append(f"asked for {route.request.url}")
            route.abort()

    def _listen(self, page: Any) -> None:
        page.on("console", lambda message: self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def hurry(self) -> None:
        """Let this page, and those opened after it, wait a tenth as long."""
        self.page.evaluate(HURRY)
        self.page.add_init_script(HURRY)

    def open(self) -> "Tab":
        self.page.goto(self.url + "/")
        self.page.wait_for_selector("[data-ready]")
        return self

    def type(self, text: str, wanted: str) -> None:
        """Type a text, and wait until its translation is shown."""
        self.page.fill("#text", text)
        self.shows(wanted)

    def shows(self, wanted: str) -> None:
        """Wait until exactly this text is shown as the translation, with nothing pending."""
        started = time.monotonic()
        while (found := self.page.evaluate(SHOWN)) != [wanted, 0]:
            assert time.monotonic() - started < 120, found
            time.sleep(0.02)

    def tokens(self) -> Any:
        return self.page.locator("#output .token")

    def details(self) -> None:
        """Show or hide probabilities."""
        self.page.click("#details")

    def tell(self, locator: str, text: str | re.Pattern[str]) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(locator)).to_have_text(text, timeout=60_000)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Open pages; every error that the browser reports in them fails the test."""
    opened: list[Tab] = []

    def begin(live: Any, instead: Mapping[str, Any] | None = None, **options: Any) -> Tab:
        """instead: JSON responses that replace the server's, by path."""
        tab = Tab(browser, live, **options)
        opened.append(tab)
        for address, value in (instead or {}).items():
            tab.page.route(address, lambda route, _, value=value: route.fulfill(json=value))
        return tab.open()

    yield begin
    for each in opened:
        faults = list(each.faults)
        each.close()
        assert faults == []


@pytest.fixture
def tab(open_tab: Callable[..., Tab], live: Any) -> Tab:
    return open_tab(live)
