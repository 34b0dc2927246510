"""The file operations of a commit. Tests crash the process at each of them."""

import hashlib
import os
from pathlib import Path

from translume.atomic import beside as beside
from translume.atomic import make_folder as make_folder
from translume.atomic import replace_file as replace_file
from translume.atomic import sync_folder as sync_folder
from translume.atomic import write as write


def sync(path: Path) -> None:
    """Flush a file, written by other code, to disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def replace(path: Path, place: Path) -> None:
    """Rename `path` to `place` atomically, replacing an existing file."""
    os.replace(path, place)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
