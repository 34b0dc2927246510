"""Operations: health, metrics, logs, limits, timeouts, shutdown, and slow or disconnected clients."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from tests.serving.conftest import refused, send_request, until

from translume.errors import TranslumeError
from translume.serving.models import ServedModel, ServedModels
from translume.serving.run import JsonLines, listen
from translume.translator import Translator

Start = Callable[..., Any]


class Held:
    """A translator that waits until `open` is set."""

    def __init__(self, translator: Translator) -> None:
        self.open, self.begun, self.texts = threading.Event(), threading.Event(), list[str]()
        self._translator = translator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._translator, name)

    def translate_lines(self, lines: Any, *arguments: Any) -> Iterator[Any]:
        self.texts += [line.text for line in lines]
        self.begun.set()
        assert self.open.wait(120)
        return self._translator.translate_lines(lines, *arguments)


@pytest.fixture
def held(translator: Translator) -> Iterator[Held]:
    found = Held(translator)
    yield found
    found.open.set()


def test_live_and_ready_endpoints(live: Any) -> None:
    assert live.get("/health/live").json() == {"status": "live"}
    assert live.get("/health/ready").json() == {"status": "ready"}


def test_metrics_count_requests_without_personal_data(live: Any) -> None:
    live.post("/v1/translate", text="a secret word", beam=0)
    live.post("/v1/translate", text="a secret word")
    live.get("/secret%20word")
    until(lambda: b'{code="not_found",route="unknown",status="404"}' in generate_latest(live.server.metrics.registry))
    found = generate_latest(live.server.metrics.registry).decode()
    assert 'translume_requests_total{code="invalid_value",route="/v1/translate",status="422"}' in found
    assert "translume_batch_fill_count" in found
    assert "secret" not in found
    assert "127.0.0.1" not in found
    assert live.get("/metrics").status == 404


def test_every_response_has_security_headers_and_no_cors_headers(live: Any) -> None:
    for answer in (
        live.get("/health/live"),
        live.get("/nope"),
        live.ask("OPTIONS", "/translate", Origin="https://elsewhere.example"),
        live.ask("GET", "/languages", Origin="https://elsewhere.example"),
    ):
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert "Server" not in answer.headers


def test_the_log_has_request_ids_and_no_texts(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> dict[str, dict[str, Any]]:
        written = [json.loads(JsonLines().format(record)) for record in list(caplog.records)]
        return {line["request_id"]: line for line in written if line["request_id"].startswith("log-")}

    with caplog.at_level(logging.INFO, logger="translume.serving"):
        answer = live.ask("POST", "/translate?q=secret&source=en&target=de", X_Request_Id="log-1")
        live.ask("GET", "/secret", X_Request_Id="log-2")
        live.ask(
            "POST",
            "/v1/translate",
            b'{"text": "secret", "beam": 0}',
            Content_Type="application/json",
            X_Request_Id="log-3",
        )
        until(lambda: len(lines()) == 3)
    assert answer.headers["X-Request-Id"] == "log-1"
    first = lines()["log-1"]
    assert first.pop("time").endswith("Z")
    assert 0 < first.pop("seconds") < 60
    assert first == {
        "level": "info",
        "message": "answered",
        "method": "POST",
        "route": "/translate",
        "request_id": "log-1",
        "status": 200,
        "lines": 1,
    }
    assert [lines()[f"log-{number}"]["status"] for number in (1, 2, 3)] == [200, 404, 422]
    assert "secret" not in json.dumps(lines())


def test_other_lines_of_the_log_have_the_id_of_their_request(
    live: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(json.loads(JsonLines().format(record)))  # type: ignore[method-assign]
    logging.getLogger("uvicorn.error").addHandler(handler)
    monkeypatch.setattr("translume.serving.api.routing.json_response", lambda *given: 1 // 0)
    assert live.ask("GET", "/v1/models", X_Request_Id="log-500").status == 500
    until(lambda: bool(written))
    logging.getLogger("uvicorn.error").removeHandler(handler)
    assert [(line["request_id"], line["error"]) for line in written] == [("log-500", "ZeroDivisionError")]


def test_a_body_that_is_too_large_is_refused_by_its_content_length(live: Any) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_chunked_body_is_refused_once_it_is_too_large(live: Any) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"1770\r\n" + b"a" * 6000 + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_its_body_too_slowly_gets_408(live: Any) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_slow_request_headers_close_the_connection_and_kept_connections_may_be_idle(live: Any) -> None:
    with (
        socket.create_connection(("127.0.0.1", live.port), timeout=120) as silent,
        socket.create_connection(("127.0.0.1", live.port), timeout=120) as half,
        socket.create_connection(("127.0.0.1", live.port), timeout=120) as again,
    ):
        half.sendall(b"GET /health/live HTTP/1.1\r\nHo")
        again.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert again.recv(65536).startswith(b"HTTP/1.1 200 ")
        again.sendall(b"GET /health/live HTTP/1.1\r\nHo")
        assert [each.recv(65536) for each in (silent, half)] == [b"", b""]
        while again.recv(65536):
            pass


def test_the_request_of_a_client_that_disconnected_is_not_translated(
    start: Start, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    live = start(ServedModel.from_model("en-de", held))
    first = send_request(live.port, "/v1/translate", text="one")
    held.begun.wait(120)
    with caplog.at_level(logging.INFO, logger="translume.serving"):
        second = send_request(live.port, "/v1/translate", text="two")
        until(lambda: live.server.scheduler.waiting == 1)
        second.close()
        until(lambda: any(getattr(record, "fields", {}).get("status") == 499 for record in caplog.records))
    third = send_request(live.port, "/v1/translate", text="three")
    until(lambda: live.server.scheduler.waiting >= 1)
    held.open.set()
    for connection in (first, third):
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.close()
    assert held.texts == ["one", "three"]


def test_a_request_past_its_deadline_gets_504(start: Start, held: Held) -> None:
    live = start(ServedModel.from_model("en-de", held))
    answer = live.post("/v1/translate", text="one", timeout_seconds=0.1)
    assert refused(answer) == "504 deadline_exceeded [] not done after 0.1 s, the request's deadline"
    held.open.set()
    assert live.post("/v1/translate", text="two").status == 200


def test_too_many_requests_are_refused_immediately(start: Start, held: Held) -> None:
    live = start(ServedModel.from_model("en-de", held), requests=2)
    taken = [send_request(live.port, "/v1/translate", text="one")]
    held.begun.wait(120)
    taken.append(socket.create_connection(("127.0.0.1", live.port), timeout=120))
    taken[-1].sendall(
        b"POST /v1/inspect HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n"
    )
    until(lambda: live.get("/v1/models").status == 503)
    answer = live.get("/v1/models")
    assert refused(answer) == "503 too_many_open [] 2 requests are in progress already; try later"
    assert answer.headers["Retry-After"] == "1"
    assert live.get("/health/live").status == 200
    held.open.set()
    assert taken[0].recv(65536).startswith(b"HTTP/1.1 200 ")
    for connection in taken:
        connection.close()


NUMBERS = [
    *("beam", "nbest", "length_penalty", "patience", "min_length", "max_length_ratio", "max_length_extra"),
    *("max_length", "samples", "seed", "temperature", "top_k", "top_p", "min_p", "epsilon", "eta", "unsmooth"),
    *("diversity", "groups", "no_repeat_ngram", "repetition_penalty", "coverage_penalty"),
]


@given(
    strategy=st.sampled_from(["beam", "greedy", "sampling", "stochastic", "diverse"]),
    knob=st.sampled_from(NUMBERS),
    value=st.sampled_from([0, 1, 2, 1e-300, 1e-3, 0.5, 10, 100, 1e6, -1e6, 10**6, 2**63, 10**400, -1]),
)
def test_extreme_numbers_cause_no_server_error(live: Any, strategy: str, knob: str, value: float) -> None:
    answer = live.post("/v1/translate", {"text": "a b", "strategy": strategy, knob: value})
    assert answer.status in (200, 422), answer.body


def test_duplicate_model_names_and_an_empty_list_of_models_are_refused(translator: Translator) -> None:
    served = ServedModel.from_model("en-de", translator)
    with pytest.raises(TranslumeError) as caught:
        ServedModels([served, served])
    assert str(caught.value) == "en-de: two models have this name; rename one with NAME=MODEL"
    with pytest.raises(TranslumeError, match=r"^found no model, expected at least one$"):
        ServedModels([])


def test_a_port_in_use_gives_a_one_line_error() -> None:
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(TranslumeError) as caught:
            listen("127.0.0.1", port)
    assert str(caught.value) == (
        f"127.0.0.1:{port}: cannot listen: address already in use; stop the other process or choose another --port"
    )
