"""Requests as clients and proxies write them: HEAD, packed bodies, byte-order marks, half-closed connections, forms."""

import codecs
import gzip
import http.client
import json
import socket
import stat
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.serving.conftest import FORM, send_request, until

from translume.errors import SettingsError
from translume.serving.api.app import build_app
from translume.serving.models import ServedModel, ServedModels
from translume.serving.run import PortError, listen, uvicorn_server
from translume.serving.server import Server
from translume.serving.settings import ServeSettings
from translume.translator import Translator

BODY = json.dumps({"text": "a man"}).encode()
GETS = [
    *("/health", "/health/live", "/health/ready", "/v1/info", "/v1/models", "/languages", "/frontend/settings"),
    *("/v2/languages", "/openapi.json", "/", "/docs", "/page/page.css"),
]


def head(live: Any, path: str) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", live.port), 30) as connection:
        connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    lines, _, body = found.partition(b"\r\n\r\n")
    first, *rest = lines.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in rest), body


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_a_body(live: Any, path: str) -> None:
    status, headers, body = head(live, path)
    answer = live.get(path)
    assert (status, body) == (200, b"")
    assert headers["content-type"] == answer.headers["Content-Type"]
    assert abs(int(headers["content-length"]) - len(answer.body)) < 9  # /v1/info has a count


def test_head_of_another_path_has_its_status(live: Any) -> None:
    assert [head(live, path)[0] for path in ("/no/such/path", "/v1/translate", "/v1/files/x")] == [404, 405, 404]


@pytest.mark.parametrize("name", ["gzip", "x-gzip", "GZIP"])
def test_a_packed_body_is_unpacked(live: Any, name: str) -> None:
    for path, value in (
        ("/v1/translate", {"text": "a man"}),
        ("/translate", {"q": "a", "source": "en", "target": "de"}),
    ):
        packed = gzip.compress(json.dumps(value).encode())
        answer = live.ask("POST", path, packed, content_type="application/json", content_encoding=name)
        assert (answer.status, answer.json()) == (200, live.post(path, value).json())


@pytest.mark.parametrize(
    ("body", "encoding", "status", "reason"),
    [
        (BODY, "br", 415, "content-encoding: found 'br', expected gzip or identity"),
        (zlib.compress(BODY), "deflate", 415, "content-encoding: found 'deflate', expected gzip or identity"),
        (gzip.compress(BODY, mtime=0)[:-9], "gzip", 400, "the body is not whole gzip"),
        (gzip.compress(BODY, mtime=0) + b"x", "gzip", 400, "the body is not whole gzip"),
        (BODY, "gzip", 400, "the body is not gzip"),
        (gzip.compress(bytes(1_000_000), mtime=0), "gzip", 413, "the body unpacks to more than 5,000 bytes"),
    ],
)
def test_a_body_that_cannot_be_unpacked_is_refused(
    live: Any, body: bytes, encoding: str, status: int, reason: str
) -> None:
    for path in ("/v1/translate", "/translate", "/v2/translate"):
        answer = live.ask("POST", path, body, content_type="application/json", content_encoding=encoding)
        assert (answer.status, answer.json()["error"]) == (status, reason)


def test_a_byte_order_mark_is_left_out(live: Any) -> None:
    wanted = live.ask("POST", "/v1/translate", BODY, content_type="application/json").json()
    for path in ("/v1/translate", "/v1/translate"):
        found = live.ask("POST", path, codecs.BOM_UTF8 + BODY, content_type="application/json")
        assert found.json() == wanted


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_half_closed_request_is_answered(live: Any, version: str) -> None:
    with socket.create_connection(("127.0.0.1", live.port), 30) as connection:
        connection.sendall(
            f"POST /v1/translate HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n".encode()
            + BODY
        )
        connection.shutdown(socket.SHUT_WR)
        started = time.monotonic()
        found = http.client.HTTPResponse(connection)
        found.begin()
        assert (found.status, list(json.loads(found.read()))) == (200, ["model", "translations"])
        assert connection.recv(10) == b""
    assert time.monotonic() - started < 4  # it is not kept open for another request


def test_an_incomplete_request_is_closed_with_its_connection(live: Any) -> None:
    with socket.create_connection(("127.0.0.1", live.port), 30) as connection:
        connection.sendall(b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        assert b" 200 " not in b"".join(iter(lambda: connection.recv(999), b""))


def test_a_client_that_closes_both_directions_still_ends_its_request(live: Any, caplog: Any) -> None:
    connection = send_request(live.port, "/v1/translate", text=["a man. " * 20] * 5, beam=6, split="sentences")
    time.sleep(0.02)
    connection.close()
    until(lambda: live.server.scheduler.waiting == 0)
    until(lambda: live.server.metrics.open._value.get() == 0)


def part(disposition: str, content: str = "a.") -> str:
    return f"--xx\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n"


FILE = part('name="file"; filename="a.txt"')


@pytest.mark.parametrize("path", ["/v1/files", "/translate_file"])
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (FILE * 2 + "--xx--\r\n", "file: found 2 parts, expected one"),
        (FILE + part('name="file"', "b") + "--xx--", "file: found 2 parts, expected one"),
        (FILE, "the form is incomplete: it does not end with its boundary"),
        (FILE[:-4], "the form is incomplete: it does not end with its boundary"),
        (FILE + "--xx\r\n", "the form is incomplete: it does not end with its boundary"),
    ],
)
def test_a_form_of_two_files_or_without_its_end_is_refused(live: Any, path: str, form: str, reason: str) -> None:
    fields = part('name="source"', "en") + part('name="target"', "de")
    answer = live.ask("POST", path, (fields + form).encode(), content_type=FORM)
    assert (answer.status, answer.json()["error"]) == (400, reason)


@pytest.mark.parametrize("disposition", ['filename="a.txt"; name="file"', "filename=a.txt; name=file"])
def test_the_order_of_parameters_is_free(live: Any, disposition: str) -> None:
    fields = part('name="source"', "en") + part('name="target"', "de")
    body = (part(disposition) + fields + "--xx--").encode()
    assert live.ask("POST", "/v1/files", body, content_type=FORM).status == 202


def test_proxies_do_not_hold_streams_back(live: Any) -> None:
    answer = live.post("/v1/translate/stream", text="a man")
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["Cache-Control"] == "no-store, no-transform"


@pytest.mark.parametrize(
    "origin",
    [
        *("chrome-extension://abc", "moz-extension://0a-1b", "capacitor://localhost", "file://", "tauri://localhost"),
        *("https://app.example:8080", "http://localhost", "*"),
    ],
)
def test_origins_of_extensions_and_apps_are_accepted(origin: str) -> None:
    assert ServeSettings(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "null", "://a", "https://"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"expected an origin such as 'https://app\.example', or '\*'"):
        ServeSettings.read(None, [f"cors_origins=['{origin}']"])


def test_a_unix_socket_has_its_mode_and_is_left_to_the_next_server(tmp_path: Path, translator: Translator) -> None:
    path = tmp_path / "t.sock"
    bound = listen(f"unix:{path}", 0, socket_mode="600")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(PortError) as error:
        listen(f"unix:{path}", 0)
    reason = "cannot listen: address already in use; stop the other process or choose another --host"
    assert str(error.value) == f"unix:{path}: {reason}"
    bound.close()  # as a process that is killed
    server = Server(models=ServedModels([ServedModel.from_model("en-de", translator)]))
    uvicorn = uvicorn_server(build_app(server), server.limits, ("*",))
    bound = listen(f"unix:{path}", 0)
    thread = threading.Thread(target=uvicorn.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n")
        assert connection.recv(999).startswith(b"HTTP/1.1 200 OK")
    uvicorn.should_exit = True
    thread.join(60)
    assert not path.exists()


@pytest.mark.parametrize(
    ("host", "reason"),
    [("unix:/no/such/x", "no such file or directory"), (f"unix:/tmp/{'x' * 120}", "AF_UNIX path too long")],
)
def test_a_unix_socket_that_cannot_be_made_is_one_line(host: str, reason: str) -> None:
    with pytest.raises(PortError) as error:
        listen(host, 0)
    assert str(error.value) == f"{host}: cannot listen: {reason}"


def test_the_mode_of_a_socket_is_a_string() -> None:
    with pytest.raises(SettingsError, match="socket_mode: found '432, a number', expected a string such as '660'"):
        ServeSettings.read(None, ["socket_mode=0o660"])
