"""Access control over HTTP: API keys, rates, bursts and quotas; CORS."""

import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libretranslatepy import LibreTranslateAPI
from tests.serving.conftest import FORM, form

from translume.serving.access import guard
from translume.serving.access.admission import IN_BODY, OPEN, OPEN_BELOW, Access
from translume.serving.access.keys import Keys, add_key
from translume.serving.access.usage import Usage, totals_in
from translume.serving.api.errors import DEEPL
from translume.serving.settings import KeySettings
from translume.serving.workers.models import AnyServed, Served, ServedGenerator, ServedTranscriber
from translume.serving.workers.work import FRAMES_PER_CHARACTER
from translume.translator import Generator, Translator

Start = Callable[..., Any]
NO_KEY = {"error": "found no key, expected 'Authorization: Bearer KEY'", "code": "no_key"}


class Gate:
    """A server that requires keys, and three of its keys."""

    def __init__(self, start: Start, translator: Translator, folder: Path, *others: AnyServed) -> None:
        self.path = folder / "keys.json"
        self.usage = Usage(folder / "usage")
        self.alice = add_key(self.path, "alice", {})
        self.quick = add_key(self.path, "quick", {"burst": 2, "requests_per_minute": 0.6})
        self.small = add_key(self.path, "small", {"characters_per_day": 40})
        settings = KeySettings(burst=10_000, characters_per_day=0)
        access = Access(Keys.read(self.path), self.usage, settings)
        self.live = start(Served.of("en-de", translator), *others, access=access, characters=300)

    def ask(self, path: str, secret: str, **fields: Any) -> Any:
        body = json.dumps(fields).encode()
        return self.live.ask("POST", path, body, content_type="application/json", authorization=f"Bearer {secret}")

    def send(self, path: str, secret: str, text: bytes) -> Any:
        """Upload a text file."""
        lines = [b"--x", b'Content-Disposition: form-data; name="file"; filename="a.txt"', b"", text]
        for name, value in {"source": "en", "target": "de", "api_key": secret}.items():
            lines += [b"--x", f'Content-Disposition: form-data; name="{name}"'.encode(), b"", value.encode()]
        body = b"\r\n".join([*lines, b"--x--", b""])
        head = {"content_type": "multipart/form-data; boundary=x"}
        # Only LibreTranslate's clients put the key into the body.
        return self.live.ask(
            "POST", path, body, **head, **({} if path in IN_BODY else {"authorization": f"Bearer {secret}"})
        )

    def used(self, secret: str) -> tuple[int, int]:
        return totals_in(self.usage.path).get(secret.split("_")[1], (0, 0))


@pytest.fixture
def gate(start: Start, translator: Translator, tmp_path: Path) -> Iterator[Gate]:
    found = Gate(start, translator, tmp_path)
    yield found
    found.usage.close()


def until(true: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < 120
        time.sleep(0.005)


def status_and_json(answer: Any) -> tuple[int, Any]:
    return answer.status, answer.json()


def test_requests_with_a_key_are_answered_and_their_characters_counted(gate: Gate, translator: Translator) -> None:
    answer = gate.ask("/v1/translate", gate.alice, text=["a bc", "dé\n\nf"])
    assert answer.status == 200
    assert answer.json()["translations"][0]["text"] == translator.translate("a bc").text
    assert gate.used(gate.alice) == (1, 9)
    gate.ask("/v1/translate", gate.small, text=["a bc", "dé\n\nf"])
    gate.ask("/v1/score", gate.small, sources="ab", targets="cde")
    assert gate.used(gate.small) == (2, 14)


def test_requests_without_a_valid_key_are_refused_before_the_body_is_parsed(gate: Gate) -> None:
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer"}):
        answer = gate.live.ask("POST", "/v1/translate", b"{", content_type="application/json", **headers)
        assert (answer.status, answer.json()["code"]) == (401, "no_key")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert status_and_json(gate.live.post("/v1/translate", text="a")) == (401, NO_KEY)
    assert status_and_json(gate.live.get("/nowhere")) == (401, NO_KEY)
    for secret in ("x", gate.alice[:-1], gate.alice + "a", "tlk_00000000_" + "a" * 43, "é" * 9, "x" * 5000):
        assert status_and_json(gate.ask("/v1/translate", secret.encode().decode("latin-1"), text="a")) == (
            401,
            {"error": "the key is unknown to this server", "code": "unknown_key"},
        )


def test_two_authorization_headers_are_refused(gate: Gate) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", gate.live.port, timeout=120)
    connection.putrequest("GET", "/v1/nothing")
    for _ in range(2):
        connection.putheader("Authorization", f"Bearer {gate.alice}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_libretranslate_clients_send_the_key_in_the_body(gate: Gate, translator: Translator) -> None:
    client = LibreTranslateAPI(f"{gate.live.url}/", gate.small)
    assert client.translate("a bc", "en", "de") == translator.translate("a bc").text
    assert [each["code"] for each in client.languages()] == ["en", "de"]
    answer = gate.live.post("/translate", q="ab", source="en", target="de", api_key=gate.small)
    assert answer.status == 200
    assert gate.used(gate.small) == (2, 6)
    for wrong in ({}, {"api_key": ""}, {"api_key": 5}, {"api_key": None}, {"api_key": ["x"]}):
        assert status_and_json(gate.live.post("/translate", q="ab", source="en", target="de", **wrong)) == (
            400,
            {
                "error": "Please contact the server operator to get an API key, and send it in the field api_key",
                "code": "no_key",
                "field": "api_key",
            },
        )
    for path in ("/translate", "/translate/", "/detect"):
        assert status_and_json(gate.live.post(path, q="ab", source="en", target="de", api_key="x")) == (
            403,
            {"error": "Invalid API key", "code": "unknown_key", "field": "api_key"},
        )
    assert gate.ask("/translate", gate.small, q="ab", source="en", target="de").status == 200
    assert gate.ask("/translate", "wrong", q="ab", source="en", target="de", api_key=gate.small).status == 403


@pytest.mark.parametrize("name", ["api_key", "auth_key"])
def test_a_key_in_the_url_is_refused(gate: Gate, name: str) -> None:
    answer = gate.live.ask("POST", f"/translate?q=a&source=en&target=de&{name}={gate.alice}")
    assert status_and_json(answer) == (
        400,
        {
            "error": f"{name}: found in the URL, expected in the body or the Authorization header",
            "code": "key_in_address",
        },
    )


def test_deepl_clients_read_the_usage_of_their_key_and_learn_that_its_quota_is_used_up(gate: Gate) -> None:
    def usage(key: str) -> Any:
        return gate.live.ask("GET", "/v2/usage", authorization=f"DeepL-Auth-Key {key}").json()

    assert usage(gate.small) == {"character_count": 0, "character_limit": 40}
    assert gate.ask("/v2/translate", gate.small, text=["a" * 30], target_lang="DE").status == 200
    assert usage(gate.small) == {"character_count": 30, "character_limit": 40}
    for length, reason, code in (
        (11, "found 11 characters, more than is left of the key's 40 a day; try later", "quota_used_up"),
        (41, "found 41 characters, expected at most 40, the key's daily quota", "over_quota"),
    ):
        answer = gate.ask("/v2/translate", gate.small, text=["a" * length], target_lang="DE")
        assert status_and_json(answer) == (456, {"error": reason, "code": code, "message": reason})
    assert gate.ask("/v2/translate", gate.alice, text=["a" * 30], target_lang="DE").status == 200
    assert usage(gate.alice) == {"character_count": 30, "character_limit": 10**12}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("", "found no key, expected 'Authorization: DeepL-Auth-Key KEY'"),
        ("DeepL-Auth-Key x", "the key is unknown to this server, expected 'Authorization: DeepL-Auth-Key KEY'"),
        ("DeepL-Auth-Key", "authorization: expected 'DeepL-Auth-Key KEY'"),
    ],
)
def test_deepl_clients_without_a_valid_key_get_status_403(gate: Gate, header: str, reason: str) -> None:
    answer = gate.live.ask("GET", "/v2/usage", **({"authorization": header} if header else {}))
    assert (answer.status, answer.json()["error"], answer.json()["message"]) == (403, reason, reason)


def test_polling_the_status_of_a_file_does_not_count_as_a_request(gate: Gate) -> None:
    sent = gate.send("/v1/files", gate.quick, b"a b c")
    assert sent.status == 202
    address = f"/v1/files/{sent.json()['id']}"
    for _ in range(5):
        assert gate.live.ask("GET", address, authorization=f"Bearer {gate.quick}").status == 200
    assert gate.live.get(address).status == 401
    assert gate.used(gate.quick) == (1, 5)
    found = gate.send("/translate_file", gate.quick, b"a b c").json()["translatedFileUrl"]
    assert gate.live.get(found.removeprefix(gate.live.url)).status == 200


def test_characters_of_a_file_that_fails_are_refunded(gate: Gate) -> None:
    address = f"/v1/files/{gate.send('/v1/files', gate.alice, b'a' * 90).json()['id']}"
    until(lambda: gate.live.ask("GET", address, authorization=f"Bearer {gate.alice}").json()["status"] == "failed")
    until(lambda: gate.used(gate.alice) == (1, 0))


def test_requests_beyond_the_burst_are_refused_with_retry_after(gate: Gate) -> None:
    statuses = [gate.ask("/v1/translate", gate.quick, text="a").status for _ in range(2)]
    answer = gate.ask("/v1/translate", gate.quick, text="a")
    assert statuses == [200, 200]
    assert status_and_json(answer) == (
        429,
        {
            "error": "the key's requests are used up, at most 2 at once; try later",
            "code": "too_many_requests",
        },
    )
    assert 50 <= int(answer.headers["Retry-After"]) <= 100
    assert gate.ask("/v1/translate", gate.alice, text="a").status == 200


def test_the_quota_is_exact_to_the_character(gate: Gate) -> None:
    assert gate.ask("/v1/translate", gate.small, text="a" * 30).status == 200
    answer = gate.ask("/v1/translate", gate.small, text="b" * 11)
    assert status_and_json(answer) == (
        429,
        {
            "error": "found 11 characters, more than is left of the key's 40 a day; try later",
            "code": "quota_used_up",
        },
    )
    # One of 40 characters a day has to become available again.
    assert 2000 <= int(answer.headers["Retry-After"]) <= 2160
    assert gate.ask("/v1/translate", gate.small, text="c" * 10).status == 200
    assert status_and_json(gate.ask("/v1/translate", gate.small, text="d" * 41)) == (
        403,
        {"error": "found 41 characters, expected at most 40, the key's daily quota", "code": "over_quota"},
    )
    assert gate.used(gate.small) == (4, 40)


def test_characters_of_refused_requests_are_not_counted(gate: Gate) -> None:
    assert gate.ask("/v1/translate", gate.small, text="a b c d e f g h i j k l m n o p q r s t").status == 200
    assert gate.ask("/v1/translate", gate.small, text="a", beam=0).status == 422
    assert gate.ask("/v1/translate", gate.small, text="a" * 301).status == 413
    until(lambda: gate.used(gate.small) == (3, 39))


def test_characters_of_a_text_that_is_too_long_are_refunded(gate: Gate) -> None:
    long = add_key(gate.path, "long", {"characters_per_day": 300})
    gate.live.server.access = Access(Keys.read(gate.path), gate.usage, gate.live.server.access.settings)
    assert gate.ask("/v1/translate", long, text="a" * 200).json()["code"] == "text_too_long"
    until(lambda: gate.used(long) == (1, 0))


def test_requests_get_503_while_usage_cannot_be_recorded(gate: Gate) -> None:
    gate.usage._base.execute("PRAGMA query_only = ON")
    answer = gate.ask("/v1/translate", gate.alice, text="a")
    assert status_and_json(answer) == (
        503,
        {"error": "the usage of keys cannot be counted now; try later", "code": "usage_unavailable"},
    )
    assert answer.headers["Retry-After"] == "10"
    gate.usage._base.execute("PRAGMA query_only = OFF")
    assert gate.ask("/v1/translate", gate.alice, text="a").status == 200


def test_every_path_needs_a_key_except_the_public_ones(gate: Gate) -> None:
    listed = gate.live.get("/openapi.json").json()["paths"]
    for path, methods in listed.items():
        for method in methods:
            refused = 403 if path.startswith(DEEPL) else 400 if path in IN_BODY else 401
            place = path.partition("{")[0] + "x" * ("{" in path)
            form = path == "/translate_file"
            kind = "multipart/form-data; boundary=x" if form else "application/json"
            answer = gate.live.ask(method.upper(), place, b"--x--\r\n" if form else b"{}", content_type=kind)
            is_open = path in OPEN or path.startswith(OPEN_BELOW)
            assert (answer.status == refused and b'"no_key"' in answer.body) == (not is_open), path
    assert set(listed) >= IN_BODY


def test_the_openapi_document_lists_every_path_and_marks_those_that_need_a_key(gate: Gate) -> None:
    listed = gate.live.get("/openapi.json").json()
    written = "".join(path.read_text() for path in Path(guard.__file__).parents[1].rglob("*.py"))
    routes = re.findall(r'@router\.(?:get|post|delete|head|api_route)\(\s*"([^"]*)"', written)
    asked = {
        f"{prefix}{route}" for route in routes for prefix in ("", "/v1", "/v2") if f"{prefix}{route}" in listed["paths"]
    }
    # Parts of the page are not part of the API.
    assert set(routes) - {each.removeprefix("/v1").removeprefix("/v2") for each in asked} - asked == {"/page/{name}"}
    assert asked == set(listed["paths"])
    taking = {path for path, methods in listed["paths"].items() if any("security" in each for each in methods.values())}
    assert taking == {path for path in listed["paths"] if path not in OPEN and not path.startswith(OPEN_BELOW)}
    assert listed["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


BODIES: dict[str, dict[str, Any]] = {
    "/v1/score": {"sources": "x" * 41, "targets": "a"},
    "/translate": {"q": "x" * 41, "source": "en", "target": "de"},
    "/detect": {"q": "x" * 41},
    "/v2/translate": {"text": ["x" * 41], "target_lang": "DE"},
    "/v1/generate": {"prompt": "x" * 41},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x" * 41}]},
}


def test_every_endpoint_that_processes_text_enforces_the_quota(
    start: Start,
    translator: Translator,
    generator: Generator,
    make_transcriber: Callable[..., Translator],
    tmp_path: Path,
) -> None:
    arrays = ServedTranscriber.of("arrays", make_transcriber("features", values=5))
    gate = Gate(start, translator, tmp_path, ServedGenerator.of("plays", generator), arrays)
    content = io.BytesIO()
    np.save(content, np.ones((41 * FRAMES_PER_CHARACTER, 5)))
    listed = gate.live.get("/openapi.json").json()["paths"]
    worked = [path for path, methods in listed.items() if "post" in methods and path not in ("/suggest", "/languages")]
    assert len(worked) >= 7
    found = {}
    for path in worked:
        if "transcri" in path or "translations" in path:
            body, key = form(content.getvalue(), model="arrays"), f"Bearer {gate.small}"
            answer = gate.live.ask("POST", path, body, content_type=FORM, authorization=key)
        elif "file" in path:
            answer = gate.send(path, gate.small, b"x" * 41)
        else:
            answer = gate.ask(path, gate.small, **BODIES.get(path, {"text": "x" * 41}))
        found[path] = answer.status, answer.json()["code"]
    gate.usage.close()
    # This server has no classifier and no Whisper. DeepL's clients expect another status.
    own = {
        "/v1/classify": (404, "no_classifier"),
        "/v1/audio/translations": (422, "invalid_value"),
        "/v2/translate": (456, "over_quota"),
    }
    assert found == {path: own.get(path, (403, "over_quota")) for path in worked}


def test_keys_appear_neither_in_the_log_nor_in_the_metrics(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        gate.ask("/v1/translate", gate.alice, text="a")
        gate.live.post("/translate", q="ab", source="en", target="de", api_key=gate.small)
        gate.live.ask("POST", f"/translate?api_key={gate.quick}")
        gate.ask(f"/{gate.quick}", gate.quick)
        # A request is logged after its response was sent.
        until(lambda: len([record for record in caplog.records if record.name == "translume.serving"]) == 4)
    # uvicorn's access log is disabled, but caplog also captures loggers without handlers.
    entries = [
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records if record.name != "uvicorn.access"
    ]
    written = "\n".join(entries) + gate.live.server.metrics.text().decode()
    for secret in (gate.alice, gate.small, gate.quick):
        assert secret.split("_", 2)[1] not in written
        assert secret.split("_", 2)[2] not in written


def test_the_settings_endpoint_says_whether_keys_are_required(gate: Gate, live: Any) -> None:
    asks = gate.live.get("/frontend/settings").json()
    assert (asks["apiKeys"], asks["keyRequired"]) == (True, True)
    asks = live.get("/frontend/settings").json()
    assert (asks["apiKeys"], asks["keyRequired"]) == (False, False)


def test_a_server_without_keys_ignores_the_key_of_a_request(live: Any) -> None:
    headers = {"content_type": "application/json", "authorization": "Bearer whatever"}
    assert live.ask("POST", "/v1/translate", b'{"text": "a"}', **headers).status == 200
    assert live.post("/translate", q="ab", source="en", target="de", api_key="whatever").status == 200


PAGE = "https://app.example"


@pytest.fixture
def shared(start: Start, translator: Translator) -> Any:
    """Return a server that one other origin may call (CORS)."""
    live = start(Served.of("en-de", translator))
    live.server.cors_origins = (PAGE,)
    return live


def test_a_listed_origin_may_send_requests_and_read_responses(shared: Any) -> None:
    asked = shared.ask(
        "OPTIONS", "/v1/translate", Origin=PAGE, Access_Control_Request_Method="POST", Authorization="Bearer x"
    )
    assert asked.status == 204
    found = {name.lower(): text for name, text in asked.headers.items() if name.lower().startswith("access-control")}
    assert found == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "Authorization, Content-Type, X-Request-Id",
        "access-control-expose-headers": "Retry-After, X-Request-Id",
        "access-control-max-age": "600",
    }
    for path in ("/languages", "/nowhere"):
        answer = shared.ask("GET", path, Origin=PAGE)
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert answer.headers["Vary"] == "Origin"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
        assert "Access-Control-Allow-Credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://other.example", "null", "https://app.example.evil.example", ""])
def test_an_unlisted_origin_gets_no_cors_headers(shared: Any, origin: str) -> None:
    for method, more in (("GET", {}), ("OPTIONS", {"Access_Control_Request_Method": "GET"})):
        answer = shared.ask(method, "/languages", Origin=origin, **more)
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Vary"] == "Origin"


def test_a_star_allows_every_origin(shared: Any) -> None:
    shared.server.cors_origins = ("*",)
    answer = shared.ask("GET", "/languages", Origin="https://any.example")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Vary" not in answer.headers
