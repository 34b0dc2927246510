"""A server where torch and lxml cannot be imported: what it answers, and what it refuses in one line."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.translator.conftest import untrained

from translume.checkpoint import save_model
from translume.config import DataSettings, TokenizerSettings
from translume.kernels.loading import has_kernels
from translume.text import train_tokenizer
from translume.translator import Translator, load

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")

SERVE = """
import sys
sys.modules["torch"] = None
from translume.cli import main
main()
"""
TEXT = "abc de. f g hij!"
NEEDS_TORCH = "this needs torch, which is not installed; pip install 'translume[train]'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from English to German of a size that the kernels have."""
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), ["abcdefghij .!"])
    data = DataSettings(source_language="en", target_language="de")
    model = untrained(tokenizer, tokenizer, "decoding.beam=3", max_positions=40, data=data)
    path = tmp_path_factory.mktemp("served") / "model"
    save_model(path, model.checkpoint)
    return path


@pytest.fixture(scope="module")
def plain(folder: Path) -> Translator:
    """The same model, computed by torch."""
    return load(folder, device="cpu", engine="plain")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a server that cannot import torch and lxml; at the end, its log must have no traceback."""
    command = [sys.executable, "-c", SERVE, "serve", str(folder), "--port", "0", "--device", "cpu"]
    missing = folder.with_name("missing")
    missing.mkdir()
    (missing / "lxml.py").write_text("raise ModuleNotFoundError(name='lxml')")
    path = os.pathsep.join(filter(None, [str(missing), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.fullmatch(r"serving model at (http://\S+)\n", first)
        if found is None:
            process.kill()
            pytest.fail(first + process.stderr.read())
        yield found[1]
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
    assert "traceback" not in log.lower()
    assert '"status": 500' not in log


def ask(address: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Return the status and the text of a response."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"{address}{path}", data, {"Content-Type": "application/json"}), timeout=20) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_texts_are_those_of_torch(address: str, plain: Translator) -> None:
    expected = plain.translate(TEXT).text
    body = {"text": TEXT}
    status, text = ask(address, "/v1/translate", body)
    assert (status, json.loads(text)["translations"][0]["text"]) == (200, expected)
    status, text = ask(address, "/v1/translate/stream", body)
    assert status == 200
    assert json.loads(text.strip().rpartition("data: ")[2])["translations"][0]["text"] == expected
    line, by_line = "abc de", plain.translate("abc de").text
    assert json.loads(ask(address, "/translate", {"q": line, "source": "en", "target": "de"})[1]) == {
        "translatedText": by_line
    }
    status, text = ask(address, "/v2/translate", {"text": [line], "source_lang": "EN", "target_lang": "DE"})
    assert (status, json.loads(text)["translations"][0]["text"]) == (200, by_line)


@pytest.mark.parametrize(
    ("options", "constraints"),
    [
        ({"strategy": "diverse", "beam": 2, "groups": 2}, []),
        ({"strategy": "stochastic", "samples": 2}, []),
        ({}, ["de"]),
    ],
)
def test_searches_of_the_decoding_loop_are_those_of_torch(
    address: str, plain: Translator, options: dict[str, Any], constraints: list[str]
) -> None:
    status, text = ask(address, "/v1/translate", {"text": "abc", "constraints": constraints, **options})
    expected = plain.translate("abc", constraints=constraints, **options).text
    assert (status, json.loads(text)["translations"][0]["text"]) == (200, expected)


def test_scores_are_those_of_torch(address: str, plain: Translator) -> None:
    status, text = ask(address, "/v1/score", {"sources": ["abc"], "targets": ["de f"]})
    assert status == 200
    expected = plain.score("abc", "de f").log_prob
    assert json.loads(text)["scores"][0]["log_prob"] == pytest.approx(expected, abs=1e-4)


def test_the_server_describes_itself(address: str) -> None:
    info = json.loads(ask(address, "/v1/info")[1])
    assert info["versions"]["torch"] is None
    assert info["engines"]["model"]["kind"] == "fast"
    assert ask(address, "/health/ready") == (200, '{"status":"ready"}\n')
    status, page = ask(address, "/")
    assert status == 200
    assert page.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/inspect", {"text": "abc"}),
        ("/v1/inspect", {"text": "abc", "search": True, "show": []}),
    ],
)
def test_what_needs_torch_is_refused_in_one_line(address: str, path: str, body: dict[str, Any]) -> None:
    status, text = ask(address, path, body)
    assert (status, json.loads(text)["error"]) == (422, NEEDS_TORCH)


def upload(address: str, name: str, content: str) -> tuple[int, Any]:
    """Return the status and the values of a response to a file."""
    boundary = "-----b"
    parts = [('name="source"', "en"), ('name="target"', "de"), (f'name="file"; filename="{name}"', content)]
    body = "".join(f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in parts)
    request = Request(f"{address}/translate_file", f"{body}--{boundary}--\r\n".encode())
    request.add_header("Content-Type", f"multipart/form-data; boundary={boundary}")
    try:
        with urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_document_is_translated(address: str, plain: Translator) -> None:
    status, found = upload(address, "a.md", "abc de\n")
    assert status == 200
    path = found["translatedFileUrl"].removeprefix(address)
    assert ask(address, path) == (200, f"{plain.translate('abc de').text}\n")


def test_a_document_that_needs_an_extra_is_refused_in_one_line(address: str) -> None:
    reason = ".docx files: needs lxml, which is not installed; pip install 'translume[documents]'"
    assert upload(address, "a.docx", "PK")[1]["error"] == reason
