"""Compare a model with the original in Marian, run by pymarian: log-probabilities of random sentences."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from translume.checkpoint import Checkpoint
from translume.errors import TranslumeError
from translume.interchange.certificate import Certificate, forced_targets
from translume.interchange.marian.reader import MarianFiles, MarianModel
from translume.interchange.marian.vocabulary import END, UNKNOWN
from translume.text import Tokenizer

TOLERANCE = 1e-3
"""Largest accepted |Δ log p| of a token, in nats."""
_MEMORY = 256
"""Megabytes that Marian reserves for its computation."""


def comparison(model: MarianModel) -> tuple[Callable[[Checkpoint], Certificate] | None, str]:
    """Return the function that compares a checkpoint with this model, or None and the reason why there is none."""
    if model.quantised:
        return None, "it rounds hidden states too if the weights are integers"
    if find_spec("_pymarian") is None:
        return None, "pymarian is not installed; pip install pymarian"
    return partial(compare_with_marian, files=model.files), ""


def compare_with_marian(checkpoint: Checkpoint, files: MarianFiles) -> Certificate:
    """Compare our log-probabilities of random ids with Marian's. Raises TranslumeError if they differ too much.

    Marian reads ids as words of a vocabulary made for this, since texts of random pieces are segmented differently by
    releases of SentencePiece if two segmentations are equally likely.
    """
    forced = forced_targets(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        tokenizers = (checkpoint.source_tokenizer, checkpoint.target_tokenizer)
        source, target = (_words(Path(folder, f"{side}.yml"), each) for side, each in enumerate(tokenizers))
        lines = [[" ".join(f"w{id_}" for id_ in row) for row in rows] for rows in (forced.sources, forced.targets)]
        found = score_with_marian(files.weights, (source, target), *lines)
    certificate = forced.certificate(found, "float32")
    if certificate.difference > TOLERANCE:
        raise TranslumeError(
            f"{files.weights}: the imported model differs from Marian's by {certificate.difference:.2g} nats a token, "
            f"expected at most {TOLERANCE}"
        )
    return certificate


def _words(path: Path, tokenizer: Tokenizer) -> Path:
    """Write a vocabulary of Marian that has a word for each id, without our begin mark."""
    specials = {tokenizer.specials.eos: END, tokenizer.specials.unk: UNKNOWN}
    words = [specials.get(id_, f"w{id_}") for id_ in range(len(tokenizer) - 1)]
    path.write_text("".join(f'"{word}": {id_}\n' for id_, word in enumerate(words)), encoding="utf-8")
    return path


def score_with_marian(
    weights: Path, vocabularies: Sequence[Path], sources: Sequence[str], targets: Sequence[str]
) -> list[list[float]]:
    """Return Marian's log-probabilities of the tokens of each target line, end mark included.

    Runs in a process of its own, since Marian aborts on errors. Raises TranslumeError with Marian's error.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for name, texts in (("source", sources), ("target", targets)):
            path = Path(folder, name)
            path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            lines.append(str(path))
        command = [
            sys.executable, "-m", "pymarian", "score", "--model", str(weights.resolve()), "--vocabs",
            *(str(path.resolve()) for path in vocabularies), "--train-sets", *lines, "--word-scores",
            "--cpu-threads", "1", "--workspace", str(_MEMORY), "--mini-batch", "8", "--quiet",
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error: " in line][:1] or done.stderr.splitlines()[-1:]
        raise TranslumeError(f"{weights}: Marian cannot read it: {''.join(said).partition('Error: ')[2]}")
    return [[float(value) for value in line.partition("WordScores=")[2].split()] for line in done.stdout.splitlines()]
