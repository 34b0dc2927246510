"""Checkpoints of fairseq, OpenNMT-py, EOLE, JoeyNMT, Sockeye and Keras, recognised by what is in them."""

from pathlib import Path

CHECKPOINTS = (".pt", ".pth", ".ckpt")
"""Suffixes of pickled checkpoints."""
KERAS = (".h5", ".keras")
"""Suffixes of the weights that Keras saves."""
SOCKEYE, JOEYNMT, EOLE = ("config", "params.best"), ("config.yaml",), ("config.json", "vocab.json")
"""Files that are in a folder of a toolkit."""


def is_toolkit(source: Path) -> bool:
    """Return whether a file or folder may be a checkpoint of one of the toolkits."""
    if not source.is_dir():
        return source.suffix in (*CHECKPOINTS, *KERAS) or source.name.startswith("params.")
    if is_eole(source) or all((source / name).is_file() for name in SOCKEYE):
        return True
    return not (source / "config.json").exists() and any(path.suffix in CHECKPOINTS for path in source.iterdir())


def is_eole(folder: Path) -> bool:
    """Return whether a folder is a model of EOLE; one of transformers may have a vocab.json, too."""
    if not all((folder / name).is_file() for name in EOLE):
        return False
    text = (folder / EOLE[0]).read_text(encoding="utf-8", errors="replace")
    return '"model"' in text and '"model_type"' not in text.partition('"model"')[0] and '"architectures"' not in text
