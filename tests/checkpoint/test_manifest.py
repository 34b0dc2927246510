"""Folders without a valid manifest are one-line errors."""

from pathlib import Path

import pytest

from translume.checkpoint import Manifest
from translume.errors import ModelFolderError


def refusal(folder: Path) -> str:
    with pytest.raises(ModelFolderError) as caught:
        Manifest.read(folder)
    return str(caught.value)


def test_folder_that_is_not_a_model_folder_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refusal(missing) == f"{missing}: not a model folder: there is no such folder"
    assert refusal(tmp_path) == f"{tmp_path}: not a model folder: it has no manifest.json"
    file = tmp_path / "file"
    file.write_text("")
    assert refusal(file) == f"{file}: not a model folder: it is a file"


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 3, "layers": []}')
    assert refusal(tmp_path) == (
        f"{tmp_path}: format 3 is newer than format 2, the newest this Translume reads; upgrade Translume"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "files": {"a": {"file": "a"}}}'])
def test_a_damaged_manifest_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert refusal(tmp_path) == f"{tmp_path}/manifest.json: damaged: not a manifest of Translume"


def test_a_manifest_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    assert refusal(tmp_path) == f"{tmp_path}/manifest.json: damaged: not UTF-8 text"


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "resume/../../secret"])
def test_a_file_outside_the_folder_is_refused(file: str, tmp_path: Path) -> None:
    entry = f'{{"file": "{file}", "size": 1, "sha256": "0"}}'
    (tmp_path / "manifest.json").write_text(f'{{"format": 1, "files": {{"config.toml": {entry}}}}}')
    assert refusal(tmp_path) == f"{tmp_path}/manifest.json: '{file}' lies outside the folder; refused"
