"""Models of the Hugging Face Hub: download them, and import them once into the user's cache."""

import logging
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from json import JSONDecodeError
from pathlib import Path
from typing import Self, cast

from filelock import FileLock
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from translume.atomic import make_folder
from translume.checkpoint import Manifest, verify
from translume.checkpoint.folder import MANIFEST, OPUS
from translume.errors import ModelFolderError, TranslumeError, similar
from translume.interchange.huggingface.config import CONFIG
from translume.interchange.huggingface.reader import PICKLED, SAFETENSORS, read_family
from translume.interchange.importing import Imported, Sinusoids, import_folder, new_folder
from translume.kernels.cpu import cache_folder

IMPORT_VERSION = 2
"""Part of the name of an import in the cache. Increases when importing the same files gives another model folder."""

_NAME = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>.+))?")
_EXPECTED = "expected hf://owner/name or hf://owner/name@revision"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = ("*.json", "*.spm", "*.model", "*.txt", "README.md")
"""The files that are downloaded before the weights: settings, tokenizers and the licence."""
TRANSPORT = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)
"""The base class of errors of the HTTP library, which differs between releases, and OSError."""
_NOT_OF_A_HUB: tuple[type[Exception], ...] = (JSONDecodeError, KeyError)
"""The errors about an answer of another server, such as the page on which a network asks for a password."""
LOGIN = "set HF_TOKEN or run `hf auth login`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository of models.  name: "owner/name".  revision: a branch, tag or commit."""

    name: str
    revision: str = constants.DEFAULT_REVISION

    @classmethod
    def from_address(cls, source: str) -> Self:
        """Read hf://owner/name[@revision]. Raises ModelFolderError for another form."""
        match = _NAME.fullmatch(source)
        if match is None:
            raise ModelFolderError(f"{source}: {_EXPECTED}")
        return cls(name=match["repository"], revision=match["revision"] or constants.DEFAULT_REVISION)

    def __str__(self) -> str:
        suffix = "" if self.revision == constants.DEFAULT_REVISION else f"@{self.revision}"
        return f"hf://{self.name}{suffix}"

    def cached(self, commit: str) -> Path:
        """Return the folder of the import of a commit."""
        owner, _, name = self.name.partition("/")
        return cache_folder() / "hub" / f"{owner}--{name}" / f"{commit}-{IMPORT_VERSION}" / name

    def latest(self) -> tuple[str, str]:
        """Return the commit that the Hub has for the revision, and an empty text.

        Without an answer, return an empty commit and what the Hub does instead, empty if it cannot be reached.
        """
        try:
            with _quiet():
                return HfApi(library_name="translume").model_info(self.name, revision=self.revision).sha or "", ""
        except TRANSPORT + _NOT_OF_A_HUB + (HFValidationError,) as error:
            return "", _refusal(error)

    def download(
        self, patterns: Iterable[str], revision: str = "", folder: Path | None = None, *, local: bool = False
    ) -> Path:
        """Download the files that match, unless they are in the Hub's cache, and return their folder.

        revision: instead of that of the repository.  folder: where to put them instead of the cache. Without a
        connection, or with `local`, the folder is that of an earlier download. Raises ModelFolderError.
        """
        with hub_errors(self):
            return Path(
                snapshot_download(
                    self.name,
                    revision=revision or self.revision,
                    allow_patterns=list(patterns),
                    ignore_patterns=None if folder else ["*/*"],
                    local_dir=folder,
                    library_name="translume",
                    local_files_only=local,
                )
            )


def cached_model(source: str, *, progress: bool = True) -> Path:
    """Return the import of hf://owner/name[@revision] in the user's cache, after importing it if it is not there.

    Its commit is the one that the Hub has for the revision; without an answer of the Hub, the last one that was
    downloaded. If the Hub answers with an error, the log says so.
    progress: whether downloads show bars on a terminal.
    """
    repository = Repository.from_address(source)
    if _COMMIT.fullmatch(repository.revision) and (folder := repository.cached(repository.revision)).exists():
        return folder
    commit, refusal = repository.latest()
    if commit and (folder := repository.cached(commit)).exists():
        return folder
    with progress_bars(progress):
        try:
            downloaded = repository.download(_SMALL, local=bool(refusal))
        except ModelFolderError:
            if refusal:
                raise ModelFolderError(f"{repository}: not in the cache, and {refusal}") from None
            raise
        folder = repository.cached(downloaded.name)
        if refusal and folder.exists():
            logging.getLogger(__name__).warning("%s: %s: using the copy in the cache", repository, refusal)
        try:
            make_folder(folder.parent)
            with FileLock(folder.parent.parent / ".lock"):
                if folder.exists():
                    return folder
                if (downloaded / MANIFEST).exists():
                    _copy(repository, downloaded, folder)
                else:
                    _download_weights(repository, downloaded)
                    import_folder(downloaded, folder, "hf", _origin(repository, downloaded))
        except OSError as error:
            raise TranslumeError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return folder


def import_repository(source: str, folder: Path, positions: Sinusoids, vocabularies: Sequence[Path] = ()) -> Imported:
    """Import hf://owner/name[@revision] into the new model folder `folder`; see `import_model`."""
    repository = Repository.from_address(source)
    with progress_bars(True):
        downloaded = repository.download(_SMALL)
        if (downloaded / MANIFEST).exists():
            raise ModelFolderError(
                f"{repository}: is a model folder of Translume already; use it under this name, or copy it with "
                f"`hf download {repository.name}`"
            )
        _download_weights(repository, downloaded)
    return import_folder(downloaded, folder, positions, _origin(repository, downloaded), vocabularies)


def _origin(repository: Repository, downloaded: Path) -> str:
    """Return the repository and its commit, for a model card."""
    return f"{repository.name} at {downloaded.name}"


def _copy(repository: Repository, downloaded: Path, folder: Path) -> None:
    """Download the other files of a model folder of Translume to the new folder `folder`, and verify them."""
    manifest = Manifest.read(downloaded)
    with new_folder(folder) as unfinished:
        names = [MANIFEST, *(entry.file for entry in manifest.without_resume().files.values())]
        repository.download(map(escape, names), downloaded.name, unfinished)
        shutil.rmtree(unfinished / ".cache", ignore_errors=True)  # the Hub's notes on the download
        (unfinished / MANIFEST).write_text(manifest.without_resume().to_json(), encoding="utf-8")
        verify(unfinished)


def _download_weights(repository: Repository, downloaded: Path) -> None:
    """Download the weights of a model of transformers: safetensors, or pickles if there are none; check all digests.

    Raises SettingsError for an architecture that cannot be imported, before the weights are downloaded.
    """
    if not (downloaded / CONFIG).exists():
        raise ModelFolderError(f"{repository}: has no {CONFIG}, expected a model of transformers")
    read_family(downloaded)
    for whole in (SAFETENSORS, PICKLED):
        stem, _, suffix = whole.rpartition(".")
        patterns = (whole, f"{stem}-*.{suffix}")
        repository.download(patterns, downloaded.name)
        if any(path for pattern in patterns for path in downloaded.glob(pattern)):
            break
    else:
        raise ModelFolderError(f"{repository}: has no weights, expected {SAFETENSORS} or {PICKLED}")
    try:
        with hub_errors(repository):
            damaged = HfApi().verify_repo_checksums(repository.name, revision=downloaded.name).mismatches
    except ModelFolderError:  # without a connection, the files are of an earlier download
        return
    for path in (downloaded / each["path"] for each in damaged):
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ModelFolderError(f"{repository}: {path.name}: damaged in transfer; run the same command again")


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


@contextmanager
def hub_errors(repository: Repository) -> Iterator[None]:
    """Replace the errors of huggingface_hub by a ModelFolderError of one line, without its warnings in the log."""
    try:
        with _quiet():
            yield
    except HFValidationError:
        raise ModelFolderError(f"{repository}: {_EXPECTED}") from None
    except TRANSPORT as error:
        raise ModelFolderError(f"{repository}: {_reason(repository, error)}") from None
    except _NOT_OF_A_HUB as error:
        raise ModelFolderError(f"{repository}: {_refusal(error)}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings of huggingface_hub out of the log."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _refusal(error: Exception) -> str:
    """Return what the Hub does instead of its usual answers; empty for an error that says something about a model."""
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return f"{constants.ENDPOINT} answers {status}" if status == 429 or status >= 500 else ""
    return f"{constants.ENDPOINT} does not answer as a Hub does" if isinstance(error, _NOT_OF_A_HUB) else ""


def _similar(repository: Repository) -> str:
    """Return the pairs of OPUS-MT that are nearest to one that it does not have; empty for other repositories."""
    if not repository.name.startswith(OPUS):
        return ""
    owner, _, start = OPUS.partition("/")
    try:
        names = [model.id for model in HfApi(library_name="translume").list_models(author=owner, search=start)]
    except TRANSPORT + _NOT_OF_A_HUB:
        return ""
    pairs = [name.removeprefix(OPUS) for name in names if name.startswith(OPUS)]
    return similar(repository.name.removeprefix(OPUS), pairs)


def _reason(repository: Repository, error: Exception) -> str:
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        error = error.__cause__  # what is in the cache is not enough, and the Hub refused the rest
    endpoint, first = constants.ENDPOINT, next(iter(str(error).strip().splitlines()), type(error).__name__)
    match error:
        case GatedRepoError():
            return f"gated: accept its conditions at {endpoint}/{repository.name}, and {LOGIN}"
        case RepositoryNotFoundError():
            return f"no such repository at {endpoint}{_similar(repository) or f'; if it is private, {LOGIN}'}"
        case RevisionNotFoundError():
            return f"no revision {repository.revision!r}, expected a branch, a tag or a commit"
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            offline = constants.is_offline_mode()
            reason = "HF_HUB_OFFLINE forbids to download it" if offline else f"{endpoint} cannot be reached"
            return f"not in the cache, and {reason}"
        case EntryNotFoundError():
            return f"a file of the repository is missing: {first}"
        case HfHubHTTPError(response=response) if response.status_code == 401:
            return f"{endpoint} does not accept the token: {LOGIN}"
        case HfHubHTTPError(response=response) if response.status_code == 403:
            return (
                f"the token may not write there: expected one with write access for "
                f"{repository.name.partition('/')[0]} from {endpoint}/settings/tokens"
            )
        case HfHubHTTPError():
            return f"{endpoint} refused: {first}"
        case OSError(filename=str(path)):
            return f"cannot be stored: {path}: {error.strerror}"
    return f"transfer from {endpoint} failed: {first}"
