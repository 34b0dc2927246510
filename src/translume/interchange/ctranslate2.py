"""Export to CTranslate2. Settings that it cannot express are refused by name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import ctranslate2
import numpy as np
import tokenizers
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec

from translume.checkpoint import Checkpoint
from translume.config.model import GATED
from translume.engine.network import IN_ATTENTION, SINUSOIDS, Array, Linear, Network
from translume.errors import SettingsError
from translume.interchange.certificate import (
    Certificate,
    forced_targets,
    require_eos_last,
    require_linear_head,
    require_settings,
)
from translume.lazy import is_imported, torch
from translume.text import Tokenizer
from translume.text.imported import SPACE
from translume.text.standard import standard_json, write_tokenizers
from translume.translator.loading import network_of

Quantization = Literal["float32", "float16", "bfloat16", "int8", "int16"]
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "swish": Activation.SWISH,
    "swiglu": Activation.SWISH,
    "geglu": Activation.GELUTanh,
}
_POSITIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("none", "learned", "interleaved", *SINUSOIDS)},
    "rotary": {"rotary_dim": 0, "rotary_interleave": False},
    "relative": {"relative_attention_bias": True},
}
"""Options of CTranslate2's layers, by `model.positions`."""
_AROUND = {"encoder": "attention", "decoder": "self"}
"""What weights call the residual connection around self-attention."""


def refuse_for_ctranslate2(checkpoint: Checkpoint) -> None:
    """Raise SettingsError naming the first setting that CTranslate2 cannot express."""
    require_linear_head(checkpoint, "CTranslate2")
    require_eos_last(checkpoint, "CTranslate2")
    possible = {
        "segments": (0,),
        "positions": tuple(_POSITIONS),
        "decoder_mixing": ("attention",),
        "normalization": ("layer", "rms"),  # not a part from outside
    }
    require_settings(checkpoint.config.model, possible, "CTranslate2")


def write_ctranslate2(checkpoint: Checkpoint, folder: Path, quantization: Quantization) -> Certificate:
    """Write the model into the existing empty `folder`, load it in CTranslate2 and compare log-probabilities.

    Raises SettingsError for what CTranslate2 cannot express, TranslumeError if the difference is too large.
    """
    refuse_for_ctranslate2(checkpoint)
    spec = _spec(checkpoint)
    spec.validate()
    spec.optimize(None if quantization == "float32" else quantization)
    spec.save(str(folder))
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    write_tokenizers(folder, source, target)
    certificate = _compare(checkpoint, folder, quantization)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"translume": certificate.to_dict()}, indent=2))
    return certificate


def _spec(checkpoint: Checkpoint) -> TransformerSpec:
    network, settings = network_of(checkpoint), checkpoint.config.model
    options: dict[str, Any] = {
        "pre_norm": settings.ends_normed,  # whether there are final norms
        "activation": _ACTIVATIONS[settings.activation],
        "ffn_glu": settings.activation in GATED,
        "rms_norm": settings.normalization == "rms",
        "head_dim": settings.head_width or None,
        "layernorm_embedding": settings.embedding_norm,
    }
    options |= _POSITIONS[settings.positions]
    heads, width, attended = settings.attention_heads, settings.width, settings.attention_width
    encoder = TransformerEncoderSpec(settings.encoder_layers, heads, **options)
    decoder = TransformerDecoderSpec(settings.decoder_layers, heads, **options)
    for side, theirs, embedding in (
        ("encoder", encoder, encoder.embeddings[0]),
        ("decoder", decoder, decoder.embeddings),
    ):
        embedding.weight = _copy(network.table(side))
        theirs.scale_embeddings = settings.scale_embeddings
        theirs.pre_norm = np.int8(settings.norm == "pre")
        if settings.positions not in IN_ATTENTION:
            table = network.positions(side)
            if table is None:  # without a table CTranslate2 adds sinusoids of its own
                table = np.zeros((settings.max_positions, width), np.float32)
            theirs.position_encodings.encodings = _copy(table)
        if settings.embedding_norm:
            _norm(theirs.layernorm_embedding, network, f"{side}.embedding.norm")
        if settings.ends_normed:
            _norm(theirs.layer_norm, network, f"{side}.norm")
        if settings.positions == "relative":
            bias = network.weight(f"{side}.embedding.positions.bias", settings.relative_buckets, heads)
            for layer in theirs.layer:
                layer.self_attention.relative_attention_bias = _copy(bias)
                layer.self_attention.relative_attention_max_distance = np.int32(settings.relative_max_distance)
        for number, layer in enumerate(theirs.layer):
            name = f"{side}.layers.{number}"
            _norm(layer.self_attention.layer_norm, network, f"{name}.around_{_AROUND[side]}.norm")
            read, written = layer.self_attention.linear
            _linear(read, network.linear(f"{name}.self_attention.query_key_value", 3 * attended, width))
            _linear(written, network.linear(f"{name}.self_attention.output", width, attended))
            _feed_forward(layer.ffn, network, name)
    for number, layer in enumerate(decoder.layer):
        name = f"decoder.layers.{number}"
        _norm(layer.attention.layer_norm, network, f"{name}.around_cross.norm")
        query, key_value, written = layer.attention.linear
        _linear(query, network.linear(f"{name}.cross_attention.query", attended, width))
        _linear(key_value, network.key_value(number))
        _linear(written, network.linear(f"{name}.cross_attention.output", width, attended))
    head = network.head()
    assert head is not None  # `refuse_for_ctranslate2` names others
    _linear(decoder.projection, head)
    spec = TransformerSpec(encoder, decoder)
    _vocabularies(spec, checkpoint)
    spec.config.layer_norm_epsilon = settings.norm_epsilon
    return spec


def _vocabularies(spec: TransformerSpec, checkpoint: Checkpoint) -> None:
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    pieces, specials = _names(target), target.specials
    spec.register_source_vocabulary(_names(source))
    spec.register_target_vocabulary(pieces)
    # CTranslate2 adds an unknown token, which would have no weights, unless one is named: name the padding token.
    spec.config.unk_token = pieces[specials.pad if specials.unk is None else specials.unk]
    spec.config.bos_token, spec.config.eos_token = pieces[specials.bos], pieces[specials.eos]
    spec.config.decoder_start_token = pieces[specials.bos]
    spec.config.add_source_eos = source.specials.ends_source


def _feed_forward(theirs: Any, network: Network, name: str) -> None:
    settings = network.settings
    gated = settings.activation in GATED
    _norm(theirs.layer_norm, network, f"{name}.around_feed_forward.norm")
    _linear(theirs.linear_1, network.linear(f"{name}.feed_forward.outer", settings.width, settings.feed_forward))
    inner = network.linear(f"{name}.feed_forward.inner", (1 + gated) * settings.feed_forward, settings.width)
    parts = (theirs.linear_0, theirs.linear_0_noact) if gated else (theirs.linear_0,)
    for number, part in enumerate(parts):
        some = slice(number * settings.feed_forward, (number + 1) * settings.feed_forward)
        _linear(part, (inner[0][some], None if inner[1] is None else inner[1][some]))


def _linear(theirs: Any, ours: Linear) -> None:
    theirs.weight = _copy(ours[0])
    if ours[1] is not None:
        theirs.bias = _copy(ours[1])


def _norm(theirs: Any, network: Network, name: str) -> None:
    gain, bias = network.norm(name)
    theirs.gamma = _copy(gain)
    if network.settings.normalization == "layer":
        theirs.beta = np.zeros_like(gain) if bias is None else _copy(bias)


def _copy(array: Array) -> Array:
    """Return a copy, since quantization scales in place."""
    return np.array(array, np.float32)


def _compare(checkpoint: Checkpoint, folder: Path, quantization: Quantization) -> Certificate:
    forced = forced_targets(checkpoint)
    kind = quantization if quantization in ("float32", "int8") else "default"
    threads = torch.get_num_threads() if is_imported() else 0  # 0: CTranslate2's own default
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=kind, intra_threads=threads)
    scores = translator.score_batch(
        _pieces(checkpoint.source_tokenizer, forced.sources), _pieces(checkpoint.target_tokenizer, forced.targets)
    )
    return forced.compare([each.log_probs for each in scores], "CTranslate2", folder, quantization)


def _names(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens in the order of ids as tokenizer.json names them, so that its tokens are those of the model."""
    try:
        library = tokenizers.Tokenizer.from_str(standard_json(tokenizer))
    except SettingsError:
        if tokenizer.vocabulary.sentences is None:
            raise
        return [piece.replace(" ", SPACE) for piece in tokenizer.vocabulary.pieces]
    return [library.id_to_token(id_) or piece for id_, piece in enumerate(tokenizer.pieces())]


def _pieces(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[list[str]]:
    pieces = _names(tokenizer)
    return [[pieces[number] for number in row] for row in rows]
