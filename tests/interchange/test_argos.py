"""Packages of Argos Translate are imported, converted once for any command, and written again."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.errors import raises

import translume
from translume.errors import DataError, ModelFolderError, SettingsError

from .conftest import SOURCES

pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")

from . import test_ctranslate2_import

ROOT = "translate-en_de-1_0"
METADATA = {
    "package_version": "1.0", "argos_version": "1.0", "from_code": "en", "from_name": "English", "to_code": "de",
    "to_name": "German", "links": [],
}  # fmt: skip


def package(path: Path, model: Path, more=None, *, without: str = "", **metadata) -> Path:
    """Write a package as Argos Translate's training does."""
    files = {"metadata.json": json.dumps(METADATA | metadata), "sentencepiece.model": model / "sentencepiece.model"}
    files |= {f"model/{name}": model / name for name in ("model.bin", "config.json", "shared_vocabulary.json")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | (more or {})).items():
            if name != without:
                archive.writestr(f"{ROOT}/{name}", content.read_bytes() if isinstance(content, Path) else content)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return test_ctranslate2_import.opennmt_folder(tmp_path_factory.mktemp("argos") / "model", quantization="int8")


@pytest.fixture
def argos(model, tmp_path) -> Path:
    return package(tmp_path / "en_de.argosmodel", model)


def test_a_package_is_imported_and_goes_back(argos, tmp_path) -> None:
    found = translume.import_model(argos, tmp_path / "ours")
    assert found.certificate.difference < 1e-5
    ours = translume.load(tmp_path / "ours")
    assert str(ours.directions.default) == "en→de"
    assert (ours.config.decoding.beam, ours.config.decoding.length_penalty) == (4, 0.2)
    assert translume.export(tmp_path / "ours", "argos", tmp_path / "back").difference < 1e-5
    translume.import_model(tmp_path / "back" / f"{ROOT}.argosmodel", tmp_path / "again")
    again = translume.load(tmp_path / "again")
    assert [each.text for each in again.translate_all(SOURCES)] == [each.text for each in ours.translate_all(SOURCES)]


def test_an_installed_package_is_read(argos, tmp_path) -> None:
    with zipfile.ZipFile(argos) as archive:
        archive.extractall(tmp_path)
    found = translume.import_model(tmp_path / ROOT, tmp_path / "ours")
    assert found.certificate.difference < 1e-5


def test_any_command_converts_a_package_once(argos, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "cache"))
    first = translume.load(argos)
    assert first.folder.name == "en_de"
    made = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    moved = argos.rename(argos.with_name("en_de.zip"))
    assert translume.load(moved).folder == first.folder  # by content
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == made
    assert "not compared" in json.loads(next(first.folder.glob("import-*.json")).read_text())["notes"][-1]


def test_nothing_needs_torch(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(test_ctranslate2_import, "HEADS", 2)  # of a size that the kernels have
    argos = package(tmp_path / "en_de.argosmodel", test_ctranslate2_import.opennmt_folder(tmp_path / "model"))
    program = (
        "import sys; sys.modules['torch'] = None\nimport translume\n"
        f"found = translume.import_model({str(argos)!r}, {str(tmp_path / 'ours')!r})\n"
        f"text = translume.load({str(tmp_path / 'ours')!r}).translate('Two dogs play.').text\n"
        f"translume.export({str(tmp_path / 'ours')!r}, 'argos', {str(tmp_path / 'back')!r})\n"
        "print(found.certificate.difference < 1e-4, bool(text))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_sentence_splitters_are_left_out(model, tmp_path) -> None:
    path = package(tmp_path / "a.argosmodel", model, {"stanza/resources.json": "{}"})
    assert translume.import_model(path, tmp_path / "ours").notes == (
        "stanza is left out: sentences are split by Translume's rules",
    )


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"without": "metadata.json"}, ModelFolderError,
         ": lacks metadata.json, expected a package of Argos Translate"),
        ({"type": "sbd"}, SettingsError, f"/{ROOT}/metadata.json: type: found 'sbd', expected 'translate'"),
        ({"target_prefix": ">>fra<<"}, SettingsError,
         f"/{ROOT}/metadata.json: target_prefix: found '>>fra<<', expected ''"),
        ({"from_code": 3}, DataError,
         f"/{ROOT}/metadata.json: from_code, to_code: found [3, 'de'], expected codes of languages"),
        ({"without": "sentencepiece.model", "more": {"bpe.model": "#version: 0.2"}}, SettingsError,
         f"/{ROOT}: tokenizer: found bpe.model, which needs the rules of Moses, expected sentencepiece.model"),
        ({"more": {"stanza/zeros": bytes(200_000_000)}}, DataError, ": found 2"),
        ({"more": {"../../outside": "x"}}, DataError, f": '{ROOT}/../../outside' lies outside the package; refused"),
    ],
)  # fmt: skip
def test_bad_packages_are_refused_in_one_line(model, tmp_path, options, kind, message) -> None:
    path = package(tmp_path / "bad.argosmodel", model, **options)
    with pytest.raises(kind) as caught:
        translume.import_model(path, tmp_path / "ours")
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad.argosmodel"]


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_truncated_package_is_refused(argos, tmp_path, kept) -> None:
    content = argos.read_bytes()
    argos.write_bytes(content[: int(kept * len(content))])
    with raises(ModelFolderError, f"{argos}: not a folder, expected one as transformers saves it, or a .npz of Marian"):
        translume.import_model(argos, tmp_path / "ours")


def test_a_damaged_package_is_refused(argos, tmp_path) -> None:
    content = bytearray(argos.read_bytes())
    content[len(content) // 2] ^= 255
    argos.write_bytes(content)
    with raises(DataError, f"{argos}: damaged, or not a package of Argos Translate"):
        translume.import_model(argos, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
