"""Malformed and hostile requests get a one-line 4xx error: no 5xx, no traceback, no memory growth."""

import gc
import http.client
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.serving.models import ServedModel
from translume.translator import Translator

ADDRESSES = [
    *("/v1/translate", "/v1/translate/stream", "/v1/score", "/v1/inspect", "/v1/classify", "/v1/files"),
    *("/translate", "/detect", "/suggest", "/translate_file", "/languages", "/no/such/address"),
]
TYPES = [
    *("application/json", "application/json; charset=latin-1", "application/x-www-form-urlencoded", "text/plain", ""),
    *("multipart/form-data; boundary=xx", "multipart/form-data", "multipart/form-data; boundary=", "a/b\x80"),
]
FIELDS = [
    *("text", "q", "source", "target", "model", "sources", "targets", "beam", "strategy", "nbest", "detail"),
    *("format", "alternatives", "timeout_seconds", "split", "prefix", "ban", "length_penalty", "seed", "k", "show"),
    *("part", "file", "temperature", "max_length", "min_length", "top_k", "must", "constraints", "placeholders"),
    *("api_key", "target_tokens", "prefix_tokens", "search"),
]
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class English:
    """A detector that takes every text for English."""

    def languages(self, text: str, among: Any) -> list[tuple[str, float]]:
        return [("en", 1.0)]


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], translator: Translator) -> Any:
    served = ServedModel.from_model("en-de", translator)
    return start(
        served, body_bytes=20_000, texts=5, lines=50, characters=300, width=6, file_bytes=20_000, detector=English()
    )


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that leaves an error in the log, of the application or of uvicorn."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [(each.name, each.getMessage()) for each in caplog.records if each.levelno >= logging.ERROR] == []


def assert_well_formed(answer: Any) -> None:
    """Assert that every error has the same JSON form and that its status is not 5xx, except 504 for a timeout."""
    # 504: a drawn `timeout_seconds` may be a millionth of a second.
    assert answer.status < 500 or answer.status == 504, answer.body
    if answer.status >= 400:
        found = answer.json()
        assert {"error", "code"} <= set(found) <= {"error", "code", "field"}
        assert "\n" not in found["error"]
        assert len(found["error"]) < 1000
        assert "Traceback" not in found["error"]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [10**400, -1, 0, 1, 2**63, 1e308, -0.0, "", "en", "de", "en-de", "auto", "html", "beam", "greedy"]
    )
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["\x00", "\ud800", "a\udfff", "\u2028", "a" * 301, "👍", "sampling", "stochastic", "<b>a</b>"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=4),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(FIELDS), values, max_size=5)
fair = st.fixed_dictionaries({"text": st.sampled_from(["a man", ["a", "b"]])}) | st.fixed_dictionaries(
    {"q": st.sampled_from(["a man", ["a"]]), "source": st.just("en"), "target": st.just("de")}
)


@given(st.sampled_from(ADDRESSES), values | objects | st.builds(lambda one, two: {**one, **two}, fair, objects))
@quick
def test_arbitrary_json(server: Any, address: str, value: Any) -> None:
    body = json.dumps(value).encode()
    assert_well_formed(server.ask("POST", address, body, content_type="application/json"))


@given(
    st.sampled_from(ADDRESSES), st.sampled_from(TYPES), st.binary(max_size=200) | st.text(max_size=80).map(str.encode)
)
@quick
def test_arbitrary_bodies_and_content_types(server: Any, address: str, kind: str, body: bytes) -> None:
    assert_well_formed(server.ask("POST", address, body, content_type=kind))


HEAD = b'Content-Disposition: form-data; name="'
PARTS = [
    *(b"--xx\r\n", b"--xx--\r\n", b"\r\n\r\n", b'; filename="', b"a man\r\n", b"\xff", b"\x00"),
    *(HEAD + b'file"; filename="a.txt"\r\n\r\n', HEAD + b'file"; filename="a.docx"\r\n\r\nPK\x03\x04'),
    *(HEAD + b'source"\r\n\r\nen\r\n', HEAD + b'target"\r\n\r\nde\r\n', HEAD + b'q"\r\n\r\n'),
    b"filename*=utf-8''%ff.txt\r\n",
]


# Starlette leaves the file of a form that does not end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(st.sampled_from(["/translate", "/v1/files", "/translate_file"]), st.lists(st.sampled_from(PARTS), max_size=12))
@quick
def test_arbitrary_forms(server: Any, address: str, parts: list[bytes]) -> None:
    answer = server.ask("POST", address, b"".join(parts), content_type="multipart/form-data; boundary=xx")
    assert_well_formed(answer)


@given(
    st.sampled_from(["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters=" "), max_size=30),
)
@quick
def test_arbitrary_paths(server: Any, method: str, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request(method, f"/{path}")
        assert connection.getresponse().status < 500
    finally:
        connection.close()


DEEP = b"[" * 100_000
HOSTILE = {
    "10 MB of text": (b'{"text": "' + b"a" * 10_000_000 + b'"}', "application/json"),
    "10 MB of a field's name": (b'{"' + b"a" * 10_000_000 + b'": 1}', "application/json"),
    "text as long as a body may be": (b'{"text": "' + b"a" * 19_900 + b'"}', "application/json"),
    "a name as long as a body may be": (b'{"' + b"a" * 19_900 + b'": 1}', "application/json"),
    "deep lists": (DEEP[:19_000], "application/json"),
    "deep objects": (b'{"text":' * 2400, "application/json"),
    "a deep list in a field": (b'{"text":' + b"[" * 9000 + b"]" * 9000 + b"}", "application/json"),
    "a long number": (b'{"text": "a", "beam": ' + b"9" * 10_000 + b"}", "application/json"),
    "no number": (b'{"text": "a", "temperature": NaN}', "application/json"),
    "broken UTF-8": (b'{"text": "\xff\xfe"}', "application/json"),
    "overlong UTF-8": (b'{"text": "\xc0\x80"}', "application/json"),
    "half of a pair": (b'{"text": "\\ud83d"}', "application/json"),
    "null bytes": (b'{"text": "\\u0000\\u0000"}', "application/json"),
    "null bytes as they are": (b"\x00" * 1000, "application/json"),
    "a byte order mark": (b'\xef\xbb\xbf{"text": "a"}', "application/json"),
    "UTF-16": ('{"text": "a"}'.encode("utf-16"), "application/json"),
    "many fields": (json.dumps({str(number): 1 for number in range(1500)}).encode(), "application/json"),
    "many texts": (json.dumps({"text": ["a"] * 4000}).encode(), "application/json"),
    "many lines": (json.dumps({"text": "a\n" * 140}).encode(), "application/json"),
    "many sentences": (json.dumps({"text": "a. B. " * 45}).encode(), "application/json"),
    "one field twice": (b'{"text": "a", "text": ["b"]}', "application/json"),
    "many parts": (b"--xx\r\n" * 3000, "multipart/form-data; boundary=xx"),
    "a long form": (b"q=" + b"%41" * 6000, "application/x-www-form-urlencoded"),
    "many pairs": (b"&".join(b"a%d=1" % number for number in range(2000)), "application/x-www-form-urlencoded"),
    "a head without end": (b"--xx\r\n" + b"a" * 19_000, "multipart/form-data; boundary=xx"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused_or_answered(server: Any, name: str) -> None:
    body, kind = HOSTILE[name]
    for address in ADDRESSES:
        if len(body) < 100_000:
            assert_well_formed(server.ask("POST", address, body, content_type=kind))
    try:
        assert_well_formed(server.ask("POST", "/v1/translate", body, content_type=kind))
    except (BrokenPipeError, ConnectionResetError):
        # The server has responded and closed the connection before reading the excess.
        assert len(body) > 1_000_000


def test_memory_does_not_grow(server: Any) -> None:
    bodies = [(body, kind) for body, kind in HOSTILE.values() if len(body) < 100_000]

    def round_of_requests() -> None:
        for address in ADDRESSES:
            for body, kind in bodies:
                assert_well_formed(server.ask("POST", address, body, content_type=kind))

    round_of_requests()
    before = _resident()
    for _ in range(2):
        round_of_requests()
    gc.collect()
    assert _resident() - before < 16_000_000


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_requests_generated_from_the_openapi_document_cause_no_server_error(server: Any) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    checks = pytest.importorskip("schemathesis.specs.openapi.checks")
    conforms = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
    described = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    described.config.base_url = server.url
    operations = [each.ok() for each in described.get_all_operations()]
    assert {each.path for each in operations} >= {"/v1/translate", "/v1/files/{name}", "/translate_file", "/detect"}
    answered: Counter[str] = Counter()
    for operation in operations:
        _asked(server, operation, answered, conforms)
    assert {"POST /v1/translate", "POST /detect", "GET /v1/models"} <= set(answered)


def _asked(server: Any, operation: Any, answered: Counter[str], conforms: Sequence[Any]) -> None:
    """Send requests that the OpenAPI document allows, check the responses against it, and count the status codes."""

    @given(operation.as_strategy())
    @settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    def ask(case: Any) -> None:
        answer = case.call(base_url=server.url)
        assert answer.status_code < 500 or answer.status_code == 504, (operation.label, answer.text)
        case.validate_response(answer, checks=conforms)
        if answer.status_code >= 400:
            assert {"error", "code"} <= set(answer.json())
        else:
            answered[operation.label] += 1

    ask()
