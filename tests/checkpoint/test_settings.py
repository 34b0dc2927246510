"""Settings of older folders are migrated, and files that [decoding] names are copied into the model folder."""

import gzip
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from translume.checkpoint import (
    Checkpoint,
    Manifest,
    commit,
    load_checkpoint,
    model_files,
    read_config,
    save_model,
    unique_tensors,
    verify,
)
from translume.checkpoint.settings import Tables, migrate
from translume.config import Config
from translume.errors import DataError, ModelFolderError

Make = Callable[..., Checkpoint]
COPIES = {"decoding/terminology.gz", "decoding/vocabulary.txt", "decoding/ban-2.txt"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a packed terminology, a vocabulary and banned phrases."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "terms.tsv.gz").write_bytes(gzip.compress(b"man\tMann\n"))
    (folder / "words").write_text("a man\n", encoding="utf-8")
    (folder / "never").write_text("dog\n", encoding="utf-8")
    return folder


def naming(checkpoint: Checkpoint, files: Path) -> Checkpoint:
    config = checkpoint.config.change(
        f'decoding.terminology="{files}/terms.tsv.gz"',
        f'decoding.vocabulary="{files}/words"',
        f'decoding.ban=["bench", "@{files}/never", "@@home"]',
    )
    return replace(checkpoint, config=config)


def test_a_moved_folder_reads_its_own_copies(checkpoint: Checkpoint, files: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "here", naming(checkpoint, files))
    shutil.rmtree(files)
    there = tmp_path / "far" / "there"
    (tmp_path / "far").mkdir()
    (tmp_path / "here").rename(there)
    verify(there)
    decoding = load_checkpoint(there).config.decoding
    assert Path(decoding.terminology).parent == Path(decoding.vocabulary).parent == there / "decoding"
    assert gzip.decompress(Path(decoding.terminology).read_bytes()) == b"man\tMann\n"
    assert Path(decoding.vocabulary).read_text(encoding="utf-8") == "a man\n"
    plain, copy, other = decoding.ban
    assert (plain, other) == ("bench", "@@home")
    assert Path(copy.removeprefix("@")).read_text(encoding="utf-8") == "dog\n"
    assert set(Manifest.read(there).files) >= COPIES


def test_stored_settings_name_no_path_outside_the_folder(checkpoint: Checkpoint, files: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "here", naming(checkpoint, files))
    manifest = Manifest.read(tmp_path / "here")
    stored = Config.parse((tmp_path / "here" / manifest.files["config.toml"].file).read_text(encoding="utf-8")).decoding
    assert (stored.terminology, stored.vocabulary) == ("decoding/terminology.gz", "decoding/vocabulary.txt")
    assert stored.ban == ("bench", "@decoding/ban-2.txt", "@@home")


def test_a_loaded_model_is_saved_with_its_copies(checkpoint: Checkpoint, files: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "one", naming(checkpoint, files))
    save_model(tmp_path / "two", load_checkpoint(tmp_path / "one"))
    one, two = (Manifest.read(tmp_path / name).files for name in ("one", "two"))
    assert {name: one[name] for name in COPIES} == {name: two[name] for name in COPIES}
    assert one["config.toml"] == two["config.toml"]
    save_model(tmp_path / "one", load_checkpoint(tmp_path / "one"))
    assert Manifest.read(tmp_path / "one").files == one


def test_copies_that_settings_no_longer_name_are_removed(
    make: Make, checkpoint: Checkpoint, files: Path, tmp_path: Path
) -> None:
    save_model(tmp_path / "here", naming(checkpoint, files))
    save_model(tmp_path / "here", make())
    assert not set(Manifest.read(tmp_path / "here").files) & COPIES
    assert list((tmp_path / "here" / "decoding").iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "name"), [("terminology", "terms.tsv.gz"), ("vocabulary", "words"), ("ban", "never")]
)
def test_missing_file_is_reported_with_its_setting(
    checkpoint: Checkpoint, files: Path, tmp_path: Path, setting: str, name: str
) -> None:
    named = naming(checkpoint, files)
    (files / name).unlink()
    with pytest.raises(DataError) as error:
        save_model(tmp_path / "here", named)
    assert str(error.value) == f"decoding.{setting}: {files}/{name}: cannot be read: No such file or directory"
    assert not (tmp_path / "here").exists()


def test_missing_copy_is_reported_when_the_model_is_loaded(checkpoint: Checkpoint, files: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "here", naming(checkpoint, files))
    path = tmp_path / "here" / Manifest.read(tmp_path / "here").files["decoding/vocabulary.txt"].file
    path.unlink()
    with pytest.raises(ModelFolderError) as error:
        load_checkpoint(tmp_path / "here")
    assert str(error.value) == f"{path}: missing, but manifest.json names it as decoding/vocabulary.txt"


def test_folder_saved_without_copies_keeps_its_paths(checkpoint: Checkpoint, files: Path, tmp_path: Path) -> None:
    named = naming(checkpoint, files)
    tokenizers = named.source_tokenizer, named.target_tokenizer
    commit(tmp_path / "here", model_files(named.config, unique_tensors(named.model), *tokenizers))
    assert read_config(tmp_path / "here").decoding == named.config.decoding


def rename(tables: Tables) -> Tables:
    return {**{name: value for name, value in tables.items() if name != "old"}, "new": tables["old"]}


def double(tables: Tables) -> Tables:
    return {**tables, "new": 2 * tables["new"]}


def test_migrations_run_in_order() -> None:
    tables = {"format": 1, "old": 3}
    assert migrate(tables, "m", {1: rename, 2: double}, newest=3) == {"format": 3, "new": 6}
    assert tables == {"format": 1, "old": 3}
    assert migrate({"format": 2, "new": 3}, "m", {1: rename, 2: double}, newest=3) == {"format": 3, "new": 6}


@pytest.mark.parametrize(
    ("tables", "migrated"),
    [
        ({"format": 2}, {"format": 2}),
        ({}, {}),
        ({"format": 1, "model": {"width": 3}}, {"format": 2, "model": {"width": 3}}),
        (
            {"format": 1, "decoding": {"beam": 4, "speculation": "none", "draft_length": 4}},
            {"format": 2, "decoding": {"beam": 4}},
        ),
    ],
    ids=["newest", "without a format", "same meaning", "removed settings"],
)
def test_older_settings_are_migrated_and_removed_ones_dropped(tables: Tables, migrated: Tables) -> None:
    assert migrate(tables, "m") == migrated


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (3, "m: format 3 is newer than format 2, the newest this Translume reads; upgrade Translume"),
        (0, "m: format: found 0, expected a number from 1 to 2"),
        ("1", "m: format: found '1', expected a number from 1 to 2"),
        (True, "m: format: found True, expected a number from 1 to 2"),
    ],
)
def test_an_unknown_format_is_refused(found: object, message: str) -> None:
    with pytest.raises(ModelFolderError) as caught:
        migrate({"format": found}, "m")
    assert str(caught.value) == message
