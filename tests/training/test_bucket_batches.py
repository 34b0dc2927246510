"""A run whose batches are in buckets keeps them on any device, and resumes with the same bits."""

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from translume.checkpoint import Manifest
from translume.config import Config
from translume.data import buckets
from translume.training import Finished, Preparing, Progress, Warned, prepare, train
from translume.training.resume import State

Make = Callable[..., Config]

STREAMED: dict[str, Any] = {
    "others": {"data": {"streaming": True, "shuffle_buffer": 70, "cleaning": {"max_tokens": 8}}},
    "max_tokens": 401,
}


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for good buckets for a short time."""
    monkeypatch.setattr(buckets, "TRIALS", 20)


@contextmanager
def on_a_gpu() -> Any:
    """Make runs on the CPU take the batches of a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (prepare, sys.modules["translume.training.train"]):
            patch.setattr(module, "plan_kind", lambda device: "buckets")
        yield


def state_of(folder: Path) -> dict[str, Any]:
    file = Manifest.read(folder).files["resume/state.json"].file
    state: dict[str, Any] = json.loads((folder / file).read_text())
    for timed in ("seconds", "history_bytes"):
        del state[timed]
    return state


def weights_of(folder: Path) -> str:
    return Manifest.read(folder).files["resume/raw.safetensors"].sha256


@pytest.mark.parametrize("settings", [{"accumulate": 2}, STREAMED], ids=["epochs", "stream"])
def test_a_run_in_buckets_resumes_with_the_same_bits_and_keeps_its_batches(
    toy: Make, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = toy(**settings, updates=9)
    with on_a_gpu():
        whole = list(train(config, tmp_path / "whole"))
        for event in (cut := train(config, tmp_path / "cut")):
            if isinstance(event, Progress) and event.update == 7:
                cut.close()
    *rest, last = train(config, tmp_path / "cut")
    assert isinstance(last, Finished)
    assert [event.message for event in rest if isinstance(event, Warned)] == [
        "this run began on a GPU with batches in buckets, now on a CPU: the same batches, which are slower here"
    ]
    assert not [event for event in rest if isinstance(event, Preparing) and "shape" in event.what]
    assert not [event for event in whole if isinstance(event, Warned)]
    (said,) = (event.what for event in whole if isinstance(event, Preparing) and "shape" in event.what)
    assert said.startswith("batches in ")
    assert said.endswith(" % padding")
    assert state_of(tmp_path / "cut") == state_of(tmp_path / "whole")
    assert state_of(tmp_path / "cut")["begun"]["batches"] == "buckets"
    assert weights_of(tmp_path / "cut") == weights_of(tmp_path / "whole")


def test_a_run_that_began_on_a_cpu_keeps_its_batches_on_a_gpu(toy: Make, tmp_path: Path) -> None:
    list(train(toy(updates=7), tmp_path / "whole"))
    list(train(toy(updates=4), tmp_path / "cut"))
    with on_a_gpu():
        events = list(train(toy(updates=7), tmp_path / "cut"))
    assert [event.message for event in events if isinstance(event, Warned)] == [
        "this run began on a CPU with batches of similar lengths, now on a GPU: the same batches, which are slower here"
    ]
    assert state_of(tmp_path / "cut")["begun"]["batches"] == "lengths"
    assert weights_of(tmp_path / "cut") == weights_of(tmp_path / "whole")


def test_runs_of_earlier_versions_have_batches_of_similar_lengths(toy: Make, tmp_path: Path) -> None:
    list(train(toy(updates=3), tmp_path))
    values = {**state_of(tmp_path), "seconds": 0.0, "history_bytes": 0}
    del values["begun"]["batches"]
    assert State.from_json(json.dumps(values).encode(), place="state").begun.batches == "lengths"


def test_rows_without_pairs_change_no_weight(toy: Make, tmp_path: Path) -> None:
    """One batch of all pairs, of which a bucket has eleven times as many rows."""
    changes = {"others": {"model": {"dropout": 0.0}}, "updates": 3}
    with on_a_gpu():
        list(train(toy(**changes, max_tokens=33_000), tmp_path / "buckets"))
    list(train(toy(**changes, max_tokens=33_000), tmp_path / "lengths"))
    found = [torch.tensor(json.loads((tmp_path / name / "history.jsonl").read_text().splitlines()[1])["nll"])
             for name in ("buckets", "lengths")]  # fmt: skip
    assert torch.allclose(*found, rtol=1e-5)
