"""What the guard refuses before the application sees a request: hosts, other sites, keyless floods; and its headers."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from translume.serving.access.guard import HEADERS, Guard
from translume.serving.access.keys import add_key
from translume.serving.access.quotas import open_access
from translume.serving.settings import KeySettings, Limits, ServeSettings, host_name

PAGE = "https://page.example"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond 200 to everything, with a cache policy of its own at /page."""
    own = [(b"cache-control", b"max-age=1")] if scope["path"] == "/page/x" else []
    await send({"type": "http.response.start", "status": 200, "headers": own})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
def server() -> Any:
    registry = CollectorRegistry()
    metrics = SimpleNamespace(
        first=Histogram("first", "", registry=registry),
        open=Gauge("open", "", registry=registry),
        count_request=lambda *_: None,
    )
    return SimpleNamespace(
        **{"metrics": metrics, "limits": Limits(requests=16), "access": None, "settings": ServeSettings()},
        scheduler=SimpleNamespace(refusal=lambda _: None),
    )


@pytest.fixture
def client(server: Any) -> TestClient:
    return TestClient(Guard(application, server), base_url="http://localhost:8000")


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "localhost.", "app.localhost", "127.0.0.1:1", "[::1]:8000", "192.168.1.7"]
)
def test_loopback_names_and_ip_addresses_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/languages", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", ":80", "127.1", "[::1", "a@localhost,b"],
)
def test_other_names_are_refused_except_by_health_checks(client: TestClient, host: str) -> None:
    refused = client.get("/languages", headers={"host": host})
    assert (refused.status_code, refused.json()) == (
        421,
        {
            "error": "host: found a name that this server does not have; its operator can add it: "
            "translume serve --host-name NAME",
            "code": "unknown_host",
            "field": "host",
        },
    )
    assert client.post("/translate", headers={"host": host}).status_code == 421
    assert client.get("/health/live", headers={"host": host}).status_code == 200


def test_listed_names_are_accepted(client: TestClient, server: Any) -> None:
    server.settings = ServeSettings(host_names=("translate.example",))
    hosts = ("translate.example:443", "TRANSLATE.example", "b.example")
    assert [client.get("/", headers={"host": host}).status_code for host in hosts] == [200, 200, 421]
    server.settings = ServeSettings(host_names=("*",))
    assert client.get("/", headers={"host": "b.example"}).status_code == 200


def test_settings_name_the_hosts() -> None:
    found = ServeSettings(host_names=("A.example",), public_address="https://b.example:8443/x", host="c.example")
    assert found.hosts == ("a.example", "b.example", "c.example")
    assert [host_name(each) for each in ("[::1", "[x]", "", ":80", "Example.COM.:80")] == [*[""] * 4, "example.com"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "origin": PAGE}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "http://localhost:8000"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({}, 200),
        ({"origin": PAGE}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:8000"}, 200),
    ],
)
def test_requests_of_other_sites_that_change_something_are_refused(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    assert client.delete("/v1/files/x", headers=headers).status_code == status
    assert client.get("/languages", headers=headers).status_code == 200


def test_listed_origins_and_the_public_address_may_send_requests(client: TestClient, server: Any) -> None:
    def status(origin: str, **more: str) -> int:
        return client.delete("/v1/files/x", headers={"origin": origin, **more}).status_code

    server.settings = ServeSettings(cors_origins=(PAGE,))
    site = {"sec-fetch-site": "cross-site"}
    assert [status(PAGE, **site), status("https://b.example", **site)] == [200, 403]
    server.settings = ServeSettings(cors_origins=("*",))
    assert status(PAGE, **site) == 200
    server.settings = ServeSettings(public_address=PAGE)
    assert status(PAGE) == 200


def test_a_listed_origin_may_send_requests_and_read_responses(client: TestClient, server: Any) -> None:
    server.settings = ServeSettings(cors_origins=(PAGE,))
    asked = client.options("/v1/translate", headers={"origin": PAGE, "access-control-request-method": "POST"})
    allowed = {name: text for name, text in asked.headers.items() if name.startswith("access-control")}
    assert (asked.status_code, allowed) == (
        200,
        {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": (
                "Accept, Accept-Language, Authorization, Content-Language, Content-Type, X-Request-Id"
            ),
            "access-control-max-age": "600",
        },
    )
    for headers in ({"origin": PAGE}, {"origin": PAGE, "host": "evil.example"}):
        answer = client.get("/languages", headers=headers)
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "Retry-After, X-Request-Id"
        assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers
    server.settings = ServeSettings(cors_origins=("*",))  # a reload changes it
    assert client.get("/", headers={"origin": "https://any.example"}).headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("origin", ["https://other.example", "null", "https://page.example.evil.example", ""])
def test_an_unlisted_origin_may_not_read_responses(client: TestClient, server: Any, origin: str) -> None:
    server.settings = ServeSettings(cors_origins=(PAGE,))
    for method, more in (("GET", {}), ("OPTIONS", {"access-control-request-method": "GET"})):
        answer = client.request(method, "/languages", headers={"origin": origin, **more})
        assert "access-control-allow-origin" not in answer.headers


def test_every_response_has_an_id_and_the_default_headers_unless_it_has_its_own(client: TestClient) -> None:
    for path in ("/languages", "/page/x"):
        headers = client.get(path, headers={"x-request-id": "a.b-1"}).headers
        expected = {**HEADERS, **({"Cache-Control": "max-age=1"} if path == "/page/x" else {}), "X-Request-Id": "a.b-1"}
        assert {name: headers[name] for name in expected} == expected
    for wrong in ("a b", "x" * 65, ""):
        assert re.fullmatch("[0-9a-f]{32}", client.get("/", headers={"x-request-id": wrong}).headers["x-request-id"])


def test_a_body_with_two_lengths_is_refused_and_closes_the_connection(client: TestClient) -> None:
    refused = client.post("/translate", headers={"content-length": "4", "transfer-encoding": "chunked"})
    assert (refused.status_code, refused.json()["code"], refused.headers["connection"]) == (400, "two_lengths", "close")


@pytest.fixture
def secret(server: Any, tmp_path: Path) -> str:
    """Return a key of two requests a minute. The server requires one from now on."""
    secret = add_key(tmp_path / "keys.json", "alice", {"requests_per_minute": 2})
    server.access = open_access(KeySettings(file=str(tmp_path / "keys.json"), usage="memory://"))
    return secret


NO_KEY = "found no key, expected 'Authorization: Bearer KEY'"
UNKNOWN = "the key is unknown to this server"
ASK = "Please contact the server operator to get an API key, and send it in the field api_key"


@pytest.mark.parametrize(
    ("path", "headers", "status", "reason"),
    [
        ("/v1/translate", [], 401, NO_KEY),
        ("/nowhere", [], 401, NO_KEY),
        ("/v1/translate", ["Bearer "], 401, "authorization: expected 'Bearer KEY'"),
        ("/v1/translate", ["Basic YTpi"], 401, "authorization: expected 'Bearer KEY'"),
        ("/v1/translate", ["Bearer KEY", "Bearer KEY"], 401, "authorization: expected 'Bearer KEY'"),
        ("/v1/translate", ["Bearer x"], 401, UNKNOWN),
        ("/v1/translate", ["Bearer tlk_00000000_x"], 401, UNKNOWN),
        ("/v1/translate", ["Bearer " + "x" * 5000], 401, UNKNOWN),
        ("/translate", ["Bearer x"], 403, "Invalid API key"),
        (
            "/translate?q=a&api_key=x",
            [],
            400,
            "api_key: found in the URL, expected in the body or the Authorization header",
        ),
        (
            "/translate?auth%5Fkey=x",
            [],
            400,
            "auth_key: found in the URL, expected in the body or the Authorization header",
        ),
        ("/v2/usage", [], 403, "found no key, expected 'Authorization: DeepL-Auth-Key KEY'"),
        ("/v2/usage", ["DeepL-Auth-Key x"], 403, f"{UNKNOWN}, expected 'Authorization: DeepL-Auth-Key KEY'"),
        ("/v2/usage", ["DeepL-Auth-Key"], 403, "authorization: expected 'DeepL-Auth-Key KEY'"),
        ("/v1/translate", ["Bearer KEY"], 200, ""),
        ("/v2/usage", ["deepl-auth-key  KEY "], 200, ""),
        ("/translate", [], 200, ""),
        ("/v1/models", [], 200, ""),
        ("/page/x", ["Bearer x"], 200, ""),
    ],
)
def test_requests_without_a_valid_key_are_refused(
    client: TestClient, secret: str, path: str, headers: list[str], status: int, reason: str
) -> None:
    answer = client.post(path, headers=[("authorization", each.replace("KEY", secret)) for each in headers])
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"] == reason
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


def test_requests_beyond_those_of_a_minute_are_refused_but_reading_is_not_counted(
    client: TestClient, secret: str
) -> None:
    headers = {"authorization": f"Bearer {secret}"}
    assert [client.post("/v1/translate", headers=headers).status_code for _ in range(2)] == [200, 200]
    refused = client.post("/v1/translate", headers=headers)
    assert (refused.status_code, refused.json()) == (
        429,
        {"error": "the key's requests are used up, at most 2 a minute; try later", "code": "too_many_requests"},
    )
    assert 55 <= int(refused.headers["retry-after"]) <= 60
    assert client.get("/v1/files/x", headers=headers).status_code == 200


class Held:
    """Requests that an application holds until it is told to answer."""

    def __init__(self, server: Any) -> None:
        self._guard, self.answer = Guard(self._application, server), anyio.Event()
        self.statuses: list[int] = []

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer.wait()
        await application(scope, receive, send)

    async def ask(self, path: str, address: str = "192.0.2.1", **headers: str) -> None:
        """Send a request, and add the status of its response."""

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])

        pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": pairs}
        await self._guard({**scope, "client": (address, 1)}, lambda: anyio.sleep_forever(), send)


def test_clients_without_a_key_keep_out_neither_those_with_one_nor_health_checks(server: Any, secret: str) -> None:
    async def flood() -> list[int]:
        held = Held(server)
        async with anyio.create_task_group() as group:
            for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
                for _ in range(3):
                    group.start_soon(held.ask, "/translate", address)
            await anyio.wait_all_tasks_blocked()
            assert held.statuses == [503] * 5  # two of each address wait, and four in all
            held.answer.set()
            await held.ask("/v1/translate", authorization=f"Bearer {secret}")
            await held.ask("/health/live")
        return held.statuses

    assert sorted(anyio.run(flood)) == [200] * 6 + [503] * 5


def test_requests_beyond_the_limit_are_refused_but_no_health_checks(server: Any) -> None:
    async def flood() -> list[int]:
        held = Held(server)
        async with anyio.create_task_group() as group:
            for _ in range(18):
                group.start_soon(held.ask, "/v1/models")
            await anyio.wait_all_tasks_blocked()
            assert held.statuses == [503] * 2
            held.answer.set()
            await held.ask("/health/live")
        return held.statuses

    assert sorted(anyio.run(flood)) == [200] * 17 + [503] * 2


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], dict[str, Any]]]:
    with caplog.at_level(logging.INFO, "translume.serving"):
        yield lambda: caplog.records[-1].__dict__["fields"]


def test_the_log_names_clients_only_if_it_is_set_and_never_a_key_or_an_unknown_path(
    server: Any, client: TestClient, secret: str, logged: Callable[[], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    for log_clients, names in ((False, set()), (True, {"client", "key"})):
        server.settings = ServeSettings(log_clients=log_clients)
        client.post(f"/{secret}", headers={"authorization": f"Bearer {secret}"})
        assert logged().keys() & {"client", "key"} == names
        assert logged()["route"] == "unknown"
    assert (logged()["client"], logged()["key"]) == ("testclient", secret.split("_")[1])
    client.post(f"/translate?api_key={secret}", headers={"authorization": "Bearer tlk_00000000_x"})
    assert logged()["status"] == 400
    assert secret not in caplog.text + str([record.__dict__ for record in caplog.records if record.name != "httpx"])
