"""Tensors are stored once, round-trip, and become the parameters of networks that are built without values."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from translume.checkpoint import (
    Content,
    assign,
    build_model,
    fill,
    load_checkpoint,
    read_tensors,
    save_model,
    tensor_file,
    unique_tensors,
    weights,
    without_values,
)
from translume.checkpoint.arrays import weight_in
from translume.checkpoint.loading import WEIGHTS
from translume.checkpoint.weights import quantized
from translume.config import ModelSettings, SoftmaxSettings
from translume.engine.packing import Int8Linear
from translume.errors import ModelFolderError
from translume.kernels.loading import has_kernels, kernels

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip


def write(content: Content, path: Path) -> Path:
    assert not isinstance(content, bytes)
    content(path)
    return path


@given(
    shapes=st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
        st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES)),
        max_size=5,
    )
)
def test_tensors_round_trip(shapes: dict[str, tuple[list[int], torch.dtype]]) -> None:
    tensors = {name: (torch.randn(shape) * 3).to(dtype) for name, (shape, dtype) in shapes.items()}
    with TemporaryDirectory() as folder:
        path = write(tensor_file(tensors, {"note": "ü"}), Path(folder) / "t.safetensors")
        found = dict(read_tensors(path))
        assert found.keys() == safetensors.torch.load_file(path).keys() == tensors.keys()
        again = write(tensor_file(dict(reversed(tensors.items())), {"note": "ü"}), Path(folder) / "u.safetensors")
        assert again.read_bytes() == path.read_bytes(), "the order of names does not matter"
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_views_round_trip_with_their_values(tmp_path: Path) -> None:
    matrix = torch.arange(35.0).view(5, 7)
    found = dict(read_tensors(write(tensor_file({"turned": matrix.T, "part": matrix[1:3, ::2]}), tmp_path / "t")))
    assert torch.equal(found["turned"], matrix.T)
    assert torch.equal(found["part"], matrix[1:3, ::2])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.output = nn.Linear(5, 7)
        self.output.weight = self.embedding.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    tensors = unique_tensors(Tied())
    assert list(tensors) == ["embedding.weight", "output.bias"]
    model = Tied()
    fill(model, write(tensor_file(tensors), tmp_path / "t"))
    assert torch.equal(model.output.weight, tensors["embedding.weight"])
    assert model.output.weight is model.embedding.weight


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"embedding.weight": (7, 5)}, "lacks output.bias, which a model of these settings has"),
        (
            {"embedding.weight": (7, 5), "output.bias": (7,), "third": (1,)},
            "holds third, which a model of these settings does not have",
        ),
        ({"embedding.weight": (11, 5)}, "embedding.weight is [11, 5], expected [7, 5] by the settings"),
    ],
)
def test_weights_of_another_model_are_refused(
    tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    path = write(tensor_file({name: torch.zeros(shape) for name, shape in tensors.items()}), tmp_path / "t")
    with pytest.raises(ModelFolderError) as caught:
        fill(Tied(), path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_truncated_or_missing_file_is_named(tmp_path: Path) -> None:
    path = write(tensor_file(unique_tensors(Tied())), tmp_path / "t")
    whole = path.read_bytes()
    for size in (0, 5, 30, 200):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFolderError) as caught:
            list(read_tensors(path))
        assert str(caught.value).startswith(f"{path}: damaged: ")
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ModelFolderError) as caught:
        list(read_tensors(path))
    assert str(caught.value).startswith(f"{path}: cannot be read: ")


def settings_of(tie):
    shape = {"width": 10, "feed_forward": 7, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 5}
    return ModelSettings(**shape, max_positions=11, head=SoftmaxSettings(tie=tie))


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_assigned_weights_are_those_of_the_model_and_stay_tied(tie):
    wanted = build_model(settings_of(tie), 13, 13)
    with without_values(), ThreadPoolExecutor(1) as threads:
        found = build_model(settings_of(tie), 13, 13)
        other = threads.submit(build_model, settings_of(tie), 13, 13).result()
    assert all(parameter.is_meta for parameter in found.parameters())
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in wanted.named_parameters()]
    assert not any(buffer.is_meta for buffer in found.buffers())
    assert not any(parameter.is_meta for parameter in other.parameters()), "other threads build networks with values"
    assign(found, wanted.state_dict().items(), "model")
    for name, value in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert (found.head.weight is found.decoder.embedding.table.weight) == (tie != "none")


def test_filled_parameters_and_buffers_have_the_dtype(tmp_path):
    path = write(tensor_file(unique_tensors(build_model(settings_of("all"), 13, 13))), tmp_path / "t")
    with without_values():
        found = build_model(settings_of("all"), 13, 13)
    fill(found, path, torch.device("cpu"), torch.bfloat16)
    assert {parameter.dtype for parameter in found.parameters()} == {torch.bfloat16}
    assert found.encoder.embedding.positions.table.dtype == torch.bfloat16
    assert found.head.weight is found.encoder.embedding.table.weight


def is_anonymous(tensor: torch.Tensor, folder: Path) -> bool:
    """Return whether a tensor is in memory of its own, and not in that of a file of the folder."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return str(folder) not in line
    raise AssertionError("not in this process")


def test_parameters_of_a_large_file_are_its_pages_and_writing_to_them_changes_no_file(
    checkpoint, tmp_path, monkeypatch
):
    save_model(tmp_path / "model", checkpoint)
    (path,) = (tmp_path / "model").glob("weights-*")
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % weights.ALIGNMENT == 0
    copied = load_checkpoint(tmp_path / "model").model
    monkeypatch.setattr(weights, "MAPPED_BYTES", 1)
    mapped = load_checkpoint(tmp_path / "model")
    parameters = list(mapped.model.parameters())
    assert all(is_anonymous(each, tmp_path) for each in copied.parameters())
    assert sum(not is_anonymous(each, tmp_path) for each in parameters) > 2
    assert all(each.data_ptr() % weights.ALIGNMENT == 0 for each in parameters)
    for name, tensor in copied.state_dict().items():
        assert torch.equal(mapped.model.state_dict()[name], tensor)
    assert mapped.model.decoder.embedding.table.weight is mapped.model.encoder.embedding.table.weight
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()
    again = load_checkpoint(tmp_path / "model")  # its digest is checked
    assert again.model.encoder.embedding.table.weight.detach().abs().max() > 0


def test_weights_in_int8_are_read_as_integers_times_the_scales_of_their_rows(checkpoint, tmp_path) -> None:
    weights = unique_tensors(checkpoint.model)
    tensors = quantized(weights)
    save_model(tmp_path, checkpoint, files={WEIGHTS: tensor_file(tensors)})
    loaded = load_checkpoint(tmp_path)
    assert loaded.parameters == checkpoint.parameters
    found = loaded.arrays()
    assert found.keys() == weights.keys()
    for name, array in found.items():
        expected = weights[name].numpy()
        step = np.abs(expected).max(-1, keepdims=True) / 127 if expected.ndim == 2 else 0.0
        assert (np.abs(array - expected) <= 0.501 * step).all()
        assert (array.dtype, tensors[name].dtype == torch.int8) == (expected.dtype, expected.ndim == 2)
    for name, tensor in unique_tensors(loaded.model).items():
        assert np.array_equal(tensor.numpy(), found[name])
    assert loaded.arrays().keys() == found.keys()


@pytest.mark.skipif(not has_kernels() or not kernels().int8, reason="no int8 kernels")
def test_the_engine_packs_the_integers_of_weights_in_int8() -> None:
    weight = torch.randn(70, 48, generator=torch.Generator().manual_seed(1))
    weight[3] = 0.0
    stored = {name: each.numpy() for name, each in quantized({"w": weight}).items()}
    packed = Int8Linear.pack(weight_in(stored, "w"), None)
    panel, group = kernels().panel, kernels().group
    integers = packed["weight"].astype(np.int16) - kernels().offset
    rows = integers.reshape(-1, 48 // group, panel, group).swapaxes(1, 2).reshape(-1, 48)
    assert np.array_equal(rows[:70], stored["w"])
    assert np.allclose(packed["scale"][:70], stored["w|scale"], rtol=1e-6, atol=0)
