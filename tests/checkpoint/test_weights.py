"""Tensors round-trip, and each is stored once."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from translume.checkpoint import Content, fill, read_metadata, read_tensors, tensor_file, unique_tensors
from translume.errors import ModelFolderError

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


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
        assert read_metadata(path) == {"note": "ü"}
        assert found.keys() == safetensors.torch.load_file(path).keys() == tensors.keys()
        again = write(tensor_file(dict(reversed(tensors.items())), {"note": "ü"}), Path(folder) / "u.safetensors")
        assert again.read_bytes() == path.read_bytes(), "the order of names does not matter"
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_views_round_trip_with_their_values(tmp_path: Path) -> None:
    matrix = torch.arange(35.0).view(5, 7)
    path = write(tensor_file({"turned": matrix.T, "part": matrix[1:3, ::2]}), tmp_path / "t")
    found = dict(read_tensors(path))
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
    path = write(tensor_file(tensors), tmp_path / "t")
    model = Tied()
    fill(model, path)
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
        (
            {"embedding.weight": (11, 5), "output.bias": (7,)},
            "embedding.weight is [11, 5], expected [7, 5] by the settings",
        ),
    ],
)
def test_weights_of_another_model_are_refused(
    tensors: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    path = write(tensor_file({name: torch.zeros(shape) for name, shape in tensors.items()}), tmp_path / "t")
    with pytest.raises(ModelFolderError) as caught:
        fill(Tied(), path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("size", [0, 5, 30, 200])
def test_a_truncated_file_is_damaged(size: int, tmp_path: Path) -> None:
    path = write(tensor_file(unique_tensors(Tied())), tmp_path / "t")
    assert path.stat().st_size > size
    path.write_bytes(path.read_bytes()[:size])
    for read in (lambda: list(read_tensors(path)), lambda: read_metadata(path)):
        with pytest.raises(ModelFolderError) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: damaged: ")
        assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as caught:
        list(read_tensors(tmp_path / "none"))
    assert str(caught.value).startswith(f"{tmp_path / 'none'}: cannot be read: ")
