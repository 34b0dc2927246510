"""Weights of transformers folders are read from safetensors and PyTorch files, and pickled objects are not executed."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from translume.errors import DataError, ModelFolderError
from translume.interchange.huggingface.reader import StoredWeights

STATE = {
    "first": torch.arange(35.0).reshape(5, 7),
    "second": torch.randn(11, generator=torch.Generator().manual_seed(3)).half(),
    "third": torch.randn(3, 13, generator=torch.Generator().manual_seed(5)).bfloat16(),
}  # fmt: skip


def write(path, state, *, zipped=True):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=zipped)


def write_shards(folder, name):
    """Write two shards and their index, and return the index."""
    stem, suffix = name.split(".")
    shards = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    write(folder / shards[0], {each: STATE[each] for each in ("first", "third")})
    write(folder / shards[1], {"second": STATE["second"]})
    index = folder / f"{name}.index.json"
    weight_map = {"first": shards[0], "second": shards[1], "third": shards[0]}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def assert_read(folder, place):
    stored = StoredWeights.from_folder(folder)
    assert stored.place == place
    assert set(stored) == set(STATE)
    for name, tensor in STATE.items():
        assert stored[name].dtype == tensor.dtype
        assert torch.equal(stored[name], tensor), name


def refused(folder, error=ModelFolderError):
    with pytest.raises(error) as caught:
        dict(StoredWeights.from_folder(folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_whole_weights_and_shards_keep_their_dtypes(tmp_path, name):
    assert_read(tmp_path, write_shards(tmp_path, name))
    write(tmp_path / name, STATE)
    assert_read(tmp_path, tmp_path / name)
    if name == "pytorch_model.bin":  # of torch before zip archives
        write(tmp_path / name, STATE, zipped=False)
        assert_read(tmp_path, tmp_path / name)
        write(tmp_path / "model.safetensors", STATE)
        assert_read(tmp_path, tmp_path / "model.safetensors")


class Malicious:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
def test_a_malicious_pickle_is_not_executed(tmp_path, zipped):
    trace, path = tmp_path / "executed", tmp_path / "pytorch_model.bin"
    write(path, {**STATE, "payload": Malicious(trace)}, zipped=zipped)
    message = refused(tmp_path)
    assert message.startswith(f"{path}: refused by torch's weights-only reader, which executes nothing: found ")
    assert message.endswith(", expected tensors only")
    assert "pathlib.Path" in message or "getattr" in message
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the payload works where it is executed


@pytest.mark.parametrize("content", [["a list"], {"step": 3}, {"a": torch.zeros(2, 2).to_sparse()}])
def test_other_content_than_tensors_is_refused(tmp_path, content):
    write(tmp_path / "pytorch_model.bin", content)
    assert refused(tmp_path) == (
        f"{tmp_path / 'pytorch_model.bin'}: expected a dictionary of tensors by name, as save_pretrained writes it"
    )


def test_quantised_weights_are_refused(tmp_path):
    write(tmp_path / "model.safetensors", {"a": torch.zeros(3, dtype=torch.int8)})
    assert refused(tmp_path) == (
        f"{tmp_path / 'model.safetensors'}: a is stored as int8, expected float32, float16 or bfloat16; "
        "quantised weights are not read"
    )


@pytest.mark.parametrize(
    ("name", "zipped"),
    [("model.safetensors", True), ("pytorch_model.bin", True), ("pytorch_model.bin", False)],
    ids=["safetensors", "zip", "old"],
)
def test_truncated_files_are_a_one_line_error(tmp_path, name, zipped):
    write(tmp_path / name, STATE, zipped=zipped)
    content = (tmp_path / name).read_bytes()
    for length in range(0, len(content), len(content) // 17):
        (tmp_path / name).write_bytes(content[:length])
        assert refused(tmp_path).startswith(f"{tmp_path / name}: ")


def test_a_missing_shard_and_a_tensor_that_its_shard_lacks_are_named(tmp_path):
    index = write_shards(tmp_path, "model.safetensors")
    values = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": {**values["weight_map"], "fourth": "model-00001-of-00002.safetensors"}}))
    shard = tmp_path / "model-00001-of-00002.safetensors"
    assert refused(tmp_path) == f"{shard}: lacks fourth, which {index.name} expects there"
    os.remove(shard)
    assert refused(tmp_path) == f"{shard}: no such file, expected the shard that {index.name} names"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "found list, expected a JSON object"),
        ('{"weight_map": {"a": 3}}', "weight_map: expected the name of a file for each tensor"),
        ('{"weight_map": {"a": "../other.safetensors"}}',
         "weight_map: found '../other.safetensors', expected the name of a .safetensors file in its folder"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}',
         "weight_map: found 'pytorch_model.bin', expected the name of a .safetensors file in its folder"),
    ],
)  # fmt: skip
def test_a_damaged_index_is_a_one_line_error(tmp_path, text, reason):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    assert refused(tmp_path, DataError) == f"{index}: {reason}"
