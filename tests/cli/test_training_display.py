"""What a training prints: the use of a GPU, nothing with --quiet, the cost by --dry-run; and `show --engine`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from translume.checkpoint import read_history
from translume.cli import training_display
from translume.cli.training_display import TrainingDisplay, usage
from translume.config import Config
from translume.training import DryRun, Finished, Progress, Started, dry_run
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
def test_a_line_of_progress_has_the_use_of_a_gpu(monkeypatch, capsys, values: dict[str, Any], used: str) -> None:
    monkeypatch.setattr(training_display, "LOG_SECONDS", (0.0,))
    with TrainingDisplay() as display:
        display.show(progress(**values))
    assert capsys.readouterr().err == (
        f"update 11/101: loss 3.210, nll 2.510, rate 0.0013, 1,234 tokens/s, {used}17 s left\n"
    )


def test_a_line_of_progress_has_the_balance_of_experts_and_the_dropped_choices(monkeypatch, capsys) -> None:
    monkeypatch.setattr(training_display, "LOG_SECONDS", (0.0,))
    with TrainingDisplay() as display:
        display.show(progress(balance=1.077, dropped=5, dropped_share=0.0213))
    assert capsys.readouterr().err == (
        "update 11/101: loss 3.210, nll 2.510, balance 1.08, dropped 2.1 %, rate 0.0013, 1,234 tokens/s, 17 s left\n"
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
def test_a_dry_run_prints_what_the_whole_training_takes(run, files: Path, monkeypatch, metric: str, rest: str) -> None:
    monkeypatch.setattr("translume.training.dry_run", lambda *_, **__: iter([COST]))
    result = run("train", files / "en-de.toml", "--dry-run", "--set", f"training.metric={metric}")
    assert result.stdout.splitlines() == [
        "memory: 2.10 GB, 7.30 GB on cuda:0",
        "start: 7 s of preparation, 38 s more for the first updates than for later ones",
        "update: 0.02 s, the mean of 211; 410,000 target tokens/s",
        f"training: 10 min for 20,011 updates{rest}",
    ]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("reason", "why", "way"),
    [
        ("updates", "", "raise training.updates"),
        (
            "patience",
            ": no improvement for a while (training.patience)",
            "raise training.patience, or set it to 0",
        ),
    ],
)
def test_a_finished_run_names_the_setting_that_ended_it(
    capsys, tmp_path: Path, reason: Any, why: str, way: str
) -> None:
    event = Finished(
        update=1_017, reason=reason, kept="", nll=2.5, metrics={}, best_update=901, folder=tmp_path, already=True
    )
    with TrainingDisplay() as display:
        display.show(event)
    assert capsys.readouterr().err == f"{tmp_path}: already finished, after 1,017 updates{why}; to continue, {way}\n"


def test_quiet_prints_no_notes_but_warnings(run, files: Path) -> None:
    result = run("train", files / "en-de.toml", "--out", files / "model", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    result = run("translate", files / "model", "--max-length", "1", "--quiet", text="one two\n")
    assert result.exit_code == 0
    assert result.stderr.startswith("1 of 1 translation reached the length limit of 1 tokens")
    result = run("show", files / "model", "--plot", files / "curves.png", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_dry_run_prints_memory_and_times_and_leaves_nothing_behind(run, files: Path) -> None:
    before = names(files)
    result = run("train", files / "en-de.toml", "--out", files / "models" / "en-de", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert names(files) == before
    memory, start, update, training = result.stdout.splitlines()
    assert re.fullmatch(r"memory: \d+\.\d\d GB", memory)
    assert re.fullmatch(r"start: \d+ s of preparation, \d+ s more for the first updates than for later ones", start)
    assert re.fullmatch(r"update: [\d.e-]+ s, the mean of 5; [\d,]+ target tokens/s", update)
    assert re.fullmatch(r"training: \d+ s for 7 updates, without validation and saving", training)
    assert f"; {files}/models/en-de" in result.stderr


def test_a_dry_run_beside_a_model_does_not_read_or_change_it(run, files: Path) -> None:
    (files / "model").mkdir()
    (files / "model" / "README.md").write_text("mine")
    result = run("train", files / "en-de.toml", "--out", files / "model", "--dry-run", "--quiet", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["updates"], found["measured"], found["device"], found["device_bytes"]) == (7, 5, "cpu", None)
    once = found["preparation_seconds"] + found["warm_up_seconds"]
    assert found["training_seconds"] == pytest.approx(once + 7 * found["update_seconds"])
    assert (found["validation_seconds"], found["saving_seconds"]) == (None, None)
    assert found["peak_bytes"] > 50e6
    assert names(files / "model") == ["README.md"]


def test_a_dry_run_of_a_single_update_measures_it(files: Path) -> None:
    config = Config.read(files / "en-de.toml", ["training.updates=1"])
    *events, cost = dry_run(config, files / "model", device="cpu")
    assert isinstance(events[-1], Started)
    assert events[-1].folder == files / "model"
    assert isinstance(cost, DryRun)
    assert (cost.updates, cost.measured) == (1, 1)


def test_show_engine_says_what_computes_and_how_far_it_agrees(run, files: Path, monkeypatch) -> None:
    small = ["model.width=32", "model.feed_forward=48", "model.attention_heads=2"]
    given = [word for each in small for word in ("--set", each)]
    assert run("train", files / "en-de.toml", "--out", files / "model", *given).exit_code == 0
    report = json.loads(run("show", files / "model", "--engine", "--json").stdout)
    assert (report["on_gpus"], report["plain_parts"]) == ("search on the device", [])
    assert all(report["dtypes"][dtype]["agrees"] for dtype in ("fp32", "bf16"))
    assert set(report["dtypes"]) == {"fp32", "bf16", "int8"}
    shown = run("show", files / "model", "--engine").stdout.splitlines()
    assert shown[:2] == [str(files / "model"), f"kernels: {report['kernels']}"]
    assert shown[3].startswith("fp32: agrees with the plain model, by at most ")
    assert shown[3].endswith(" nats; alone and batched identical bit for bit; packed at each start (translume pack)")
    packed = run("pack", files / "model", "--dtype", "fp32", "--dtype", "bf16").stdout.splitlines()
    paths = [Path(line.rpartition(": ")[0]) for line in packed]
    assert packed == [f"{path}: {path.stat().st_size:,} bytes" for path in paths]
    monkeypatch.setattr("translume.cli.show.is_installed", lambda: False)
    shown = run("show", files / "model", "--engine").stdout.splitlines()
    assert shown[2:5] == [
        f"{dtype}: not compared with the plain model, for which torch is not installed; {packed}"
        for dtype, packed in zip(
            ("fp32", "bf16", "int8"),
            (*(f"packed in {path}" for path in paths), "packed at each start (translume pack)"),
            strict=True,
        )
    ]


def test_show_engine_says_why_there_is_none(run, files: Path) -> None:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    shown = run("show", files / "model", "--engine").stdout.splitlines()
    reason = "engine: model.width: found 12, the kernels need a multiple of 16"
    assert shown[-3:] == [f"{dtype}: the plain model is used; {reason}" for dtype in ("fp32", "bf16", "int8")]
