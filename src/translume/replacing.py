"""Small files that are whole at any moment: written beside their place and renamed."""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def replace_file(
    path: Path,
    content: bytes,
    *,
    synced: bool = True,
    permissions: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write `path` beside its place and rename it: whole at any moment, and as it was before where this fails.

    synced, permissions and owner are those of `write`.  A link is replaced itself; what it leads to stays.
    Raises OSError.
    """
    part = beside(path)
    try:
        write(part, [content], synced=synced, permissions=permissions, owner=owner)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if synced:
        # It is in its place: that a folder cannot be synced undoes nothing.
        with suppress(OSError):
            sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder onto the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    synced: bool = True,
    permissions: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write `path` piece by piece.

    synced: whether it is on the disk when this returns; else it is there when the system finds the time.
    permissions: those of a new file, whatever the umask; nobody else reads it meanwhile.  None: as the umask leaves.
    owner: the numbers of a user and a group, who get the file where this process may give it away.
    """
    with open(path, "wb", opener=None if permissions is None else _for_its_owner) as file:
        if owner is not None:
            # Who may not give a file away made it theirs before.
            with suppress(PermissionError):
                os.fchown(file.fileno(), *owner)
        if permissions is not None:
            os.fchmod(file.fileno(), permissions)
        for chunk in chunks:
            file.write(chunk)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def beside(path: Path) -> Path:
    """A name in the folder of `path` for what shall take its place: hidden, and another one for every call."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
