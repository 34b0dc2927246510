"""Files that commands write are complete or absent; failures are one-line errors."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Thread

import pytest
from tests.errors import raises

from translume.atomic import check_writable, write_file
from translume.errors import DataError


def test_output_file_is_written_and_replaces_an_existing_one(tmp_path: Path) -> None:
    for content in (b"one", b"another"):
        check_writable(tmp_path / "file")
        write_file(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_full_disk_leaves_the_existing_file(
    tmp_path: Path, full_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with full_disk(), raises(DataError, f"{path}: cannot be written: No space left on device"):
        write_file(path, b"another")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "is a folder, expected a file to write"),
        ("none/file", "cannot be written: No such file or directory"),
        ("plain/file", "cannot be written: Not a directory"),
    ],
)
def test_unwritable_output_path_is_reported_before_and_after_the_run(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").touch()
    for attempt in (check_writable, lambda path: write_file(path, b"x")):
        with raises(DataError, f"{tmp_path / name}: {reason}"):
            attempt(tmp_path / name)


def test_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"content")
    reader.join()
    assert read == [b"content"]
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_writing_to_standard_output_keeps_the_order_of_output(tmp_path: Path, name: str) -> None:
    script = f"""
from pathlib import Path
from translume.atomic import check_writable, write_file
print("before")
check_writable(Path("{name}"))
write_file(Path("{name}"), b"content\\n")
print("after")
"""
    with (tmp_path / "out").open("wb") as out:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
        subprocess.run([sys.executable, "-c", script], stdout=out, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "before\ncontent\nafter\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert not Path("/dev/stdout").exists() or Path("/dev/stdout").is_symlink()


def test_writing_through_a_symlink_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for content in (b"one", b"another"):
        check_writable(tmp_path / "link")
        write_file(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_bytes() == content
    assert list((tmp_path / "there").iterdir()) == [tmp_path / "there" / "file"]
