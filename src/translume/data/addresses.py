"""Files by address, such as s3://bucket/train.en.zst, through fsspec."""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, cast

from translume.errors import DataError, needed_by


def is_address(path: Path | str) -> bool:
    """Return whether a path is an address of a protocol, such as s3, gs, hf, https or memory."""
    return "://" in str(path)


def opened(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading bytes, by path or address. Raises OSError, and DataError for an unknown protocol."""
    if not is_address(path):
        return open(path, "rb")
    system, name = _resolved(path)
    return cast(AbstractContextManager[BinaryIO], system.open(name, "rb"))


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 if its server does not say it. Raises OSError."""
    if not is_address(path):
        return os.stat(path).st_size
    system, name = _resolved(path)
    return int(system.size(name) or 0)


def state_of(path: str) -> str:
    """Return a text that changes when a file does: size and times, or what its file system says. Raises OSError."""
    if not is_address(path):
        state = os.stat(path)
        return f"{os.path.abspath(path)}:{state.st_size}:{state.st_mtime_ns}:{state.st_ctime_ns}:{state.st_ino}"
    system, name = _resolved(path)
    return f"{path}:{system.checksum(name)}"


def matching(pattern: str) -> list[str]:
    """Return the addresses of the files that a pattern stands for, sorted. Raises DataError if it cannot list them."""
    try:
        system, name = _resolved(pattern)
        return sorted(system.unstrip_protocol(each) for each in system.glob(name))
    except (OSError, ValueError) as error:  # ValueError: an address that the protocol does not allow
        raise DataError(f"{pattern}: cannot be read: {error}") from None


def _resolved(path: str) -> tuple[Any, str]:
    """Return the file system of an address, and the name there."""
    with needed_by(path):
        from fsspec.core import url_to_fs
    try:
        system, name = url_to_fs(path)
    except (ValueError, ImportError) as error:  # an unknown protocol; one whose package is missing
        raise DataError(f"{path}: cannot be read: {error}") from None
    return system, name
