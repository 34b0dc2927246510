"""A packed file beside a model's weights gives the same engine, and is written again where it cannot be used."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from translume.checkpoint import load_checkpoint, save_model
from translume.cli import main
from translume.engine import Engine, packed_file
from translume.engine.packing import LINEAR
from translume.errors import ModelFolderError
from translume.kernels.loading import has_kernels, kernels
from translume.translator import Translator
from translume.translator.loading import engine_of

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")
SENTENCES = ["a dog runs.", "two men", "a b c"]


@pytest.fixture(params=["fp32", "bf16"])
def folder(request, make, tmp_path) -> Path:
    checkpoint = make(shared=False).checkpoint
    save_model(tmp_path, checkpoint)
    if request.param == "bf16":
        loaded = load_checkpoint(tmp_path, dtype="bf16")
        save_model(tmp_path, loaded)
    return tmp_path


def engine(folder: Path, dtype="fp32", **words) -> Engine:
    if dtype == "int8" and not kernels().int8:
        pytest.skip("this processor has no int8 products")
    return engine_of(load_checkpoint(folder), dtype, **words)


def written(folder: Path) -> list[Path]:
    return [*folder.glob("packed-*")]


def outputs(found: Engine, folder: Path) -> list[object]:
    translator = Translator(load_checkpoint(folder), found)
    return [(each.text, each.hypotheses) for each in translator.translate_all(SENTENCES, beam=3)]


@pytest.mark.parametrize("dtype", LINEAR)
def test_an_engine_of_a_packed_file_is_the_same_bit_for_bit(folder, dtype):
    assert engine(folder, dtype).packed_file is None
    first = engine(folder, dtype, pack=True)
    second = engine(folder, dtype)
    digest = load_checkpoint(folder).digest
    assert second.packed_file == folder / f"packed-{dtype}-{kernels().instructions}-{digest[:16]}.safetensors"
    for name, arrays in first.network.kept.items():
        for part, array in arrays.items():
            assert np.array_equal(second.network.kept[name][part], array, equal_nan=True)
    assert second.network.kept.keys() == first.network.kept.keys()
    assert outputs(second, folder) == outputs(first, folder)


def test_the_packed_file_and_nothing_else_is_mapped_where_weights_are_bf16(make, tmp_path):
    save_model(tmp_path, make(shared=False).checkpoint)
    save_model(tmp_path, load_checkpoint(tmp_path, dtype="bf16"))
    engine(tmp_path, pack=True)
    found = engine(tmp_path)
    regions = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/packed-fp32" in line]
    mapped = [tuple(int(each, 16) for each in region[0].split("-")) for region in regions]
    for arrays in found.network.kept.values():
        for array in arrays.values():
            assert any(begin <= array.ctypes.data < end for begin, end in mapped)


def test_weights_are_not_read_again_where_a_packed_file_is(folder, monkeypatch):
    first = outputs(engine(folder, pack=True), folder)
    for name in ("verified", "Unbuilt.check"):
        monkeypatch.setattr(f"translume.checkpoint.loading.{name}", None)
    loaded = load_checkpoint(folder)
    assert outputs(engine_of(loaded, "fp32"), folder) == first


def damages(content: bytes) -> Iterator[bytes]:
    for place in (0, 9, len(content) // 2, len(content) - 9, len(content) - 1):
        yield content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
    for size in (0, 7, 1000, len(content) - 1):
        yield content[:size]
    yield content[:5000] + content[5001:] + b"\0"
    yield b"{}" + bytes(3000)


def test_a_damaged_packed_file_is_written_again_with_a_note(folder, caplog):
    engine(folder, pack=True)
    [path] = written(folder)
    content = path.read_bytes()
    for damaged in damages(content):
        path.write_bytes(damaged)
        caplog.clear()
        assert engine(folder, pack=True).packed_file == path
        reason = "it is empty" if not damaged else "a checksum is wrong"
        assert [each.getMessage() for each in caplog.records] == [
            f"{path}: damaged: {reason}; the weights are packed again"
        ]
        assert path.read_bytes() == content


def test_a_file_of_another_version_is_written_again_with_a_note(folder, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(packed_file, "_code", lambda: "another")
        engine(folder, pack=True)
    [path] = written(folder)
    assert engine(folder).packed_file is None
    assert [each.getMessage() for each in caplog.records] == [
        f"{path}: packed by another version of Translume, or from other weights; the weights are packed again"
    ]
    engine(folder, pack=True)
    caplog.clear()
    assert engine(folder).packed_file == path
    assert not caplog.records


def test_a_file_of_another_instruction_set_is_left_alone(folder, monkeypatch):
    engine(folder, pack=True)
    [path] = written(folder)
    os.rename(path, path.with_name(path.name.replace(kernels().instructions, "other")))
    assert engine(folder).packed_file is None
    engine(folder, pack=True)
    assert len(written(folder)) == 2


def test_new_weights_remove_the_packed_file_of_the_old_ones(make, folder):
    engine(folder, pack=True)
    save_model(folder, make(shared=False, seed=4).checkpoint)
    assert not written(folder)
    assert engine(folder).packed_file is None


def test_the_first_use_writes_the_file_of_a_large_model(folder, monkeypatch):
    assert engine(folder).packed_file is None
    monkeypatch.setattr(packed_file, "AUTOMATIC_BYTES", 0)
    for name, value in (("getuid", lambda: os.stat(folder).st_uid + 1), ("access", lambda *each: False)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, value)
            assert engine(folder).packed_file is None
    monkeypatch.setenv("TRANSLUME_PACK", "0")
    assert engine(folder).packed_file is None
    assert not written(folder)
    monkeypatch.delenv("TRANSLUME_PACK")
    assert engine(folder).packed_file == written(folder)[0]
    monkeypatch.setenv("TRANSLUME_PACK", "0")
    assert engine(folder).packed_file is None


def test_a_folder_that_cannot_be_written_works_without_the_file(folder, monkeypatch):
    monkeypatch.setattr(packed_file, "AUTOMATIC_BYTES", 0)

    def refuse(*arguments, **words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_file.atomic, "write", refuse)
    assert engine(folder).packed_file is None
    with pytest.raises(ModelFolderError) as caught:
        engine(folder, pack=True)
    name = f"packed-fp32-{kernels().instructions}-{load_checkpoint(folder).digest[:16]}.safetensors"
    assert str(caught.value) == f"{folder / name}: cannot be written: No space left on device"
    assert not [*folder.glob(".*.part")]


@pytest.mark.parametrize("name", ["decoder.embedding.table.weight", "decoder.layers.0.feed_forward.inner.weight"])
def test_damaged_weights_beside_a_packed_file_are_found_when_they_are_used(name, make, tmp_path, caplog):
    checkpoint = make(shared=False).checkpoint
    save_model(tmp_path, checkpoint)
    expected = outputs(engine(tmp_path, pack=True), tmp_path)
    loaded = load_checkpoint(tmp_path)
    array, path = loaded.arrays()[name], loaded.unbuilt.file
    content = bytearray(path.read_bytes())
    content[content.index(array.tobytes()) + 5] ^= 1
    path.write_bytes(content)
    wrong = f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"
    if "table" in name:  # which the engine reads as it is in a file in fp32
        with pytest.raises(ModelFolderError) as caught:
            engine(tmp_path)
        assert f"{path}: damaged: a checksum is wrong; the weights are packed again" in caplog.text
    else:
        assert outputs(engine(tmp_path), tmp_path) == expected
        with pytest.raises(ModelFolderError) as caught:
            load_checkpoint(tmp_path).model  # noqa: B018
    assert str(caught.value) == wrong
    with pytest.raises(ModelFolderError, match="SHA-256"):
        load_checkpoint(tmp_path).arrays()


def test_threads_and_logs_stay_quiet_where_there_is_no_file(folder, caplog):
    with caplog.at_level(logging.DEBUG, "translume"):
        engine(folder)
    assert not caplog.records


def test_show_names_the_packed_file(make, tmp_path):
    save_model(tmp_path, make(shared=False).checkpoint)
    path = engine(tmp_path, pack=True).packed_file
    shown = CliRunner().invoke(main, ["show", str(tmp_path), "--engine", "--json"])
    assert [facts["packed_file"] for facts in json.loads(shown.stdout)["dtypes"].values()][:2] == [str(path), None]
