"""Models from their folders: at first all or nothing; later those that are sound, beside those that were."""

import hashlib
import logging
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from translume.checkpoint import read_config, verify
from translume.errors import TranslumeError
from translume.serving.workers.models import Models, Served, ServedClassifier
from translume.serving.workers.work import PROBE, PROBING
from translume.translator import load_classifier
from translume.translator.engines import Computing, translator_in
from translume.translator.plan import Line

Load = Callable[[str, Path], Served | ServedClassifier]
"""A model by its name and folder; raises a TranslumeError where the folder holds none that is sound."""

log = logging.getLogger("translume.serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a reload of models comes to.  problems: why a model is as it was before, or not there, by name."""

    models: Models
    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    unloaded: tuple[str, ...]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A model, where it came from, and a digest of the folder's list of files."""

    served: Served | ServedClassifier
    folder: Path
    state: str


class Loader:
    """Loads models, and knows which it has loaded."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._held: dict[str, _Held] = {}

    def first(self, folders: Mapping[str, Path]) -> Models:
        """All models; the first error of one is raised."""
        self._held = {name: self._taken(name, folder) for name, folder in folders.items()}
        return Models(each.served for each in self._held.values())

    def again(self, folders: Mapping[str, Path]) -> Change:
        """All models once more: those whose folder has not changed as they are, the others anew.

        One that cannot be loaded, or cannot translate, stays what it was before, if it was there.
        """
        held: dict[str, _Held] = {}
        loaded: list[str] = []
        kept: list[str] = []
        problems: dict[str, str] = {}
        for name, folder in folders.items():
            before = self._held.get(name)
            found = _attempt(partial(self._newest, name, folder, before))
            if isinstance(found, _Held):
                held[name] = found
                (kept if found is before else loaded).append(name)
                continue
            problems[name] = found
            if before is not None:
                held[name] = before
                kept.append(name)
        # A server without any model would be of no use to anybody.
        held = held or self._held
        models = Models(each.served for each in held.values())
        unloaded = tuple(self._held.keys() - held.keys())
        self._held = held
        return Change(models=models, loaded=tuple(loaded), kept=tuple(kept), unloaded=unloaded, problems=problems)

    def _newest(self, name: str, folder: Path, before: _Held | None) -> _Held:
        """The model that the folder holds now: `before` itself where nothing changed and all files are whole."""
        if before is not None and (before.folder, before.state) == (folder, state_of(folder)):
            verify(folder)
            return before
        return self._taken(name, folder)

    def _taken(self, name: str, folder: Path) -> _Held:
        state = state_of(folder)
        served = self._load(name, folder)
        if isinstance(served, ServedClassifier):
            list(served.classifier.classify_all([PROBE]))
        else:
            list(served.translator.translate_lines([Line(number=0, text=PROBE)], PROBING))
        return _Held(served=served, folder=folder, state=state)


def served_in(name: str, folder: Path, computing: Computing) -> Served | ServedClassifier:
    """The model in a folder, whichever kind it is, in this process."""
    if read_config(folder).data.task != "classification":
        return Served.of(name, translator_in(folder, computing))
    dtype, threads = computing.plain_dtype, computing.threads
    return ServedClassifier.of(name, load_classifier(folder, device=computing.device, dtype=dtype, threads=threads))


def state_of(folder: Path) -> str:
    """What changes whenever something is committed to a folder."""
    try:
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    except OSError:
        # Whoever loads it says in full what is wrong with it.
        return ""


def _attempt(load: Callable[[], _Held]) -> _Held | str:
    """What was loaded, or one line that says why it was not."""
    # In a thread of its own whatever is raised comes out as a value, be it that memory ran out.
    with ThreadPoolExecutor(1, thread_name_prefix="translume-load") as thread:
        done = thread.submit(load)
        error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, TranslumeError):
        return str(error)
    log.error("loading failed", extra={"fields": {"traceback": "".join(traceback.format_tb(error.__traceback__))}})
    return f"cannot be loaded: {type(error).__name__}"
