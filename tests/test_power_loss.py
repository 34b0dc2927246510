"""A sample of benchmarks/power_loss.py: what was reported as saved outlives a loss of power and failing disks."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from translume import atomic
from translume.checkpoint import append_history, commit, read_history
from translume.checkpoint.folder import MANIFEST, Manifest, read_committed
from translume.interchange.importing import new_folder

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import power_loss

OPTIONS = argparse.Namespace(count=5, continued=0, errors=1, seed=1)


def commits() -> power_loss.Run:
    """A model folder of two files, of which the second one is new in the second commit, as `resume/` in training."""

    def check(folder: Path) -> str:
        if not (folder / "new" / "model" / MANIFEST).exists():
            return power_loss.NOTHING
        manifest = Manifest.read(folder / "new" / "model")
        return repr([read_committed(folder / "new" / "model", manifest, name) for name in manifest.files])

    def act(folder: Path, mark: Callable[[str], None]) -> None:
        for text in (b"one", b"two " * 300, b"three"):
            files = {"config.toml": text} | ({} if text == b"one" else {"resume/state.json": text})
            commit(folder / "new" / "model", files)
            mark(check(folder))

    return power_loss.Run(act=act, check=check)


def exports() -> power_loss.Run:
    """A folder that a library writes without syncing it."""

    def act(folder: Path, mark: Callable[[object], None]) -> None:
        with new_folder(folder / "new" / "out") as unfinished:
            (unfinished / "inner").mkdir(parents=True)
            for name in ("model.bin", "inner/vocabulary"):
                (unfinished / name).write_bytes(name.encode() * 200)
        mark(power_loss.files_in(folder / "new" / "out"))

    return power_loss.Run(act=act, check=lambda folder: power_loss.files_in(folder / "new" / "out"))


def histories() -> power_loss.Run:
    """Evaluations in the log of a model that had none."""

    def check(folder: Path) -> object:
        return tuple(record["score"] for record in read_history(folder)) or power_loss.NOTHING

    def act(folder: Path, mark: Callable[[object], None]) -> None:
        atomic.write_file(folder / "README.md", b"card")
        for score in range(3):
            append_history(folder, {"score": score}, synced=True)
            atomic.write_file(folder / "README.md", b"card %d" % score)
            mark(check(folder))

    return power_loss.Run(act=act, check=check)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> power_loss.Home:
    return power_loss.Home(tmp_path_factory.mktemp("home"))


RUNS = {"commits": lambda home: commits(), "exports": lambda home: exports(), "histories": lambda home: histories()}


@pytest.mark.parametrize("name", [*RUNS, "keys", "results", "bulk"])
def test_nothing_that_was_saved_is_lost(home: power_loss.Home, tmp_path: Path, name: str) -> None:
    run = (RUNS | power_loss.RUNS)[name](home)
    # A translation takes long to repeat.
    options = argparse.Namespace(**{**vars(OPTIONS), "errors": name != "bulk"})
    figures = power_loss.tried(name, run, tmp_path / "root", options)
    assert figures.faults == []
    assert figures.reorderings > figures.distinct > figures.refused
    assert figures.errors >= figures.operations * options.errors


@pytest.mark.parametrize("name", ["commits", "exports", "keys"])
def test_a_folder_that_is_not_synced_is_a_fault(
    home: power_loss.Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("atomic", "interchange.importing"):
        monkeypatch.setattr(f"translume.{module}.sync", lambda path: None)
    figures = power_loss.tried(name, (RUNS | power_loss.RUNS)[name](home), tmp_path / "root", OPTIONS)
    assert any("an older state loads: nothing" in each for each in figures.faults)
