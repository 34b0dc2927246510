"""Write a model in Marian's format, and compare models with Marian itself, run by pymarian."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings, SoftmaxSettings
from translume.errors import SettingsError, TranslumeError
from translume.interchange.certificate import Certificate, forced_targets, require_settings
from translume.interchange.marian.options import MODEL_OPTIONS, NORM_EPSILON, read_architecture
from translume.interchange.marian.reader import IMPOSSIBLE, SENTENCES, MarianFiles, MarianModel, arrays_of, read_marian
from translume.interchange.marian.vocabulary import END, UNKNOWN
from translume.text import Tokenizer
from translume.text.imported import SPACE

_MEMORY = 256
"""Megabytes that Marian reserves for its computation."""
WEIGHTS, VOCABULARY, DECODER, CERTIFICATE = "model.npz", "vocab.spm", "decoder.yml", "translume.json"
_FIXED: dict[str, Any] = {
    "type": "transformer", "transformer-ffn-depth": 2, "transformer-decoder-ffn-depth": 0,
    "transformer-decoder-dim-ffn": 0, "transformer-postprocess-emb": "d", "output-omit-bias": False,
    "lemma-dim-emb": 0, "lemma-dependency": "", "input-types": [], "layer-normalization": False, "right-left": False,
    "skip": False, "transformer-no-projection": False, "transformer-no-bias": False, "transformer-no-affine": False,
    "transformer-tied-layers": [], "transformer-train-position-embeddings": False, "ulr": False, "ulr-dim-emb": 0,
    "ulr-trainable-transformation": False, "transformer-rnn-projection": False, "transformer-pool": False,
    "transformer-attention-mask": "default", "transformer-alibi-shift": False, "transformer-alibi-trainable": False,
    "separator-symbol": "[eos]", "transformer-disable-position-embeddings": False,
    "transformer-guided-alignment-layer": "last", "bert-train-type-embeddings": True, "bert-type-vocab-size": 2,
    "factors-combine": "sum", "factors-dim-emb": 0, "transformer-aan-activation": "swish", "transformer-aan-depth": 2,
    "transformer-aan-nogate": False, "transformer-dim-aan": 2048, "dim-rnn": 1024, "enc-cell": "gru",
    "enc-cell-depth": 1, "enc-type": "bidirectional", "dec-cell-base-depth": 2, "dec-cell-high-depth": 1,
    "version": "v1.12.42",
}  # fmt: skip
"""The options that Marian 1.12.42 expects in the weights and that are the same for every model of ours."""
_TIES = {"all": "tied-embeddings-all", "target": "tied-embeddings", "embeddings": "tied-embeddings-src"}


def write_marian(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write the model into the existing empty `folder`, and compare it with Marian, or with its own import.

    Raises SettingsError for what Marian cannot express, TranslumeError if ids differ, or log-probabilities too much.
    """
    if dtype != "float32":
        raise SettingsError(f"export: found weights as {dtype!r}, expected 'float32' for marian")
    _refuse(checkpoint)
    options = model_options(checkpoint)
    arrays: dict[str, Any] = {**arrays_of(checkpoint.model, read_architecture(WEIGHTS, options))}
    text = yaml.safe_dump(options).encode() + b"\0"
    np.savez(folder / WEIGHTS, **arrays | {MODEL_OPTIONS: np.frombuffer(text, np.int8)})
    _write_yaml(folder / DECODER, _decoder(checkpoint, _write_vocabularies(checkpoint, folder)))
    reread = read_marian(folder)
    _compare_ids(checkpoint, reread)
    run, _ = comparison(reread)
    if run is None:
        log_probs = forced_targets(reread.checkpoint).log_probs
        certificate = forced_targets(checkpoint).compare(log_probs, "its import", folder)
    else:
        certificate = run(checkpoint)
    compared = {"compared_with": "its import" if run is None else "pymarian"}
    (folder / CERTIFICATE).write_text(json.dumps(certificate.to_dict() | compared, indent=1) + "\n", encoding="utf-8")
    return certificate


def _refuse(checkpoint: Checkpoint) -> None:
    """Raise SettingsError naming the first setting, token or weight that Marian cannot express."""
    settings, model = checkpoint.config.model, checkpoint.model
    possible: dict[str, tuple[object, ...]] = {
        "positions": ("marian",), "normalization": ("layer",), "norm_epsilon": (NORM_EPSILON,),
        "activation": ("relu", "swish", "gelu"), "decoder_mixing": ("attention", "ssru"), "scale_embeddings": (True,),
        "embedding_norm": (False,), "bias": (True,), "language_tags": ("none",), "segments": (0,),
        "head_width": (0, settings.width // settings.attention_heads),
    }  # fmt: skip
    require_settings(settings, possible, "marian")
    if not isinstance(settings.head, SoftmaxSettings) or not settings.head.bias:
        found = "bias = false" if isinstance(settings.head, SoftmaxSettings) else f"kind = '{settings.head.kind}'"
        raise SettingsError(f"model.head: found {found}, expected a softmax with a bias for marian")
    for tokenizer in (checkpoint.source_tokenizer, checkpoint.target_tokenizer):
        if tokenizer.vocabulary.sentences is None:
            raise SettingsError(
                f"tokenizer.kind: found '{tokenizer.settings.kind}', expected 'sentencepiece', an imported model, for "
                "marian"
            )
        specials, pieces = tokenizer.specials, tokenizer.vocabulary.pieces
        if specials.unk is None or (pieces[specials.eos], pieces[specials.unk]) != (END, UNKNOWN):
            raise SettingsError(f"tokenizer: found other special tokens, expected {END} and {UNKNOWN} for marian")
        if {specials.bos, specials.pad} != {len(tokenizer) - 1} or specials.eos == specials.bos:
            raise SettingsError("tokenizer: BOS must be the last id for marian, which has none")
    weights = model.state_dict()
    if float(weights["head.bias"][-1]) > IMPOSSIBLE / 2 or weights["decoder.embedding.table.weight"][-1].any():
        raise SettingsError(
            "model: BOS has a vector that is not zero, or is predicted; Marian begins with a zero vector"
        )


def model_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the options that Marian reads beside the weights."""
    settings: ModelSettings = checkpoint.config.model
    pre, ssru = settings.norm == "pre", settings.decoder_mixing == "ssru"
    return {
        **_FIXED,
        **{name: tie == settings.head.tie for tie, name in _TIES.items()},
        "dim-vocabs": [len(each) - 1 for each in (checkpoint.source_tokenizer, checkpoint.target_tokenizer)],
        "dim-emb": settings.width,
        "transformer-heads": settings.attention_heads,
        "transformer-dim-ffn": settings.feed_forward,
        "transformer-ffn-activation": settings.activation,
        "enc-depth": settings.encoder_layers,
        "dec-depth": settings.decoder_layers,
        "transformer-preprocess": "n" if pre else "",
        "transformer-postprocess": "da" if pre else "dan",
        "transformer-postprocess-top": "n" if pre else "",
        "transformer-decoder-autoreg": "rnn" if ssru else "self-attention",
        "dec-cell": "ssru" if ssru else "gru",
    }


def _write_vocabularies(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """Write the vocabularies of both sides and return their names.

    A SentencePiece model with the pieces in order of ids is a vocabulary. If a side's model has other pieces than its
    vocabulary, the vocabulary is a list of pieces, and the models are beside it.
    """
    sides = [each.vocabulary for each in (checkpoint.source_tokenizer, checkpoint.target_tokenizer)]
    pieces = [each.pieces[:-1] for each in sides]  # without BOS
    models = [each.sentences for each in sides if each.sentences is not None]
    contents = [
        model.content if [each.piece.replace(SPACE, " ") for each in model.proto.pieces] == [*names] else None
        for model, names in zip(models, pieces, strict=True)
    ]
    if contents[0] == contents[1] and contents[0] is not None:
        (folder / VOCABULARY).write_bytes(contents[0])
        return [VOCABULARY, VOCABULARY]
    if pieces[0] != pieces[1] and None not in contents:
        for name, content in zip(SENTENCES, contents, strict=True):
            (folder / name).write_bytes(content or b"")
        return [*SENTENCES]
    for name, model in zip(SENTENCES, models, strict=True):
        (folder / name).write_bytes(model.content)
    lists = ["vocab.yml", "vocab.yml"] if pieces[0] == pieces[1] else ["source.vocab.yml", "target.vocab.yml"]
    for name, listed in zip(lists, pieces, strict=True):
        lines = (f"{_quoted(piece.replace(' ', SPACE))}: {id_}\n" for id_, piece in enumerate(listed))
        (folder / name).write_text("".join(lines), encoding="utf-8")
    return lists


def _quoted(text: str) -> str:
    """Return a text in YAML's double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in escaped) + '"'


def _decoder(checkpoint: Checkpoint, vocabularies: list[str]) -> dict[str, Any]:
    """Return the options of Marian's decoder for our [decoding] settings."""
    decoding = checkpoint.config.decoding
    options: dict[str, Any] = {
        "relative-paths": True,
        "models": [WEIGHTS],
        "vocabs": vocabularies,
        "beam-size": decoding.beam if decoding.strategy == "beam" else 1,
        "normalize": decoding.length_penalty,
        "allow-unk": True,
    }
    if decoding.max_length_ratio:
        options["max-length-factor"] = decoding.max_length_ratio
    return options


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")


def _compare_ids(checkpoint: Checkpoint, reread: MarianModel) -> None:
    """Raise TranslumeError if the written vocabularies give other ids."""
    forced = forced_targets(checkpoint)
    for ours, theirs, rows in (
        (checkpoint.source_tokenizer, reread.checkpoint.source_tokenizer, forced.sources),
        (checkpoint.target_tokenizer, reread.checkpoint.target_tokenizer, forced.targets),
    ):
        for text in (*map(ours.decode, rows), f"{END} {UNKNOWN}", "ﬁ e\u0301", "…"):
            if ours.encode(text) != theirs.encode(text):
                raise TranslumeError(f"tokenizer: {text!r} has other ids in the export")


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
        log_probs = score_with_marian(files.weights, (source, target), *lines)
    return forced.compare(log_probs, "Marian", files.weights)


def _words(path: Path, tokenizer: Tokenizer) -> Path:
    """Write a vocabulary of Marian that has a word for each id, without our BOS."""
    specials = {tokenizer.specials.eos: END, tokenizer.specials.unk: UNKNOWN}
    words = [specials.get(id_, f"w{id_}") for id_ in range(len(tokenizer) - 1)]
    path.write_text("".join(f'"{word}": {id_}\n' for id_, word in enumerate(words)), encoding="utf-8")
    return path


def score_with_marian(
    weights: Path, vocabularies: Sequence[Path], sources: Sequence[str], targets: Sequence[str]
) -> list[list[float]]:
    """Return Marian's log-probabilities of the tokens of each target line, EOS included.

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
