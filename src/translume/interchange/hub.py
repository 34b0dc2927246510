"""Models of the Hugging Face Hub: download and check their files, and import them into the user's cache."""

import errno
import hashlib
import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

from filelock import FileLock
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from translume.atomic import make_folder, replace_file
from translume.checkpoint import Manifest, verify
from translume.checkpoint.folder import MANIFEST
from translume.errors import ModelFolderError, TranslumeError
from translume.interchange.huggingface.config import CONFIG, read_json
from translume.interchange.huggingface.families import family_named
from translume.interchange.huggingface.reader import Sinusoids
from translume.interchange.huggingface.weights_files import INDEX, PICKLED, SAFETENSORS
from translume.interchange.importing import Imported, import_folder
from translume.kernels.cpu import cache_folder

IMPORT_VERSION = 1
"""Part of the name of an import in the cache. Increases when importing the same files gives another model folder."""

_NAME = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>.+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = (".json", ".spm", ".model", ".txt")
"""Endings of the files that are downloaded beside the weights: settings and tokenizers."""
TRANSPORT = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
"""The base class of errors of the HTTP library, which differs between releases, and OSError."""
LOGIN = "set HF_TOKEN or run `hf auth login`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository of models.  name: "owner/name".  revision: a branch, tag or commit."""

    name: str
    revision: str = constants.DEFAULT_REVISION

    @classmethod
    def parse(cls, source: str) -> Self:
        """Read hf://owner/name[@revision]. Raises ModelFolderError for another form."""
        found = _NAME.fullmatch(source)
        if found is None:
            raise ModelFolderError(f"{source}: expected hf://owner/name or hf://owner/name@revision")
        return cls(name=found["repository"], revision=found["revision"] or constants.DEFAULT_REVISION)

    def __str__(self) -> str:
        suffix = "" if self.revision == constants.DEFAULT_REVISION else f"@{self.revision}"
        return f"hf://{self.name}{suffix}"

    @property
    def cache(self) -> Path:
        """The folder of its imports."""
        return cache_folder() / "hub" / self.name.replace("/", "--")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The state of a repository.  commit: its hash.  files: by name; empty if the Hub was not reached."""

    commit: str
    files: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Files of a repository.  folder: where they are.  origin: the repository and its commit, for a model card."""

    folder: Path
    origin: str

    @property
    def is_model_folder(self) -> bool:
        """Whether the repository is a model folder of Translume."""
        return (self.folder / MANIFEST).exists()

    def copy(self, folder: Path) -> None:
        """Copy a model folder of Translume to the new folder `folder`, and verify it."""
        make_folder(folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as around:
            made = Path(around) / folder.name
            manifest = Manifest.read(self.folder).without_resume()
            for entry in manifest.files.values():
                make_folder((made / entry.file).parent)
                shutil.copyfile(self.folder / entry.file, made / entry.file)
            replace_file(made / MANIFEST, manifest.to_json().encode(), synced=False)
            verify(made)
            made.replace(folder)


def cached_model(source: str, *, progress: bool = True) -> Path:
    """Return the import of hf://owner/name[@revision] in the user's cache, after importing it if it is not there.

    Its commit is the one that the Hub has for the revision; without a connection, the last one that was imported.
    progress: whether downloads show bars on a terminal.
    """
    repository = Repository.parse(source)
    listing = resolve(repository)
    name = repository.name.partition("/")[2]
    folder = repository.cache / f"{listing.commit}-{IMPORT_VERSION}" / name
    if folder.exists():
        return folder
    try:
        make_folder(folder.parent)
        with FileLock(repository.cache / ".lock"):
            if not folder.exists():
                found = download(repository, listing, progress=progress)
                if found.is_model_folder:
                    found.copy(folder)
                else:
                    import_folder(found.folder, folder, "hf", found.origin)
    except OSError as error:
        raise TranslumeError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return folder


def import_repository(source: str, folder: Path, positions: Sinusoids) -> Imported:
    """Import hf://owner/name[@revision] into the new model folder `folder`; see `import_model`."""
    repository = Repository.parse(source)
    found = download(repository, resolve(repository))
    if found.is_model_folder:
        raise ModelFolderError(
            f"{repository}: is a model folder of Translume already; use it under this name, or copy it with "
            f"`hf download {repository.name}`"
        )
    return import_folder(found.folder, folder, positions, found.origin)


def resolve(repository: Repository) -> Listing:
    """Return the commit and the files of a revision, and remember the commit for use without a connection."""
    if (
        _COMMIT.fullmatch(repository.revision)
        and repository.cache.joinpath(f"{repository.revision}-{IMPORT_VERSION}").exists()
    ):
        return Listing(commit=repository.revision, files={})
    remembered = repository.cache / "revisions" / quote(repository.revision, safe="")
    try:
        with hub_errors(repository):
            info = HfApi(library_name="translume").model_info(
                repository.name, revision=repository.revision, files_metadata=True
            )
    except _UnreachableError:
        commit = _remembered(repository, remembered)
        if commit is None:
            raise
        return Listing(commit=commit, files={})
    commit = str(info.sha)
    make_folder(remembered.parent)
    replace_file(remembered, commit.encode(), synced=False)
    return Listing(commit=commit, files={each.rfilename: each for each in info.siblings or ()})


def _remembered(repository: Repository, remembered: Path) -> str | None:
    """Return the commit of a revision that was downloaded before, by us or by another program."""
    if remembered.exists():
        return remembered.read_text().strip()
    try:
        return Path(
            snapshot_download(
                repository.name, revision=repository.revision, local_files_only=True, allow_patterns=[CONFIG]
            )
        ).name
    except LocalEntryNotFoundError:
        return None


def download(repository: Repository, listing: Listing, *, progress: bool = True) -> Download:
    """Download the files of a model that Translume reads, and check their digests.

    Settings and tokenizers come first, so that an architecture that cannot be imported is refused before its weights
    are downloaded. Files that are there already are not downloaded again.
    """
    if not listing.files:
        return _downloaded(repository, listing.commit)
    names = list(listing.files)
    small = [name for name in names if "/" not in name and name.endswith(_SMALL)]
    if MANIFEST not in names and CONFIG not in names:
        raise ModelFolderError(f"{repository}: has no {CONFIG}, expected a model of transformers")
    with progress_bars(progress):
        folder = _fetch(repository, listing, small)
        _fetch(repository, listing, _large(repository, listing, folder))
    return Download(folder=folder, origin=f"{repository.name} at {listing.commit}")


def _large(repository: Repository, listing: Listing, folder: Path) -> list[str]:
    """Return the names of the files to download after the small ones."""
    names = list(listing.files)
    if MANIFEST in names:
        return [entry.file for entry in Manifest.read(folder).without_resume().files.values() if entry.file in names]
    place = folder / CONFIG
    family_named(place, read_json(place))
    return _weights(repository, names)


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Let huggingface_hub show progress bars only on a terminal."""
    enabled = not are_progress_bars_disabled()
    if enabled and not (shown and sys.stderr.isatty()):
        disable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            enable_progress_bars()


def _downloaded(repository: Repository, commit: str) -> Download:
    """Return what was downloaded earlier."""
    with hub_errors(repository):
        folder = snapshot_download(repository.name, revision=commit, local_files_only=True, allow_patterns=[CONFIG])
    return Download(folder=Path(folder), origin=f"{repository.name} at {commit}")


def _weights(repository: Repository, names: list[str]) -> list[str]:
    """Return the names of the weights' files: safetensors, or pickles if there are none."""
    for whole in (SAFETENSORS, PICKLED):
        stem, suffix = whole.rsplit(".", 1)
        if whole in names:
            return [whole]
        if f"{whole}{INDEX}" in names:
            return [each for each in names if each.startswith(f"{stem}-") and each.endswith(f".{suffix}")]
    others = [
        each for each in names if each.endswith((".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".pt", ".pkl", ".bin"))
    ]
    found = f"found {', '.join(others)}" if others else "found no weights"
    raise ModelFolderError(f"{repository}: {found}, expected {SAFETENSORS} or {PICKLED}")


def _fetch(repository: Repository, listing: Listing, names: list[str]) -> Path:
    with hub_errors(repository):
        folder = Path(
            snapshot_download(
                repository.name, revision=listing.commit, allow_patterns=_literal(names), library_name="translume"
            )
        )
    for name in names:
        _check(repository, folder / name, listing.files[name])
    return folder


def _literal(names: Iterable[str]) -> list[str]:
    """Return patterns that match these names only."""
    return [re.sub(r"([*?[])", r"[\1]", name) for name in names]


def _check(repository: Repository, path: Path, expected: Any) -> None:
    """Raise ModelFolderError, and remove the file, if its content is not that of the Hub.

    Large files have a SHA-256. Others have git's digest of a blob: the SHA-1 of "blob", the size and the content.
    """
    if expected.lfs is not None:
        digest, wanted = hashlib.sha256(), expected.lfs.sha256
    elif expected.blob_id is not None:
        digest, wanted = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False), expected.blob_id
    else:
        return
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != wanted:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ModelFolderError(
            f"{repository}: {path.name}: damaged in transfer: found the digest {digest.hexdigest()[:16]}…, expected "
            f"{wanted[:16]}…; run the same command again"
        )


class _UnreachableError(ModelFolderError):
    """The Hub cannot be reached, or must not be."""


@contextmanager
def hub_errors(repository: Repository) -> Iterator[None]:
    """Replace the errors of huggingface_hub by a ModelFolderError of one line, without its warnings in the log."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except GatedRepoError:
        page = f"{constants.ENDPOINT}/{repository.name}"
        raise ModelFolderError(f"{repository}: gated: accept its conditions at {page}, and {LOGIN}") from None
    except RepositoryNotFoundError:
        raise ModelFolderError(
            f"{repository}: no such repository at {constants.ENDPOINT}; if it is private, {LOGIN}"
        ) from None
    except RevisionNotFoundError:
        raise ModelFolderError(
            f"{repository}: no revision {repository.revision!r}, expected a branch, a tag or a commit"
        ) from None
    except OfflineModeIsEnabled:
        raise _UnreachableError(f"{repository}: not in the cache, and HF_HUB_OFFLINE forbids to download it") from None
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, OfflineModeIsEnabled) or constants.is_offline_mode():
            reason = "and HF_HUB_OFFLINE forbids to download it"
        else:
            reason = f"and {constants.ENDPOINT} cannot be reached"
        raise _UnreachableError(f"{repository}: not in the cache, {reason}") from None
    except EntryNotFoundError as error:
        raise ModelFolderError(f"{repository}: a file of the repository is missing: {first_line(error)}") from None
    except HfHubHTTPError as error:
        raise ModelFolderError(f"{repository}: {constants.ENDPOINT} refused: {first_line(error)}") from None
    except TRANSPORT as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise ModelFolderError(
                f"{repository}: cannot be stored: {error.filename or constants.HF_HUB_CACHE}: {error.strerror}"
            ) from None
        raise _UnreachableError(
            f"{repository}: transfer from {constants.ENDPOINT} failed: {first_line(error)}"
        ) from None
    finally:
        log.setLevel(level)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
