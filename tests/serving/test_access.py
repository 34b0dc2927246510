"""Access control of the whole server: every route asks for keys and counts what it processes."""

import io
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libretranslatepy import LibreTranslateAPI
from prometheus_client import generate_latest
from tests.serving.conftest import FORM, form, until

from translume.serving.access import guard
from translume.serving.access.keys import add_key
from translume.serving.access.quotas import IN_BODY, OPEN, OPEN_BELOW, open_access, used_of
from translume.serving.api.errors import DEEPL
from translume.serving.models import ServedModel
from translume.serving.settings import KeySettings, ServeSettings
from translume.serving.work import FRAMES_PER_CHARACTER
from translume.translator import Generator, Translator

Start = Callable[..., Any]
NO_KEY = {"error": "found no key, expected 'Authorization: Bearer KEY'", "code": "no_key"}


class Gate:
    """A server that requires keys, and three of its keys."""

    def __init__(self, start: Start, translator: Translator, folder: Path, *others: ServedModel) -> None:
        path = folder / "keys.json"
        self.alice = add_key(path, "alice", {})
        self.quick = add_key(path, "quick", {"requests_per_minute": 2})
        self.small = add_key(path, "small", {"characters_per_day": 40})
        settings = KeySettings(file=str(path), requests_per_minute=10_000, characters_per_day=0)
        self.access: Any = open_access(settings)
        self.live = start(ServedModel.from_model("en-de", translator), *others, access=self.access, characters=300)

    def ask(self, path: str, secret: str, **fields: Any) -> Any:
        body = json.dumps(fields).encode()
        return self.live.ask("POST", path, body, content_type="application/json", authorization=f"Bearer {secret}")

    def send(self, path: str, secret: str, text: bytes) -> Any:
        """Upload a text file."""
        lines = [b"--x", b'Content-Disposition: form-data; name="file"; filename="a.txt"', b"", text]
        fields = {"source": "en", "target": "de", "api_key": secret}
        for name, value in ({"target_lang": "de"} if path == "/v2/document" else fields).items():
            lines += [b"--x", f'Content-Disposition: form-data; name="{name}"'.encode(), b"", value.encode()]
        body = b"\r\n".join([*lines, b"--x--", b""])
        head = {"content_type": "multipart/form-data; boundary=x"}
        # Only LibreTranslate's clients put the key into the body.
        return self.live.ask(
            "POST", path, body, **head, **({} if path in IN_BODY else {"authorization": f"Bearer {secret}"})
        )

    def used(self, secret: str) -> tuple[int, int]:
        return used_of(self.access.counts, self.access.keys.find(secret))


@pytest.fixture
def gate(start: Start, translator: Translator, tmp_path: Path) -> Gate:
    return Gate(start, translator, tmp_path)


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


def test_every_path_needs_a_key_except_the_public_ones(gate: Gate) -> None:
    listed = gate.live.get("/openapi.json").json()["paths"]
    for path, methods in listed.items():
        for method in methods:
            refused = 403 if path.startswith(DEEPL) else 400 if path in IN_BODY else 401
            place = path.partition("{")[0] + "x" * ("{" in path)
            body, kind = b"{}", "application/json"
            if path == "/translate_file":
                body, kind = form(b"a", "a.txt", source="en", target="de"), FORM
            answer = gate.live.ask(method.upper(), place, body, content_type=kind)
            is_open = path in OPEN or path.startswith(OPEN_BELOW)
            assert (answer.status == refused and b'"no_key"' in answer.body) == (not is_open), path
    assert set(listed) >= IN_BODY


def test_the_openapi_document_lists_every_path_and_marks_those_that_need_a_key(gate: Gate) -> None:
    listed = gate.live.get("/openapi.json").json()
    written = "".join(path.read_text() for path in Path(guard.__file__).parents[1].rglob("*.py"))
    routes = re.findall(r'@routes\.on\(\s*"[A-Z]+ ([^"]*)"', written)
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
    arrays = ServedModel.from_model("arrays", make_transcriber("features", values=5))
    gate = Gate(start, translator, tmp_path, ServedModel.from_model("plays", generator), arrays)
    content = io.BytesIO()
    np.save(content, np.ones((41 * FRAMES_PER_CHARACTER, 5)))
    listed = gate.live.get("/openapi.json").json()["paths"]
    # These process no text.
    others = re.compile("/suggest|/languages|/v2/(?:glossaries|document/.*)")
    worked = [path for path, methods in listed.items() if "post" in methods and not others.fullmatch(path)]
    assert len(worked) >= 7
    found = {}
    for path in worked:
        if "transcri" in path or "translations" in path:
            body, key = form(content.getvalue(), model="arrays"), f"Bearer {gate.small}"
            answer = gate.live.ask("POST", path, body, content_type=FORM, authorization=key)
        elif "file" in path or "document" in path:
            answer = gate.send(path, gate.small, b"x" * 41)
        else:
            answer = gate.ask(path, gate.small, **BODIES.get(path, {"text": "x" * 41}))
        found[path] = answer.status, answer.json()["code"]
    # This server has no classifier and no Whisper. DeepL's clients expect another status.
    own = {
        "/v1/classify": (404, "no_classifier"),
        "/v1/audio/translations": (422, "invalid_value"),
        "/v2/translate": (456, "over_quota"),
        "/v2/document": (456, "over_quota"),
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
    written = "\n".join(entries) + generate_latest(gate.live.server.metrics.registry).decode()
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


def test_links_to_files_begin_with_the_public_address_and_never_with_an_unknown_host(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {"body": form(b"a", "a.txt", source="en", target="de"), "content_type": FORM}
    assert live.ask("POST", "/translate_file", **sent, Host="evil.example").status == 421
    url = live.ask("POST", "/translate_file", **sent).json()["translatedFileUrl"]
    assert url.startswith(f"http://127.0.0.1:{live.port}/download_file/")
    monkeypatch.setattr(live.server, "settings", ServeSettings(public_address="https://translate.example"))
    url = live.ask("POST", "/translate_file", **sent).json()["translatedFileUrl"]
    assert url.startswith("https://translate.example/download_file/")
