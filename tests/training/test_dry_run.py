"""What a dry run measures, and that it predicts the time of a training."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config import Config
from translume.data.cleaning import Account
from translume.training import DryRun, Preparing, Progress, Saved, Started, Validated, Warned, dry_run, train
from translume.training.dry_run import Stopwatch
from translume.training.events import Event

from .conftest import Make

MODULE = sys.modules["translume.training.dry_run"]
"""The module; its package has a function of the same name."""
NOTHING = Account(read=0, used=0, held_out=0, dropped={}, examples={})
STARTED = Started(
    update=0, updates=100_003, folder=Path("m"), training=NOTHING, validation=NOTHING, training_pairs=0,
    validation_pairs=0, source_vocabulary=0, target_vocabulary=0, parameters=0, trained_parameters=0, precision="fp32",
    device="cpu", threads=1, files=(),
)  # fmt: skip
VALIDATED = Validated(update=0, nll=1.0, metrics={}, best=True, seconds=0.0)
COMPILING = Preparing(what="compiling shape 2 of 3")


def progress(update: int, updates: int = 100_003, *, tokens: int = 0, logged: bool = True) -> Progress:
    return Progress(
        update=update, updates=updates, epoch=1, loss=1.0, nll=1.0, tokens=tokens, tokens_per_second=1.0,
        learning_rate=1.0, gradient_norm=1.0, seconds_left=0.0, logged=logged,
    )  # fmt: skip


def watched(
    monkeypatch: pytest.MonkeyPatch, events: Iterable[tuple[float, Event]], device: str = "cpu", **training: Any
) -> DryRun:
    """Return what a dry run would print for events, each after a number of seconds; events after its end are left."""
    now = 1000.0
    # Not `time` itself: servers of other tests, in threads, would then wait for hours.
    monkeypatch.setattr(sys.modules[Stopwatch.__module__], "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda place: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda place: 3)
    watch = Stopwatch(torch.device(device))
    for seconds, event in events:
        now += seconds
        if watch.sees_end(event):
            break
    return watch.result(Config.build({"training": training}).training)


def steady(seconds: float, first: int, count: int = 1000) -> list[tuple[float, Event]]:
    return [(seconds, progress(update, tokens=7)) for update in range(first, first + count)]


def test_compilation_and_slow_first_updates_are_told_from_steady_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [(5.0, Preparing(what="model")), (2.0, STARTED)]
    events += [(1.0, progress(update)) for update in range(1, 9)]  # uncompiled
    events += [(0.5, COMPILING), (13.0, COMPILING), (17.0, progress(9))]
    found = watched(monkeypatch, [*events, *steady(0.25, 10)], "cuda:0", updates=100_003)
    assert found.update_seconds == pytest.approx(0.25)
    assert found.tokens_per_second == pytest.approx(28)
    assert found.preparation_seconds == pytest.approx(7)
    assert found.warm_up_seconds == pytest.approx(8 + 0.5 + 13 + 17 - 9 * 0.25)
    assert found.training_seconds == pytest.approx(7 + 36.25 + 100_003 * 0.25)
    assert found.measured == 30
    assert found.device_bytes == 3


def test_updates_before_the_last_compilation_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [(0.0, STARTED), *steady(1.0, 1, 12), (0.0, COMPILING), (3.0, progress(13)), *steady(0.125, 14)]
    found = watched(monkeypatch, events)
    assert found.update_seconds == pytest.approx(0.125)
    assert found.warm_up_seconds == pytest.approx(12 + 3 - 13 * 0.125)


def test_validations_and_commits_are_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [(0.0, STARTED), *steady(0.03125, 1, 128), (3.0, VALIDATED), (2.0, Saved(update=128, folder=Path("m")))]
    events += steady(0.03125, 129)
    found = watched(monkeypatch, events, updates=100_003, validate_every=499, save_every=1009)
    assert (found.validation_seconds, found.saving_seconds) == (3.0, 2.0)
    assert found.update_seconds == pytest.approx(0.03125)
    assert found.warm_up_seconds == pytest.approx(0.0)
    # The mean of the last weights is validated too.
    assert found.training_seconds == pytest.approx(100_003 * 0.03125 + 202 * 3.0 + 100 * 2.0)


def test_a_warning_of_each_update_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Warned(update=1, message="CUDA was out of memory: update 1 was computed in 1 more parts")
    events: list[tuple[float, Event]] = [(0.0, STARTED)]
    for update in range(1, 99):
        events += [(0.5, split), (0.25, progress(update))]
    found = watched(monkeypatch, events)
    assert found.update_seconds == pytest.approx(0.75)


def test_slow_updates_are_measured_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, [(0.0, STARTED), *steady(7.0, 1)])
    assert (found.measured, found.update_seconds) == (3, 7.0)


def test_tokens_are_those_of_measured_updates_wherever_the_log_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[float, Event]] = [(0.0, STARTED)]
    for update in range(1, 99):
        window = 1 + (update - 1) % 5  # a line of the log every 5 updates
        events.append((0.5, progress(update, tokens=11 * window, logged=window == 5)))
    assert watched(monkeypatch, events).tokens_per_second == pytest.approx(22)


@given(
    seconds=st.floats(0.001, 3.0), slow=st.lists(st.floats(0.0, 30.0), max_size=20), updates=st.integers(1, 200),
    compiles=st.booleans(), device=st.sampled_from(["cpu", "cuda:0"]),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_a_run_that_was_seen_to_its_end_is_predicted_exactly(
    monkeypatch: pytest.MonkeyPatch, seconds: float, slow: list[float], updates: int, compiles: bool, device: str
) -> None:
    monkeypatch.setattr(MODULE, "SECONDS", 1e9)
    monkeypatch.setattr(MODULE, "MAX_SECONDS", 1e9)
    times = [(slow[number] if number < len(slow) else 0.0) + seconds for number in range(updates)]
    events: list[tuple[float, Event]] = [(2.0, STARTED)]
    events += [(each, progress(number, updates)) for number, each in enumerate(times, 1)]
    if compiles:
        events.insert(1 + updates // 2, (5.0, COMPILING))
    found = watched(monkeypatch, events, device, updates=updates)
    whole = 2.0 + sum(times) + 5.0 * compiles
    assert found.training_seconds >= whole - 1e-6
    if found.warm_up_seconds:
        assert found.training_seconds == pytest.approx(whole)


def test_the_prediction_for_a_training_on_a_cpu_is_near_its_time(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "SECONDS", 0.1)
    monkeypatch.setattr(MODULE, "PAUSE", 16)
    config = toy(
        {"model": {"width": 32, "feed_forward": 64}}, max_tokens=499, updates=61, validate_every=31, save_every=31
    )
    *_, predicted = dry_run(config, tmp_path / "model", device="cpu", threads=1)
    assert isinstance(predicted, DryRun)
    assert predicted.validation_seconds is not None
    assert predicted.saving_seconds is not None
    begun = time.monotonic()
    for _ in train(config, tmp_path / "model", device="cpu", threads=1):
        pass
    real = time.monotonic() - begun
    assert real / 2 < predicted.training_seconds < real * 2
