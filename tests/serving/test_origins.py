"""Requests must name this server and must not come from pages of other sites."""

import http.client
import json
import logging
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.serving.test_files import form

from translume.cli import main
from translume.errors import TranslumeError
from translume.serving.access.admission import Access
from translume.serving.access.keys import Keys, add_key
from translume.serving.access.origins import host_name
from translume.serving.access.usage import Usage
from translume.serving.settings import KeySettings, ServeSettings
from translume.serving.workers.models import Served
from translume.translator import Translator

Start = Callable[..., Any]


@pytest.fixture
def server(start: Start, translator: Translator) -> Any:
    return start(Served.of("en-de", translator))


def status_for(live: Any, host: str | None, path: str = "/languages", method: str = "GET", **headers: str) -> int:
    """Return the status of a request that names a host; None: HTTP 1.0 without a host."""
    lines = [f"{method} {path} HTTP/{'1.0' if host is None else '1.1'}", "Connection: close"]
    lines += [] if host is None else [f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(connection.recv(65536).split()[1])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8000", "localhost.", "app.localhost", "127.0.0.1:1", "[::1]:8000", "192.168.1.7", None],
)
def test_loopback_names_and_ip_addresses_are_accepted(server: Any, host: str | None) -> None:
    assert status_for(server, host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", ":80", "127.1", "[::1", "a@localhost,b"],
)
def test_other_names_are_refused_except_by_health_checks(server: Any, host: str) -> None:
    assert status_for(server, host) == 421
    assert status_for(server, host, "/translate", "POST") == 421
    assert status_for(server, host, "/health/live") == 200


def test_the_refusal_of_a_host_says_how_to_allow_it(server: Any) -> None:
    answer = server.ask("GET", "/languages", Host="evil.example")
    assert answer.json() == {
        "error": "host: found a name that this server does not have; its operator can add it: "
        "translume serve --host-name NAME",
        "code": "unknown_host",
        "field": "host",
    }


def test_links_to_files_begin_with_the_public_address_and_never_with_an_unknown_host(server: Any) -> None:
    fields = {"source": "en", "target": "de"}
    assert server.ask("POST", "/translate_file", **form(b"a", **fields), Host="evil.example").status == 421
    url = server.ask("POST", "/translate_file", **form(b"a", **fields)).json()["translatedFileUrl"]
    assert url.startswith(f"http://127.0.0.1:{server.port}/download_file/")
    server.server.public_address = "https://translate.example"
    url = server.ask("POST", "/translate_file", **form(b"a", **fields)).json()["translatedFileUrl"]
    assert url.startswith("https://translate.example/download_file/")


def test_listed_names_are_accepted(server: Any) -> None:
    server.server.host_names = ("translate.example",)
    assert [status_for(server, host) for host in ("translate.example:443", "TRANSLATE.example", "b.example")] == [
        *(200, 200, 421)
    ]
    server.server.host_names = ("*",)
    assert status_for(server, "b.example") == 200


def test_settings_name_the_hosts() -> None:
    found = ServeSettings(host_names=("A.example",), public_address="https://b.example:8443/x", host="c.example")
    assert found.hosts == ("a.example", "b.example", "c.example")
    for wrong in ("http://a.example", "a.example:80", "a/b", ""):
        with pytest.raises(TranslumeError, match=f"^serve: host_names: found '{re.escape(wrong)}', expected a name"):
            ServeSettings.read(None, [f"host_names = [{json.dumps(wrong)}]"])


def test_the_command_line_takes_host_names(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["serve", str(tmp_path), "--host-name", "a b", "--host-name", "c"], prog_name="translume"
    )
    assert (done.exit_code, "host_names: found 'a b', expected a name" in done.output) == (1, True)


PAGE = "https://page.example"
OWN = {"Host": "localhost:8000"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site", "Origin": PAGE}, 403),
        ({"Sec_Fetch_Site": "same-site", "Origin": "http://localhost:3000"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "http://localhost:8000"}, 404),
        ({"Sec_Fetch_Site": "none"}, 404),
        ({}, 404),
        ({"Origin": PAGE}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:8000"}, 404),
    ],
)
def test_requests_of_other_sites_that_change_something_are_refused(
    server: Any, headers: dict[str, str], status: int
) -> None:
    assert server.ask("DELETE", "/v1/files/x", **OWN, **headers).status == status
    assert server.ask("GET", "/languages", **OWN, **headers).status == 200


def test_listed_origins_and_the_public_address_may_send_requests(server: Any) -> None:
    ask = {"Sec_Fetch_Site": "cross-site", "Origin": PAGE}
    server.server.cors_origins = (PAGE,)
    assert server.ask("DELETE", "/v1/files/x", **ask).status == 404
    assert server.ask("DELETE", "/v1/files/x", **{**ask, "Origin": "https://b.example"}).status == 403
    server.server.cors_origins = ("*",)
    assert server.ask("DELETE", "/v1/files/x", **ask).status == 404
    server.server.cors_origins, server.server.public_address = (), PAGE
    assert server.ask("DELETE", "/v1/files/x", Origin=PAGE).status == 404


def test_a_body_with_two_lengths_is_refused_and_closes_the_connection(server: Any) -> None:
    smuggled = b"GET /languages HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\n" + smuggled
        )
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["Connection"]) == (400, "close")
        assert json.loads(answer.read())["code"] == "two_lengths"
        assert connection.recv(100) == b""


def test_the_log_names_clients_only_if_it_is_set(
    start: Start, translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = add_key(tmp_path / "keys.json", "alice", {})
    keys = Keys.read(tmp_path / "keys.json")
    usage = Usage(tmp_path / "usage")
    live = start(Served.of("en-de", translator), access=Access(keys, usage, KeySettings()))
    caplog.set_level(logging.INFO, "translume.serving")

    def fields(**headers: str) -> Any:
        caplog.clear()
        live.ask("POST", "/v1/translate", b'{"text": "a"}', content_type="application/json", **headers)
        for _ in range(500):
            for record in caplog.records:
                if record.message == "answered":
                    return record.__dict__["fields"]
            time.sleep(0.01)
        raise AssertionError("nothing was logged")

    given = {"authorization": f"Bearer {secret}"}
    assert not {"client", "key"} & fields(**given).keys()
    live.server.log_clients = True
    found = fields(**given)
    assert (found["client"], found["key"]) == ("127.0.0.1", keys.all[0].id)
    assert "key" not in fields(authorization="Bearer tlk_00000000_x")
    assert secret not in caplog.text
    usage.close()


def test_the_host_of_malformed_addresses_is_empty() -> None:
    assert [host_name(each) for each in ("[::1", "[x]", "", ":80")] == [""] * 4
    assert host_name("Example.COM.:80") == "example.com"
