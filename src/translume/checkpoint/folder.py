"""Atomic commits to a model folder: the manifest, `commit`, and the lock of the training process.

`manifest.json` names each committed file; file names contain a part of the digest. A commit writes new files next to
the old ones and then replaces the manifest by one rename: before the rename the old state is complete, after it the new
one. Files that the new manifest does not name are removed afterwards.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from translume.checkpoint import disk
from translume.config.tree import FORMAT as FORMAT
from translume.errors import ModelFolderError, TrainingError

MANIFEST = "manifest.json"
RESUME = "resume/"
"""Prefix of the names of the files from which a run is resumed."""

Content = bytes | Callable[[Path], None]
"""The content of a file: its bytes, or a function that writes it to a given path."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DIGITS = 16
COMMITTED = re.compile(rf".+-[0-9a-f]{{{_DIGITS}}}(\.[^.]*)?")
"""Names of committed files on disk."""
_PART = re.compile(r"\..+\.part")
_LOCK = ".lock"
_held: set[Path] = set()
"""Folders locked by this process. A POSIX lock does not exclude its own process, and closing any handle frees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A committed file.

    file: its path inside the folder, with a digest in its name.  size: in bytes.  sha256: hexadecimal.
    """

    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one committed state by name ("weights.safetensors")."""

    files: Mapping[str, Entry]
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the last committed state. Raises ModelFolderError if there is none or it cannot be read."""
        try:
            text = (folder / MANIFEST).read_text(encoding="utf-8")
        except FileNotFoundError:
            reason = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
            raise ModelFolderError(f"{folder}: not a model folder: {reason}") from None
        except NotADirectoryError:
            raise ModelFolderError(f"{folder}: not a model folder: it is a file") from None
        except OSError as error:
            raise ModelFolderError(f"{folder / MANIFEST}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ModelFolderError(f"{folder / MANIFEST}: damaged: not UTF-8 text") from None
        try:
            return cls._from_values(json.loads(text), folder)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelFolderError(f"{folder / MANIFEST}: damaged: not a manifest of Translume") from None

    @classmethod
    def _from_values(cls, values: dict[str, Any], folder: Path) -> Self:
        found = int(values["format"])
        if found > FORMAT:
            raise ModelFolderError(
                f"{folder}: format {found} is newer than format {FORMAT}, the newest this Translume reads; "
                "upgrade Translume"
            )
        files = {}
        for name, entry in values["files"].items():
            path = PurePosixPath(entry["file"])
            if path.is_absolute() or ".." in path.parts:
                raise ModelFolderError(f"{folder / MANIFEST}: '{path}' lies outside the folder; refused")
            files[name] = Entry(file=str(path), size=int(entry["size"]), sha256=str(entry["sha256"]))
        return cls(files=files, format=found)

    def to_json(self) -> str:
        """Return the JSON text that `read` reads."""
        files = {
            name: {"file": entry.file, "size": entry.size, "sha256": entry.sha256}
            for name, entry in sorted(self.files.items())
        }
        return json.dumps({"format": self.format, "files": files}, indent=1, ensure_ascii=False) + "\n"

    def without_resume(self) -> "Manifest":
        """Return the manifest of a copy that cannot be resumed: without the files of `resume/`."""
        kept = {name: entry for name, entry in self.files.items() if not name.startswith(RESUME)}
        return Manifest(files=kept, format=self.format)


def commit(folder: Path, files: Mapping[str, Content], *, remove: Iterable[str] = ()) -> Manifest:
    """Commit a new state of `folder`: its committed files, plus `files`, minus those named in `remove`.

    Names are paths inside the folder with `/`, such as "resume/optimizer.safetensors". Unchanged files are not written
    again. At whatever instant the process dies, the folder holds the old state or the new one. Raises ModelFolderError
    if the disk is full or the folder cannot be written, DataError if it is a file; the old state is intact then, and no
    new files remain.
    """
    old = Manifest.read(folder) if (folder / MANIFEST).exists() else Manifest(files={})
    dropped = set(remove)
    kept = {name: entry for name, entry in old.files.items() if name not in dropped and name not in files}
    placed: list[Path] = []
    name = "the folder"
    try:
        disk.make_folder(folder)
        entries = dict(kept)
        for name, content in files.items():
            entries[name] = _place(folder, name, content, old.files.get(name), placed)
        name = MANIFEST
        for parent in {path.parent for path in placed}:
            disk.sync_folder(parent)
        manifest = Manifest(files=entries)
        disk.replace_file(folder / MANIFEST, manifest.to_json().encode())
    except OSError as error:
        owned = {folder / entry.file for entry in old.files.values()}
        with suppress(OSError):
            for path in placed:
                if path not in owned:
                    path.unlink(missing_ok=True)
        saved = any(each.endswith(".safetensors") for each in old.files)
        raise _write_error(folder, name, error, saved=saved) from None
    _remove_old_files(folder, manifest, old)
    return manifest


def _place(folder: Path, name: str, content: Content, old: Entry | None, placed: list[Path]) -> Entry:
    """Write one file to disk under a name with its digest, and add a new path to `placed`."""
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


def _write_error(folder: Path, name: str, error: OSError, *, saved: bool) -> ModelFolderError:
    intact = "; the last saved state is intact" if saved else ""
    if error.errno in _FULL:
        return ModelFolderError(f"{folder}: the disk is full: no room for {name}{intact}")
    return ModelFolderError(f"{folder}: {name} cannot be written: {error.strerror or error}{intact}")


def _remove_old_files(folder: Path, manifest: Manifest, old: Manifest) -> None:
    """Flush the new manifest's name to disk and remove old files. The commit is done, so errors are ignored."""
    with suppress(OSError):
        disk.sync_folder(folder)
        sweep(folder, manifest, old)


def sweep(folder: Path, manifest: Manifest, old: Manifest | None = None) -> None:
    """Remove files in `folder` that earlier or unfinished commits left and `manifest` does not name."""
    named = {folder / entry.file for entry in manifest.files.values()}
    names = [*manifest.files, *(old.files if old else ())]
    for parent in sorted({(folder / name).parent for name in names} | {folder}):
        if not parent.is_dir():
            continue
        for path in sorted(parent.iterdir()):
            leftover = COMMITTED.fullmatch(path.name) or _PART.fullmatch(path.name)
            if leftover and path not in named and path.is_file():
                disk.remove(path)


def committed(folder: Path, manifest: Manifest, name: str) -> Path:
    """Return the path of a committed file. Raises ModelFolderError if it is missing or its size is wrong."""
    entry = manifest.files.get(name)
    if entry is None:
        raise ModelFolderError(f"{folder}: damaged: {MANIFEST} names no {name}")
    path = folder / entry.file
    try:
        size = path.stat().st_size
    except OSError:
        raise ModelFolderError(f"{path}: missing, but {MANIFEST} names it as {name}") from None
    if size != entry.size:
        raise ModelFolderError(f"{path}: damaged: {size:,} bytes, expected {entry.size:,}")
    return path


def read_committed(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the content of a committed file. Raises ModelFolderError if its digest is wrong."""
    path = committed(folder, manifest, name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise ModelFolderError(f"{path}: damaged or changed: its SHA-256 is not the one in {MANIFEST}")
    return content


def whole(folder: Path, manifest: Manifest, name: str) -> Path:
    """Return the path of a committed file. Raises ModelFolderError if its digest is wrong."""
    path = committed(folder, manifest, name)
    if disk.digest(path) != manifest.files[name].sha256:
        raise ModelFolderError(f"{path}: damaged or changed: its SHA-256 is not the one in {MANIFEST}")
    return path


def verify(folder: Path) -> None:
    """Raise ModelFolderError, naming the first file whose content differs from its digest, if there is one."""
    manifest = Manifest.read(folder)
    for name in manifest.files:
        whole(folder, manifest, name)


class FolderLock:
    """Locks `folder` for training by this process until it is closed or the process ends.

    It is a POSIX lock on the file `.lock`. Child processes do not inherit it, so a worker that outlives a killed run
    does not block the next run.
    """

    def __init__(self, folder: Path) -> None:
        """Lock the folder, and make it if it is missing. Raises TrainingError naming the process that holds it."""
        self._made = not folder.exists()
        self._number = _locked(folder)
        self._folder = folder.resolve()
        _held.add(self._folder)
        # On a full disk the lock still holds; only the owner's process id is missing.
        with suppress(OSError):
            os.ftruncate(self._number, 0)
            os.pwrite(self._number, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Unlock the folder, and remove it if the lock made it and it is empty. A second call does nothing."""
        if self._folder in _held:
            if self._made:
                with suppress(OSError):
                    if [path.name for path in self._folder.iterdir()] == [_LOCK]:
                        (self._folder / _LOCK).unlink()
                        self._folder.rmdir()
            _held.discard(self._folder)
            os.close(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _locked(folder: Path) -> int:
    """Return a locked handle of the current `.lock` file; a lock on a deleted file would be ineffective."""
    while True:
        try:
            disk.make_folder(folder)
            if folder.resolve() in _held:
                raise TrainingError(f"{folder}: this process already trains in it")
            try:
                number = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue
        except OSError as error:
            raise ModelFolderError(f"{folder}: cannot be written: {error.strerror}") from None
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(number, 32).decode("ascii", "replace").strip()
            os.close(number)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise ModelFolderError(f"{folder}: cannot be locked: {error.strerror}") from None
            raise TrainingError(
                f"{folder}: process {owner or '?'} trains in it; wait until it has ended or choose another folder"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(number), os.stat(folder / _LOCK)):
                return number
        os.close(number)
