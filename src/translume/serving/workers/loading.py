"""Load models from their folders: all or none at startup; on a reload, those that are valid."""

import hashlib
import logging
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from translume.checkpoint import read_config, verify
from translume.errors import TranslumeError
from translume.serving.workers.models import AnyServed, ServedModels, served_class
from translume.translator.loading import ComputeOptions

Load = Callable[[str, Path], AnyServed]
"""Loads the model of a folder under a name. Raises TranslumeError if the folder holds no valid model."""
MANIFEST: Final = "manifest_sha256"
"""Name under which clients see the digest of a model's manifest."""

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The outcome of reloading models.  problems: by model, why it was not loaded."""

    models: ServedModels
    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    unloaded: tuple[str, ...]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadReport:
    """The outcome of a reload.

    at: UTC time.  loaded, kept, unloaded: names of models that are new or changed, unchanged, and removed.
    problems: by "settings", "keys" or "models.NAME", why that part was not reloaded.
    waiting: changed settings that take effect at the next start.
    keys: number of API keys; None if none is required.
    """

    at: str
    loaded: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unloaded: tuple[str, ...] = ()
    problems: Mapping[str, str]
    waiting: tuple[str, ...] = ()
    keys: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome for the log."""
        return {name: getattr(self, name) for name in self.__slots__}

    def to_public_dict(self) -> dict[str, Any]:
        """Return the outcome for clients: what failed, but not the reasons, which name files."""
        return {"at": self.at, "done": not self.problems, "kept_as_before": sorted(self.problems)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedFolder:
    """A loaded model, its folder, and the folder's state at that time; see `state_of`."""

    served: AnyServed
    folder: Path
    state: str


class Loader:
    """Loads models, and keeps track of the loaded ones."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._held: dict[str, _LoadedFolder] = {}

    def load_all(self, folders: Mapping[str, Path]) -> ServedModels:
        """Load all models; raise the error of the first that fails."""
        self._held = {name: self._loaded(name, folder) for name, folder in folders.items()}
        return ServedModels(each.served for each in self._held.values())

    def reload(self, folders: Mapping[str, Path]) -> LoadResult:
        """Load the models whose folder has changed, and keep the others.

        A model that cannot be loaded, or cannot translate, stays in its previous version, if there is one.
        """
        held: dict[str, _LoadedFolder] = {}
        loaded: list[str] = []
        kept: list[str] = []
        problems: dict[str, str] = {}
        for name, folder in folders.items():
            before = self._held.get(name)
            found = _attempt(partial(self._current, name, folder, before))
            if isinstance(found, _LoadedFolder):
                held[name] = found
                (kept if found is before else loaded).append(name)
                continue
            problems[name] = found
            if before is not None:
                held[name] = before
                kept.append(name)
        held = held or self._held  # a server needs at least one model
        models = ServedModels(each.served for each in held.values())
        unloaded = tuple(self._held.keys() - held.keys())
        self._held = held
        return LoadResult(models=models, loaded=tuple(loaded), kept=tuple(kept), unloaded=unloaded, problems=problems)

    def _current(self, name: str, folder: Path, before: _LoadedFolder | None) -> _LoadedFolder:
        """Return the model that the folder holds now: `before` itself if nothing changed and all files are intact."""
        if before is not None and (before.folder, before.state) == (folder, state_of(folder)):
            verify(folder)
            return before
        return self._loaded(name, folder)

    def _loaded(self, name: str, folder: Path) -> _LoadedFolder:
        state = state_of(folder)
        served = self._load(name, folder)
        served.probe()
        return _LoadedFolder(served=served, folder=folder, state=state)


def with_manifest(load: Load) -> Load:
    """Add the SHA-256 of manifest.json to the facts for clients: it identifies the exact weights of a model."""

    def load_with_manifest(name: str, folder: Path) -> AnyServed:
        digest = state_of(folder)
        served = load(name, folder)
        return replace(served, facts={**served.facts, MANIFEST: digest})

    return load_with_manifest


def load_served(name: str, folder: Path, computing: ComputeOptions) -> AnyServed:
    """Load the model of a folder into this process, in the class that serves its task."""
    return served_class(read_config(folder)).load(name, folder, computing)


def state_of(folder: Path) -> str:
    """Return the SHA-256 of a folder's manifest, which changes with every commit; empty if it cannot be read."""
    try:
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    except OSError:  # loading reports the reason
        return ""


def _attempt(load: Callable[[], _LoadedFolder]) -> _LoadedFolder | str:
    """Return the loaded model, or the reason in one line why it was not loaded."""
    # The future of a thread returns any exception, including MemoryError, as a value.
    with ThreadPoolExecutor(1, thread_name_prefix="translume-load") as thread:
        done = thread.submit(load)
        error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, TranslumeError):
        return str(error)
    log.error("loading failed", extra={"fields": {"traceback": "".join(traceback.format_tb(error.__traceback__))}})
    return f"cannot be loaded: {type(error).__name__}"
