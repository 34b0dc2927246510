"""Clients that disconnect or read slowly, failing workers, and shutdown: no request is lost, and nothing hangs."""

import contextlib
import gc
import http.client
import json
import logging
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.serving.conftest import refused, send_request, until

from translume.checkpoint import save_model
from translume.serving.models import ServedModel
from translume.translator import Translator

Start = Callable[..., Any]


stalling = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"),
    reason="the system has no timeout for stalled connections (TCP_USER_TIMEOUT)",
)


class Disturbed:
    """A translator that waits for permission after each result and before each batch, and that raises given errors."""

    def __init__(self, translator: Translator) -> None:
        self.errors: list[BaseException] = []
        self.started, self.open = threading.Event(), threading.Event()
        self.texts: list[str] = []
        self._translator = translator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._translator, name)

    def translate_lines(self, lines: Any, settings: Any, on_progress: Any, check_cancelled: Any) -> Iterator[Any]:
        def slowly(say: Callable[[str], None]) -> Callable[[str], None]:
            return lambda text: (say(text), self._wait())[0]

        self.texts += [line.text for line in lines]
        if not on_progress:
            self._wait()
        if self.errors:
            raise self.errors.pop(0)
        held = {n: slowly(say) for n, say in on_progress.items()}
        return self._translator.translate_lines(lines, settings, held, check_cancelled)

    def _wait(self) -> None:
        self.started.set()
        assert self.open.wait(120)


@pytest.fixture
def disturbed(translator: Translator) -> Iterator[Disturbed]:
    found = Disturbed(translator)
    yield found
    found.open.set()


def open_requests(live: Any) -> int:
    lines = generate_latest(live.server.metrics.registry).decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("translume_requests_open ")).split()[1]))


def listens(port: int) -> bool:
    """Return whether a server accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=120).close()
    except ConnectionRefusedError:
        return False
    return True


def read_to_end(connection: socket.socket) -> bytes:
    """Return the unread bytes of a connection, until it is closed or reset."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def test_a_client_that_disconnects_during_a_stream_leaves_no_work_behind(
    start: Start, disturbed: Disturbed, caplog: pytest.LogCaptureFixture
) -> None:
    live = start(ServedModel.from_model("en-de", disturbed), batch_tokens=16)
    connection = send_request(live.port, "/v1/translate/stream", text=["abc de", "fgh", "ijk"], strategy="greedy")
    started = b""
    while b"event: prefix" not in started:
        started += connection.recv(65536)
    assert live.server.scheduler.waiting == 2
    connection.close()
    until(lambda: open_requests(live) == 0)
    disturbed.open.set()
    assert live.post("/v1/translate", text="a").status == 200
    assert disturbed.texts == ["abc de", "a"]
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/translate/stream"])
@stalling
def test_a_client_that_does_not_read_delays_no_other_and_is_disconnected(
    start: Start, translator: Translator, path: str
) -> None:
    live = start(ServedModel.from_model("en-de", translator))
    assert live.bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
    live.bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    live.bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 700)
    texts = ["abc def ghi"] * 24
    assert len(live.post(path, text=texts, detail=True, nbest=3).body) > 100_000
    stalled = send_request(live.port, path, buffer=2048, text=texts, detail=True, nbest=3)
    until(lambda: open_requests(live) == 1)
    until(lambda: live.server.scheduler.waiting == 0)
    assert live.post("/v1/translate", text="a").status == 200
    until(lambda: open_requests(live) == 0)
    until(lambda: not live.uvicorn.server_state.connections)
    stalled.close()


@stalling
def test_a_client_that_reads_slowly_gets_the_complete_response(start: Start, translator: Translator) -> None:
    live = start(ServedModel.from_model("en-de", translator))
    live.bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stalled, pause = 2.0, 0.06  # seconds: each pause is far below the timeout of a connection, their sum far above it
    live.bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * stalled))
    fields = {"text": ["abc def ghi"] * 6, "detail": True, "nbest": 3}
    wanted = live.post("/v1/translate", fields).json()
    slow = send_request(live.port, "/v1/translate", buffer=2048, **fields)
    parts = []
    answer = http.client.HTTPResponse(slow)
    answer.begin()
    while part := answer.read(2048):
        parts.append(part)
        time.sleep(pause)
    assert len(parts) * pause > stalled
    found = json.loads(b"".join(parts))
    assert [each["text"] for each in found["translations"]] == [each["text"] for each in wanted["translations"]]
    slow.close()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/translate", RuntimeError("a secret")),
        ("/v1/translate/stream", SystemExit(1)),
        ("/v1/translate", MemoryError()),
    ],
)
def test_requests_of_a_failed_worker_are_answered_by_the_next_worker(
    start: Start, disturbed: Disturbed, translator: Translator, path: str, error: BaseException
) -> None:
    live = start(ServedModel.from_model("en-de", disturbed))
    disturbed.errors.append(error)
    disturbed.open.set()
    answer = live.post(path, text=["abc", "de f"])
    assert answer.status == 200
    last = json.loads(answer.body.decode().strip().rpartition("data: ")[2])
    assert [each["text"] for each in last["translations"]] == [
        translator.translate(text).text for text in ("abc", "de f")
    ]


def test_a_request_that_fails_twice_fails_alone_with_a_generic_message(start: Start, disturbed: Disturbed) -> None:
    live = start(ServedModel.from_model("en-de", disturbed))
    disturbed.errors += [RuntimeError("a secret"), RuntimeError("a secret")]
    disturbed.open.set()
    answer = live.post("/v1/translate", text="abc")
    assert (answer.status, answer.json()) == (
        500,
        {"error": "the server failed at this text (RuntimeError); its log says where", "code": "internal_error"},
    )
    assert live.post("/v1/translate", text="abc").status == 200


def test_a_jump_of_the_system_clock_neither_expires_nor_extends_requests(
    start: Start, disturbed: Disturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(ServedModel.from_model("en-de", disturbed))
    with ThreadPoolExecutor(2) as clients:
        timely = clients.submit(live.post, "/v1/translate", text="abc")
        assert disturbed.started.wait(120)
        late = clients.submit(live.post, "/v1/translate", text="de", timeout_seconds=0.3)
        for jump in (1e9, 4e9):
            monkeypatch.setattr(time, "time", lambda jump=jump: jump)
            time.sleep(0.05)
        assert not timely.done()
        assert late.result(120).status == 504
        disturbed.open.set()
        assert timely.result(120).status == 200


def test_requests_are_refused_before_their_body_is_read_when_the_queue_is_full(
    start: Start, disturbed: Disturbed
) -> None:
    live = start(ServedModel.from_model("en-de", disturbed), queue=2, lines=2, texts=2)
    taken = [send_request(live.port, "/v1/translate", text="a")]
    assert disturbed.started.wait(120)
    taken.append(send_request(live.port, "/v1/translate", text="b"))
    until(lambda: live.server.scheduler.waiting == 1)
    full = refused(live.post("/v1/translate", text=["c", "d"]))
    assert full == "503 queue_full [] the queue is full: 1 lines waiting, 2 new, at most 2; try later"
    taken.append(send_request(live.port, "/v1/translate", text="c"))
    until(lambda: live.server.scheduler.waiting == 2)
    for path in ("/v1/translate", "/v1/translate/stream", "/v1/score", "/v1/classify", "/translate"):
        with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n".encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            found = json.loads(answer.read())
            assert (answer.status, found["code"]) == (503, "queue_full")
            assert found["error"] == "the queue is full: 2 lines waiting, 1 new, at most 2; try later"
            assert answer.headers["Retry-After"] == "1"
            # The late body is discarded, and the connection can be reused.
            connection.sendall(b"x" * 9 + b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")
    assert b'{code="queue_full",route="/v1/score",status="503"} 1.0' in generate_latest(live.server.metrics.registry)
    disturbed.open.set()
    for each in taken:
        assert each.recv(65536).startswith(b"HTTP/1.1 200 ")
        each.close()


def test_a_response_on_a_kept_connection_is_not_delayed_by_nagles_algorithm(live: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=120)
    for _ in range(2):
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        own = connection.sock.getsockname()
        (kept,) = [each for each in live.uvicorn.server_state.connections if each.client == own]
        accepted = kept.transport.get_extra_info("socket")
        # Without TCP_NODELAY the body waits until the headers are acknowledged, 40 ms later.
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()


def test_sigterm_under_load_ends_the_server_after_all_accepted_requests_are_answered(
    tmp_path: Path, translator: Translator, warm_python: Path
) -> None:
    folder = tmp_path / "en-de"
    save_model(folder, translator.checkpoint)
    settings = tmp_path / "serve.toml"
    settings.write_text('port = 0\nmodels = {en-de = "en-de"}\n', encoding="utf-8")
    command = [str(warm_python), "-m", "translume", "serve", "--config", str(settings), "--engine", "plain"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        lines.append(process.stderr.readline())
        assert lines[0].startswith("serving en-de at http://127.0.0.1:"), lines[0] + process.stderr.read()
        port = int(lines[0].rpartition(":")[2])
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        reader.start()
        begun = socket.create_connection(("127.0.0.1", port), timeout=120)
        body = json.dumps({"text": "a b"}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        begun.sendall(f"POST /v1/translate HTTP/1.1\r\n{head}\r\n\r\n".encode() + body[:5])
        texts = [f"{chr(97 + number % 26)} bc {chr(97 + number % 7)}" for number in range(160)]
        taken = [
            send_request(port, "/v1/translate", text=texts[place : place + 8], beam=4) for place in range(0, 160, 8)
        ]
        first = taken[0].recv(1)
        process.send_signal(signal.SIGTERM)
        until(lambda: not listens(port))
        begun.sendall(body[5:])
        found: list[str] = []
        statuses = []
        for connection in taken:
            answer = http.client.HTTPResponse(connection)
            if connection is taken[0]:
                assert first == b"H"
                head, _, body = (first + read_to_end(connection)).partition(b"\r\n\r\n")
                statuses.append(int(head.split()[1]))
            else:
                answer.begin()
                body = answer.read()
                statuses.append(answer.status)
            found += [each["text"] for each in json.loads(body).get("translations", ())]
            connection.close()
        assert set(statuses) <= {200, 503}
        assert statuses.count(200) >= 1
        wide = translator.config.decoding.model_copy(update={"beam": 4})
        wanted = [each.text for each in translator.translate_all(texts, settings=wide)]
        assert set(found) <= set(wanted)
        assert len(found) == 8 * statuses.count(200)
        assert translator.translate("a b").text in read_to_end(begun).decode()
        begun.close()
        assert process.wait(120) == -signal.SIGTERM
        reader.join(120)
        assert not [line for line in lines if "raceback" in line]
    finally:
        process.kill()
        process.stderr.close()
