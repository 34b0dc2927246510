"""Saved models round-trip, and stored folders of every format are read; damaged folders are one-line errors."""

import gc
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from translume.checkpoint import (
    FORMAT,
    Checkpoint,
    FolderLock,
    Manifest,
    Temperature,
    choose_device,
    choose_dtype,
    commit,
    committed,
    load_checkpoint,
    loading,
    read_config,
    read_tokenizers,
    save_model,
    store_temperature,
    unique_tensors,
    verify,
)
from translume.errors import ModelFolderError, SettingsError, TrainingError, TranslumeError

Make = Callable[..., Checkpoint]
TEMPERATURE = Temperature(value=1.25, tokens=1207, nll_before=2.5, nll=2.25)
GOLDEN = Path(__file__).parent / "golden"


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


def test_a_folder_whose_training_saved_nothing_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    commit(tmp_path, {"config.toml": checkpoint.config.to_toml().encode()})
    assert refusal(tmp_path) == f"{tmp_path}: holds no weights yet: its training has not saved any"


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


def test_weights_of_other_settings_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    text = checkpoint.config.to_toml().replace("decoder_layers = 2", "decoder_layers = 1")
    commit(tmp_path, {"config.toml": text.encode()})
    loaded = load_checkpoint(tmp_path)
    with pytest.raises(ModelFolderError) as caught:
        loaded.model  # noqa: B018  # reading it builds the network
    message = str(caught.value)
    assert message.startswith(f"{entry_path(tmp_path, 'weights.safetensors')}: holds decoder.")
    assert message.endswith(", which a model of these settings does not have")


def test_loading_holds_the_weights_once_in_memory(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    gc.collect()
    before = sum(item.numel() for item in gc.get_objects() if type(item) is torch.nn.Parameter)
    network = load_checkpoint(tmp_path).model
    gc.collect()
    after = sum(item.numel() for item in gc.get_objects() if type(item) is torch.nn.Parameter)
    assert after - before == sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", ["weights.safetensors", "config.toml", "tokenizer_settings.json", "calibration.json"])
def test_a_damaged_file_is_named(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    store_temperature(tmp_path, TEMPERATURE, load_checkpoint(tmp_path).digest)
    path = entry_path(tmp_path, name)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert refusal(tmp_path) == f"{path}: damaged: {len(content) - 1:,} bytes, expected {len(content):,}"
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    assert refusal(tmp_path) == f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"
    path.unlink()
    assert refusal(tmp_path) == f"{path}: missing, but manifest.json names it as {name}"


@pytest.mark.parametrize(("content", "reason"), [(b"{}", ""), (b"\xff", "not UTF-8 text")])
def test_an_invalid_tokenizer_is_refused(content: bytes, reason: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    commit(tmp_path, {"tokenizer_settings.json": content})
    assert refusal(tmp_path).startswith(f"{entry_path(tmp_path, 'tokenizer_settings.json')}: {reason}")


def test_variables_in_saved_settings_are_text(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = checkpoint.config.change("data.train_source=${HOME}/${NOT_SET_ANYWHERE}")
    save_model(tmp_path, replace(checkpoint, config=config))
    assert read_config(tmp_path).data.train_source == ("${HOME}/${NOT_SET_ANYWHERE}",)


def test_devices_and_dtypes_have_names() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    with pytest.raises(SettingsError, match=r"^device: found 'gpu', expected auto, cpu, cuda or cuda:N$"):
        choose_device("gpu")
    with pytest.raises(SettingsError, match=r"^dtype: found 'fp8', expected auto, fp32 or bf16$"):
        choose_dtype("fp8", torch.device("cpu"))


def test_stored_temperature_round_trips(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    loaded = load_checkpoint(tmp_path)
    assert loaded.temperature is None
    assert loaded.digest == Manifest.read(tmp_path).files["weights.safetensors"].sha256
    before = set(Manifest.read(tmp_path).files)
    store_temperature(tmp_path, TEMPERATURE, loaded.digest)
    assert load_checkpoint(tmp_path).temperature == TEMPERATURE
    assert set(Manifest.read(tmp_path).files) - before == {"calibration.json"}
    another = Temperature(value=0.5, tokens=3, nll_before=1.0, nll=0.5)
    store_temperature(tmp_path, another, loaded.digest)
    assert load_checkpoint(tmp_path).temperature == another
    assert len(list(tmp_path.glob("calibration*"))) == 1


def test_temperature_is_printed_on_one_line_with_its_definition() -> None:
    assert str(TEMPERATURE) == (
        "temperature|fitted by:nll|forced:yes|tokens:1207 = 1.2500 (nll per token 2.2500, 2.5000 before)"
    )


def test_temperature_of_other_weights_is_ignored(make: Callable[..., Checkpoint], tmp_path: Path) -> None:
    save_model(tmp_path, make(1))
    old = load_checkpoint(tmp_path).digest
    store_temperature(tmp_path, TEMPERATURE, old)
    save_model(tmp_path, make(2))
    assert load_checkpoint(tmp_path).temperature is None
    with pytest.raises(ModelFolderError) as caught:
        store_temperature(tmp_path, TEMPERATURE, old)
    assert str(caught.value) == (f"{tmp_path}: its weights changed while the temperature was fitted; nothing written")


def test_a_folder_in_training_is_left_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    digest = load_checkpoint(tmp_path).digest
    with FolderLock(tmp_path), pytest.raises(TrainingError):
        store_temperature(tmp_path, TEMPERATURE, digest)
    assert load_checkpoint(tmp_path).temperature is None


def test_storing_a_temperature_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as caught:
        store_temperature(tmp_path / "none", TEMPERATURE, "")
    assert str(caught.value) == f"{tmp_path}/none: not a model folder: there is no such folder"
    assert not (tmp_path / "none").exists()


DAMAGED = "damaged: not a temperature as Translume writes it"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", DAMAGED), (b"[1]", DAMAGED), (b"{}", DAMAGED), (b'{"value": "hot"}', DAMAGED),
        (json.dumps({**TEMPERATURE.to_dict(), "value": -1.0, "weights": ""}).encode(),
         "value: found -1.0, expected a number above 0"),
    ],
)  # fmt: skip
def test_an_invalid_temperature_is_refused(content: bytes, reason: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_model(tmp_path, checkpoint)
    commit(tmp_path, {"calibration.json": content})
    assert refusal(tmp_path) == f"{entry_path(tmp_path, 'calibration.json')}: {reason}"


def test_there_is_a_folder_of_every_format() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == [f"format_{number}" for number in range(1, FORMAT + 1)]


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_format_is_read_and_gives_the_same_numbers(number: int) -> None:
    folder = GOLDEN / f"format_{number}"
    verify(folder)
    assert Manifest.read(folder).format == number
    loaded = load_checkpoint(folder)
    tokenizer = loaded.source_tokenizer
    assert loaded.target_tokenizer is tokenizer
    bos, eos = tokenizer.specials.bos, tokenizer.specials.eos
    source, target = (tokenizer.encode(text) for text in ("a dog", "the man"))
    ids, fed, labels = (torch.tensor([row]) for row in ([*source, eos], [bos, *target], [*target, eos]))
    masks = (torch.ones_like(ids, dtype=torch.bool), torch.ones_like(labels, dtype=torch.bool))
    log_probs = loaded.model.score(ids, masks[0], fed, labels, masks[1])
    assert float(log_probs.sum()) == pytest.approx(-28.429323, abs=1e-4)


def test_saving_a_model_of_format_1_gives_its_tokenizer_the_names_of_format_2(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "format_1", folder)
    save_model(folder, load_checkpoint(folder))
    manifest = Manifest.read(folder)
    assert manifest.format == 2
    assert set(manifest.files) == {"config.toml", "tokenizer.json", "tokenizer_settings.json", "weights.safetensors"}
    library = Tokenizer.from_file(str(committed(folder, manifest, "tokenizer.json")))
    ours, _ = read_tokenizers(GOLDEN / "format_1")
    assert library.encode("a dog").ids == [*ours.encode("a dog"), ours.specials.eos]
