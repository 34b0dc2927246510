"""Saved models round-trip; damaged folders are one-line errors."""

import gc
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from translume.checkpoint import (
    Card,
    Checkpoint,
    Manifest,
    choose_device,
    choose_dtype,
    commit,
    load_checkpoint,
    loading,
    read_config,
    save_model,
    unique_tensors,
)
from translume.errors import ModelFolderError, SettingsError, TranslumeError

Make = Callable[..., Checkpoint]


def refusal(folder: Path) -> str:
    with pytest.raises(TranslumeError) as caught:
        load_checkpoint(folder)
    assert type(caught.value) is ModelFolderError
    assert "\n" not in str(caught.value)
    return str(caught.value)


def entry_path(folder: Path, name: str) -> Path:
    return folder / Manifest.read(folder).files[name].file


@pytest.mark.parametrize("shared", [True, False])
def test_saved_model_round_trips(shared: bool, make: Make, tmp_path: Path) -> None:
    saved = make(shared=shared)
    save_model(tmp_path, saved)
    loaded = load_checkpoint(tmp_path)
    assert loaded.config == saved.config
    assert not loaded.model.training
    assert loaded.source_tokenizer.digest == saved.source_tokenizer.digest
    assert loaded.target_tokenizer.digest == saved.target_tokenizer.digest
    assert (loaded.source_tokenizer is loaded.target_tokenizer) is shared
    for name, tensor in unique_tensors(saved.model).items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert set(Manifest.read(tmp_path).files) == {"config.toml", "weights.safetensors"} | (
        {"tokenizer.json", "tokenizer_settings.json"}
        if shared
        else {"source.json", "source_settings.json", "target.json", "target_settings.json"}
    )


def test_saving_the_same_model_twice_gives_the_same_bytes(make: Make, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save_model(tmp_path / folder, make())
    assert Manifest.read(tmp_path / "a") == Manifest.read(tmp_path / "b")


def test_tied_embeddings_are_stored_once(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    size = entry_path(tmp_path, "weights.safetensors").stat().st_size
    assert 4 * parameters <= size < 4 * parameters + 8000


def test_separate_vocabularies_take_the_place_of_a_shared_one(make: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make(shared=True))
    save_model(tmp_path, make(shared=False))
    assert not {"tokenizer.json", "tokenizer_settings.json"} & set(Manifest.read(tmp_path).files)
    loaded = load_checkpoint(tmp_path)
    assert loaded.source_tokenizer.digest != loaded.target_tokenizer.digest


def test_loading_draws_no_random_numbers(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_checkpoint(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_a_model_may_be_loaded_in_bf16(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    loaded = load_checkpoint(tmp_path, dtype="bf16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    for name, tensor in unique_tensors(checkpoint.model).items():
        assert torch.equal(loaded.model.state_dict()[name], tensor.bfloat16())


def test_other_files_are_committed_beside_the_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint, files={"resume/state.json": b"{}"})
    save_model(tmp_path, checkpoint)
    assert "resume/state.json" in Manifest.read(tmp_path).files
    save_model(tmp_path, checkpoint, remove=["resume/state.json"])
    assert "resume/state.json" not in Manifest.read(tmp_path).files


def test_reader_retries_after_a_concurrent_commit(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, make(1))
    stale = Manifest.read(tmp_path)
    save_model(tmp_path, make(2))
    real, calls = Manifest.read, 0

    def late(folder: Path) -> Manifest:
        nonlocal calls
        calls += 1
        return stale if calls == 1 else real(folder)

    monkeypatch.setattr(loading.Manifest, "read", late)
    loaded = load_checkpoint(tmp_path)
    for name, tensor in unique_tensors(make(2).model).items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)


def test_a_truncated_weights_file_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    path = entry_path(tmp_path, "weights.safetensors")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(tmp_path) == f"{path}: damaged: {size - 1:,} bytes, expected {size:,}"


@pytest.mark.parametrize("name", ["weights.safetensors", "config.toml", "tokenizer_settings.json"])
def test_a_missing_file_is_refused(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    path = entry_path(tmp_path, name)
    path.unlink()
    assert refusal(tmp_path) == f"{path}: missing, but manifest.json names it as {name}"


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: not a model folder: it has no manifest.json"


def test_a_folder_whose_training_saved_nothing_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    commit(tmp_path, {"config.toml": checkpoint.config.to_toml().encode()})
    assert refusal(tmp_path) == f"{tmp_path}: holds no weights yet: its training has not saved any"


def test_a_newer_folder_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    assert refusal(tmp_path) == (
        f"{tmp_path}: format 3 is newer than format 2, the newest this Translume reads; upgrade Translume"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width = 22", "widht = 22", "model.widht: no such setting; did you mean 'model.width'?"),
        ("width = 22", 'width = "22"', "model.width: found '22', expected a valid integer"),
        ("width = 22", "width = 23", "model: width 23 is not divisible by attention_heads 11"),
        (
            "format = 2",
            "format = 3",
            "format 3 is newer than format 2, the newest this Translume reads; upgrade Translume",
        ),
        ("format = 2", "format = 0", "format: found 0, expected a number from 1 to 2"),
        ("[model]", "[model", "not TOML: "),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    old: str, new: str, message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(tmp_path, checkpoint)
    text = checkpoint.config.to_toml()
    assert old in text
    commit(tmp_path, {"config.toml": text.replace(old, new).encode()})
    found = refusal(tmp_path)
    assert found == f"{entry_path(tmp_path, 'config.toml')}: {message}" or (
        message.endswith(": ") and found.startswith(f"{entry_path(tmp_path, 'config.toml')}: {message}")
    )


def test_a_changed_settings_file_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    path = entry_path(tmp_path, "config.toml")
    path.write_text(path.read_text().replace("beam = 5", "beam = 6"))
    assert refusal(tmp_path) == f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"


def test_invalid_tokenizer_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    commit(tmp_path, {"tokenizer_settings.json": b"{}"})
    assert refusal(tmp_path).startswith(f"{entry_path(tmp_path, 'tokenizer_settings.json')}: ")
    commit(tmp_path, {"tokenizer_settings.json": b"\xff"})
    assert refusal(tmp_path) == f"{entry_path(tmp_path, 'tokenizer_settings.json')}: not UTF-8 text"


def test_weights_of_other_settings_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    text = checkpoint.config.to_toml().replace("decoder_layers = 2", "decoder_layers = 1")
    commit(tmp_path, {"config.toml": text.encode()})
    message = refusal(tmp_path)
    assert message.startswith(f"{entry_path(tmp_path, 'weights.safetensors')}: holds decoder.")
    assert message.endswith(", which a model of these settings does not have")


def test_variables_in_saved_settings_are_text(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = checkpoint.config.change("data.train_source=${HOME}/${NOT_SET_ANYWHERE}")
    save_model(
        tmp_path,
        Checkpoint(
            config=config,
            model=checkpoint.model,
            source_tokenizer=checkpoint.source_tokenizer,
            target_tokenizer=checkpoint.target_tokenizer,
        ),
    )
    assert read_config(tmp_path).data.train_source == ("${HOME}/${NOT_SET_ANYWHERE}",)


def test_devices_and_dtypes_have_names() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    with pytest.raises(SettingsError) as caught:
        choose_device("gpu")
    assert str(caught.value) == "device: found 'gpu', expected auto, cpu, cuda or cuda:N"
    with pytest.raises(SettingsError) as caught:
        choose_dtype("fp8", torch.device("cpu"))
    assert str(caught.value) == "dtype: found 'fp8', expected auto, fp32 or bf16"


def test_a_card_is_written_with_the_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path / "en-de", checkpoint, card=Card(scores=["BLEU|nrefs:1 = 41.02"], licence="Apache-2.0"))
    text = (tmp_path / "en-de" / "README.md").read_text()
    assert text.startswith("---\nlicense: Apache-2.0\n")
    assert "BLEU|nrefs:1 = 41.02" in text


def test_loading_holds_the_weights_once_in_memory(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    gc.collect()
    before = sum(item.numel() for item in gc.get_objects() if type(item) is torch.nn.Parameter)
    loaded = load_checkpoint(tmp_path)
    gc.collect()
    after = sum(item.numel() for item in gc.get_objects() if type(item) is torch.nn.Parameter)
    assert after - before == sum(parameter.numel() for parameter in loaded.model.parameters())


def test_the_digest_of_a_file_is_of_its_bytes(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    for entry in Manifest.read(tmp_path).files.values():
        assert hashlib.sha256((tmp_path / entry.file).read_bytes()).hexdigest() == entry.sha256


def test_flipped_byte_in_the_weights_is_detected(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    path = entry_path(tmp_path, "weights.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert refusal(tmp_path) == f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"
