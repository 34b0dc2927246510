"""Connections: their number is limited, in all and per address, slow ones are closed, malformed requests refused."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from translume.serving import connections
from translume.serving.run import listen, uvicorn_server
from translume.serving.settings import Limits

LARGE = 10**6
"""Bytes of a body that the application refuses without reading it."""


class Running:
    """A server in a thread, whose responses say what the application received."""

    def __init__(self, proxies: tuple[str, ...], **limits: float) -> None:
        self.bound = listen("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.begun, self.gone, self.answer = threading.Event(), threading.Event(), threading.Event()
        self.uvicorn = uvicorn_server(self._application, Limits(**limits), proxies)
        self.uvicorn.config.lifespan = "off"
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.bound]}, daemon=True)
        self.thread.start()

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        body, more = b"", int(headers.get(b"content-length", b"0")) < LARGE
        status = 200 if more else 413
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/wait":
            self.begun.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone.set()
        report = {"path": scope["path"], "body": body.decode(), "trailer": b"x-trailer" in headers}
        content = json.dumps({**report, "client": scope["client"][0]}).encode()
        length = (b"content-length", str(len(content)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length]})
        await send({"type": "http.response.body", "body": content})

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(60)
        self.bound.close()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def start(*proxies: str, **limits: float) -> Running:
            running = Running(proxies, **{"read_seconds": 1.5, **limits})
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture(scope="module")
def live(start: Callable[..., Running]) -> Running:
    return start()


@pytest.fixture
def opened() -> Iterator[Callable[..., socket.socket]]:
    """Return a function that opens connections, which are closed at the end."""
    with ExitStack() as stack:

        def connect(live: Running, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
            address = ("127.0.0.1", live.port)
            connection = stack.enter_context(socket.create_connection(address, 60, (source, 0)))
            connection.sendall(data)
            return connection

        yield connect


def closed(connection: socket.socket) -> bool:
    """Return whether the server closes a connection without sending anything."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def responses(connection: socket.socket) -> list[tuple[int, Any]]:
    """Return the statuses and bodies of all responses until the server closes the connection."""
    found: list[tuple[int, Any]] = []
    with connection.makefile("rb") as file:
        while line := file.readline():
            headers = http.client.parse_headers(file)
            length = headers.get("Content-Length")
            found.append((int(line.split()[1]), json.loads(file.read(int(length))) if length else file.read()))
    return found


ASK = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def post(length: int) -> bytes:
    """Return a request with only the first byte of its body."""
    return f"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{{".encode()


@pytest.mark.parametrize(
    "sent", [b"", ASK[:20], ASK, post(LARGE)], ids=["silent", "in the headers", "kept alive", "a refused body"]
)
def test_idle_connections_are_closed_in_time(live: Running, opened: Callable[..., socket.socket], sent: bytes) -> None:
    connection, started = opened(live, sent), time.monotonic()
    while connection.recv(65536):
        pass
    assert 1 < time.monotonic() - started < 30


def test_a_request_in_progress_is_never_idle(live: Running, opened: Callable[..., socket.socket]) -> None:
    slow = opened(live, post(2))
    time.sleep(2)
    slow.sendall(b"}" + LAST)
    assert [(status, body["body"]) for status, body in responses(slow)] == [(200, "{}"), (200, "")]


def test_silent_connections_make_room_for_new_ones(
    start: Callable[..., Running], opened: Callable[..., socket.socket]
) -> None:
    live = start("127.0.0.1", connections=8, read_seconds=30.0)
    silent = [opened(live) for _ in range(8)]
    working = opened(live, LAST[:30])
    assert closed(silent[0])
    for _ in range(5):
        assert responses(opened(live, LAST))[0][0] == 200
    working.sendall(LAST[30:])
    assert responses(working)[0][0] == 200
    assert closed(silent[1])


def test_connections_in_the_middle_of_a_request_are_never_closed_for_new_ones(
    start: Callable[..., Running], opened: Callable[..., socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    live = start("127.0.0.1", connections=4)
    busy = [opened(live, post(2)) for _ in range(4)]
    time.sleep(0.2)
    assert [closed(opened(live)) for _ in range(2)] == [True, True]
    for each in busy:
        each.sendall(b"}" + LAST)
        assert [status for status, _ in responses(each)] == [200, 200]
    refused = [record.__dict__["fields"] for record in caplog.records if record.message == "too many connections"]
    assert refused == [{"refused": 1}]  # one line in some seconds


def test_an_address_that_is_no_proxy_has_an_eighth_of_the_connections(
    start: Callable[..., Running], opened: Callable[..., socket.socket]
) -> None:
    live = start("127.0.0.1", connections=24, read_seconds=30.0)
    first = [opened(live, source="127.0.0.2") for _ in range(3)]
    assert closed(opened(live, source="127.0.0.2"))
    assert responses(opened(live, LAST, "127.0.0.3"))[0][0] == 200
    proxied = LAST.replace(b"Host", b"X-Forwarded-For: 192.0.2.9\r\nHost")
    for _ in range(5):
        assert responses(opened(live, proxied))[0][1]["client"] == "192.0.2.9"
    assert responses(opened(live, proxied, "127.0.0.3"))[0][1]["client"] == "127.0.0.3"
    first[0].close()
    deadline = time.monotonic() + 60
    while not (again := opened(live, LAST, "127.0.0.2")).recv(1):
        assert time.monotonic() < deadline
        again.close()


def test_the_body_of_a_refused_request_is_not_read_for_long(
    live: Running, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., socket.socket]
) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE_BYTES", 2 * LARGE)
    connection = opened(live, post(10**12))
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.status == 413
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(b"a" * 100_000_000)
    # A smaller body is read to its end, and the connection is kept.
    kept = opened(live, post(LARGE + 1))
    kept.sendall(b"a" * LARGE + LAST)
    assert [status for status, _ in responses(kept)] == [413, 200]


@pytest.mark.parametrize(
    "head",
    [ASK[:-2] + b"X: " + b"a" * 700_000, ASK[:-2] + b"X: aaaaaaaaaa\r\n" * 70_000, b"GET /" + b"a" * 700_000],
    ids=["one", "many", "path"],
)
def test_headers_that_are_too_large_are_refused(
    live: Running, opened: Callable[..., socket.socket], head: bytes
) -> None:
    connection = opened(live)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it is closed while they are sent
        connection.sendall(head)
        assert [status for status, _ in responses(connection)] in ([400], [])


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil\r\n"], ids=["none", "two"])
def test_a_request_has_one_host(live: Running, opened: Callable[..., socket.socket], hosts: bytes) -> None:
    assert [status for status, _ in responses(opened(live, b"GET /a HTTP/1.1\r\n" + hosts + b"\r\n"))] == [400]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_for_another_protocol_keeps_its_body(
    live: Running, opened: Callable[..., socket.socket], chunked: bool
) -> None:
    upgrade = b"POST /a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    framed = (
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n" if chunked else b"Content-Length: 4\r\n\r\nabcd"
    )
    connection = opened(live)
    for byte in upgrade + framed:
        connection.sendall(bytes([byte]))
    connection.sendall(LAST)
    assert [(status, body["body"]) for status, body in responses(connection)] == [(200, "abcd"), (200, "")]


def test_trailers_are_no_headers(live: Running, opened: Callable[..., socket.socket]) -> None:
    request = (
        b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Trailer: b\r\n\r\n"
    )
    assert [body["trailer"] for _, body in responses(opened(live, request + LAST))] == [False, False]


def test_pipelined_requests_are_answered_in_order_and_read_one_after_the_other(
    live: Running, opened: Callable[..., socket.socket]
) -> None:
    asks = [ASK.replace(b"/a", f"/{number}".encode()) for number in range(400)]
    found = responses(opened(live, b"".join(asks) + LAST))
    assert [body["path"] for _, body in found] == [*(f"/{number}" for number in range(400)), "/last"]
    broken = responses(opened(live, ASK + b"\0\0\0\r\n\r\n"))
    assert [status for status, _ in broken] == [200, 400]


def test_a_malformed_body_of_a_refused_request_closes_the_connection_and_logs_nothing(
    live: Running, opened: Callable[..., socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LARGE}\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = opened(live, head.encode())
    assert connection.recv(12) == b"HTTP/1.1 413"
    connection.sendall(b"no size\r\n")
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_disconnects_ends_its_request(live: Running, opened: Callable[..., socket.socket]) -> None:
    connection = opened(live, ASK.replace(b"/a", b"/wait"))
    assert live.begun.wait(60)
    connection.close()
    assert live.gone.wait(60)


def test_the_limit_of_descriptors_is_raised_for_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = [(1024, 4096)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limit[0])
    monkeypatch.setattr("resource.setrlimit", lambda _, value: limit.__setitem__(0, value))
    assert (connections.max_connections(2000), limit[0]) == (2000, (2128, 4096))
    assert connections.max_connections(9000) == 4096 - 128
    limit[0] = (64, 64)
    assert connections.max_connections(1024) == 32
    limit[0] = (-1, -1)
    assert connections.max_connections(9000) == 9000


class Written:
    """What a transport was told: bytes, and its end."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.calls.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@given(turns=st.lists(st.lists(st.binary(min_size=1, max_size=7), min_size=1), max_size=5), closed=st.booleans())
def test_what_is_written_in_one_turn_of_the_event_loop_is_sent_in_one_call(
    turns: list[list[bytes]], closed: bool
) -> None:
    async def write() -> Written:
        written = Written()
        joining = connections.JoiningTransport(cast(asyncio.Transport, written))
        for turn in turns:
            for part in turn:
                joining.write(part)
            if not closed:
                await asyncio.sleep(0)
        joining.close()
        return written

    written = asyncio.run(write())
    sent = [b"".join(turn) for turn in turns]
    assert written.calls == ([b"".join(sent)] if closed and sent else sent)
    assert written.closed


def test_a_long_response_is_not_held_back() -> None:
    async def write() -> list[bytes]:
        written = Written()
        joining = connections.JoiningTransport(cast(asyncio.Transport, written))
        for _ in range(connections.MAX_JOINED_BYTES // 1009 + 1):
            joining.write(bytes(1009))
        return written.calls

    assert list(map(len, asyncio.run(write()))) == [1009 * (connections.MAX_JOINED_BYTES // 1009 + 1)]
