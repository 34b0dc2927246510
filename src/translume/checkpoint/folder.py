"""A folder whose state changes all at once: new files beside the old ones, then a new manifest over the old one.

Readers go by `manifest.json`, which names each file with a part of its digest. Until it is replaced, by one rename,
the old state is complete; afterwards the new one is. What no manifest names any more is swept away after that.
"""

import errno
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from translume.checkpoint import disk
from translume.checkpoint.manifest import NAME, Entry, Manifest
from translume.errors import ModelFolderError

Content = bytes | Callable[[Path], None]
"""What a file shall hold: its bytes, or a function that writes it to the path it is given."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DIGITS = 16
_COMMITTED = re.compile(rf".+-[0-9a-f]{{{_DIGITS}}}(\.[^.]*)?")
_PART = re.compile(r"\..+\.part")


def commit(folder: Path, files: Mapping[str, Content], *, remove: Iterable[str] = ()) -> Manifest:
    """The new state of `folder`: its committed files, with `files` put in and those named in `remove` left out.

    Names are paths inside the folder with `/`, such as "resume/optimizer.safetensors". A file whose content is what
    was committed before stays untouched. Whatever instant the process dies at, the folder holds the old state or the
    new one. Raises ModelFolderError, with the old state intact and nothing left over, when the disk is full or the
    folder cannot be written.
    """
    old = Manifest.read(folder) if (folder / NAME).exists() else Manifest(files={})
    dropped = set(remove)
    kept = {name: entry for name, entry in old.files.items() if name not in dropped and name not in files}
    placed: list[Path] = []
    name = "the folder"
    try:
        disk.make_folder(folder)
        entries = dict(kept)
        for name, content in files.items():
            entries[name] = _place(folder, name, content, old.files.get(name), placed)
        name = NAME
        for parent in {path.parent for path in placed}:
            disk.sync_folder(parent)
        manifest = Manifest(files=entries)
        disk.replace_file(folder / NAME, manifest.to_json().encode())
    except OSError as error:
        owned = {folder / entry.file for entry in old.files.values()}
        with suppress(OSError):
            for path in placed:
                if path not in owned:
                    path.unlink(missing_ok=True)
        raise _refused(folder, name, error, bool(old.files)) from None
    _settle(folder, manifest, old)
    return manifest


def _place(folder: Path, name: str, content: Content, old: Entry | None, placed: list[Path]) -> Entry:
    """Bring one file onto the disk under its digest's name; a path that is new there is added to `placed`."""
    stem = folder / PurePosixPath(name)
    if isinstance(content, bytes):
        sha256 = hashlib.sha256(content).hexdigest()
        if old is not None and old.sha256 == sha256 and _is_whole(folder, old):
            return old
    disk.make_folder(stem.parent)
    part = disk.beside(stem)
    try:
        if isinstance(content, bytes):
            disk.write(part, [content])
        else:
            content(part)
            disk.sync(part)
            sha256 = disk.digest(part)
        size = part.stat().st_size
        if old is not None and old.sha256 == sha256 and _is_whole(folder, old):
            disk.remove(part)
            return old
        path = stem.with_name(f"{stem.stem}-{sha256[:_DIGITS]}{stem.suffix}")
        placed.append(path)
        disk.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return Entry(file=path.relative_to(folder).as_posix(), size=size, sha256=sha256)


def _is_whole(folder: Path, entry: Entry) -> bool:
    try:
        return (folder / entry.file).stat().st_size == entry.size
    except OSError:
        return False


def _refused(folder: Path, name: str, error: OSError, saved: bool) -> ModelFolderError:
    intact = "; the last saved state is intact" if saved else ""
    if error.errno in _FULL:
        return ModelFolderError(f"{folder}: the disk is full: no room for {name}{intact}")
    return ModelFolderError(f"{folder}: {name} cannot be written: {error.strerror or error}{intact}")


def _settle(folder: Path, manifest: Manifest, old: Manifest) -> None:
    """Make the new manifest's name durable and sweep; the commit is done, so nothing here may fail it."""
    with suppress(OSError):
        disk.sync_folder(folder)
        sweep(folder, manifest, old)


def sweep(folder: Path, manifest: Manifest, old: Manifest | None = None) -> None:
    """Remove what earlier commits, finished or not, left in `folder` and what `manifest` does not name."""
    named = {folder / entry.file for entry in manifest.files.values()}
    names = [*manifest.files, *(old.files if old else ())]
    for parent in sorted({(folder / name).parent for name in names} | {folder}):
        if not parent.is_dir():
            continue
        for path in sorted(parent.iterdir()):
            leftover = _COMMITTED.fullmatch(path.name) or _PART.fullmatch(path.name)
            if leftover and path not in named and path.is_file():
                disk.remove(path)


def committed(folder: Path, manifest: Manifest, name: str) -> Path:
    """Where the committed file `name` lies; ModelFolderError if it is missing or not as long as it was."""
    entry = manifest.files.get(name)
    if entry is None:
        raise ModelFolderError(f"{folder}: damaged: {NAME} names no {name}")
    path = folder / entry.file
    try:
        size = path.stat().st_size
    except OSError:
        raise ModelFolderError(f"{path}: missing, but {NAME} names it as {name}") from None
    if size != entry.size:
        raise ModelFolderError(f"{path}: damaged: {size:,} bytes, wanted {entry.size:,}")
    return path


def read_committed(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The committed file `name`; ModelFolderError if its content is not what was committed."""
    path = committed(folder, manifest, name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise ModelFolderError(f"{path}: damaged or changed: its SHA-256 is not the one in {NAME}")
    return content


def whole(folder: Path, manifest: Manifest, name: str) -> Path:
    """Where the committed file `name` lies; ModelFolderError if its content is not what was committed."""
    path = committed(folder, manifest, name)
    if disk.digest(path) != manifest.files[name].sha256:
        raise ModelFolderError(f"{path}: damaged or changed: its SHA-256 is not the one in {NAME}")
    return path


def verify(folder: Path) -> None:
    """Return if every committed file is whole by its digest; else ModelFolderError names the first that is not."""
    manifest = Manifest.read(folder)
    for name in manifest.files:
        whole(folder, manifest, name)
