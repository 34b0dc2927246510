"""The OpenAPI document: it describes the response of every path and every error status.

Every response that a test in this directory receives is checked against it too (`Live.ask`).
"""

import hashlib
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.serving.conftest import until
from tests.serving.openapi_checker import ResponseChecker

from translume.checkpoint import save_model
from translume.serving.api.errors import STATUSES
from translume.serving.models import MANIFEST, ServedModel
from translume.serving.reloading import load_served
from translume.text.detection import Detector
from translume.translator import Generator, Translator
from translume.translator.loading import ComputeOptions

FILE = (
    b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\na man\r\n'
    b'--xx\r\nContent-Disposition: form-data; name="source"\r\n\r\nen\r\n'
    b'--xx\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--xx--\r\n'
)
NO_SUCCESS = {("POST", "/suggest"), ("POST", "/v1/audio/translations")}
"""The first path is always refused; the second needs a Whisper: tests/whisper/test_serving.py."""


class English:
    def languages(self, text: str, among: Any) -> list[tuple[str, float]]:
        return [("en", 0.9)]


@pytest.fixture(scope="module")
def live(
    start: Callable[..., Any],
    translator: Translator,
    make_classifier: Callable[..., Any],
    make_transcriber: Callable[..., Translator],
    generator: Generator,
) -> Any:
    detector: Detector = English()
    labels, texts = ServedModel.from_model("topics", make_classifier()), ServedModel.from_model("plays", generator)
    arrays = ServedModel.from_model("arrays", make_transcriber("features", values=5))
    return start(ServedModel.from_model("en-de", translator), labels, texts, arrays, detector=detector)


def send(live: Any, address: str) -> Any:
    return live.ask("POST", address, FILE, content_type="multipart/form-data; boundary=xx").json()


def test_the_response_of_every_path_is_described(live: Any) -> None:
    pytest.importorskip("jsonschema_rs", reason="jsonschema-rs is not installed: pip install schemathesis")
    for address in ("/", "/docs", "/languages", "/frontend/settings", "/v1/models", "/v1/info"):
        live.get(address)
    live.get("/v2/languages")
    live.get("/v2/usage")
    live.post("/v2/translate", text=["a man"], target_lang="DE")
    for address in ("/health", "/health/live", "/health/ready"):
        live.get(address)
    for more in ({}, {"detail": True, "nbest": 2}, {"alignment": True}, {"strategy": "greedy"}):
        live.post("/v1/translate", text=["a man", ""], **more)
    live.post("/v1/translate", text="a" * 80, max_length_action="truncate", detail=True)
    live.post("/v1/translate/stream", text="a man")
    live.post("/v1/score", sources="a man", targets="b")
    live.post("/v1/classify", text="a cab")
    values = io.BytesIO()
    np.save(values, np.ones((9, 5)))
    for more in ({}, {"detail": "true"}, {"nbest": "2"}, {"format": "txt"}):
        live.upload("/v1/transcribe", values.getvalue(), **more)
    for address in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        live.upload(address, values.getvalue(), model="arrays", temperature="0")
    for more in ({}, {"detail": True}, {"stream": True}):
        live.post("/v1/generate", prompt=["a", ""], **more)
    every = ["attention", "lens", "prior", "terms", "occlusion", "input-gradient"]
    live.post("/v1/inspect", text="a", show=every, search=True, reference="b")
    live.post("/v1/inspect/page", text="a")
    for q, more in (("a", {}), (["a", ""], {}), ("a", {"alternatives": 2}), (["a", "b"], {"alternatives": 1})):
        live.post("/translate", q=q, source="auto", target="de", **more)
    live.post("/detect", q="a man")
    live.post("/suggest")
    address = send(live, "/translate_file")["translatedFileUrl"]
    live.get(address.removeprefix(live.url))
    place = f"/v1/files/{send(live, '/v1/files')['id']}"
    started = time.monotonic()
    while live.get(place).json()["status"] != "done":
        assert time.monotonic() - started < 120
        time.sleep(0.02)
    live.get(f"{place}/result")
    live.ask("DELETE", place)
    document = f"/v2/document/{live.upload('/v2/document', b'a man', 'a.txt', target_lang='DE').json()['document_id']}"
    until(lambda: live.post(document, document_key="").json()["status"] == "done")
    live.post(f"{document}/result", document_key="")
    made = live.post("/v2/glossaries", name="g", source_lang="EN", target_lang="DE", entries="a\tb").json()
    glossary = f"/v2/glossaries/{made['glossary_id']}"
    for address in ("/v2/glossaries", glossary, f"{glossary}/entries", "/v2/glossary-language-pairs"):
        live.get(address)
    live.ask("DELETE", glossary)
    document = live.get("/openapi.json").json()
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(method, path) for method, path, status in live.checker.seen if status < 300} == listed - NO_SUCCESS


def test_the_checker_finds_responses_that_are_not_described(live: Any) -> None:
    pytest.importorskip("jsonschema_rs", reason="jsonschema-rs is not installed: pip install schemathesis")
    checker = ResponseChecker(live.get("/openapi.json").json())
    kind = "application/json; charset=utf-8"
    assert checker.problem("GET", "/health", 200, kind, b'{"status": "ok"}') == ""
    assert checker.problem("GET", "/health", 200, kind, b'{"status": "well"}') != ""
    assert checker.problem("GET", "/health", 200, kind, b'{"status": "ok", "more": 1}') != ""
    of_another = "GET /health: 200 in 'text/plain' is not described"
    assert checker.problem("GET", "/health", 200, "text/plain", b"ok") == of_another
    assert checker.problem("GET", "/health", 404, kind, b"{}") == "GET /health: 404 is not described: b'{}'"
    assert (
        checker.problem("GET", "/v1/files/a/result", 409, kind, b'{"error": "not yet", "code": "not_finished"}') == ""
    )
    assert checker.problem("GET", "/nowhere", 404, kind, b"") == ""


def test_all_servers_have_one_document_that_is_built_once(
    live: Any, start: Callable[..., Any], make_classifier: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start(ServedModel.from_model("topics", make_classifier()), body_bytes=7000)
    found = other.get("/openapi.json").json()
    monkeypatch.setattr("translume.serving.api.app._without_defaults", None)
    assert live.get("/openapi.json").json() == found == other.get("/openapi.json").json()


def test_every_error_status_is_explained_except_405_and_499() -> None:
    # 405 is for methods that are not listed; for 499 the client has already disconnected.
    assert {status for status, (_, reason) in STATUSES.items() if not reason} == {405, 499}


def test_every_schema_that_is_referenced_exists_and_none_is_unused(live: Any) -> None:
    document = live.get("/openapi.json").json()
    shapes = document["components"]["schemas"]
    named: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            named.update(each.rpartition("/")[2] for name, each in value.items() if name == "$ref")
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(each)

    look(document)
    assert named == set(shapes)


def test_a_model_is_identified_by_the_digest_of_its_manifest(
    start: Callable[..., Any], translator: Translator, tmp_path: Any
) -> None:
    folder = tmp_path / "model"
    save_model(folder, translator.checkpoint)
    served = load_served(ComputeOptions(engine="plain", device="cpu"), "en-de", folder)
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    live = start(served)
    assert live.get("/v1/info").json()["manifests"] == {"en-de": digest}
    assert live.get("/v1/models").json()["models"][0][MANIFEST] == digest
