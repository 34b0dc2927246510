"""Calibration with `translume evaluate`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from translume.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, train_for_a_moment: Callable[..., Path]) -> Path:
    """Return a folder with a briefly trained model and its training pairs."""
    return train_for_a_moment(tmp_path_factory.mktemp("pairs"), model=1)


def words(pairs: Path, *options: str | Path) -> tuple[str | Path, ...]:
    return ("evaluate", pairs / "model", pairs / "a.en", pairs / "a.de", "--beam", "1", *options)


def test_calibration_is_measured_drawn_fitted_and_used(run, pairs: Path) -> None:
    result = run(*words(pairs, "--calibration", "-", "--json"))
    assert result.exit_code == 0, result.stderr
    scores, measured = map(json.loads, result.stdout.splitlines())
    assert sorted(scores) == ["reached_limit", "scores", "sentences", "truncated"]
    assert measured["calibration"]["temperature"] == 1.0
    assert load_checkpoint(pairs / "model").temperature is None
    refused = run(*words(pairs, "--calibrated"))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "Error: decoding.calibrated: no temperature was fitted to the model's weights; "
        "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one\n"
    )
    result = run(*words(pairs, "--calibration", pairs / "plot.png", "--fit-temperature", "--record"))
    assert result.exit_code == 0, result.stderr
    assert result.stderr == (
        f"{pairs}/model: temperature stored; --calibrated or decoding.calibrated = true uses it\n"
        f"{pairs}/plot.png: written\n"
        "12 of 12 translations reached the length limit of 24 tokens; --max-length N sets another\n"
    )
    heads = [line.split("|")[0] for line in result.stdout.splitlines()]
    assert heads == ["BLEU", "chrF2", "temperature", *["ECE"] * 4]
    assert (pairs / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not list(pairs.glob(".*.part"))
    stored = load_checkpoint(pairs / "model").temperature
    assert stored is not None
    events = [json.loads(line) for line in (pairs / "model" / "history.jsonl").read_text().splitlines()]
    last = [each for each in events if each["event"] == "calibrated"]
    assert last[0]["fitted"] == stored.to_dict()
    assert [each["calibration"]["temperature"] for each in last[1:]] == [1.0, stored.value]
    result = run(*words(pairs, "--calibrated", "--calibration", "-", "--json"))
    found = [json.loads(line)["calibration"] for line in result.stdout.splitlines()[1:]]
    assert [each["temperature"] for each in found] == [1.0, stored.value]
    assert found[0] == measured["calibration"]
    assert found[1]["nll"] == pytest.approx(stored.nll, rel=1e-6)
    assert run("show", pairs / "model").exit_code == 0


def test_unwritable_picture_path_is_refused_at_once(run, pairs: Path) -> None:
    result = run(*words(pairs, "--calibration", pairs / "plot.exe"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: {pairs}/plot.exe: found '.exe', expected an image extension such as .png, .svg or .pdf\n"
    )
    result = run(*words(pairs, "--calibration", pairs / "none" / "plot.png"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {pairs}/none/plot.png: cannot be written: No such file or directory\n"


def test_unsmooth_option_removes_label_smoothing(run, pairs: Path) -> None:
    result = run("translate", pairs / "model", "--unsmooth", "0.1", "--beam", "2", text="ab kl\n")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    result = run("translate", pairs / "model", "--unsmooth", "1.5", text="ab kl\n")
    assert result.exit_code == 1
    assert result.stderr == "Error: decoding.unsmooth: found 1.5, expected less than 1\n"


def test_run_with_calibrated_decoding_validates_before_calibration(run, pairs: Path) -> None:
    wishes = ("decoding.calibrated=true", "training.metric=exact_match", "training.updates=1")
    options = [word for wish in wishes for word in ("--set", wish)]
    result = run("train", pairs / "a.toml", "--out", pairs / "later", "--threads", "1", *options)
    assert result.exit_code == 0, result.stderr
    assert run("translate", pairs / "later", "--uncalibrated", text="ab\n").exit_code == 0
