"""A loaded network is built when it is first read, once; its weights are arrays before and after."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from translume.checkpoint import Checkpoint, Manifest, Temperature, load_checkpoint, loading, save_model, unique_tensors
from translume.checkpoint.arrays import as_fp32, map_arrays
from translume.checkpoint.weights import tensor_file
from translume.errors import ModelFolderError, SettingsError

Make = Callable[..., Checkpoint]


@pytest.fixture
def folder(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    save_model(tmp_path, checkpoint)
    return tmp_path


def is_built(checkpoint: Checkpoint) -> bool:
    return checkpoint._stored is None


def test_loading_and_reading_arrays_builds_no_network(checkpoint: Checkpoint, folder: Path) -> None:
    loaded = load_checkpoint(folder)
    found, expected = loaded.arrays(), unique_tensors(checkpoint.model)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert np.array_equal(found[name], tensor.numpy())
    assert loaded.on_cpu
    assert loaded.device == torch.device("cpu")
    assert not is_built(loaded)


def test_threads_share_the_one_network_that_is_built(folder: Path) -> None:
    loaded = load_checkpoint(folder)
    other = loaded.changed(temperature=Temperature(value=2.0, tokens=3, nll_before=1.0, nll=0.5))
    assert not is_built(loaded)
    with ThreadPoolExecutor(4) as threads:
        networks = list(threads.map(lambda each: each.model, [loaded, other] * 4))
    assert len(set(map(id, networks))) == 1
    assert not networks[0].training
    assert is_built(loaded)
    assert replace(other, digest="").model is networks[0]
    assert (other.temperature is not None, other.config) == (True, loaded.config)


def test_a_network_that_is_built_in_inference_mode_can_still_be_trained(folder: Path) -> None:
    loaded = load_checkpoint(folder)
    with torch.inference_mode():
        network = loaded.model
    assert not any(tensor.is_inference() for tensor in network.state_dict(keep_vars=True).values())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_a_network_for_another_device_is_built_at_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "choose_device", lambda name: torch.device("meta"))
    loaded = load_checkpoint(folder, device="cuda")
    assert is_built(loaded)
    assert not loaded.on_cpu
    assert {parameter.device.type for parameter in loaded.model.parameters()} == {"meta"}


def test_a_commit_after_loading_changes_nothing_in_what_was_loaded(make: Make, folder: Path) -> None:
    loaded, expected = load_checkpoint(folder), unique_tensors(make(1).model)
    save_model(folder, make(2))
    for name, tensor in expected.items():
        assert np.array_equal(loaded.arrays()[name], tensor.numpy())
        assert torch.equal(loaded.model.state_dict()[name], tensor)


@pytest.mark.parametrize("in_memory", [True, False])
def test_arrays_share_the_memory_of_a_network(in_memory: bool, checkpoint: Checkpoint, folder: Path) -> None:
    whole = checkpoint if in_memory else load_checkpoint(folder)
    tensors, arrays = unique_tensors(whole.model), whole.arrays()
    assert {name: array.ctypes.data for name, array in arrays.items()} == {
        name: tensor.data_ptr() for name, tensor in tensors.items()
    }


def test_arrays_of_a_network_in_bf16_are_fp32(folder: Path) -> None:
    loaded = load_checkpoint(folder, dtype="bf16")
    network = unique_tensors(loaded.model)
    for name, array in loaded.arrays().items():
        assert array.dtype == np.float32
        assert np.array_equal(array, network[name].float().numpy())


def test_arrays_of_a_file_have_the_values_of_its_tensors(tmp_path: Path) -> None:
    values = torch.tensor([[0.0, -1.5, 3.14159], [65504.0, 1e-7, -0.0]])
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(kind): values.abs().clamp(max=200).to(kind) for kind in kinds}
    tensors |= {"number": torch.tensor(7), "empty": torch.empty(0, 5), "bfloat": values.bfloat16()}
    path = tmp_path / "t"
    tensor_file(tensors)(path)
    arrays = map_arrays(path)
    path.unlink()
    assert arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.float() if tensor.is_floating_point() else tensor
        found = as_fp32(arrays[name])
        assert np.array_equal(found, expected.numpy())
        assert found.dtype == expected.numpy().dtype
        assert found.flags.aligned


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
WRONG = "damaged: not tensors as safetensors writes them"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"a": {**ENTRY, "data_offsets": [0, 28]}}, WRONG),
        ({"a": {**ENTRY, "data_offsets": [8, 32]}}, WRONG),
        ({"a": {**ENTRY, "data_offsets": [-24, 0]}}, WRONG),
        ({"a": {**ENTRY, "data_offsets": [24, 0]}}, WRONG),
        ({"a": {**ENTRY, "data_offsets": [0]}}, WRONG),
        ({"a": {**ENTRY, "shape": [2, 4]}}, WRONG),
        ({"a": {**ENTRY, "shape": [-2, -3]}}, WRONG),
        ({"a": {**ENTRY, "shape": [2.0, 3.0]}}, WRONG),
        ({"a": {**ENTRY, "dtype": "F31"}}, WRONG),
        ({"a": {**ENTRY, "dtype": []}}, WRONG),
        ({"a": {**ENTRY, "more": 1}}, WRONG),
        ({"a": {"dtype": "F32"}}, WRONG),
        ({"a": None}, WRONG),
        ([], WRONG),
        ("[" * 100_000, WRONG),
        ("{", WRONG),
        (None, "damaged: it is empty"),
    ],
)
def test_a_damaged_file_is_refused(header: object, reason: str, tmp_path: Path) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path = tmp_path / "t"
    path.write_bytes(b"" if header is None else len(text).to_bytes(8, "little") + text + bytes(24))
    with pytest.raises(ModelFolderError) as caught:
        map_arrays(path)
    assert str(caught.value) == f"{path}: {reason}"


def test_a_file_that_ends_in_its_header_or_is_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for content in (b"123", (1 << 62).to_bytes(8, "little") + b'{"a": 1', b"\xff" * 20):
        path.write_bytes(content)
        with pytest.raises(ModelFolderError) as caught:
            map_arrays(path)
        assert str(caught.value) == f"{path}: {WRONG}"
    path.unlink()
    with pytest.raises(ModelFolderError) as caught:
        map_arrays(path)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_damage_and_unknown_names_are_found_at_loading(folder: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_checkpoint(folder, dtype="fp8")  # type: ignore[arg-type]  # the name is wrong
    assert str(caught.value) == "dtype: found 'fp8', expected auto, fp32 or bf16"
    with pytest.raises(SettingsError) as caught:
        load_checkpoint(folder, device="gpu")
    assert str(caught.value) == "device: found 'gpu', expected auto, cpu, cuda or cuda:N"
    path = folder / Manifest.read(folder).files["weights.safetensors"].file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelFolderError) as damage:
        load_checkpoint(folder)
    assert str(damage.value) == f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"


def test_a_checkpoint_has_no_other_attributes(checkpoint: Checkpoint) -> None:
    with pytest.raises(AttributeError, match=r"^'Checkpoint' object has no attribute 'modle'$"):
        checkpoint.modle  # type: ignore[attr-defined]  # noqa: B018  # a misspelt name, read for its error
