"""Models of Marian: a file of weights with its options, beside vocabularies and a decoder.yml."""

from pathlib import Path

WEIGHTS = (".npz", ".bin")
"""Suffixes of files of weights."""


def is_marian(source: Path) -> bool:
    """Return whether a file or folder is a model of Marian rather than of transformers."""
    if source.is_dir():
        return not (source / "config.json").exists() and bool(weights_in(source))
    return source.suffix in WEIGHTS


def weights_in(folder: Path) -> list[Path]:
    """Return the files of weights in a folder, without those of transformers and without shortlists (`lex*.bin`)."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in WEIGHTS and not path.name.startswith(("lex", "pytorch_model", "optimizer"))
    )
