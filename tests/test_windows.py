"""Without what Windows lacks (fcntl, resource, pwd, grp, termios, signals and functions of POSIX) the rest works."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from translume import atomic, locks

WITHOUT_POSIX = """
import builtins, os, signal, socket, sys
import asyncio, multiprocessing.connection, shutil, subprocess, tempfile
import numpy, pydantic, rich.console, safetensors, tokenizers
import translume.locks  # before the import below, for its fake
from types import SimpleNamespace

POSIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"}
usual = builtins.__import__

def without_posix(name, globals=None, *arguments, **keywords):
    if name in POSIX and (globals or {}).get("__name__", "").startswith("translume"):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    return usual(name, globals, *arguments, **keywords)

builtins.__import__ = without_posix
sys.modules.pop("translume.locks")
sys.modules["msvcrt"] = SimpleNamespace(LK_NBLCK=2, locking=lambda number, mode, count: None)
for module, names in (
    (os, "fork getuid geteuid getgid fchmod fchown chown pwrite pread setsid killpg sched_getaffinity nice O_NOFOLLOW"),
    (signal, "SIGHUP pthread_sigmask"),
    (socket, "AF_UNIX"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
os.environ["TRANSLUME_NATIVE"] = "0"  # Windows compiles no kernels at first use
"""
COMMANDS = (
    WITHOUT_POSIX
    + """
import json
from click.testing import CliRunner
from translume.cli import main
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words.split(), prog_name="translume")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""
)
IMPORT_ALL = (
    "import torch\n"
    + WITHOUT_POSIX
    + """
from importlib import import_module
from pkgutil import walk_packages
import translume
refused = set()
for each in walk_packages(translume.__path__, "translume."):
    if each.name == "translume.__main__":
        continue
    try:
        import_module(each.name)
    except ModuleNotFoundError as error:
        if error.name in POSIX:
            refused.add(each.name)
print("\\n".join(sorted(refused)))
"""
)


def run(program: str, *arguments: str, folder: Path) -> list[str]:
    """Return the lines that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_commands_of_the_base_run_without_the_modules_and_functions_of_posix(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("The village has 4,909 inhabitants.\n", encoding="utf-8")
    (tmp_path / "a.zh").write_text("这个村庄有4,909个居民。\n", encoding="utf-8")
    (tmp_path / "a.toml").write_text("data = {train_source = 'a.en', train_target = 'a.zh'}", encoding="utf-8")
    words = [
        "translate demo --input a.en --output out --quiet",
        "show demo",
        "score demo a.en a.zh --quiet",
        "evaluate --hypotheses out/a.en a.zh --metrics exact_match",
        "init a.en a.zh",
    ]
    found = [json.loads(line) for line in run(COMMANDS, json.dumps(words), folder=tmp_path)]
    assert [code for code, *_ in found] == [0] * len(words), found
    assert (tmp_path / "out" / "a.en").read_bytes() == (tmp_path / "a.zh").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.en", "a.toml", "a.zh", "out"]


def test_commands_that_need_posix_say_so_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed: pip install translume[serve]")
    pytest.importorskip("torch", reason="torch is not installed: pip install translume[train]")
    (tmp_path / "a.en").write_text("a house\n", encoding="utf-8")
    (tmp_path / "a.toml").write_text("data = {train_source = 'a.en', train_target = 'a.en'}", encoding="utf-8")
    words = ["serve demo", "keys add k.json alice", "sweep a.toml --out runs", "train a.toml --dry-run"]
    found = [json.loads(line) for line in run(COMMANDS, json.dumps(words), folder=tmp_path)]
    assert [(code, errors) for code, _, errors in found] == [
        (1, "Error: translume serve: needs Linux or macOS: found no fcntl, which Windows lacks\n"),
        (1, "Error: translume keys: needs Linux or macOS: found no fcntl, which Windows lacks\n"),
        (1, "Error: translume sweep: needs Linux or macOS: found no resource, which Windows lacks\n"),
        (1, "Error: translume train: needs Linux or macOS: found no resource, which Windows lacks\n"),
    ]


def test_only_serving_and_sweeps_import_a_module_of_posix(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install translume[train]")
    refused = run(IMPORT_ALL, folder=tmp_path)
    experiments = {name.partition(".experiments.")[2] for name in refused if ".serving." not in name}
    assert experiments == {"processes", "sweep", "sweep_table", "tuning", "tuning_report"}


class Windows:
    """The locks of Windows: of bytes, by descriptor; a second one is refused."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: set[tuple[int, int]] = set()

    def locking(self, number: int, mode: int, count: int) -> None:
        place = (os.fstat(number).st_ino, os.lseek(number, 0, os.SEEK_CUR))
        if mode != self.LK_NBLCK or count != 1 or place in self.held:
            raise PermissionError(13, "Permission denied")
        self.held.add(place)


def test_a_lock_of_windows_is_refused_to_a_second_one_and_hides_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "msvcrt", Windows())
    monkeypatch.setattr(locks, "WINDOWS", True)
    (tmp_path / "lock").write_bytes(b"17\n")
    with (tmp_path / "lock").open("r+b") as first, (tmp_path / "lock").open("r+b") as second:
        locks.lock(first.fileno(), wait=False)
        with pytest.raises(BlockingIOError):
            locks.lock(second.fileno(), wait=False)
        assert second.read() == b"17\n"
        locks.release_to_move(first)
        assert first.closed


def test_files_are_flushed_and_replaced_as_windows_can(tmp_path: Path, monkeypatch) -> None:
    opened: list[tuple[Path, int]] = []
    monkeypatch.setattr(atomic, "WINDOWS", True)
    monkeypatch.setattr(atomic, "os", SimpleNamespace(
        **{name: value for name, value in vars(os).items() if name not in ("fchmod", "fchown", "open")},
        open=lambda path, flags, *mode: opened.append((Path(path), flags)) or os.open(path, flags, *mode),
    ))  # fmt: skip
    path = tmp_path / "a.txt"
    for content in (b"first", b"second"):
        atomic.write_file(path, content)
        atomic.replace_file(path, content, permissions=0o600, owner=(0, 0))
        assert path.read_bytes() == content
    atomic.sync_all(tmp_path)
    synced = [each for each in opened if not each[0].name.startswith(".")]
    assert synced == [(path, os.O_RDWR)]
