"""TrOCR: VisionEncoderDecoderModel of a ViT or DeiT, which reads an image in patches, and a decoder like BART's."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from translume.config import ModelSettings, SourceKind
from translume.config.sources import PatchSettings
from translume.errors import ModelFolderError, SettingsError, check_known
from translume.interchange.huggingface.bart import ACTIVATIONS, DROPOUTS, LAYERS, OURS
from translume.interchange.huggingface.config import (
    ForeignConfig,
    read_boolean,
    read_integer,
    read_json,
    read_side,
    shown,
)
from translume.interchange.huggingface.family import (
    Family,
    Names,
    TiedTable,
    encoder_differences,
    layer_names,
    shared_tensor,
    with_kinds,
)
from translume.interchange.huggingface.tokenizer import read_wrapped_tokenizer
from translume.model import Transformer
from translume.model.frames import PatchEmbedding
from translume.text import Tokenizer

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""The file that says how pixels are prepared; newer releases write it as `image_processor` into the other one."""
KINDS = {"vit": 1, "deit": 2}
"""Model types of encoders, and the number of learned vectors before the patches."""
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The filters of Pillow in the order of its numbers."""
DECODER = "decoder.model.decoder"
_EMBEDDINGS = "encoder.embeddings"
_PATCHES, _POSITIONS = f"{_EMBEDDINGS}.patch_embeddings.projection", f"{_EMBEDDINGS}.position_embeddings"
_FIRST = (f"{_EMBEDDINGS}.cls_token", f"{_EMBEDDINGS}.distillation_token")
_LAYER: Names = {
    "self_attention.query_key_value": [f"attention.attention.{name}" for name in ("query", "key", "value")],
    "self_attention.output": ["attention.output.dense"], "feed_forward.inner": ["intermediate.dense"],
    "feed_forward.outer": ["output.dense"], "around_attention.norm": ["layernorm_before"],
    "around_feed_forward.norm": ["layernorm_after"],
}  # fmt: skip
_OFFSET = 2
"""Rows of the decoder's position table that no position uses."""


class TrOcr(Family):
    """VisionEncoderDecoderModel with a TrOCR decoder (Li et al. 2021)."""

    architecture = "VisionEncoderDecoderModel"
    model_type = "vision-encoder-decoder"
    loader = "VisionEncoderDecoderModel"
    tokenizer_class = "RobertaTokenizer"
    ties = ("target", "none")
    possible: Mapping[str, tuple[object, ...]] = {"norm": ("post",), "normalization": ("layer",), "bias": (True,)}
    modern: ClassVar[frozenset[str]] = frozenset({"encoder"})
    _first = 1
    """Number of learned vectors before the patches; `model_values` reads it."""

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        decoder = read_side(place, values, "decoder", ("trocr",))
        ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, **_without_null(decoder)}
        return super().read_config(place, {**ids, **_without_null(values), "vocab_size": decoder.get("vocab_size")})

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        place = config.place
        encoder = read_side(place, config.values, "encoder", (*KINDS,))
        decoder = read_side(place, config.values, "decoder", ("trocr",))
        self._first = KINDS[encoder["model_type"]]
        target = {
            **_sizes(place, decoder, "d_model", "decoder_ffn_dim", "decoder_attention_heads", "activation_function"),
            "norm": "post",
            "norm_epsilon": 1e-5,
            "embedding_norm": read_boolean(place, decoder, "layernorm_embedding", True),
        }
        source = {
            **_sizes(place, encoder, "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act"),
            "norm": "pre",
            "norm_epsilon": encoder.get("layer_norm_eps", 1e-12),
            "embedding_norm": False,
        }
        read = decoder.get("cross_attention_hidden_size")
        if (read or target["width"]) != source["width"]:
            raise SettingsError(
                f"{place}: decoder.cross_attention_hidden_size: found {shown(read)}, expected {source['width']}, the "
                "hidden_size of the encoder"
            )
        learned = read_boolean(place, decoder, "use_learned_position_embeddings", True)
        tie = "target" if read_boolean(place, decoder, "tie_word_embeddings", True) else "none"
        return {
            **target,
            "encoder": encoder_differences(source, target),
            "encoder_layers": read_integer(place, encoder, "num_hidden_layers"),
            "decoder_layers": read_integer(place, decoder, "decoder_layers"),
            **{name: decoder.get(name, 0.0) for name in DROPOUTS},
            "positions": "learned" if learned else "fairseq",
            "max_positions": read_integer(place, decoder, "max_position_embeddings"),
            "scale_embeddings": read_boolean(place, decoder, "scale_embedding", False),
            "head": {"kind": "softmax", "tie": tie, "bias": False},
        }

    def data_values(self, config: ForeignConfig) -> dict[str, Any]:
        encoder = read_side(config.place, config.values, "encoder", (*KINDS,))
        height, width = _height_and_width(config.place, "encoder.image_size", encoder.get("image_size", 224))
        patch, other = _height_and_width(config.place, "encoder.patch_size", encoder.get("patch_size", 16))
        if patch != other:
            raise SettingsError(f"{config.place}: encoder.patch_size: found {[patch, other]}, expected equal sizes")
        if encoder.get("num_channels", 3) != 3:
            raise SettingsError(
                f"{config.place}: encoder.num_channels: found {shown(encoder['num_channels'])}, expected 3, of colours"
            )
        prepared = read_preprocessor(config.place.parent, (height, width))
        sizes = {"height": height, "width": width, "patch": patch, "first": KINDS[encoder["model_type"]]}
        source = {"kind": "patches", **sizes, **prepared}
        targets = read_integer(config.place, config.values["decoder"], "max_position_embeddings")
        positions = sizes["first"] + (height // patch) * (width // patch)
        return {"source": source, "cleaning": {"max_tokens": max(positions, targets), "max_ratio": 0.0}}

    def inputs(self, read: Tensor, source: SourceKind) -> dict[str, Tensor]:
        assert isinstance(source, PatchSettings)
        size, height, width = source.patch, source.height // source.patch, source.width // source.patch
        squares = read.view(-1, height, width, 3, size, size).permute(0, 3, 1, 4, 2, 5)
        return {"pixel_values": squares.reshape(-1, 3, source.height, source.width)}

    def mended(self, theirs: Any) -> Any:
        for module in theirs.modules():
            if type(module).__name__ == "TrOCRSinusoidalPositionalEmbedding":
                module.weights = None  # transformers 5 loads a table without values; without one it is made again
        return theirs

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        tokenizer = read_wrapped_tokenizer(folder, config, sources=False)
        return tokenizer, tokenizer

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        table, head = f"{DECODER}.embed_tokens.weight", "decoder.output_projection.weight"
        if settings.head.tie == "target":
            return [(OURS[1:], (table, head))]
        return [(OURS[1:2], (table,)), (OURS[2:], (head,))]

    def names(self, settings: ModelSettings) -> Names:
        names: dict[str, list[str]] = {"encoder.norm": ["encoder.layernorm"]}
        if settings.embedding_norm:
            names["decoder.embedding.norm"] = [f"{DECODER}.layernorm_embedding"]
        for number in range(settings.encoder_layers):
            names |= layer_names(f"encoder.layers.{number}", f"encoder.encoder.layer.{number}", _LAYER)
        for number in range(settings.decoder_layers):
            names |= layer_names(f"decoder.layers.{number}", f"{DECODER}.layers.{number}", LAYERS["decoder"])
        return {**with_kinds(names), "encoder.embedding.bias": [f"{_PATCHES}.bias"]}

    def computed(self, settings: ModelSettings) -> frozenset[str]:
        return frozenset({"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"})

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        state, embedding = super().weights_to(model, settings), model.encoder.embedding
        assert isinstance(embedding, PatchEmbedding)
        size = embedding.source.patch
        state[f"{_PATCHES}.weight"] = embedding.weight.detach().view(-1, 3, size, size)
        state.update(zip(_FIRST, embedding.first.detach()[:, None, None], strict=False))
        weights = model.state_dict()
        state[_POSITIONS] = weights["encoder.embedding.positions.table"][None]
        if settings.positions == "learned":
            table = weights["decoder.embedding.positions.table"]
            state[f"{DECODER}.embed_positions.weight"] = torch.cat([table.new_zeros(_OFFSET, table.size(1)), table])
        return state

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        zeros = {  # of a ViT without biases of queries, keys and values
            f"encoder.encoder.layer.{number}.{name}.bias": torch.zeros(settings.of_encoder.width)
            for number in range(settings.encoder_layers)
            for name in _LAYER["self_attention.query_key_value"]
        }
        # `state` reads a tensor when it is looked up, so it is not copied. Nothing is written to it.
        weights = super().weights_from(ChainMap(cast("MutableMapping[str, Tensor]", state), zeros), settings)
        ours = "encoder.embedding"
        weights[f"{ours}.weight"] = shared_tensor(state, f"{ours}.weight", (f"{_PATCHES}.weight",)).flatten(1)
        first = [shared_tensor(state, f"{ours}.first", (name,)) for name in _FIRST[: self._first]]
        weights[f"{ours}.first"] = torch.cat(first, 1)[0]
        weights[f"{ours}.positions.table"] = shared_tensor(state, f"{ours}.positions.table", (_POSITIONS,))[0]
        if settings.positions == "learned":
            table = "decoder.embedding.positions.table"
            weights[table] = shared_tensor(state, table, (f"{DECODER}.embed_positions.weight",))[_OFFSET:]
        return weights


def read_preprocessor(folder: Path, size: tuple[int, int]) -> dict[str, Any]:
    """Return the settings of a source of patches that say how pixels are prepared.

    size: height and width that the encoder reads. Raises ModelFolderError without the file, SettingsError for a
    preparation that we do not have.
    """
    path, both = folder / PREPROCESSOR, folder / PROCESSOR
    values: Any = read_json(path) if path.exists() else {}
    if not path.exists() and both.exists():
        path, values = both, read_json(both).get("image_processor")
    if not isinstance(values, dict) or not values:
        raise ModelFolderError(f"{folder / PREPROCESSOR}: no such file, expected one that says how pixels are prepared")
    kind = str(values.get("image_processor_type", values.get("feature_extractor_type", "")))
    deit = kind.startswith("DeiT")
    for name, usual, wanted in (("do_resize", True, True), ("do_center_crop", deit, False), ("do_pad", False, False)):
        if (values.get(name, usual) or False) is not wanted:
            raise SettingsError(f"{path}: {name}: found {shown(values.get(name, usual))}, expected {shown(wanted)}")
    found = _height_and_width(path, "size", values.get("size", 256 if deit else 224))
    if found != size:
        raise SettingsError(f"{path}: size: found {[*found]}, expected {[*size]}, the image_size of the encoder")
    number = values.get("resample", 3 if deit else 2)
    if type(number) is not int or not 0 <= number < len(FILTERS):
        raise SettingsError(f"{path}: resample: found {shown(number)}, expected a filter of Pillow, 0 to 5")
    rescales = read_boolean(path, values, "do_rescale", True)
    normalises = read_boolean(path, values, "do_normalize", True)
    mean, deviation = (_colours(path, values, name) if normalises else default for name, default in
                       (("image_mean", [0.0] * 3), ("image_std", [1.0] * 3)))  # fmt: skip
    scale = values.get("rescale_factor", 1 / 255) if rescales else 1.0
    return {"filter": FILTERS[number], "scale": scale, "mean": mean, "deviation": deviation}


def _colours(path: Path, values: Mapping[str, Any], name: str) -> list[float]:
    """Return a number for each of red, green and blue."""
    found = values.get(name, [0.5] * 3)
    numbers = found if isinstance(found, list) else [found] * 3
    if len(numbers) != 3 or not all(type(each) in (int, float) for each in numbers):
        raise SettingsError(f"{path}: {name}: found {shown(found)}, expected three numbers")
    return numbers


def _height_and_width(path: Path, name: str, found: Any) -> tuple[int, int]:
    """Return a size that is one number, two, or a table."""
    pair = [found.get("height"), found.get("width")] if isinstance(found, dict) else found
    height, width = pair if isinstance(pair, list) and len(pair) == 2 else (pair, pair)
    if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
        raise SettingsError(f"{path}: {name}: found {shown(found)}, expected height and width")
    return height, width


def _sizes(place: Path, values: Mapping[str, Any], width: str, inner: str, heads: str, act: str) -> dict[str, Any]:
    """Return the sizes and the activation of the layers of a side, for the names that it has for them."""
    activation = values.get(act, "gelu")
    check_known(f"{place}: {act}", activation, ACTIVATIONS)
    names = {"width": width, "feed_forward": inner, "attention_heads": heads}
    return {
        **{ours: read_integer(place, values, theirs) for ours, theirs in names.items()},
        "activation": ACTIVATIONS[activation],
    }


def _without_null(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
