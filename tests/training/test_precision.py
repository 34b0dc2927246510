"""The precision of a run: measured once, stored, and used again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from translume.training import Preparing, Started, precision, prepare, train
from translume.training.optimisation import Updater
from translume.training.precision import choose_precision

from .conftest import Make

CPU = torch.device("cpu")


def pretend(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> list[str]:
    """Make updates take given seconds by precision; return the list of what is measured."""
    measured: list[str] = []

    def update_seconds(updater: Updater, updates: Any) -> float:
        measured.append(updater.precision)
        return seconds[updater.precision]

    monkeypatch.setattr(precision, "has_bf16", lambda: True)
    monkeypatch.setattr(prepare, "update_seconds", update_seconds)
    return measured


def weights(folder: Path) -> bytes:
    return next(folder.glob("weights-*")).read_bytes()


@pytest.mark.parametrize(("bf16", "chosen"), [(1.0, "bf16"), (1.96, "fp32"), (3.0, "fp32")])
def test_auto_takes_the_faster_precision_and_fp32_if_they_are_close(
    bf16: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda: True)
    assert choose_precision("auto", CPU, {"fp32": 2.0, "bf16": bf16}.__getitem__) == chosen


def test_nothing_is_measured_for_a_named_precision_or_without_bf16_instructions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    nothing: dict[str, float] = {}
    assert choose_precision("auto", CPU, nothing.__getitem__) == "fp32"
    assert choose_precision("bf16", CPU, nothing.__getitem__) == "bf16"


def test_a_resumed_run_keeps_the_precision_that_was_measured(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy(precision="auto", updates=6)
    pretend(monkeypatch, fp32=2.0, bf16=1.0)
    list(train(config, tmp_path / "whole"))
    *_, _ = train(config.change("training.updates=3"), tmp_path / "cut")
    measured = pretend(monkeypatch, fp32=1.0, bf16=2.0)
    events = list(train(config, tmp_path / "cut"))
    assert [event.precision for event in events if isinstance(event, Started)] == ["bf16"]
    assert measured == []
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_measuring_changes_no_weight(toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda: True)
    monkeypatch.setattr(precision, "SECONDS", 0.0)
    config = toy({"model": {"dropout": 0.3}}, precision="auto", updates=2, accumulate=2, optimizer="adamw")
    events = list(train(config, tmp_path / "auto"))
    (chosen,) = (event.precision for event in events if isinstance(event, Started))
    (note,) = (event.what for event in events if isinstance(event, Preparing) and "precision" in event.what)
    assert note.startswith(f"precision {chosen}: processor time of an update is ")
    list(train(toy({"model": {"dropout": 0.3}}, precision=chosen, updates=2, accumulate=2, optimizer="adamw"),
               tmp_path / "named"))  # fmt: skip
    assert weights(tmp_path / "auto") == weights(tmp_path / "named")
