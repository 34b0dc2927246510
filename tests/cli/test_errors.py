"""Wrong usage gives a one-line error and a documented exit code."""

import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import Result
from tests.errors import raises

from translume.cli.terminal import ProgressBar
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError, check_known, refused


def fails(result: Result, code: int, text: str) -> None:
    assert (result.exit_code, result.stderr, result.stdout) == (code, text, "")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("trian", 2, "translume trian: no such command; did you mean 'train'?"),
        ("data chekc", 2, "translume data chekc: no such command; did you mean 'check'?"),
        ("tokenizer xyz", 2, "translume tokenizer xyz: no such command; known: train, encode, decode"),
        ("show m --settings --data", 1, "--data cannot be combined with --settings"),
        ("show m --engine --plot a.png", 1, "--plot cannot be combined with --engine"),
        ("evaluate m --direction en-de a b --compare m", 1, "--compare cannot be combined with --direction"),
        ("config none.toml", 1, "none.toml: cannot be read: No such file or directory"),
        ("init empty empty", 1, "empty: empty file, expected one sentence a line"),
        ("demo --languages en-xx --out demo", 1,
         "--languages: the demo has no phrases in 'xx'; known: en, zh, de, fr, es"),
        ("demo --languages english", 1, "--languages: found 'english', expected two languages such as en-zh"),
    ],
)  # fmt: skip
def test_errors_are_one_line(run, tmp_path: Path, monkeypatch, words: str, code: int, text: str) -> None:
    if words.startswith("demo"):
        pytest.importorskip("babel")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("", encoding="utf-8")
    fails(run(*words.split()), code, f"Error: {text}\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("train", "Missing argument 'CONFIG'."),
        ("translate m --beam many", "Invalid value for '--beam': 'many' is not a valid integer."),
        ("inspect m a --dtype int8", "Invalid value for '--dtype': 'int8' is not one of 'auto', 'fp32', 'bf16'."),
        ("evaluate m", "expected MODEL SOURCE REFERENCE, or MODEL and one file of pairs"),
    ],
)
def test_misuse_exits_with_two(run, words: str, line: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, result.stdout, result.stderr.splitlines()[-1]) == (2, "", f"Error: {line}")


def test_settings_of_a_newer_format_are_refused(run, files: Path) -> None:
    path = files / "en-de.toml"
    path.write_text(f"format = 3\n{path.read_text()}", encoding="utf-8")
    newer = "found 3, newer than 2, the newest this Translume reads; upgrade Translume"
    for words in (("config", path), ("train", path, "--out", files / "model"), ("data", "check", path)):
        fails(run(*words), 1, f"Error: {path}: format: {newer}\n")
    assert not (files / "model").exists()


@pytest.mark.parametrize("out", ["file", "file/below"])
@pytest.mark.parametrize("command", ["train", "heads", "sweep"])
def test_a_file_instead_of_a_folder_for_the_output_is_refused(run, files: Path, command: str, out: str) -> None:
    (files / "file").write_text("kept")
    refused = run(command, files / "en-de.toml", "--out", files / out)
    fails(refused, 1, f"Error: {files}/file: is a file, expected a folder\n")
    assert (files / "file").read_text() == "kept"


def test_suggested_commands_can_be_pasted_whatever_the_path(run, files: Path) -> None:
    folder = files / "my models" / "it's"
    last = run("train", files / "en-de.toml", "--out", folder).stderr.splitlines()[-1]
    words = shlex.split(last)
    assert words == [
        *("Next:", "translume", "translate", str(folder), "<", "TEXT,"),
        *("or", "translume", "evaluate", str(folder), "SOURCE", "REFERENCE"),
    ]
    missing = run("keys", "list", files / "my keys").stderr
    assert f"`translume keys add {shlex.quote(str(files / 'my keys'))} NAME`" in missing


def test_an_interruption_before_the_first_line_suggests_the_same_command() -> None:
    bar = ProgressBar("translating", unit="lines")
    assert bar.hint() == "Interrupted before the first line; the same command starts again."
    bar.advance(3)
    assert bar.hint() == "Interrupted after line 3; continue with `tail -n +4`"


def test_ctrl_c_exits_with_130_and_says_how_to_resume(run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("translume.config.Config.read", interrupted)
    fails(run("config", files / "en-de.toml"), 130, "\nInterrupted; the same command starts again.\n")


def test_options_override_the_file_and_set_overrides_options(run, files: Path) -> None:
    path = files / "en-de.toml"
    assert "beam = 5\n" in run("config", path).stdout
    assert "beam = 7\n" in run("config", path, "--beam", "7").stdout
    assert "beam = 3\n" in run("config", path, "--set", "decoding.beam=3", "--beam", "7").stdout


@pytest.mark.parametrize(
    ("words", "text", "line"),
    [
        ("decode a.json", "9" * 5000, f"line 1: found '{'9' * 20}', expected ids from 0 to 258"),
        ("train byte words --set model.width=32", "", "--set model.width=32: this command changes only tokenizer.*"),
        ("train byte words --out folder", "", "folder: is a folder, expected a file to write"),
    ],
)
def test_invalid_numbers_and_paths_are_one_line_errors(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, text: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "words").write_text("one\n", encoding="utf-8")
    assert run("tokenizer", "train", "byte", "words", "--out", "a.json").exit_code == 0
    fails(run("tokenizer", *words.split(), text=f"{text}\n"), 1, f"Error: {line}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "folder", "words"]


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (MemoryError(), ""),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes. Error code 12"),
         " for 4000 bytes more"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"), " for 20.00 GiB more"),
    ],
)  # fmt: skip
def test_out_of_memory_is_a_one_line_error(run, monkeypatch: pytest.MonkeyPatch, error: Exception, more: str) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr("translume.cli.tokenizer._loaded", lambda path, target: fail(path))
    result = run("tokenizer", "encode", "model", text="a\n")
    fails(result, 1, f"Error: not enough memory{more}; try fewer tokens in a batch or a smaller beam\n")


def test_internal_errors_keep_their_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, target: bool) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("translume.cli.tokenizer._loaded", fail)
    assert repr(run("tokenizer", "encode", "model", text="a\n").exception) == "RuntimeError('ours')"


def test_an_argument_that_is_not_utf8_is_a_one_line_error(files: Path, command: list[str]) -> None:
    words = [*command, "config", str(files / "en-de.toml"), "--prefix", b"a\xff"]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    message = "Error: found the byte 0xff in an argument or a file name, expected UTF-8 text\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_a_host_that_is_not_utf8_is_named() -> None:
    run = pytest.importorskip("translume.serving.run", reason="the server's packages are not installed")
    with raises(TranslumeError, "host: found '\\udcff', expected an address or a host name"):
        run.listen("\udcff", 0)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("x", "'x'; known: relu, gelu"),
        ("Relu", "'Relu'; did you mean 'relu'?"),
        ("a\nb", "'a\\nb'; known: relu, gelu"),
        (["relu"], "['relu']; did you mean 'relu'?"),
        (None, "None; known: relu, gelu"),
    ],
)
def test_what_is_not_known_is_one_line_whatever_it_is(found: object, shown: str) -> None:
    check_known("act", "relu", {"relu": 1, "gelu": 2})
    with raises(SettingsError, f"act: found {shown}"):
        check_known("act", found, {"relu": 1, "gelu": 2})


def test_what_the_system_refuses_is_one_line_with_the_place(tmp_path: Path) -> None:
    message = "x: cannot be read: No such file or directory"
    with raises(ModelFolderError, message), refused("x", "cannot be read", ModelFolderError):
        (tmp_path / "none").read_bytes()
    with raises(DataError, "x: cannot be written: unknown"), refused("x", "cannot be written"):
        raise OSError("unknown")
