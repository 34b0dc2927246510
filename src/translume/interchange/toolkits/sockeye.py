"""Read models of Sockeye 3: a folder with `config`, `params.best` and the vocabularies of both sides."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from translume.config import ModelSettings
from translume.errors import DataError, ModelFolderError
from translume.interchange.huggingface.bart import SIDES
from translume.interchange.huggingface.family import Names, with_kinds
from translume.interchange.marian.vocabulary import parse_yaml
from translume.interchange.toolkits import SOCKEYE
from translume.interchange.toolkits.checkpoints import (
    Foreign,
    Options,
    Subwords,
    build_tokenizer,
    find_subwords,
    read_lines,
    read_object,
    special_ids,
    stack_names,
    stored_tensor,
    tied_tables,
)
from translume.text import Tokenizer

SPECIALS = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
VOCABULARIES = {"vocab.src.0.json": ("source", "src"), "vocab.trg.0.json": ("target", "trg", "tgt")}
"""The vocabulary of each side, and names of the side."""
TABLES = ("embedding_source.embedding.weight", "embedding_target.embedding.weight", "output_layer.weight")
_ACTIVATIONS = {"relu": "relu", "swish1": "swish", "gelu": "gelu"}
_SAME: dict[str, tuple[object, ...]] = {
    "lhuc": (False,), "neural_vocab_selection": (None,), "config_embed_source.num_factors": (1,),
    "config_embed_target.num_factors": (1,), "config_length_task": (None,),
    "config_encoder.block_prepended_cross_attention": (False,),
    "config_decoder.block_prepended_cross_attention": (False,),
}  # fmt: skip
_BLOCKS = {"feed_forward.outer": ("ff.ff2",), "around_feed_forward.norm": ("{norm}_ff.layer_norm",)}
_ATTENTION = {"self_attention.query_key_value": ("{own}.ff_in",), "self_attention.output": ("{own}.ff_out",)}
_SSRU = {"self_attention.update": ("{own}.linear",), "self_attention.forget": ("{own}.forget_gate",)}
_CROSS = {
    "cross_attention.query": ("enc_attention.ff_q",), "cross_attention.key_value": ("enc_attention.ff_kv",),
    "cross_attention.output": ("enc_attention.ff_out",), "around_cross.norm": ("{norm}_enc_attention.layer_norm",),
}  # fmt: skip
_BIASED = ("norm", "feed_forward", "forget")
"""Parts of the names of our layers that have biases in Sockeye."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # the package has no types
    """Reads the tagged tables of Sockeye's configuration as plain ones, and tuples as lists."""


_Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_mapping(node, deep=True))
_Loader.add_constructor(
    "tag:yaml.org,2002:python/tuple", lambda loader, node: loader.construct_sequence(node, deep=True)
)


def read_sockeye(path: Path, weights: Mapping[str, Any]) -> Foreign:
    """Read the parameters in `path`, with the configuration and vocabularies beside them."""
    place = path.with_name(SOCKEYE[0])
    values = parse_yaml("\n".join(read_lines(place)), str(place), loader=_Loader)
    options = Options(str(place), {str(name): value for name, value in values.items()})
    options.require(_SAME)
    heads = options.alike("config_{}.attention_heads", options.integer)
    gated = options.alike("config_{}.use_glu", options.switch)
    activation = options.alike("config_{}.act_type", lambda name: options.one_of(name, _ACTIVATIONS))
    if gated and activation != "swish":
        raise options.error("config_encoder.act_type", "'swish1' with use_glu")
    learned = options.alike(
        "config_{}.positional_embedding_type", lambda name: options.one_of(name, {"fixed": False, "learned": True})
    )
    longest = min(
        options.integer("config_encoder.max_seq_len_source"), options.integer("config_decoder.max_seq_len_target")
    )
    kinds = {"transformer": "attention", "ssru_transformer": "ssru"}
    mixing = options.one_of("config_decoder.decoder_type", kinds, "transformer")
    norm = options.alike("config_{}.preprocess_sequence", lambda name: options.one_of(name, {"n": "pre", "": "post"}))
    after = ("dr", "r") if norm == "pre" else ("drn", "rn")
    options.require({f"config_{side}.postprocess_sequence": after for side in SIDES})
    weights = _separated(path, weights, heads)
    sizes = {side: options.integer(f"config_{side}.feed_forward_num_hidden") for side in SIDES}
    tie, tables = tied_tables(path, weights, TABLES)
    computed = {
        f"{side}.embedding.positions.table": stored_tensor(path, weights, f"{side}.pos_embedding.weight")[:longest]
        for side in SIDES
        if learned
    }

    model = {
        "width": options.alike("config_{}.model_size", options.integer), "feed_forward": max(sizes.values()),
        "encoder_layers": options.integer("config_encoder.num_layers"),
        "decoder_layers": options.integer("config_decoder.num_layers"), "decoder_mixing": mixing,
        "attention_heads": heads, "dropout": options.number("config_decoder.dropout_prepost", 0.0),
        "attention_dropout": options.number("config_decoder.dropout_attention", 0.0),
        "activation_dropout": options.number("config_decoder.dropout_act", 0.0), "norm": norm, "norm_epsilon": 1e-6,
        "activation": "swiglu" if gated else activation, "positions": "learned" if learned else "sinusoidal",
        "max_positions": longest, "scale_embeddings": True, "head": {"kind": "softmax", "tie": tie, "bias": True},
    }  # fmt: skip

    def names(settings: ModelSettings) -> Names:
        inner = {"feed_forward.inner": ("ff.ff1", "ff.linear") if gated else ("ff.ff1",)}
        own = _ATTENTION if mixing == "attention" else _SSRU
        encoder = {**_BLOCKS, **inner, **_ATTENTION, "around_attention.norm": ("{norm}_{own}.layer_norm",)}
        decoder = {**_BLOCKS, **inner, **own, **_CROSS, "around_self.norm": ("{norm}_{own}.layer_norm",)}
        layers = {
            "encoder": _filled(encoder, "self_attention", norm),
            "decoder": _filled(decoder, "autoregr_layer", norm),
        }
        stacks = stack_names(settings, layers)
        if norm == "pre":
            stacks |= {f"{side}.norm": [f"{side}.final_process.layer_norm"] for side in SIDES}
        named = with_kinds(stacks)
        for name in named:
            if name.endswith(".bias") and not any(part in name for part in _BIASED):
                named[name] = []
        return {**tables, "head.bias": ["output_layer.bias"], **named}

    return Foreign(
        toolkit="Sockeye", place=path, model=model, decoding={"beam": 5, "stop": "first", "length_penalty": 1.0},
        feed_forward=sizes, tokenizers=_tokenizers(path), weights=weights, names=names, computed=computed,
        ignored=r"pos_embedding\.weight$|^traced",
    )  # fmt: skip


def _filled(layer: Mapping[str, tuple[str, ...]], own: str, norm: str) -> Names:
    """Return the names of a layer's parts with that of its first block, and of the norm before or after a block."""
    return {ours: [name.format(own=own, norm=norm) for name in theirs] for ours, theirs in layer.items()}


def _separated(place: Path, weights: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Return the weights with all keys before all values; they are stored head by head."""
    changed = dict(weights)
    for name in weights:
        if name.endswith((".ff_in.weight", ".ff_kv.weight")):
            tensor = stored_tensor(place, weights, name)
            parts = 3 if name.endswith(".ff_in.weight") else 2
            size = len(tensor) // parts
            if tensor.ndim != 2 or len(tensor) % parts or not heads or size % heads:
                found = list(tensor.shape)
                raise ModelFolderError(f"{place}: {name} is {found}, expected keys and values of {heads} heads")
            both = tensor[-2 * size :].reshape(heads, 2, size // heads, -1).transpose(0, 1)
            changed[name] = torch.cat([tensor[: -2 * size], both.flatten(0, 2)])
    return changed


def _tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    subwords = find_subwords(path.parent, list(VOCABULARIES.values()))
    source, target = (_tokenizer(path.with_name(name), each) for name, each in zip(VOCABULARIES, subwords, strict=True))
    return source, target


def _tokenizer(path: Path, subwords: Subwords) -> Tokenizer:
    """Return the tokenizer of a vocabulary, an object of tokens, each with its id."""
    ids = read_object(path)
    if not all(type(each) is int for each in ids.values()) or {*ids.values()} != {*range(len(ids))}:
        raise DataError(f"{path}: expected tokens, each with its id, 0, 1, 2, …")
    pieces = sorted(ids, key=ids.__getitem__)
    return build_tokenizer(path, pieces, special_ids(path, pieces, SPECIALS), subwords)
