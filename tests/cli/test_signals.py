"""Signals end a training with one line, a saved state and the code of the signal; names are text of the locale."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SETTINGS = """
data = {train_source = "train.en", train_target = "train.de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 100000, max_tokens = 512, log_every = 1, precision = "fp32", validate_every = 100000}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with 99 pairs and settings."""
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("".join(f"text {number} {side}\n" for number in range(99)))
    (tmp_path / "en-de.toml").write_text(SETTINGS)
    return tmp_path


def begun(line: list[str], folder: Path, *, ignored: bool = False) -> "subprocess.Popen[str]":
    """Start a command, and return it after its first update in `folder`.  ignored: with SIGINT ignored."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    running = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=folder.parent, preexec_fn=ignore)
    until = time.monotonic() + 180
    while not any(
        '"progress"' in path.read_text("utf-8") for path in folder.parent.glob(f"{folder.name}/history.jsonl")
    ):
        assert time.monotonic() < until
        time.sleep(0.02)
    return running


@pytest.mark.parametrize(
    ("signals", "ignored", "code"),
    [
        ([signal.SIGINT] * 5, False, 130),
        ([signal.SIGHUP], False, 129),
        ([signal.SIGHUP, signal.SIGINT, signal.SIGTERM], False, 129),
        ([signal.SIGINT, signal.SIGTERM], True, 143),
    ],
)
def test_signals_end_a_training_in_one_line(
    command: list[str], home: Path, signals: list[signal.Signals], ignored: bool, code: int
) -> None:
    if ignored:  # which a warm process does not inherit
        command = [sys.executable, "-m", "translume"]
    running = begun([*command, "train", "en-de.toml", "--out", "model"], home / "model", ignored=ignored)
    for number in signals:
        running.send_signal(number)
        time.sleep(0.3 if ignored else 0.002)
    _, errors = running.communicate(timeout=180)
    assert running.returncode == code
    assert errors.splitlines()[-1].startswith("Interrupted after ")
    assert errors.count("nterrupted") == 1
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_dry_run_that_is_ended_leaves_nothing(command: list[str], home: Path, number: signal.Signals) -> None:
    before = sorted(home.iterdir())
    (home / "slow.en").write_text("".join(f"text {each}\n" for each in range(300_000)))
    settings = ["--set", "data.train_source=slow.en", "--set", "data.train_target=slow.en"]
    line = [*command, "train", "en-de.toml", "--dry-run", *settings]
    running = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=home)
    while not list(home.glob(".dry-run-*")) and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(number)
    _, errors = running.communicate(timeout=180)
    (home / "slow.en").unlink()
    assert (running.returncode, errors.count("Traceback")) == (128 + number, 0)
    assert sorted(home.iterdir()) == before


def test_names_that_the_locale_cannot_read_are_refused_at_once(home: Path) -> None:
    command = [sys.executable, "-m", "translume"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    line = [*command, "train", "en-de.toml", "--out", "größe"]
    done = subprocess.run(line, env=environment, cwd=home, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        "Error: Invalid value for '--out': found the byte 0xc3, which is not text in the locale LC_ALL=C; "
        "set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
    )
    (home / "größe.toml").write_text(SETTINGS.replace("train.en", "größe.en"))
    done = subprocess.run(
        [*command, "train", home / "größe.toml"],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: found 'ö' in an argument or a file name, which is not text in the locale LC_ALL=C; "
        "set LC_ALL=C.UTF-8 or PYTHONUTF8=1\n"
    )


def test_an_empty_folder_is_refused(run, home: Path) -> None:
    done = run("train", home / "en-de.toml", "--out", "")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        "Error: Invalid value for '--out': found nothing, expected a folder; '.' is the current one"
    )


def test_a_file_size_limit_is_named(home: Path) -> None:
    train = [sys.executable, "-m", "translume", "train", "en-de.toml", "--out", "model"]
    train += ["--set", "training.save_every=5"]
    line = ["bash", "-c", 'ulimit -f 8; exec "$@"', "limited", *train]
    done = subprocess.run(line, cwd=home, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: model")
    assert last.endswith("cannot be written: the file size limit is reached (ulimit -f)")
