"""Atomic file replacement: readers see the complete old file or the complete new one, whatever fails."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.errors import raises

from translume.atomic import check_writable, replace_file, write_file
from translume.errors import DataError

OLD, NEW = b"old", b"new " * 3000


@given(contents=st.lists(st.binary(max_size=17), min_size=1, max_size=4), synced=st.booleans())
def test_a_file_contains_the_last_write_and_no_temporary_file_remains(contents: list[bytes], synced: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for content in contents:
            replace_file(path, content, synced=synced)
            assert path.read_bytes() == content
            assert list(Path(folder).iterdir()) == [path]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    return path


def is_as_before(path: Path) -> bool:
    return path.read_bytes() == OLD and list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_file_unchanged(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        for synced in (True, False):
            with pytest.raises(OSError, match="File too large") as caught:
                replace_file(path, NEW, synced=synced)
            assert caught.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert is_as_before(path)


@pytest.mark.parametrize("operation", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "Input/output error")])
def test_an_interrupted_write_leaves_the_file_unchanged(
    path: Path, operation: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, broken)
        with pytest.raises(type(error) if isinstance(error, OSError) else KeyboardInterrupt):
            replace_file(path, NEW)
    assert is_as_before(path)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Drop root's permission to write anywhere while the context lasts."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_keeps_its_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(OLD)
        Path(folder).chmod(0o555)
        with unprivileged(), pytest.raises(PermissionError):
            replace_file(path, NEW)
        Path(folder).chmod(0o700)
        assert is_as_before(path)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def permissions_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("bits", [0o000, 0o022, 0o077])
def test_permissions_are_those_given_or_those_of_a_new_file(path: Path, bits: int) -> None:
    path.chmod(0o604)
    with umask(bits):
        replace_file(path, NEW)
        assert permissions_of(path) == 0o666 & ~bits
        for wanted in (0o600, 0o644, 0o660):
            replace_file(path, NEW, permissions=wanted)
            assert permissions_of(path) == wanted


def test_the_temporary_file_is_private_until_it_has_its_permissions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.fchmod

    def watched(number: int, mode: int) -> None:
        seen.append((os.fstat(number).st_mode & 0o777, os.fstat(number).st_size))
        real(number, mode)

    monkeypatch.setattr(os, "fchmod", watched)
    with umask(0):
        replace_file(path, NEW, permissions=0o640)
    assert seen == [(0o600, 0)]


def test_the_owner_is_set_if_permitted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = []

    def refused(_: int, user: int, group: int) -> None:
        given_.append((user, group))
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refused)
    replace_file(path, NEW, owner=(7, 11))
    assert given_ == [(7, 11)]
    assert path.read_bytes() == NEW


def test_concurrent_replacements_never_mix_contents(path: Path) -> None:
    contents = [bytes([letter]) * 50_000 for letter in b"abcdef"]

    def replace(content: bytes) -> bytes:
        replace_file(path, content, synced=False)
        return path.read_bytes()

    with ThreadPoolExecutor(len(contents)) as pool:
        seen = list(pool.map(replace, contents * 20))
    assert set(seen) <= set(contents)
    assert path.read_bytes() in contents
    assert list(path.parent.iterdir()) == [path]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="expected a regular file"):
            replace_file(tmp_path / name, NEW)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


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
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")}
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
