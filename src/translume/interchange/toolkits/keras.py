"""Read weights that Keras saved of the translation models of two tutorials, keras.io's and tensorflow.org's."""

import json
import math
import re
import shutil
import string
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor

from translume.config import ModelSettings
from translume.errors import DataError, ModelFolderError, SettingsError, needed_by
from translume.interchange.huggingface.bart import SIDES
from translume.interchange.huggingface.family import Names, encoder_differences, layer_names, with_kinds
from translume.interchange.pickled import damaged
from translume.interchange.toolkits.checkpoints import Foreign, read_lines, special_ids, tied_tables
from translume.json_values import read_json
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.imported import LibraryIds

WEIGHTS = "model.weights.h5"
"""The weights in a .keras, an archive."""
LARGEST = 4
"""How many times as large as the archive its weights may be; Keras does not compress them."""
LONGEST, TARGET = 2048, 128
"""The number of positions in tensorflow.org's tutorial, and its longest target."""
IGNORED = r"^(optimizer|metrics|compile_metrics)\.|seed_generator"
"""Variables of the training."""
SPACES = Regex(r"[ \t\n\v\f\r]+")
"""What TensorFlow splits words at."""


def _layer(own: str, cross: str, feed_forward: str, norms: Sequence[str]) -> Names:
    """Return the names of the parts of a layer.  cross: empty in an encoder.  norms: in the order of the blocks."""
    layer = {"self_attention.query_key_value": [f"{own}.{each}_dense" for each in ("query", "key", "value")]}
    if cross:
        layer["cross_attention.query"] = [f"{cross}.query_dense"]
        layer["cross_attention.key_value"] = [f"{cross}.{each}_dense" for each in ("key", "value")]
        layer["cross_attention.output"] = [f"{cross}.output_dense"]
    blocks = ("self", "cross", "feed_forward") if cross else ("attention", "feed_forward")
    return {
        **layer, "self_attention.output": [f"{own}.output_dense"],
        "feed_forward.inner": [f"{feed_forward}.layers.dense"],
        "feed_forward.outer": [f"{feed_forward}.layers.dense_1"],
        **{f"around_{block}.norm": [name] for block, name in zip(blocks, norms, strict=True)},
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The names in a tutorial's model, by side.

    stacks: the first layer; those after it end with _1, _2, …  layers: the parts of a layer.  heads: of the output
    layer, the first one that there is.  places: the tables of positions; empty for sinusoids.
    """

    stacks: Mapping[str, str]
    layers: Mapping[str, Names]
    tables: Sequence[str]
    heads: Sequence[str]
    places: Sequence[str] = ()

    def is_in(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether a file has the tables of both sides."""
        return all(len(shapes.get(name, ())) == 2 for name in (*self.tables, *self.places))


KERAS_IO = _Layout(
    stacks={side: f"layers.transformer_{side}" for side in SIDES},
    layers={
        "encoder": _layer("attention", "", "dense_proj", ["layernorm_1", "layernorm_2"]),
        "decoder": _layer("attention_1", "attention_2", "dense_proj", [f"layernorm_{each}" for each in (1, 2, 3)]),
    },
    tables=[f"layers.positional_embedding{each}.token_embeddings.weight" for each in ("", "_1")],
    heads=["layers.dense"],
    places=[f"layers.positional_embedding{each}.position_embeddings.weight" for each in ("", "_1")],
)
TENSORFLOW = _Layout(
    stacks={"encoder": "encoder.enc_layers.encoder_layer", "decoder": "decoder.dec_layers.decoder_layer"},
    layers={
        "encoder": _layer("self_attention.mha", "", "ffn.seq", ["self_attention.layernorm", "ffn.layer_norm"]),
        "decoder": _layer(
            "causal_self_attention.mha", "cross_attention.mha", "ffn.seq",
            ["causal_self_attention.layernorm", "cross_attention.layernorm", "ffn.layer_norm"],
        ),
    },
    tables=[f"{side}.pos_embedding.embedding.weight" for side in SIDES],
    heads=["final_layer", "layers.dense"],
)  # fmt: skip


class _Weights(Mapping[str, Tensor]):
    """The variables of a file in the shapes of torch, by name, each read when it is looked up.

    `a/_b/vars/0` is `a.b.weight`, and the variable 1 a bias.  shapes: those of Keras.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelFolderError for a file that is damaged, or has links, filters or numbers that are not in it."""
        self._path, self._stored = path, dict[str, Any]()
        with needed_by(str(path)):
            import h5py
        try:
            self._file = h5py.File(self._unpacked() if zipfile.is_zipfile(path) else path, "r")
            if "layer_names" in self._file.attrs or "model_weights" in self._file:
                raise ModelFolderError(f"{path}: in the format of Keras 1, expected a file NAME.weights.h5 or .keras")
            self._file.visititems(self._add)  # follows no links to other files, and no circles
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise damaged(path, error) from None
        self.shapes = {name: tuple(dataset.shape) for name, dataset in self._stored.items()}
        if sum(dataset.nbytes for dataset in self._stored.values()) > self._file.id.get_filesize():
            raise ModelFolderError(f"{path}: damaged: variables are larger than the file")

    def _unpacked(self) -> Any:
        """Return a temporary file with the weights in a .keras."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as there are weights
        weakref.finalize(self, file.close)
        with zipfile.ZipFile(self._path) as archive:
            info = next((each for each in archive.infolist() if each.filename == WEIGHTS), None)
            if info is None or info.file_size > LARGEST * self._path.stat().st_size:
                raise ModelFolderError(f"{self._path}: no {WEIGHTS}, or one much larger than the archive")
            with archive.open(info) as stored:
                shutil.copyfileobj(stored, file)
        return file

    def _add(self, path: str, item: Any) -> None:
        if not hasattr(item, "shape"):
            return
        if item.external or item.is_virtual or item.id.get_storage_size() != item.nbytes:
            raise ModelFolderError(f"{self._path}: {path} is compressed or not in the file")
        *parts, number = (part.lstrip("_") for part in path.split("/") if part != "vars")
        name = ".".join([*parts, {"0": "weight", "1": "bias"}.get(number, number)])
        self._stored[re.sub(r"^layers\.(encoder|decoder)\.", r"\1.", name)] = item  # Keras 2 writes layers.

    def __getitem__(self, name: str) -> Tensor:
        try:
            tensor = torch.from_numpy(self._stored[name][()])
        except (OSError, TypeError, ValueError) as error:
            raise damaged(self._path, error) from None
        if name.endswith(".bias"):
            return tensor.flatten()
        if name.endswith("output_dense.weight") and tensor.ndim == 3:  # [H, d, D]
            tensor = tensor.flatten(0, 1)
        kernel = tensor.ndim > 1 and "embedding" not in name.split(".")[-2]
        return tensor.flatten(1).T if kernel else tensor

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)


def read_keras(path: Path, vocabularies: Sequence[Path]) -> Foreign:
    """Read a file of weights.  vocabularies: of source and target.

    Raises ModelFolderError for a damaged file and for weights of another model, DataError for a damaged vocabulary,
    SettingsError for what we cannot express.
    """
    if len(vocabularies) != 2:
        raise SettingsError(f"{path}: found {len(vocabularies)} vocabularies, expected --vocabs SOURCE TARGET")
    weights = _Weights(path)
    layout = next((each for each in (KERAS_IO, TENSORFLOW) if each.is_in(weights.shapes)), None)
    if layout is None:
        nested = any(re.match(r"layers\.functional\b.*\.transformer_decoder", name) for name in weights)
        found = "a decoder that is a model in the model, which reads padding" if nested else ", ".join([*weights][:3])
        raise ModelFolderError(
            f"{path}: found {found}, expected the layers of the tutorial of keras.io (TransformerEncoder, "
            "TransformerDecoder, PositionalEmbedding) or tensorflow.org (Encoder, Decoder)"
        )
    heads = {weights.shapes[name][1:] for name in weights if name.endswith(("query_dense.weight", "key_dense.weight"))}
    if len(heads) != 1 or len(head := heads.pop()) != 2:
        raise SettingsError(f"{path}: found attention heads of several sizes, expected one number and size of heads")
    source, target = (
        _tokenizer(vocabulary, weights.shapes[name][0], source=number == 0)
        for number, (vocabulary, name) in enumerate(zip(vocabularies, layout.tables, strict=True))
    )
    inner = {
        side: math.prod(weights.shapes.get(f"{stack}.{layout.layers[side]['feed_forward.inner'][0]}.bias", ()))
        for side, stack in layout.stacks.items()
    }
    output = next((name for name in layout.heads if f"{name}.weight" in weights), layout.heads[0])
    tie, tables = tied_tables(path, weights, [*layout.tables, f"{output}.weight"])
    longest = [weights.shapes[name][0] for name in layout.places] or [LONGEST] * 2
    width = weights.shapes[layout.tables[0]][1]

    model = {
        "width": width, "feed_forward": max(inner.values()), "attention_heads": head[0],
        **{f"{side}_layers": _count(weights, stack) for side, stack in layout.stacks.items()},
        "head_width": 0 if head[0] * head[1] == width else head[1], "norm": "post", "norm_epsilon": 1e-3,
        "activation": "relu", "positions": "learned" if layout.places else "sinusoidal", "max_positions": longest[-1],
        "encoder": encoder_differences({"max_positions": longest[0]}, {"max_positions": longest[-1]}),
        "scale_embeddings": not layout.places,
        "language_tags": "source" if source.vocabulary.languages else "none",
        "head": {"kind": "softmax", "tie": tie, "bias": True},
    }  # fmt: skip

    def names(settings: ModelSettings) -> Names:
        stacks = {"head": [output]}
        for side, stack in layout.stacks.items():
            for number in range(model[f"{side}_layers"]):
                theirs = f"{stack}_{number}" if number else stack
                stacks |= layer_names(f"{side}.layers.{number}", theirs, layout.layers[side])
        places = {f"{side}.embedding.positions.table": [name] for side, name in zip(SIDES, layout.places, strict=False)}
        return {**with_kinds(stacks), **tables, **places}

    most = min(longest[-1], TARGET)
    return Foreign(
        toolkit="Keras", place=path, model=model, feed_forward=inner, tokenizers=(source, target), weights=weights,
        decoding={"strategy": "greedy", "max_length": most, "max_length_ratio": most, "split": "never",
                  "max_length_action": "truncate"},
        names=names, ignored=IGNORED,
        notes=(f"{path}: not in the file, so assumed: relu, norms with an epsilon of 0.001, a decoder that reads the "
               "whole source but no padding, and texts that are cut as in the tutorial",),
    )  # fmt: skip


def _count(weights: _Weights, stack: str) -> int:
    """Return the number of layers in a stack."""
    matches = (re.match(rf"{re.escape(stack)}(?:_\d+)?\.", name) for name in weights)
    return len({match[0] for match in matches if match})


def _tokenizer(path: Path, rows: int, *, source: bool) -> Tokenizer:
    """Return the tokenizer of a vocabulary: words of TextVectorization, or BERT's word pieces.

    path: a list in JSON, or a token in each line.  rows: of the embedding, at least as many as tokens.
    Raises DataError for another vocabulary.
    """
    pieces = read_json(path, list) if path.suffix == ".json" else read_lines(path)
    if not all(isinstance(each, str) for each in pieces) or len(pieces) > rows or len(set(pieces)) < len(pieces):
        raise DataError(f"{path}: found {len(pieces):,} tokens, expected at most {rows:,}, none of them twice")
    if pieces[:2] not in (["", "[UNK]"], ["[PAD]", "[UNK]"]):
        raise DataError(f"{path}: found {pieces[:2]} first, expected '' and '[UNK]', or '[PAD]' and '[UNK]'")
    ids = {piece: id_ for id_, piece in enumerate(pieces) if piece}
    words = pieces[:2] == ["", "[UNK]"]
    if words:
        punctuation = string.punctuation if source else f"{re.sub('[][]', '', string.punctuation)}¿"
        library = LibraryTokenizer(models.WordLevel(ids, "[UNK]"))
        lower = (normalizers.Replace(each, each.lower()) for each in string.ascii_uppercase)  # and no other letters
        strip = normalizers.Replace(Regex(f"[{re.escape(punctuation)}]"), "")
        library.normalizer = normalizers.Sequence([*lower, strip])
        library.pre_tokenizer = pre_tokenizers.Split(SPACES, "removed")
    else:
        library = LibraryTokenizer(models.WordPiece(ids, unk_token="[UNK]"))
        library.normalizer = normalizers.Sequence([normalizers.Replace("ß", "ss"), normalizers.BertNormalizer()])
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece(cleanup=False)
    if words and source:
        specials = SpecialIds(pad=0, bos=0, eos=0, unk=1, ends_source=False)
    else:
        ends = ("[start]", "[end]") if words else ("[START]", "[END]")
        specials = special_ids(path, pieces, dict(zip(("pad", "unk", "bos", "eos"), (*pieces[:2], *ends), strict=True)))
    marks = [pieces[id_] for id_ in {*specials.marks, 1} if pieces[id_]]
    library.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    vocabulary = Vocabulary.from_library(specials, LibraryIds(json.loads(library.to_str()), rows), {})
    if source and not words:  # BOS begins it
        vocabulary = replace(vocabulary, languages={"": specials.bos})
    return Tokenizer(vocabulary)
