"""A temperature applies only to the weights it was fitted to, and is committed with them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from translume.checkpoint import (
    Checkpoint,
    FolderLock,
    Manifest,
    Temperature,
    commit,
    load_checkpoint,
    save_model,
    store_temperature,
)
from translume.errors import ModelFolderError, TrainingError

FOUND = Temperature(value=1.25, tokens=1207, nll_before=2.5, nll=2.25)


def test_stored_temperature_round_trips(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    loaded = load_checkpoint(tmp_path)
    assert loaded.temperature is None
    assert loaded.digest == Manifest.read(tmp_path).files["weights.safetensors"].sha256
    before = set(Manifest.read(tmp_path).files)
    store_temperature(tmp_path, FOUND, loaded.digest)
    assert load_checkpoint(tmp_path).temperature == FOUND
    assert set(Manifest.read(tmp_path).files) - before == {"calibration.json"}
    another = Temperature(value=0.5, tokens=3, nll_before=1.0, nll=0.5)
    store_temperature(tmp_path, another, loaded.digest)
    assert load_checkpoint(tmp_path).temperature == another
    assert len(list(tmp_path.glob("calibration*"))) == 1


def test_temperature_is_printed_on_one_line_with_its_definition() -> None:
    assert str(FOUND) == (
        "temperature|fitted by:nll|forced:yes|tokens:1207 = 1.2500 (nll per token 2.2500, 2.5000 before)"
    )


def test_temperature_of_other_weights_is_ignored(make: Callable[..., Checkpoint], tmp_path: Path) -> None:
    save_model(tmp_path, make(1))
    old = load_checkpoint(tmp_path).digest
    store_temperature(tmp_path, FOUND, old)
    save_model(tmp_path, make(2))
    assert load_checkpoint(tmp_path).temperature is None
    with pytest.raises(ModelFolderError) as caught:
        store_temperature(tmp_path, FOUND, old)
    assert str(caught.value) == (f"{tmp_path}: its weights changed while the temperature was fitted; nothing written")


def test_a_folder_in_training_is_left_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    digest = load_checkpoint(tmp_path).digest
    with FolderLock(tmp_path), pytest.raises(TrainingError):
        store_temperature(tmp_path, FOUND, digest)
    assert load_checkpoint(tmp_path).temperature is None


def test_storing_a_temperature_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as caught:
        store_temperature(tmp_path / "none", FOUND, "")
    assert str(caught.value) == f"{tmp_path}/none: not a model folder: there is no such folder"
    assert not (tmp_path / "none").exists()


def test_flipped_byte_in_the_temperature_is_detected(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    store_temperature(tmp_path, FOUND, load_checkpoint(tmp_path).digest)
    path = tmp_path / Manifest.read(tmp_path).files["calibration.json"].file
    path.write_text(path.read_text().replace("1.25", "9.25"))
    with pytest.raises(ModelFolderError) as caught:
        load_checkpoint(tmp_path)
    assert str(caught.value) == f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", "damaged: not a temperature as Translume writes it"),
        (b"[1]", "damaged: not a temperature as Translume writes it"),
        (b"{}", "damaged: not a temperature as Translume writes it"),
        (json.dumps({"value": "hot"}).encode(), "damaged: not a temperature as Translume writes it"),
        (
            json.dumps({**FOUND.to_dict(), "value": -1.0, "weights": ""}).encode(),
            "value: found -1.0, expected a number above 0",
        ),
    ],
)
def test_invalid_temperature_is_refused(content: bytes, reason: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    commit(tmp_path, {"calibration.json": content})
    path = tmp_path / Manifest.read(tmp_path).files["calibration.json"].file
    with pytest.raises(ModelFolderError) as caught:
        load_checkpoint(tmp_path)
    assert str(caught.value) == f"{path}: {reason}"
