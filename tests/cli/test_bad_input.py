"""Bad input on the command line: one line on standard error, exit code 1, no incomplete files."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from translume.checkpoint import Manifest
from translume.checksums import sealed

MEGABYTE = "x" * 1_000_000
SETTINGS = """
data = {train_source = "train.en", train_target = "train.de", source_language = "en", target_language = "de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 3, max_tokens = 512, warmup_updates = 2, validate_every = 50, save_every = 2, precision = "fp32"}
"""

Type = Callable[..., Result]


def fails(done: Result, line: str) -> None:
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {line}\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, run: Type) -> Path:
    """A folder with 1,331 pairs, settings that fit them and a model of three updates."""
    folder = tmp_path_factory.mktemp("bad")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    sources = [f"{first} {second} {third}" for first in words for second in words for third in words]
    (folder / "train.en").write_text("".join(f"{text}\n" for text in sources), encoding="utf-8")
    (folder / "train.de").write_text("".join(f"{text[::-1]}\n" for text in sources), encoding="utf-8")
    (folder / "en-de.toml").write_text(SETTINGS, encoding="utf-8")
    done = run("train", folder / "en-de.toml", "--out", folder / "model")
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture
def copied(home: Path, tmp_path: Path) -> Path:
    """Return a copy of the model, to be damaged."""
    return Path(shutil.copytree(home / "model", tmp_path / "model"))


def _mounted(folder: Path, options: str) -> bool:
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        return False
    words = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a small disk with the given options; skip the test if mounting is not permitted."""
    made: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"disk{len(made)}"
        folder.mkdir()
        if not _mounted(folder, options):
            pytest.skip("a tmpfs cannot be mounted here: that takes root and the right to mount")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", str(folder)], check=True)


# ---- training data and settings


def spoilt_training(run: Type, home: Path, change: str) -> str:
    """Return the error of `train` with one setting changed; it must fail and create no folder."""
    done = run("train", home / "en-de.toml", "--out", home / "spoilt", "--set", change)
    assert (done.exit_code, done.stdout) == (1, "")
    assert not (home / "spoilt").exists()
    return done.stderr


def test_an_empty_file(run: Type, home: Path) -> None:
    (home / "empty").write_text("", encoding="utf-8")
    said = spoilt_training(run, home, f'data.train_target="{home}/empty"')
    assert said == f"Error: {home}/train.en has 1,331 lines but {home}/empty has 0; expected as many in both\n"
    done = run("tokenizer", "train", "bpe", "--out", home / "tokenizer.json", home / "train.en", home / "empty")
    fails(done, f"{home}/empty: empty file, expected one sentence a line")
    assert not (home / "tokenizer.json").exists()


def test_broken_utf8_at_line_812(run: Type, home: Path) -> None:
    lines = (home / "train.de").read_bytes().split(b"\n")
    lines[811] = b"ab\xffcd"
    (home / "broken.de").write_bytes(b"\n".join(lines))
    convert = f"iconv -f WINDOWS-1252 -t UTF-8 {home}/broken.de > {home}/broken.utf-8.de"
    message = f"{home}/broken.de:812: not UTF-8 (byte 0xff at column 3); if it is Windows-1252, convert it: {convert}"
    said = spoilt_training(run, home, f'data.train_target="{home}/broken.de"')
    assert said == f"Error: {message}\n"
    fails(run("evaluate", home / "model", home / "train.en", home / "broken.de", "--write", home / "out"), message)
    assert not (home / "out").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("data.train_source='{home}/none.en'", "{home}/none.en: no such file"),
        ("data.train_target='{home}/short.de'",
         "{home}/train.en has 1,331 lines but {home}/short.de has 2; expected as many in both"),
        ("training.update=3",
         "{home}/en-de.toml: training.update: no such setting; did you mean 'training.updates'?"),
        ("model.width=wide", "{home}/en-de.toml: model.width: found 'wide', expected a valid integer"),
        ("model.width=13", "{home}/en-de.toml: model: width 13 is not divisible by attention_heads 2"),
    ],
)  # fmt: skip
def test_files_and_settings_that_do_not_fit(run: Type, home: Path, change: str, line: str) -> None:
    (home / "short.de").write_text("x\ny\n", encoding="utf-8")
    assert spoilt_training(run, home, change.format(home=home)) == f"Error: {line.format(home=home)}\n"


def test_megabyte_line_is_dropped_from_training_and_counted(run: Type, home: Path) -> None:
    for side, more in (("en", MEGABYTE), ("de", "short")):
        text = (home / f"train.{side}").read_text(encoding="utf-8")
        (home / f"long.{side}").write_text(f"{text}{more}\n", encoding="utf-8")
    change = [f'data.train_source="{home}/long.en"', f'data.train_target="{home}/long.de"']
    done = run(
        "train", home / "en-de.toml", "--out", home / "long", *(word for each in change for word in ("--set", each))
    )
    assert done.exit_code == 0
    account = "training data: 1,332 pairs read, 1,305 used, 26 held out for validation, 1 dropped\n  too long: 1\n"
    assert account in done.stderr
    shown = json.loads(run("show", home / "long", "--json").stdout)["data"]["training"]
    assert (shown["read"], shown["used"], shown["held_out"]) == (1332, 1305, 26)
    assert shown["dropped"]["too long"] == 1


# ---- models and text


def test_a_truncated_weights_file(run: Type, copied: Path) -> None:
    weights = next(copied.glob("weights-*.safetensors"))
    size = weights.stat().st_size
    os.truncate(weights, size - 100)
    fails(run("translate", copied, text="one\n"), f"{weights}: damaged: {size - 100:,} bytes, expected {size:,}")


@pytest.mark.parametrize("verb", ["translate", "train"])
def test_a_folder_of_a_newer_format(run: Type, home: Path, copied: Path, verb: str) -> None:
    manifest = copied / "manifest.json"
    values = json.loads(manifest.read_text(encoding="utf-8"))
    del values["sha256"]
    manifest.write_text(sealed({**values, "format": 7}), encoding="utf-8")
    before = sorted(copied.rglob("*"))
    words = [home / "en-de.toml", "--out", copied] if verb == "train" else [copied]
    done = run(verb, *words, text="one\n")
    fails(done, f"{copied}: format 7 is newer than format 2, the newest this Translume reads; upgrade Translume")
    assert sorted(copied.rglob("*")) == before


def test_megabyte_line_is_translated(run: Type, home: Path) -> None:
    done = run("translate", home / "model", "--strategy", "greedy", text=f"one\n{MEGABYTE}\ntwo\n")
    assert (done.exit_code, done.stdout.count("\n")) == (1, 1)
    assert done.stderr == (
        "Error: line 2: a sentence has 1,000,000 tokens, expected at most 1,023; "
        'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it\n'
    )


# ---- disks


def test_a_full_disk_at_the_beginning_of_training(run: Type, home: Path, disk: Callable[[str], Path]) -> None:
    full = disk("size=8k")
    (full / "other").write_bytes(b"x" * 8192)
    done = run("train", home / "en-de.toml", "--out", full / "model")
    fails(done, f"{full}/model: the disk is full: no room for config.toml")
    assert [path.name for path in full.iterdir()] == ["other"]


def test_full_disk_while_training_leaves_a_resumable_run(run: Type, home: Path, disk: Callable[[str], Path]) -> None:
    small = disk("size=180k")
    done = run("train", home / "en-de.toml", "--out", small / "model")
    assert done.exit_code == 1
    # The cache fits, all files of a model do not; which of them is the first depends on the file system's overhead.
    files = r"(weights|resume/raw|resume/optimizer)\.safetensors|lengths\.json"
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(rf"Error: {re.escape(str(small))}/model: the disk is full: no room for ({files})", last), last
    assert "Traceback" not in done.stderr
    assert not [path for path in small.rglob("*") if path.suffix == ".part" or path.name.startswith("weights")]
    subprocess.run(["mount", "-o", "remount,size=2m", str(small)], check=True)
    again = run("train", home / "en-de.toml", "--out", small / "model")
    assert again.exit_code == 0, again.stderr
    for path in (home / "model").glob("weights-*"):
        assert (small / "model" / path.name).read_bytes() == path.read_bytes()


def test_full_disk_for_files_that_commands_write(
    run: Type, command: list[str], home: Path, disk: Callable[[str], Path]
) -> None:
    full = disk("size=4k")
    (home / "few.en").write_text("one two three\n" * 170, encoding="utf-8")
    lengths = ("--min-length", "30", "--max-length", "30")
    words = [*command, "translate", home / "model", home / "few.en", "--strategy", "greedy", *lengths]
    with open(full / "out", "w") as output:
        done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    # Before the error there are warnings about the targets of a hardly trained model.
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "Error: standard output: No space left on device")
    (full / "out").write_bytes(b"x" * 4096)
    done = run("show", home / "model", "--plot", full / "curves.png")
    fails(done, f"{full}/curves.png: cannot be written: No space left on device")
    (home / "two").write_text("one two three\ntwo three four\n", encoding="utf-8")
    done = run("evaluate", home / "model", home / "two", home / "two", "--write", full / "written")
    fails(done, f"{full}/written: cannot be written: No space left on device")
    assert [path.name for path in full.iterdir()] == ["out"]


def test_read_only_folder(run: Type, home: Path, disk: Callable[[str], Path]) -> None:
    locked = disk("ro,size=4k")
    done = run("train", home / "en-de.toml", "--out", locked / "model")
    fails(done, f"{locked}/model: cannot be written: Read-only file system")
    done = run("evaluate", home / "model", home / "train.en", home / "train.de", "--write", locked / "out")
    fails(done, f"{locked}/out: cannot be written: Read-only file system")


# ---- misuse and Ctrl-C


def test_ctrl_c_ends_a_training_that_still_fills_its_first_buffer(
    run: Type, warm_python: Path, home: Path, tmp_path: Path
) -> None:
    program = """
import time
from translume.cli import main
from translume.data.streaming import EpochReader
def read(reader, most):  # a slow source
    print("reading", flush=True)
    time.sleep(60)
EpochReader.read = read
main(prog_name="translume")
"""
    settings = {"streaming": "true", "cleaning.max_tokens": 50}
    settings |= {f"valid_{side}": f"'{home}/train.{name}'" for side, name in (("source", "en"), ("target", "de"))}
    options = [word for name, value in settings.items() for word in ("--set", f"data.{name}={value}")]
    line = ["train", home / "en-de.toml", "--out", tmp_path / "model", *options]
    running = subprocess.Popen(
        [warm_python, "-c", program, *line], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "reading\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert errors.splitlines()[-1] == (
        f"Interrupted after 0 updates, all saved; continue with: translume train {home}/en-de.toml "
        f"--out {tmp_path}/model {shlex.join(options)}"
    )
    assert not (tmp_path / "model" / "resume").exists()
    assert "weights.safetensors" not in Manifest.read(tmp_path / "model").files
    assert run(*line, "--set", "training.updates=2").exit_code == 0


def test_ctrl_c_saves_and_prints_the_command_that_resumes(run, command: list[str], home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    options = ["--set", "training.updates=100000", "--set", "training.log_every=1"]
    line = [*command, "train", home / "en-de.toml", "--out", folder, *options]
    running = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 180
    history = folder / "history.jsonl"
    while not (history.exists() and '"event": "progress"' in history.read_text("utf-8")):
        assert time.monotonic() < until
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=180)
    assert (running.returncode, output) == (130, "")
    updates = json.loads(run("show", folder, "--json").stdout)["training"]["update"]
    assert errors.splitlines()[-1] == (
        f"Interrupted after {updates:,} updates, all saved; continue with: translume train {home}/en-de.toml "
        f"--out '{folder}' {' '.join(options)}"
    )
    again = run("train", home / "en-de.toml", "--out", folder, "--set", f"training.updates={updates + 2}", "--json")
    events = [json.loads(text) for text in again.stdout.splitlines()]
    assert [event["update"] for event in events if event["event"] == "resumed"] == [updates]
    assert again.exit_code == 0
