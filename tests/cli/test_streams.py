"""Standard streams that are closed, full or left by their reader: one line at most, and no work lost."""

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from translume.cli import main

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")

Done = subprocess.CompletedProcess[str]
Shell = Callable[[str, str], Done]


@pytest.fixture
def shell(files: Path, command: list[str]) -> Shell:
    """Return a function that runs `translume WORDS REDIRECTIONS` and returns what remained on its streams."""

    def run(words: str, redirections: str) -> Done:
        line = ["bash", "-c", f"{shlex.join(command)} {words} {redirections}"]
        return subprocess.run(line, cwd=files, input="one\n", capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.mark.parametrize("words", ["config en-de.toml", "--help"])
@pytest.mark.parametrize(
    ("redirections", "code", "errors"),
    [
        (">&-", 1, "Error: standard output: is closed\n"),
        (">/dev/full", 1, "Error: standard output: No space left on device\n"),
        ("<&- >&- 2>&-", 1, ""),
        (">/dev/full 2>/dev/full", 1, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line(
    shell: Shell, words: str, redirections: str, code: int, errors: str
) -> None:
    done = shell(words, redirections)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", errors)


@pytest.mark.parametrize("words", ["config en-de.toml"])
def test_a_reader_that_left_ends_a_command_quietly(shell: Shell, words: str) -> None:
    done = shell(words, "| true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_standard_error_that_cannot_be_written_changes_nothing(shell: Shell, files: Path, redirections: str) -> None:
    done = shell("tokenizer train character --size 300 --out made.json train.en", redirections)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (files / "made.json").exists()
    assert shell("nosuch", redirections).returncode == 2


def test_closed_standard_input_is_one_line(shell: Shell) -> None:
    assert shell("tokenizer train character --size 300 --out made.json train.en", "").returncode == 0
    done = shell("tokenizer encode made.json", "<&-")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Error: standard input: is closed\n")


def test_files_opened_later_do_not_become_the_closed_streams(shell: Shell, files: Path) -> None:
    before = (files / "train.en").read_bytes()
    done = shell("data check en-de.toml", "<&- >&- 2>&-")
    assert (done.returncode, (files / "train.en").read_bytes()) == (1, before)


def test_a_training_survives_every_log_that_cannot_be_written(shell: Shell, files: Path) -> None:
    (files / "logs").mkdir()
    (files / "logs" / "history.jsonl").symlink_to("/dev/full")
    (files / "logs" / "tensorboard").write_text("a file in place of a folder", encoding="utf-8")
    done = shell("train en-de.toml --out logs", "")
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings[-1] == (
        "warning: logs/history.jsonl: cannot be written: No space left on device; the training goes on, and lines of "
        "this log are missing"
    )
    rest = ["warning: logs/tensorboard: cannot be written: File exists; the training goes on without it"]
    assert warnings[:-1] in ([], rest)  # TensorBoard may be absent

    piped = shell("train en-de.toml --out piped --json", "| head -n 2; exit ${PIPESTATUS[0]}")
    assert [json.loads(line)["event"] for line in piped.stdout.splitlines()] == ["preparing", "preparing"]
    assert (piped.returncode, piped.stderr) == (
        141,
        "warning: standard output: Broken pipe; the training goes on and prints no more events\n",
    )

    silent = shell("train en-de.toml --out silent", "<&- >&- 2>&-")
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    logs, piped_weights, silent_weights = (
        {path.name: path.read_bytes() for path in (files / name).glob("weights-*")}
        for name in ("logs", "piped", "silent")
    )
    assert logs == piped_weights == silent_weights
    assert silent_weights


def test_a_tokenizer_is_written_into_a_device_and_does_not_replace_it(shell: Shell, files: Path) -> None:
    os.mkfifo(files / "pipe")
    train = "tokenizer train character --size 300 --out"
    done = shell(f"{train} pipe train.en", "& cat pipe; wait")
    assert json.loads(done.stdout)["kind"] == "translume tokenizer"
    assert (files / "pipe").is_fifo()
    assert json.loads(shell(f"{train} /dev/stdout train.en", "").stdout)["kind"] == "translume tokenizer"
    assert Path("/dev/stdout").is_symlink()


def test_output_is_utf8_in_every_locale(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "en-de.toml").write_text('[decoding]\nprefix = "你好"\n', encoding="utf-8")
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "latin-1"))
    main(["config", str(files / "en-de.toml")], standalone_mode=False)
    assert 'prefix = "你好"' in output.getvalue().decode()


# A sample of the cases of benchmarks/fuzz_cli.py: no traceback, no hang, no incomplete file, a known exit code.
def test_broken_streams_damaged_files_and_absurd_numbers_are_answered_in_one_line(warm_python: Path) -> None:
    fuzz = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_cli.py"
    words = [warm_python, fuzz, "--cases", "12", "--seed", "3", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["cases"], found["faults"]) == (12, 0)
