"""Read a model of Marian as a model of ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.marian import weights_in
from translume.interchange.marian.binary import read_binary
from translume.interchange.marian.npz import read_npz
from translume.interchange.marian.options import Architecture, decoding_values, read_architecture
from translume.interchange.marian.vocabulary import LISTS, read_tokenizer, read_yaml
from translume.interchange.marian.weights import WeightsFile, fill
from translume.text import Tokenizer

SENTENCES = ("source.spm", "target.spm")
"""The SentencePiece models that OPUS-MT applies before Marian reads a text."""


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
        if not path.is_file():
            raise ModelFolderError(f"{path}: no such file, expected a part of the model {source}")
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
    found = [path for path in sorted(source.glob("*.yml")) if not path.name.endswith("vocab.yml")]
    found.sort(key=lambda path: path.name != "decoder.yml")
    return next((path for path in found if "models" in read_yaml(path)), None)


def _one_weights(folder: Path, named: dict[object, object]) -> Path:
    names = named.get("models")
    if isinstance(names, list) and names:
        if len(names) > 1:
            raise SettingsError(f"{folder}: models: found {len(names)}, expected one; import each with its own path")
        return folder / Path(str(names[0])).name
    found = weights_in(folder)
    if len(found) != 1:
        shown = ", ".join(path.name for path in found)
        raise ModelFolderError(f"{folder}: found the weights {shown}, expected one file; name it instead of the folder")
    return found[0]


def _vocabularies(folder: Path, named: dict[object, object]) -> list[Path]:
    names = named.get("vocabs")
    if isinstance(names, list) and names:
        return [folder / Path(str(name)).name for name in names]
    for pattern in ("*vocab*.yml", "vocab*.spm", "*.spm"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found
        if len(found) == 2:
            # source.spm and target.spm, srcvocab.spm and trgvocab.spm, src.spm and trg.spm
            return sorted(found, key=lambda path: not path.name.startswith("s"))
    raise ModelFolderError(f"{folder}: found no vocabularies, expected them with --vocabs SOURCE TARGET")


def read_marian(source: Path, vocabularies: Sequence[Path] = ()) -> MarianModel:
    """Read the model `source`, a file of weights or a folder that holds one; see `find_files`.

    Raises ModelFolderError for a missing file or weights of another shape, DataError for a damaged file, SettingsError
    naming the first option that we cannot express.
    """
    files = find_files(source, vocabularies)
    weights = (read_binary if files.weights.suffix == ".bin" else read_npz)(files.weights)
    architecture = read_architecture(weights.place, weights.options)
    decoding, notes = ({}, []) if files.decoder is None else _decoding(files.decoder)
    source_tokenizer, target_tokenizer = _tokenizers(files)
    _check_sizes(architecture, weights, source_tokenizer, target_tokenizer)
    values: dict[str, Any] = {"model": dict(architecture.values), "decoding": decoding}
    shared = source_tokenizer is target_tokenizer
    values["tokenizer"] = {**source_tokenizer.settings.model_dump(), "shared": shared}
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
