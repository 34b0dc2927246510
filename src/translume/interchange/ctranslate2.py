"""Export to CTranslate2. Settings that it cannot express are refused by name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import ctranslate2
import numpy as np
import tokenizers
import torch
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config.model import GATED
from translume.interchange.certificate import Certificate, forced_targets, require_linear_head, require_settings
from translume.model.attention import SelfAttention
from translume.model.embedding import Embedding
from translume.model.layers import FeedForward, Residual
from translume.model.positions import RelativeBias, encoding_class, encodings_where
from translume.text import Tokenizer
from translume.text.standard import standard_json, write_tokenizers

Quantization = Literal["float32", "float16", "bfloat16", "int8", "int16"]
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "swish": Activation.SWISH,
    "swiglu": Activation.SWISH,
    "geglu": Activation.GELUTanh,
}


def refuse_for_ctranslate2(checkpoint: Checkpoint) -> None:
    """Raise SettingsError naming the first setting that CTranslate2 cannot express."""
    require_linear_head(checkpoint, "CTranslate2")
    positions = encodings_where(lambda encoding: encoding.ctranslate2 is not None)
    possible = {"segments": (0,), "positions": positions, "decoder_mixing": ("attention",)}
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
    model, settings = checkpoint.model, checkpoint.config.model
    options: dict[str, Any] = {
        "pre_norm": settings.norm == "pre",
        "activation": _ACTIVATIONS[settings.activation],
        "ffn_glu": settings.activation in GATED,
        "rms_norm": settings.normalization == "rms",
        "head_dim": settings.head_width or None,
        "layernorm_embedding": settings.embedding_norm,
    }
    options |= encoding_class(settings.positions).ctranslate2 or {}
    heads = settings.attention_heads
    encoder = TransformerEncoderSpec(settings.encoder_layers, heads, **options)
    decoder = TransformerDecoderSpec(settings.decoder_layers, heads, **options)
    for side, theirs, embedding in (
        (model.encoder, encoder, encoder.embeddings[0]),
        (model.decoder, decoder, decoder.embeddings),
    ):
        embedding.weight = _copy(cast(Embedding, side.embedding).table.weight)
        theirs.scale_embeddings = settings.scale_embeddings
        positions = side.embedding.positions
        if not positions.in_attention:
            table = positions.table
            if table is None:  # without a table CTranslate2 adds sinusoids of its own
                table = torch.zeros(settings.max_positions, settings.width)
            theirs.position_encodings.encodings = _copy(table)
        if settings.embedding_norm:
            _norm(theirs.layernorm_embedding, side.embedding.norm)
        if settings.norm == "pre":
            _norm(theirs.layer_norm, side.norm)
        if isinstance(positions, RelativeBias):
            for layer in theirs.layer:
                layer.self_attention.relative_attention_bias = _copy(positions.bias)
                layer.self_attention.relative_attention_max_distance = np.int32(settings.relative_max_distance)
    for layer, each in zip(model.encoder.stack, encoder.layer, strict=True):
        ours = layer.self_attention
        _attention(each.self_attention, layer.around_attention, ours.query_key_value, ours.output)
        _feed_forward(each.ffn, layer.feed_forward, layer.around_feed_forward)
    for block, each in zip(model.decoder.stack, decoder.layer, strict=True):
        assert isinstance(block.self_attention, SelfAttention)  # `refuse_for_ctranslate2` names others
        ours, cross = block.self_attention, block.cross_attention
        _attention(each.self_attention, block.around_self, ours.query_key_value, ours.output)
        _attention(each.attention, block.around_cross, cross.query, cross.key_value, cross.output)
        _feed_forward(each.ffn, block.feed_forward, block.around_feed_forward)
    for name, value in model.head.plain().items():
        setattr(decoder.projection, name, _copy(value))
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
    unknown = specials.pad if specials.unk is None else specials.unk
    spec.config.unk_token = pieces[unknown]
    spec.config.bos_token, spec.config.eos_token = pieces[specials.bos], pieces[specials.eos]
    spec.config.decoder_start_token = pieces[specials.bos]
    spec.config.add_source_eos = source.specials.ends_source


def _attention(theirs: Any, around: Residual, *linears: torch.nn.Linear) -> None:
    _norm(theirs.layer_norm, around.norm)
    for each, linear in zip(theirs.linear, linears, strict=True):
        _linear(each, linear)


def _feed_forward(theirs: Any, ours: FeedForward, around: Residual) -> None:
    _norm(theirs.layer_norm, around.norm)
    _linear(theirs.linear_1, ours.outer)
    if ours.activation not in GATED:
        _linear(theirs.linear_0, ours.inner)
        return
    weights, biases = ours.inner.weight.chunk(2), (None, None) if ours.inner.bias is None else ours.inner.bias.chunk(2)
    for part, weight, bias in zip((theirs.linear_0, theirs.linear_0_noact), weights, biases, strict=True):
        part.weight = _copy(weight)
        if bias is not None:
            part.bias = _copy(bias)


def _linear(theirs: Any, ours: torch.nn.Linear) -> None:
    theirs.weight = _copy(ours.weight)
    if ours.bias is not None:
        theirs.bias = _copy(ours.bias)


def _norm(theirs: Any, ours: torch.nn.Module) -> None:
    weight = ours.weight
    assert isinstance(weight, Tensor)
    theirs.gamma = _copy(weight)
    if isinstance(ours, torch.nn.LayerNorm):
        theirs.beta = _copy(torch.zeros_like(weight) if ours.bias is None else ours.bias)


def _copy(tensor: Tensor) -> Any:
    """Return a copy, since quantization scales in place."""
    return tensor.detach().float().cpu().clone().contiguous().numpy()


def _compare(checkpoint: Checkpoint, folder: Path, quantization: Quantization) -> Certificate:
    forced = forced_targets(checkpoint)
    kind = quantization if quantization in ("float32", "int8") else "default"
    threads = torch.get_num_threads()
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=kind, intra_threads=threads)
    scores = translator.score_batch(
        _pieces(checkpoint.source_tokenizer, forced.sources), _pieces(checkpoint.target_tokenizer, forced.targets)
    )
    return forced.compare([each.log_probs for each in scores], "CTranslate2", folder, quantization)


def _names(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens in the order of ids as tokenizer.json names them, so that its tokens are those of the model."""
    library = tokenizers.Tokenizer.from_str(standard_json(tokenizer))
    return [str(library.id_to_token(each)) for each in range(len(tokenizer))]


def _pieces(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[list[str]]:
    pieces = _names(tokenizer)
    return [[pieces[number] for number in row] for row in rows]
