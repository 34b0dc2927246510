"""Read a checkpoint of another toolkit as a model of ours, whichever of them made it."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from translume.errors import ModelFolderError, SettingsError
from translume.interchange.pickled import load_pickled
from translume.interchange.toolkits import CHECKPOINTS, KERAS, SOCKEYE, is_eole
from translume.interchange.toolkits.checkpoints import Foreign
from translume.interchange.toolkits.fairseq import read_fairseq
from translume.interchange.toolkits.joeynmt import read_joeynmt
from translume.interchange.toolkits.keras import read_keras
from translume.interchange.toolkits.opennmt import read_eole, read_opennmt
from translume.interchange.toolkits.sockeye import read_sockeye

PREFERRED = ("checkpoint_best.pt", "best.ckpt", "checkpoint_last.pt", "latest.ckpt")
"""The checkpoint of a folder with several."""


def read_toolkit(source: Path, vocabularies: Sequence[Path] = ()) -> Foreign:
    """Read a checkpoint, or the one in a folder.

    vocabularies: of source and target, for fairseq and Keras.
    Raises ModelFolderError for a missing or damaged file, DataError for damaged vocabularies, SettingsError naming the
    first option that we cannot express.
    """
    if source.is_dir() and is_eole(source):
        return read_eole(source)
    if source.suffix in KERAS:
        return read_keras(source, vocabularies)
    path = _checkpoint_in(source) if source.is_dir() else source
    values = load_pickled(path, "tensors and plain values", [(Namespace, "argparse.Namespace")])
    for part in ("model", "model_state", "generator"):
        if isinstance(values, Mapping) and not _named(values.get(part) or {}):
            raise ModelFolderError(f"{path}: {part}: expected weights by name")
    if isinstance(values, Mapping) and "model" in values and values.keys() & {"args", "cfg"}:
        return read_fairseq(path, values, vocabularies)
    if vocabularies:
        raise SettingsError(f"vocabularies: found them for {path}, which is no checkpoint of fairseq")
    if isinstance(values, Mapping) and {"opt", "vocab"} <= values.keys():
        return read_opennmt(path, values)
    if isinstance(values, Mapping) and "model_state" in values:
        return read_joeynmt(path, values)
    if _named(values) and "output_layer.weight" in values:
        return read_sockeye(path, values)
    found = ", ".join(map(str, list(values)[:5])) if isinstance(values, Mapping) else type(values).__name__
    raise ModelFolderError(
        f"{path}: found {found}, expected a checkpoint of fairseq, OpenNMT-py, JoeyNMT or Sockeye, or --layout"
    )


def _named(values: object) -> bool:
    return isinstance(values, Mapping) and all(isinstance(name, str) for name in values)


def _checkpoint_in(folder: Path) -> Path:
    if all((folder / name).is_file() for name in SOCKEYE):
        return folder / SOCKEYE[1]
    paths = sorted(path for path in folder.iterdir() if path.suffix in CHECKPOINTS)
    preferred = next((folder / name for name in PREFERRED if folder / name in paths), None)
    if preferred is None and len(paths) > 1:
        shown = ", ".join(path.name for path in paths)
        raise ModelFolderError(f"{folder}: found {shown}, expected one checkpoint; name it instead of the folder")
    return preferred or paths[0]
