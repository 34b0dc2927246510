"""The use of a GPU in the progress line, the log and the events of a training, and the cost that a dry run prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from translume.checkpoint import read_history
from translume.cli import training_display
from translume.cli.training_display import TrainingDisplay, usage
from translume.training import DryRun, Progress
from translume.training.events import History

COST = DryRun(
    updates=20_011, measured=211, update_seconds=0.02, tokens_per_second=410_000.0, preparation_seconds=7.0,
    warm_up_seconds=38.0, validation_seconds=0.73, saving_seconds=2.9, training_seconds=601.0, peak_bytes=2_100_000_000,
    device_bytes=7_300_000_000, device="cuda:0",
)  # fmt: skip


def progress(**values: Any) -> Progress:
    return Progress(
        update=11, updates=101, epoch=2, loss=3.21, nll=2.51, tokens=7, tokens_per_second=1234.0, learning_rate=0.0013,
        gradient_norm=0.7, seconds_left=17.0, logged=True, **values,
    )  # fmt: skip


ON_GPU = {"memory_gib": 5.13, "card_memory_gib": 7.91, "utilization_percent": 93}


def test_the_use_of_a_gpu_is_short_and_without_what_is_not_known() -> None:
    assert usage(progress()) == ""
    assert usage(progress(memory_gib=5.13)) == "5.1 GiB"
    assert usage(progress(memory_gib=5.13, card_memory_gib=7.91)) == "5.1 GiB (card 7.9)"
    assert usage(progress(**ON_GPU)) == "5.1 GiB (card 7.9), GPU 93 %"


@pytest.mark.parametrize(("values", "used"), [({}, ""), (ON_GPU, "5.1 GiB (card 7.9), GPU 93 %, ")])
def test_a_line_of_progress_has_the_use_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], values: dict[str, Any], used: str
) -> None:
    monkeypatch.setattr(training_display, "LOG_SECONDS", (0.0,))
    with TrainingDisplay() as display:
        display.show(progress(**values))
    assert capsys.readouterr().err == (
        f"update 11/101: loss 3.210, nll 2.510, rate 0.0013, 1,234 tokens/s, {used}17 s left\n"
    )


def test_events_as_json_have_the_use_of_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(as_json=True) as display:
        display.show(progress(**ON_GPU))
        display.show(progress())
    on_gpu, on_cpu = map(json.loads, capsys.readouterr().out.splitlines())
    assert {name: on_gpu[name] for name in ON_GPU} == ON_GPU
    assert {name: on_cpu[name] for name in ON_GPU} == dict.fromkeys(ON_GPU)


def test_the_log_has_the_use_of_a_gpu_where_it_is_known(tmp_path: Path) -> None:
    history = History(tmp_path, keep_bytes=0)
    history.add(progress(**ON_GPU), elapsed=1.0)
    history.add(progress(), elapsed=2.0)
    on_gpu, on_cpu = read_history(tmp_path)
    assert {name: on_gpu[name] for name in ON_GPU} == ON_GPU
    assert not set(ON_GPU) & set(on_cpu)


@pytest.mark.parametrize(
    ("metric", "rest"),
    [
        ("nll", ", with validations of 0.73 s and commits of 2.9 s"),
        ("bleu", ", with validations of 0.73 s and commits of 2.9 s; without texts for bleu"),
    ],
)
def test_a_dry_run_prints_what_the_whole_training_takes(
    run, files: Path, monkeypatch: pytest.MonkeyPatch, metric: str, rest: str
) -> None:
    monkeypatch.setattr("translume.training.dry_run", lambda *_, **__: iter([COST]))
    result = run("train", files / "en-de.toml", "--dry-run", "--set", f"training.metric={metric}")
    assert result.stdout.splitlines() == [
        "memory: 2.10 GB, 7.30 GB on cuda:0",
        "start: 7 s of preparation, 38 s more for the first updates than for later ones",
        "update: 0.02 s, the mean of 211; 410,000 target tokens/s",
        f"training: 10 min for 20,011 updates{rest}",
    ]
