"""Silent, slow and numerous connections do not keep out other clients, and health checks are always answered."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from translume.serving import connections
from translume.serving.access.admission import Access
from translume.serving.access.clients import Networks, address_block, client_of
from translume.serving.access.keys import Keys, add_key
from translume.serving.access.limits import Limits
from translume.serving.access.usage import Usage
from translume.serving.run import listen, uvicorn_server
from translume.serving.settings import KeySettings, ServeSettings
from translume.serving.workers.models import Served
from translume.translator import Translator

Start = Callable[..., Any]


@pytest.fixture
def opened() -> Iterator[Callable[..., socket.socket]]:
    """Open connections, which are closed at the end."""
    with ExitStack() as stack:

        def connect(live: Any, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
            found = socket.create_connection(("127.0.0.1", live.port), timeout=120, source_address=(source, 0))
            stack.enter_context(found)
            found.sendall(data)
            return found

        yield connect


def closed(connection: socket.socket) -> bool:
    """Return whether the server closes a connection within 20 s, without sending anything."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def post(length: int, path: str = "/translate") -> bytes:
    """Return a request with only the first byte of its body."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n{{"
    ).encode()


def test_clients_without_a_key_keep_out_neither_those_with_one_nor_health_checks(
    start: Start, translator: Translator, tmp_path: Path, opened: Callable[..., socket.socket]
) -> None:
    secret = add_key(tmp_path / "keys.json", "alice", {})
    access = Access(Keys.read(tmp_path / "keys.json"), usage := Usage(tmp_path / "usage"), KeySettings())
    live = start(Served.of("en-de", translator), access=access, requests=16)
    slow = [opened(live, post(100)) for _ in range(60)]
    deadline = time.monotonic() + 120
    while (found := live.post("/translate", q="a", source="en", target="de", api_key=secret)).status != 503:
        assert time.monotonic() < deadline
    assert found.json()["code"] == "too_many_open"
    asked = {"content_type": "application/json", "authorization": f"Bearer {secret}"}
    assert live.ask("POST", "/v1/translate", b'{"text": "a"}', **asked).status == 200
    assert [live.get(path).status for path in ("/health", "/health/live", "/health/ready")] == [200] * 3
    for each in slow:
        each.close()
    while live.post("/translate", q="a", source="en", target="de", api_key=secret).status != 200:
        assert time.monotonic() < deadline
    usage.close()


def test_silent_connections_make_room_for_new_ones(
    start: Start, translator: Translator, opened: Callable[..., socket.socket]
) -> None:
    live = start(Served.of("en-de", translator), connections=8)
    silent = [opened(live) for _ in range(8)]
    working = opened(live, b"GET /health/live HTTP/1.1\r\nHo")
    assert closed(silent[0])
    for _ in range(5):
        assert live.get("/health/live").status == 200
    working.sendall(b"st: localhost\r\nConnection: close\r\n\r\n")
    assert closed(silent[1])
    assert working.recv(12) == b"HTTP/1.1 200"


def test_connections_in_the_middle_of_a_request_are_never_closed_for_new_ones(
    start: Start, translator: Translator, opened: Callable[..., socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    live = start(Served.of("en-de", translator), connections=4)
    body = json.dumps({"q": "a", "source": "en", "target": "de"}).encode()
    busy = [opened(live, post(len(body))) for _ in range(4)]
    time.sleep(0.2)
    assert closed(opened(live))
    for each in busy:
        each.sendall(body[1:])
        assert each.recv(12) == b"HTTP/1.1 200"
    assert live.get("/health/live").status == 200
    assert [
        record.__dict__["fields"]["refused"] for record in caplog.records if record.message == "too many connections"
    ] == [1]


def test_an_address_has_a_share_of_the_connections(
    start: Start, translator: Translator, opened: Callable[..., socket.socket]
) -> None:
    live = start(Served.of("en-de", translator), connections_per_address=3)
    first = [opened(live, source="127.0.0.2") for _ in range(3)]
    assert closed(opened(live, source="127.0.0.2"))
    ask = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert opened(live, ask, source="127.0.0.3").recv(12) == b"HTTP/1.1 200"
    # A proxy, by default on localhost, may have many.
    assert [opened(live, ask).recv(12) for _ in range(5)] == [b"HTTP/1.1 200"] * 5
    first[0].close()
    deadline = time.monotonic() + 120
    while closed(opened(live, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", source="127.0.0.2")):
        assert time.monotonic() < deadline


def test_the_body_of_a_refused_request_is_not_read_for_long(
    live: Any, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., socket.socket]
) -> None:
    monkeypatch.setattr(connections, "DRAINED_BYTES", 100_000)
    connection = opened(live, post(10**12, "/v1/translate"))
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.status == 413
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(b"a" * 100_000_000)
    # A smaller body is read to its end, and the connection is kept.
    kept = opened(live, post(90_001, "/v1/translate"))
    kept.sendall(b"a" * 90_000 + b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    with kept.makefile("rb") as answers:
        statuses = [line.split()[1] for line in answers.read().splitlines() if line.startswith(b"HTTP/1.1")]
    assert statuses == [b"413", b"200"]


def test_simultaneous_readiness_checks_share_a_probe(start: Start, translator: Translator) -> None:
    live = start(Served.of("en-de", translator))
    probes = threading.Semaphore(0)
    submit = live.server.scheduler.submit

    def slow(*given: Any) -> Any:
        probes.release()
        time.sleep(0.3)
        return submit(*given)

    live.server.scheduler.submit = slow
    with ThreadPoolExecutor(8) as clients:
        assert [each.status for each in clients.map(live.get, ["/health/ready"] * 8)] == [200] * 8
    assert probes.acquire(blocking=False)
    assert probes._value < 4


EXHAUSTED = """
import os, socket, sys, threading, time
from translume.serving.access.guard import log_to_stderr
from translume.serving.access.limits import Limits
from translume.serving.run import listen, uvicorn_server

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

log_to_stderr()
bound = listen("127.0.0.1", 0)
server = uvicorn_server(app, Limits())
threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
while not server.started:
    time.sleep(0.01)
port = bound.getsockname()[1]
ask = b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
time.sleep(0.3)
waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
time.sleep(0.3)
late = [socket.socket() for _ in range(3)]
held = []
while True:
    try:
        held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
for each in late:
    each.connect(("127.0.0.1", port))
    each.sendall(ask)
time.sleep(2.5)
for each in late:
    each.settimeout(10)
    assert each.recv(12) == b"HTTP/1.1 200"
print("answered")
"""


def test_a_process_without_descriptors_logs_one_line_and_closes_idle_connections() -> None:
    done = subprocess.run(
        ["bash", "-c", 'ulimit -Sn 128 && ulimit -Hn 128 && exec "$0" -c "$1"', sys.executable, EXHAUSTED],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ},
        check=False,
    )
    assert done.stdout == "answered\n", done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in lines] == ["no file descriptor is free for a connection"]
    assert lines[0]["level"] == "warning"


def test_the_limit_of_descriptors_is_raised_for_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = [(1024, 4096)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limit[0])
    monkeypatch.setattr("resource.setrlimit", lambda _, value: limit.__setitem__(0, value))
    assert connections.most_connections(Limits(connections=2000)) == 2000
    assert limit[0] == (2128, 4096)
    assert connections.most_connections(Limits(connections=9000)) == 4096 - 128
    limit[0] = (64, 64)
    assert connections.most_connections(Limits()) == 32
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert connections.most_connections(Limits(connections=9000)) == 9000


def answers(connection: socket.socket) -> list[tuple[int, bytes]]:
    """Return the statuses and bodies of all responses until the server closes the connection."""
    found = []
    with connection.makefile("rb") as file:
        while line := file.readline():
            headers = http.client.parse_headers(file)
            length = headers.get("Content-Length")
            body = b""
            if length is None:
                while size := int(file.readline(), 16):
                    body += file.read(size)
                    file.readline()
                file.readline()
            found.append((int(line.split()[1]), body if length is None else file.read(int(length))))
    return found


LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: aaaaaaaaaa\r\n" * 7000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000,
        b"GET /" + b"a" * 70_000,
    ],
    ids=["one", "many", "unfinished", "path"],
)
def test_headers_that_are_too_large_are_refused(live: Any, opened: Callable[..., socket.socket], head: bytes) -> None:
    assert answers(opened(live, head)) == [(431, b"The headers are too large.")]


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil\r\n"], ids=["none", "two"])
def test_a_request_has_one_host(live: Any, opened: Callable[..., socket.socket], hosts: bytes) -> None:
    assert answers(opened(live, b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n"))[0][0] == 400


@pytest.mark.parametrize("parts", [1, 2, 500], ids=["at once", "head first", "byte by byte"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_for_another_protocol_keeps_its_body(
    live: Any, opened: Callable[..., socket.socket], chunked: bool, parts: int
) -> None:
    body = b'{"text": "a"}'
    upgrade = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    upgrade += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    whole = upgrade + framing + b"\r\n\r\n" + framed + LAST
    connection = opened(live)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    cut = {1: [len(whole)], 2: [len(upgrade + framing) + 4, len(whole)], 500: range(1, len(whole) + 1)}[parts]
    begin = 0
    for end in cut:
        connection.sendall(whole[begin:end])
        begin = end
    found = answers(connection)
    assert [status for status, _ in found] == [200, 200]
    assert json.loads(found[0][1]) == live.post("/v1/translate", text="a").json()


def test_trailers_are_no_headers(live: Any, opened: Callable[..., socket.socket]) -> None:
    request = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"0\r\nContent-Type: application/json\r\nHost: evil\r\n\r\n"
    found = answers(opened(live, request + b'd\r\n{"text": "a"}\r\n' + trailers + LAST))
    assert [status for status, _ in found] == [415, 200]
    endless = request.replace(b"Host", b"Content-Type: application/json\r\nHost") + b"0\r\nX: " + b"a" * 700_000
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it is closed while they are sent
        assert answers(opened(live, endless)) == []


def test_pipelined_requests_are_answered_in_order_up_to_a_limit(
    live: Any, opened: Callable[..., socket.socket]
) -> None:
    def ask(text: str) -> bytes:
        body = json.dumps({"text": text}).encode()
        head = "POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    texts = ["a", "b c", "d"]
    found = answers(opened(live, b"".join(map(ask, texts)) + LAST))
    assert [json.loads(body) for _, body in found[:3]] == [
        live.post("/v1/translate", text=text).json() for text in texts
    ]
    assert len(found) == 4
    flood = answers(opened(live, ask("a") * 400))
    assert [status for status, _ in flood] == [200]
    broken = answers(opened(live, ask("a") + b"\0\0\0\r\n\r\n"))
    assert [status for status, _ in broken] == [200]


@pytest.mark.parametrize("later", [False, True], ids=["together", "one by one"])
def test_a_client_that_disconnects_ends_the_first_of_its_pipelined_requests(later: bool) -> None:
    begun, gone = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    bound = listen("127.0.0.1", 0)
    server = uvicorn_server(app, Limits())
    server.config.lifespan = "off"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    with socket.create_connection(bound.getsockname()[:2], timeout=120) as connection:
        ask = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(ask * (1 if later else 3))
        assert begun.wait(120)
        if later:
            time.sleep(0.2)
            connection.sendall(ask * 2)
            time.sleep(0.2)
    assert gone.wait(120)
    server.should_exit = True
    thread.join(120)
    bound.close()


def test_addresses_are_grouped_by_what_a_client_has() -> None:
    assert address_block("192.0.2.1") == "192.0.2.1"
    assert address_block("::ffff:192.0.2.1") == "192.0.2.1"
    assert address_block("2001:db8::1") == address_block("2001:db8::ffff:1") != address_block("2001:db8:0:1::1")
    proxies = Networks(["127.0.0.1", "10.0.0.0/8"])
    assert [each in proxies for each in ("10.1.2.3", "::ffff:10.1.2.3", "127.0.0.2", "", "x")] == [
        *(True, True, False, False, False)
    ]
    assert client_of({"client": ("192.0.2.1", 7)}) == "192.0.2.1"
    assert client_of({"client": None}) == ""


def test_proxies_are_addresses_or_networks() -> None:
    assert ServeSettings.read(None, ['proxies = "10.0.0.0/8"']).proxies == ("10.0.0.0/8",)
    with pytest.raises(Exception, match=r"^serve: proxies: found 'nginx', expected an address or network such as"):
        ServeSettings.read(None, ['proxies = ["nginx"]'])
