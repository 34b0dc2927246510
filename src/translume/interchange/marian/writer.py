"""Write a model in Marian's format: weights (.npz), vocabularies and a decoder.yml."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings, SoftmaxSettings
from translume.errors import SettingsError, TranslumeError
from translume.interchange.certificate import Certificate, forced_targets
from translume.interchange.marian.compare import TOLERANCE, comparison
from translume.interchange.marian.options import MODEL_OPTIONS, NORM_EPSILON, read_architecture
from translume.interchange.marian.reader import SENTENCES, MarianModel, read_marian
from translume.interchange.marian.vocabulary import END, UNKNOWN
from translume.interchange.marian.weights import IMPOSSIBLE, arrays_of
from translume.interchange.sentencepiece import SPACE, write_sentencepiece, write_vocabulary

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
_TIES = {
    "all": {"tied-embeddings-all": True}, "target": {"tied-embeddings": True},
    "embeddings": {"tied-embeddings-src": True}, "none": {},
}  # fmt: skip


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
    found = read_marian(folder)
    _compare_ids(checkpoint, found)
    run, _ = comparison(found)
    forced = forced_targets(checkpoint)
    reread = forced_targets(found.checkpoint).log_probs
    certificate = forced.certificate(reread, dtype) if run is None else run(checkpoint)
    if certificate.difference > TOLERANCE:
        raise TranslumeError(
            f"{folder}: the export differs by {certificate.difference:.2g} nats a token, expected at most {TOLERANCE}"
        )
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
    for name, values in possible.items():
        if (found := getattr(settings, name)) not in values:
            wanted = " or ".join(map(repr, values))
            raise SettingsError(f"model.{name}: found {found!r}, expected {wanted} for marian")
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
            raise SettingsError("tokenizer: the begin mark must be the last id for marian, which has none")
    weights = model.state_dict()
    if float(weights["head.bias"][-1]) > IMPOSSIBLE / 2 or weights["decoder.embedding.table.weight"][-1].any():
        raise SettingsError(
            "model: the begin mark has a vector that is not zero, or is predicted; Marian begins with a zero vector"
        )


def model_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the options that Marian reads beside the weights."""
    settings: ModelSettings = checkpoint.config.model
    pre, ssru = settings.norm == "pre", settings.decoder_mixing == "ssru"
    ties = {"tied-embeddings-all": False, "tied-embeddings": False, "tied-embeddings-src": False}
    return {
        **_FIXED,
        **ties,
        **_TIES[settings.head.tie],
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
    pieces = [each.pieces[:-1] for each in sides]  # without the begin mark
    models = [each.sentences for each in sides if each.sentences is not None]
    contents = [write_vocabulary(model, names) for model, names in zip(models, pieces, strict=True)]
    if contents[0] == contents[1] and contents[0] is not None:
        (folder / VOCABULARY).write_bytes(contents[0])
        return [VOCABULARY, VOCABULARY]
    if pieces[0] != pieces[1] and None not in contents:
        for name, content in zip(SENTENCES, contents, strict=True):
            (folder / name).write_bytes(content or b"")
        return [*SENTENCES]
    for name, model in zip(SENTENCES, models, strict=True):
        (folder / name).write_bytes(write_sentencepiece(model))
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
    found: dict[str, Any] = {
        "relative-paths": True,
        "models": [WEIGHTS],
        "vocabs": vocabularies,
        "beam-size": decoding.beam if decoding.strategy == "beam" else 1,
        "normalize": decoding.length_penalty,
        "allow-unk": True,
    }
    if decoding.max_length_ratio:
        found["max-length-factor"] = decoding.max_length_ratio
    return found


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")


def _compare_ids(checkpoint: Checkpoint, found: MarianModel) -> None:
    """Raise TranslumeError if the written vocabularies give other ids."""
    forced = forced_targets(checkpoint)
    for ours, theirs, rows in (
        (checkpoint.source_tokenizer, found.checkpoint.source_tokenizer, forced.sources),
        (checkpoint.target_tokenizer, found.checkpoint.target_tokenizer, forced.targets),
    ):
        for text in (*map(ours.decode, rows), f"{END} {UNKNOWN}", "ﬁ e\u0301", "…"):
            if ours.encode(text) != theirs.encode(text):
                raise TranslumeError(f"tokenizer: {text!r} has other ids in the export")
