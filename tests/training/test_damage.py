"""A damaged file of a run is found before anything is computed from it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from translume.checkpoint import Manifest
from translume.config import Config
from translume.errors import ModelFolderError, TranslumeError
from translume.training import Finished, Progress, train

Make = Callable[..., Config]


@pytest.fixture(scope="module")
def begun(toy: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """Return a run that was interrupted after 13 updates, with all files that a run can have but adapters'."""
    config, folder = toy(ema=0.9, average_last=2, keep=2, updates=17), tmp_path_factory.mktemp("begun")
    run = train(config, folder)
    for event in run:
        if isinstance(event, Progress) and event.update == 13:
            run.close()
    return config, folder


def finished(config: Config, folder: Path) -> dict[str, str]:
    """Finish a run, and return the digests of its tensors."""
    assert isinstance(list(train(config, folder))[-1], Finished)
    files = Manifest.read(folder).files
    return {name: entry.sha256 for name, entry in files.items() if name.endswith(".safetensors")}


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_every_damaged_file_is_named_or_rebuilt(begun: tuple[Config, Path], tmp_path: Path) -> None:
    config, folder = begun
    whole = finished(config, shutil.copytree(folder, tmp_path / "whole"))
    manifest = Manifest.read(folder)
    names = ["manifest.json", *(entry.file for name, entry in manifest.files.items() if "tokenizer" not in name)]
    names += [str(path.relative_to(folder)) for path in folder.glob("cache/*/used.tokens")]
    refused = set()
    for name in names:
        copy = shutil.copytree(folder, tmp_path / "copy")
        flip(copy / name)
        try:
            found = finished(config, copy)
        except TranslumeError as error:
            refused.add(name)
            place = str(error).split(": ")[0]
            assert place.startswith(str(copy / name)), name
        else:
            assert found == whole, name
        shutil.rmtree(copy)
    unused = {name for name in names if name.startswith(("resume/best", "weights-", "resume/candidate-00000009"))}
    assert refused == set(names) - unused  # which are written anew without being read


@pytest.mark.parametrize("intact", [True, False])
def test_a_damaged_state_is_refused_with_the_way_out(begun: tuple[Config, Path], tmp_path: Path, intact: bool) -> None:
    config, folder = begun
    copy = shutil.copytree(folder, tmp_path / "copy")
    files = Manifest.read(copy).files
    path = copy / files["resume/optimizer.safetensors"].file
    flip(path)
    way_out = f"the model itself is intact: restore this file from a copy, or train on with --from {copy}"
    if not intact:
        flip(copy / files["weights.safetensors"].file)
        way_out = "restore the folder from a copy"
    with pytest.raises(ModelFolderError) as caught:
        list(train(config, copy))
    assert str(caught.value) == (f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json; {way_out}")
