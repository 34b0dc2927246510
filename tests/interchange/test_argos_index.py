"""argos:en-de names a package of an index, which is downloaded once, whole or not at all."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tests.errors import raises

import translume
from translume.checkpoint import model_folder
from translume.cli import main
from translume.errors import DataError, ModelFolderError
from translume.interchange import argos_index

pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")

from . import test_ctranslate2_import as converted
from .test_argos import package

ENTRY = {"package_version": "1.9", "from_code": "en", "to_code": "de"}


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    """The bytes of a package."""
    folder = tmp_path_factory.mktemp("package")
    model = converted.opennmt_folder(folder / "model", quantization="int8")
    return package(folder / "en_de.argosmodel", model).read_bytes()


@pytest.fixture
def web(content, tmp_path, monkeypatch):
    """A server of `files` by path, and of an index.  asked: paths of requests.  sizes: other lengths that it states."""
    found = SimpleNamespace(files={}, asked=[], sizes={})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found.asked.append(self.path)
            content = found.files.get(self.path)
            self.send_response(404 if content is None else 200)
            size = found.sizes.get(self.path, len(content or b""))
            if size is not None:
                self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    found.address = f"http://127.0.0.1:{server.server_port}"
    found.index = f"{found.address}/index.json"
    found.link = f"{found.address}/translate-en_de-1_9.argosmodel"
    found.close = lambda: (server.shutdown(), server.server_close())
    others = [{**ENTRY, "to_code": code, "links": [f"{found.address}/{code}"]} for code in ("da", "fr")]
    listed = [
        {**ENTRY, "links": ["ipfs://QmT5", found.link]},
        {**ENTRY, "package_version": "1.10", "links": []},
        {**ENTRY, "package_version": "1.0", "links": [f"{found.address}/old"]},
        {**ENTRY, "to_code": "it", "type": "sbd", "links": [f"{found.address}/sbd"]},
        *others,
    ]
    found.files |= {"/index.json": json.dumps(listed).encode(), f"/{Path(found.link).name}": content}
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(argos_index.VARIABLE, found.index)
    yield found
    found.close()


def kept(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_a_package_is_downloaded_once_and_used_without_a_connection(web, tmp_path, caplog, capsys) -> None:
    folder = model_folder("argos:en-de")
    assert folder.name == "translate-en_de-1_9"
    assert str(translume.load(Path("argos:en-de")).directions.default) == "en→de"
    assert web.asked == ["/index.json", "/translate-en_de-1_9.argosmodel", "/index.json"]
    web.close()
    assert model_folder("argos:en-de") == folder
    assert caplog.messages == [f"{web.index}: cannot be downloaded: Connection refused: using the copy in the cache"]
    assert capsys.readouterr() == ("", "")
    translume.import_model("argos:en-de", tmp_path / "ours")
    assert "imported from translate-en_de-1_9.argosmodel of CTranslate2" in (tmp_path / "ours/README.md").read_text()


def test_commands_take_an_index_as_a_file_or_an_address(web, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(argos_index.VARIABLE, "nowhere")  # restored after the test, whatever --index sets
    file = tmp_path / "index.json"
    file.write_bytes(web.files["/index.json"])
    line = tmp_path / "line"
    line.write_text("A man.\n")
    for words in (
        ["translate", "argos:en-de", "--index", str(file), "--max-length", "5"],
        ["score", "--index", web.index, "argos:en-de", str(line), str(line)],
        ["show", "argos:en-de", "--index", web.index],
        ["import", "--index", web.index, "argos:en-de", str(tmp_path / "ours")],
    ):
        result = CliRunner().invoke(main, words, input="A man.\n")
        assert (result.exit_code, result.exception) == (0, None), result.stderr
    assert "--index" not in CliRunner().invoke(main, ["models", "--help"]).stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("en-dee", "argos:en-dee: not in {index}; nearest: en-de, en-da, en-fr"),
        ("en-it", "argos:en-it: not in {index}; nearest: en-fr, en-de, en-da"),
        ("", "argos:: not in {index}; nearest: en-fr, en-de, en-da"),
        ("en-da", "{address}/da: the server answers 404"),
    ],
)
def test_an_unknown_pair_and_a_missing_package_are_named(web, tmp_path, name, message) -> None:
    with raises(ModelFolderError, message.format(index=web.index, address=web.address)):
        model_folder(f"argos:{name}")
    assert kept(tmp_path) == ["index.json"]


def test_a_download_that_is_cut_or_too_large_leaves_nothing(web, tmp_path, monkeypatch, content) -> None:
    monkeypatch.setattr(argos_index, "MAX_PACKAGE", len(content) - 1)
    for stated in (len(content), None):
        web.sizes[f"/{Path(web.link).name}"] = stated
        with raises(
            ModelFolderError, f"{web.link}: found {len(content):,} bytes, expected at most {len(content) - 1:,}"
        ):
            model_folder("argos:en-de")
    monkeypatch.setattr(argos_index, "MAX_PACKAGE", 1 << 20)
    web.sizes[f"/{Path(web.link).name}"] = len(content) + 1
    with raises(
        ModelFolderError,
        f"{web.link}: found {len(content):,} bytes, expected {len(content) + 1:,}: the transfer was cut",
    ):
        model_folder("argos:en-de")
    assert kept(tmp_path) == ["index.json"]


LISTED = "expected a JSON list of packages with package_version, from_code, to_code and links"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", LISTED),
        (b"{}", LISTED),
        (b'{"packages": []}', LISTED),
        (b"[1]", LISTED),
        (b"[" * 99_999, LISTED),
        (b'[{"from_code": "en"}]', LISTED),
        (b'[{"package_version": "1", "from_code": "en", "to_code": "de", "links": [1]}]', LISTED),
        (b"[]" + b" " * (1 << 24), "found more than 16,777,216 bytes, expected an index"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_bad_index_is_refused_in_one_line(tmp_path, monkeypatch, content, message) -> None:
    file = tmp_path / "index.json"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(argos_index.VARIABLE, str(file))
    with raises(DataError, f"{file}: {message}"):
        model_folder("argos:en-de")


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/index.json", "http://[/index.json", "https://"])
def test_an_index_that_cannot_be_reached_is_named(tmp_path, monkeypatch, address) -> None:
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(argos_index.VARIABLE, address)
    with pytest.raises(ModelFolderError) as caught:
        model_folder("argos:en-de")
    assert str(caught.value).startswith(f"{address}: cannot be downloaded: ")
    assert "\n" not in str(caught.value)
    assert kept(tmp_path) == []
