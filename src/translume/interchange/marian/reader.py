"""Read a Marian model as a model of ours. Marian's weights are [in, out]; `Wt` and embeddings are [out, in]."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config
from translume.errors import ModelFolderError, SettingsError, expect_file
from translume.interchange.marian import weights_in
from translume.interchange.marian.files import Array, WeightsFile, read_weights
from translume.interchange.marian.options import Architecture, decoding_values, read_architecture
from translume.interchange.marian.vocabulary import LISTS, read_tokenizer, read_yaml
from translume.model import Transformer
from translume.text import Tokenizer

SENTENCES = ("source.spm", "target.spm")
"""The SentencePiece models that OPUS-MT applies before Marian reads a text."""
TABLES = ("encoder.embedding.table.weight", "decoder.embedding.table.weight", "head.weight")
"""Our tables of tokens. They have one row more than Marian's, for our BOS."""
OUTPUT = "decoder_ff_logit_out_Wt"
"""The output layer [out, in] in newer files; older ones have OLD_OUTPUT [in, out]."""
IMPOSSIBLE = -100.0
"""The logit bias of our BOS: its probability is 0 in fp32, and label smoothing in fine-tuning stays small."""
OLD_OUTPUT = "decoder_ff_logit_out_W"
_UNUSED = ("special:", "QuantMultA", "decoder_c", "lsh_output")
"""Parts of the names of arrays that the graph does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianFiles:
    """The files of a model.

    weights: .npz or .bin.  vocabularies: of source and target.  sentences: SentencePiece models of the two sides, for
    vocabularies that are lists.  decoder: options of the decoder, or None.
    """

    weights: Path
    vocabularies: tuple[Path, Path]
    sentences: tuple[Path | None, Path | None]
    decoder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianModel:
    """An imported model, its files, and one line for each thing that was left out.

    quantised: whether its weights were 8-bit or 16-bit integers.
    """

    checkpoint: Checkpoint
    files: MarianFiles
    quantised: bool
    notes: tuple[str, ...]


def find_files(source: Path, vocabularies: Sequence[Path] = ()) -> MarianFiles:
    """Return the files of the model `source`, a file of weights or a folder, with these vocabularies or those found.

    Vocabularies are those of the decoder's options, or else `vocab*.spm`, two SentencePiece models or `*vocab.yml` in
    the folder. Raises ModelFolderError for a missing file, DataError for a damaged one.
    """
    folder = source if source.is_dir() else source.parent
    decoder = _decoder_options(source)
    named = {} if decoder is None else read_yaml(decoder)
    weights = source if source.is_file() else _one_weights(folder, named)
    if not vocabularies:
        vocabularies = _vocabularies(folder, named)
    for path in (weights, *vocabularies):
        expect_file(path, f"a part of the model {source}")
    sentences = tuple(folder / name if (folder / name).is_file() else None for name in SENTENCES)
    return MarianFiles(
        weights=weights,
        vocabularies=(vocabularies[0], vocabularies[-1]),
        sentences=(sentences[0], sentences[1]),
        decoder=decoder,
    )


def _decoder_options(source: Path) -> Path | None:
    """Return the file that names weights and says how to decode: `model.npz.decoder.yml`, or one in the folder."""
    if source.is_file():
        beside = source.with_name(f"{source.name}.decoder.yml")
        return beside if beside.is_file() else None
    paths = [path for path in sorted(source.glob("*.yml")) if not path.name.endswith("vocab.yml")]
    paths.sort(key=lambda path: path.name != "decoder.yml")
    return next((path for path in paths if "models" in read_yaml(path)), None)


def _one_weights(folder: Path, named: dict[object, object]) -> Path:
    names = named.get("models")
    if isinstance(names, list) and names:
        if len(names) > 1:
            raise SettingsError(f"{folder}: models: found {len(names)}, expected one; import each with its own path")
        return folder / Path(str(names[0])).name
    paths = weights_in(folder)
    if len(paths) != 1:
        shown = ", ".join(path.name for path in paths)
        raise ModelFolderError(f"{folder}: found the weights {shown}, expected one file; name it instead of the folder")
    return paths[0]


def _vocabularies(folder: Path, named: dict[object, object]) -> list[Path]:
    names = named.get("vocabs")
    if isinstance(names, list) and names:
        return [folder / Path(str(name)).name for name in names]
    for pattern in ("*vocab*.yml", "vocab*.spm", "*.spm"):
        paths = sorted(folder.glob(pattern))
        if len(paths) == 1:
            return paths
        if len(paths) == 2:
            # source.spm and target.spm, srcvocab.spm and trgvocab.spm, src.spm and trg.spm
            return sorted(paths, key=lambda path: not path.name.startswith("s"))
    raise ModelFolderError(f"{folder}: found no vocabularies, expected them with --vocabs SOURCE TARGET")


def read_marian(source: Path, vocabularies: Sequence[Path] = ()) -> MarianModel:
    """Read the model `source`, a file of weights or a folder that holds one; see `find_files`.

    Raises ModelFolderError for a missing file or weights of another shape, DataError for a damaged file, SettingsError
    naming the first option that we cannot express.
    """
    files = find_files(source, vocabularies)
    weights = read_weights(files.weights)
    architecture = read_architecture(weights.place, weights.options)
    decoding, notes = ({}, []) if files.decoder is None else _decoding(files.decoder)
    source_tokenizer, target_tokenizer = _tokenizers(files)
    _check_sizes(architecture, weights, source_tokenizer, target_tokenizer)
    values: dict[str, Any] = {"model": dict(architecture.values), "decoding": decoding}
    values["tokenizer"] = {**source_tokenizer.settings.model_dump(), "shared": source_tokenizer is target_tokenizer}
    config = Config.build(values, place=weights.place)
    model = build_model(config.model, len(source_tokenizer), len(target_tokenizer))
    fill(model, architecture, weights)
    if len(set(architecture.feed_forward)) > 1:
        notes.append(
            f"{weights.place}: transformer-decoder-dim-ffn: the narrower of {architecture.feed_forward} has units that "
            "are zero"
        )
    checkpoint = Checkpoint(
        config=config, model=model.eval(), source_tokenizer=source_tokenizer, target_tokenizer=target_tokenizer
    )
    return MarianModel(checkpoint=checkpoint, files=files, quantised=weights.quantised, notes=tuple(notes))


def _decoding(path: Path) -> tuple[dict[str, Any], list[str]]:
    return decoding_values(str(path), {str(name): value for name, value in read_yaml(path).items()})


def _tokenizers(files: MarianFiles) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of the two sides, one object if both have the same files."""
    sides = [
        (vocabulary, sentences if vocabulary.suffix in LISTS else None)
        for vocabulary, sentences in zip(files.vocabularies, files.sentences, strict=True)
    ]
    source = read_tokenizer(*sides[0])
    contents = [tuple(path.read_bytes() for path in side if path is not None) for side in sides]
    return source, source if contents[0] == contents[1] else read_tokenizer(*sides[1])


def _check_sizes(model: Architecture, weights: WeightsFile, source: Tokenizer, target: Tokenizer) -> None:
    for side, size, tokenizer in (("source", model.source, source), ("target", model.target, target)):
        if size and len(tokenizer) != size + 1:
            raise SettingsError(
                f"{weights.place}: dim-vocabs: found {size:,} for the {side}, expected {len(tokenizer) - 1:,} by its "
                "vocabulary"
            )


@torch.no_grad()
def fill(model: Transformer, architecture: Architecture, file: WeightsFile) -> None:
    """Copy the arrays of a file into a model of its shape, one at a time.

    Raises ModelFolderError naming the first array that is missing, unknown or of another shape.
    """
    weights = model.state_dict()  # tied tables share their memory
    used: set[str] = set()
    weights["head.bias"].zero_()
    for ours, theirs in _names(architecture, file.names).items():
        for name, part in zip(theirs, _without_bos(ours, weights[ours]).chunk(len(theirs)), strict=True):
            used.add(name)
            part.copy_(_array(file, name, ours, part))
    for table in TABLES:  # Marian begins with a zero vector
        weights[table][-1].zero_()
    weights["head.bias"][-1] = IMPOSSIBLE
    for name in file.names:
        if name not in used and not any(part in name for part in _UNUSED):
            raise ModelFolderError(f"{file.place}: holds {name}, which a model of its options does not have")


def _array(file: WeightsFile, name: str, ours: str, part: Tensor) -> Tensor:
    """Return an array as our tensor. Units that the narrower of two feed-forward sides lacks are 0: they do nothing."""
    if name not in file.names:
        raise ModelFolderError(f"{file.place}: no {name}, expected it by the options of the model")
    array = file.read(name)
    if array.ndim != 2:
        raise ModelFolderError(f"{file.place}: {name} is {list(array.shape)}, expected rows and columns")
    changed = array.ravel() if part.ndim == 1 else array if _is_table(ours, name) else array.T
    if "feed_forward" in ours and changed.ndim == part.ndim:
        missing = [max(0, size - had) for size, had in zip(part.shape, changed.shape, strict=True)]
        changed = np.pad(changed, [(0, count) for count in missing])
    if changed.shape != part.shape:
        raise ModelFolderError(
            f"{file.place}: {name} is {list(array.shape)}, which does not fit the options of the model"
        )
    return torch.from_numpy(changed if changed.flags.writeable else changed.copy())


def arrays_of(model: Transformer, architecture: Architecture) -> dict[str, Array]:
    """Return Marian's arrays of a model with this shape: the inverse of `fill`."""
    weights, arrays = model.state_dict(), {}
    for ours, theirs in _names(architecture, (OUTPUT,)).items():
        tensor = _without_bos(ours, weights[ours].detach().float().cpu())
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            array = part.numpy()
            array = array[None] if array.ndim == 1 else array if _is_table(ours, name) else array.T
            arrays[name] = np.ascontiguousarray(array)
    return arrays


def _without_bos(ours: str, tensor: Tensor) -> Tensor:
    """Return a table or bias of tokens without its last row, BOS, which Marian does not have; other tensors as is."""
    return tensor[:-1] if ours in TABLES or ours == "head.bias" else tensor


def _is_table(ours: str, theirs: str) -> bool:
    """Return whether Marian stores a table of tokens as we do."""
    return ours in TABLES and theirs != OLD_OUTPUT


def _names(model: Architecture, stored: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return for each of our weights the names of Marian's arrays, which are equal shares of its rows.

    stored: the names of the arrays in the file.
    """
    encoder, decoder, head = TABLES
    shared = model.tied in ("all", "embeddings")
    names: dict[str, tuple[str, ...]] = {encoder: ("Wemb" if shared else "encoder_Wemb",)}
    if not shared:
        names[decoder] = ("decoder_Wemb",)
    if model.tied in ("embeddings", "none"):
        names[head] = (OUTPUT if OUTPUT in stored else OLD_OUTPUT,)
    if model.output_bias:
        names["head.bias"] = ("decoder_ff_logit_out_b",)
    for side in ("encoder", "decoder"):
        if model.values["norm"] == "pre":
            names |= _norm(f"{side}.norm", f"{side}_top", "")
        for number in range(model.values[f"{side}_layers"]):
            names |= _layer(model, side, f"{side}.layers.{number}", f"{side}_l{number + 1}")
    return names


def _layer(model: Architecture, side: str, ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    suffix = "_pre" if model.values["norm"] == "pre" else ""
    around = f"{ours}.around_attention.norm" if side == "encoder" else f"{ours}.around_self.norm"
    names = _linear(f"{ours}.feed_forward.inner", f"{theirs}_ffn", "1")
    names |= _linear(f"{ours}.feed_forward.outer", f"{theirs}_ffn", "2")
    names |= _norm(f"{ours}.around_feed_forward.norm", f"{theirs}_ffn_ffn", suffix)
    if side == "decoder" and model.ssru:
        names[f"{ours}.self_attention.update.weight"] = (f"{theirs}_rnn_W",)
        names |= _linear(f"{ours}.self_attention.forget", f"{theirs}_rnn", "f")
        names |= _norm(around, f"{theirs}_rnn" if suffix else f"{theirs}_rnn_ffn", suffix)
    else:
        names |= _linear(f"{ours}.self_attention.query_key_value", f"{theirs}_self", "qkv")
        names |= _linear(f"{ours}.self_attention.output", f"{theirs}_self", "o")
        names |= _norm(around, f"{theirs}_self_Wo", suffix)
    if side == "decoder":
        for name, letters in (("query", "q"), ("key_value", "kv"), ("output", "o")):
            names |= _linear(f"{ours}.cross_attention.{name}", f"{theirs}_context", letters)
        names |= _norm(f"{ours}.around_cross.norm", f"{theirs}_context_Wo", suffix)
    return names


def _linear(ours: str, theirs: str, letters: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{ours}.{kind}": tuple(f"{theirs}_{short}{letter}" for letter in letters)
        for kind, short in (("weight", "W"), ("bias", "b"))
    }


def _norm(ours: str, theirs: str, suffix: str) -> dict[str, tuple[str, ...]]:
    return {f"{ours}.weight": (f"{theirs}_ln_scale{suffix}",), f"{ours}.bias": (f"{theirs}_ln_bias{suffix}",)}
