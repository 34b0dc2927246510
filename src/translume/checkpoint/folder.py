"""Atomic commits to a model folder: the manifest, `commit`, and the lock of the training process.

`manifest.json` names each committed file; file names contain a part of the digest. A commit writes new files next to
the old ones and then replaces the manifest by one rename: before the rename the old state is complete, after it the new
one. Files that the new manifest does not name are removed afterwards.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from pkgutil import resolve_name
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from translume import atomic, checksums
from translume.config.tree import FORMAT as FORMAT
from translume.errors import ModelFolderError, TrainingError, nearest, needed_by, reason_of, refused
from translume.kernels.cpu import cache_folder
from translume.locks import lock
from translume.parallel import Closing

MANIFEST = "manifest.json"
WRONG_DIGEST = f"{{}}: damaged or changed: its SHA-256 is not the one in {MANIFEST}"
DEMO = Path(__file__).parents[1] / "experiments" / "demo.model"
"""The folder of the model that `translume demo` trained, with its weights in int8."""
IMPORTS = "imports"
"""The folder of imports in the user's cache."""
RESUME = "resume/"
"""Prefix of the names of the files from which a run is resumed."""

Content = bytes | Callable[[Path], None]
"""The content of a file: its bytes, or a function that writes it to a given path."""

_DIGITS = 16
COMMITTED = re.compile(rf".+-[0-9a-f]{{{_DIGITS}}}(\.[^.]*)?")
"""Names of committed files on disk."""
_KNOWN = (
    *("config.toml", "weights.safetensors", "lengths.json", "labels.json", "calibration.json", "import.json"),
    *("tokenizer.json", "tokenizer_settings.json", "source.json", "source_settings.json"),
    *("target.json", "target_settings.json"),
)
_FREE = (RESUME, "decoding/")
"""Names, and beginnings of names, in manifests of earlier versions, which have no digest."""
_STRICT = ConfigDict(extra="forbid")
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

    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one committed state by name ("weights.safetensors")."""

    format: int = FORMAT
    files: Mapping[str, Entry]

    __pydantic_config__ = _STRICT

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the last committed state. Raises ModelFolderError if there is none, or it is damaged."""
        path = folder / MANIFEST
        try:
            values, sealed = checksums.unsealed(path.read_text(encoding="utf-8"))
            if values["format"] > FORMAT:
                raise ModelFolderError(newer_format(str(folder), values["format"]))
            manifest = _ADAPTER.validate_python(values)
        except FileNotFoundError:
            reason = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
            raise ModelFolderError(f"{folder}: not a model folder: {reason}") from None
        except NotADirectoryError:
            raise ModelFolderError(f"{folder}: not a model folder: it is a file") from None
        except OSError as error:
            raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ModelFolderError(f"{path}: damaged: not UTF-8 text") from None
        except checksums.DigestError:
            raise ModelFolderError(f"{path}: damaged: its digest is wrong; restore the folder from a copy") from None
        except (ValueError, KeyError, TypeError):
            raise ModelFolderError(f"{path}: damaged: not a manifest of Translume") from None
        unknown = next(
            (name for name in manifest.files if not (sealed or name.startswith(_FREE) or name in _KNOWN)), None
        )
        if unknown is not None:
            raise ModelFolderError(f"{path}: damaged: names an unknown file '{unknown}'{nearest(unknown, _KNOWN)}")
        for entry in manifest.files.values():
            place = PurePosixPath(entry.file)
            if place.is_absolute() or ".." in place.parts:
                raise ModelFolderError(f"{path}: '{place}' lies outside the folder; refused")
        return manifest

    def to_json(self) -> str:
        """Return the JSON text that `read` reads."""
        return checksums.sealed(
            {"format": self.format, "files": {name: asdict(each) for name, each in self.files.items()}}
        )

    def without_resume(self) -> "Manifest":
        """Return the manifest of a copy that cannot be resumed: without the files of `resume/`."""
        kept = {name: entry for name, entry in self.files.items() if not name.startswith(RESUME)}
        return Manifest(files=kept, format=self.format)


_ADAPTER = TypeAdapter(Manifest)


def newer_format(place: str, number: int) -> str:
    """Return the message about a folder that was written by a later version."""
    return f"{place}: format {number} is newer than format {FORMAT}, the newest this Translume reads; upgrade Translume"


def commit(folder: Path, files: Mapping[str, Content], *, remove: Iterable[str] = ()) -> Manifest:
    """Commit a new state of `folder`: its committed files, plus `files`, minus those named in `remove`.

    Names are paths inside the folder with `/`, such as "resume/optimizer.safetensors". Unchanged files are not written
    again. At whatever instant the process dies, the folder holds the old state or the new one. Raises ModelFolderError
    if the disk is full or the folder cannot be written, DataError if it is a file; the old state is intact then, and no
    new files remain.
    """
    old = Manifest.read(folder) if (folder / MANIFEST).exists() else Manifest(files={})
    dropped = set(remove)
    placed: list[Path] = []
    name = "the folder"
    try:
        atomic.make_folder(folder)
        entries = {name: entry for name, entry in old.files.items() if name not in dropped}
        for name, content in files.items():
            entries[name] = _place(folder, name, content, old.files.get(name), placed)
        name = MANIFEST
        for parent in {path.parent for path in placed}:
            atomic.sync(parent)
        manifest = Manifest(files=dict(sorted(entries.items())))
        atomic.replace_file(folder / MANIFEST, manifest.to_json().encode())
    except OSError as error:
        committed_before = {folder / entry.file for entry in old.files.values()}
        with suppress(OSError):
            for path in placed:
                if path not in committed_before:
                    path.unlink(missing_ok=True)
        intact = "; the last saved state is intact" if any(name.endswith(".safetensors") for name in old.files) else ""
        reason = f"{name} cannot be written: {reason_of(error)}"
        if error.errno == errno.ENOSPC:
            reason = f"the disk is full: no room for {name}"
        raise ModelFolderError(f"{folder}: {reason}{intact}") from None
    with suppress(OSError):  # the commit is done
        atomic.sync(folder)
        sweep(folder, manifest, old)
    return manifest


def _place(folder: Path, name: str, content: Content, old: Entry | None, placed: list[Path]) -> Entry:
    """Write one file to disk under a name with its digest, and add a new path to `placed`."""
    stem = folder / PurePosixPath(name)
    if isinstance(content, bytes):
        sha256 = hashlib.sha256(content).hexdigest()
        if old is not None and _holds(folder, old, sha256):
            return old
    atomic.make_folder(stem.parent)
    part = atomic.beside(stem)
    try:
        if isinstance(content, bytes):
            atomic.write(part, [content])
        else:
            content(part)
            atomic.sync(part)
            sha256 = atomic.digest(part)
        size = part.stat().st_size
        if old is not None and _holds(folder, old, sha256):
            part.unlink()
            return old
        path = stem.with_name(f"{stem.stem}-{sha256[:_DIGITS]}{stem.suffix}")
        placed.append(path)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return Entry(file=path.relative_to(folder).as_posix(), size=size, sha256=sha256)


def _holds(folder: Path, entry: Entry, sha256: str) -> bool:
    """Return whether a committed file has this digest, and its size on disk."""
    try:
        return entry.sha256 == sha256 and (folder / entry.file).stat().st_size == entry.size
    except OSError:
        return False


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
                path.unlink(missing_ok=True)


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


def verified(folder: Path, manifest: Manifest, name: str) -> Path:
    """Return the path of a committed file. Raises ModelFolderError if its digest is wrong."""
    path = committed(folder, manifest, name)
    with refused(path, "cannot be read", ModelFolderError):
        sha256 = atomic.digest(path)
    if sha256 != manifest.files[name].sha256:
        raise ModelFolderError(WRONG_DIGEST.format(path))
    return path


def read_committed(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the content of a committed file. Raises ModelFolderError if its digest is wrong."""
    path = verified(folder, manifest, name)
    with refused(path, "cannot be read", ModelFolderError):
        return path.read_bytes()


def verify(folder: Path) -> None:
    """Raise ModelFolderError, naming the first file whose content differs from its digest, if there is one."""
    manifest = Manifest.read(folder)
    for name in manifest.files:
        verified(folder, manifest, name)


class FolderLock(Closing):
    """Locks `folder` for training by this process until it is closed or the process ends.

    It is a POSIX lock on the file `.lock`. Child processes do not inherit it, so a worker that outlives a killed run
    does not block the next run.
    """

    def __init__(self, folder: Path) -> None:
        """Lock the folder, and make it if it is missing. Raises TrainingError naming the process that holds it."""
        self._is_new = not folder.exists()
        self._number = _locked(folder)
        self._folder = folder.resolve()
        _held.add(self._folder)
        # On a full disk the lock still holds; only the owner's process id is missing.
        with suppress(OSError):
            os.ftruncate(self._number, 0)
            os.write(self._number, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Unlock the folder, and remove it if the lock made it and it is empty. A second call does nothing."""
        if self._folder in _held:
            if self._is_new:
                with suppress(OSError):
                    if [path.name for path in self._folder.iterdir()] == [_LOCK]:
                        (self._folder / _LOCK).unlink()
                        self._folder.rmdir()
            _held.discard(self._folder)
            os.close(self._number)


def _locked(folder: Path) -> int:
    """Return a locked handle of the current `.lock` file; a lock on a deleted file would be ineffective."""
    while True:
        with refused(folder, "cannot be written", ModelFolderError):
            atomic.make_folder(folder)
            if folder.resolve() in _held:
                raise TrainingError(f"{folder}: this process already trains in it")
            try:
                number = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue
        try:
            lock(number, wait=False, inherited=False)
        except OSError as error:
            owner = os.read(number, 32).decode("ascii", "replace").strip()
            os.close(number)
            if not isinstance(error, BlockingIOError):
                raise ModelFolderError(f"{folder}: cannot be locked: {reason_of(error)}") from None
            raise TrainingError(
                f"{folder}: process {owner or '?'} trains in it; wait until it has ended or choose another folder"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(number), os.stat(folder / _LOCK)):
                return number
        os.close(number)


_HUB = re.compile(r"hf:/{1,2}(?!/)|opus:(?!/)")
"""The start of the name of a repository. A Path of "hf://owner/name" has one slash."""
OPUS = "Helsinki-NLP/opus-mt-"
"""The start of the names of OPUS-MT's repositories, before a pair of languages."""
ARGOS = "argos:"
"""The start of the name of a package in the index of Argos Translate."""


def is_hub(source: Path | str) -> bool:
    """Return whether `source` names a repository, as hf://owner/name or opus:en-de, or either with @revision."""
    return _HUB.match(str(source)) is not None


def is_remote(source: Path | str) -> bool:
    """Return whether `source` names a model that is downloaded, as `is_hub` or argos:en-de."""
    return is_hub(source) or str(source).startswith(ARGOS)


def model_folder(source: Path | str, *, progress: bool = True) -> Path:
    """Return the folder of a model: `source`, or its import in the user's cache.

    "demo", where no such file or folder is, is the model that comes with Translume.
    A repository is downloaded and imported if it has changed since the last time; a package of Argos Translate, a file
    or argos:en-de, or a folder of CTranslate2 is imported when it is new.
    progress: whether a terminal shows how far a download is. Raises SettingsError if the libraries
    for it are not installed, and the errors of `import_model`.
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"folder: found {type(source).__name__}, expected a path or hf://owner/name")
    if not is_hub(source):
        path = package_file(source, progress=progress) if is_remote(source) else Path(source)
        if str(source) == DEMO.stem and not path.exists():
            return DEMO
        other = path.is_file() or (path.is_dir() and not (path / MANIFEST).exists())
        if other and resolve_name("translume.interchange.ctranslate2_binary:needs_import")(path):
            path = resolve_name("translume.interchange.argos:cached_import")(path)
        return path
    folder: Path = hub_function("cached_model")(repository_name(source), progress=progress)
    return folder


def is_cached_import(folder: Path | str) -> bool:
    """Return whether a folder is the import of a package, or of a folder of CTranslate2, in the user's cache."""
    return Path(folder).parent.parent == cache_folder() / IMPORTS


def repository_name(source: Path | str) -> str:
    """Return hf://owner/name[@revision], of which a Path loses a slash, for any name of a repository."""
    owner = OPUS if str(source).startswith("opus:") else ""
    return f"hf://{owner}{_HUB.sub('', str(source), count=1)}"


def package_file(source: Path | str, *, progress: bool = True) -> Path:
    """Return the file of a package that argos:en-de names, after downloading it if it is not in the user's cache."""
    file: Path = resolve_name("translume.interchange.argos_index:downloaded")(str(source), progress=progress)
    return file


def hub_function(name: str) -> Any:
    """Return a function of the module for the Hub. Raises SettingsError if a library that it needs is missing."""
    with needed_by("hf://"):
        return resolve_name(f"translume.interchange.hub:{name}")
