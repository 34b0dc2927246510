"""Atomic file replacement: readers see the complete old file or the complete new one, whatever fails."""

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.atomic import replace_file

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
