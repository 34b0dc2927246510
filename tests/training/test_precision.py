"""The precision of a run: chosen by the processor, stored, and used again."""

from pathlib import Path

import pytest
import torch

from translume.training import Started, precision, train
from translume.training.precision import choose_precision

from .conftest import Make

CPU = torch.device("cpu")


def test_auto_is_bf16_with_instructions_for_it_and_a_named_precision_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(precision, "multiplies_bf16", lambda there=there: there)
        assert choose_precision("auto", CPU) == expected
        assert choose_precision("bf16", CPU) == "bf16"


def test_a_resumed_run_keeps_its_precision_on_another_processor(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy(precision="auto", updates=6)
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: True)
    list(train(config, tmp_path / "whole"))
    *_, _ = train(config.change("training.updates=3"), tmp_path / "cut")
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    events = list(train(config, tmp_path / "cut"))
    assert [event.precision for event in events if isinstance(event, Started)] == ["bf16"]
    whole, cut = (next((tmp_path / name).glob("weights-*")).read_bytes() for name in ("whole", "cut"))
    assert whole == cut
