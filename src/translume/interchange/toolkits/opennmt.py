"""Read checkpoints of OpenNMT-py's translation models, and folders of EOLE, which continues it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from translume.config import ModelSettings
from translume.errors import DataError, ModelFolderError, refused
from translume.interchange.huggingface.bart import SIDES
from translume.interchange.huggingface.family import Names, with_kinds
from translume.interchange.pickled import damaged
from translume.interchange.toolkits import EOLE
from translume.interchange.toolkits.checkpoints import (
    Foreign,
    Options,
    build_tokenizer,
    find_subwords,
    read_object,
    special_ids,
    split_halves,
    stack_names,
    stored_tensor,
    tied_tables,
)
from translume.text import Tokenizer

SPECIALS = {"pad": "<blank>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
LONGEST = 5000
"""Number of positions in its tables."""
_SIDES = {"src": ("src", "source"), "tgt": ("tgt", "trg", "target")}
_POSITIONS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "marian", "Rotary": "rotary"}
_SEARCH = {
    "beam": 5, "stop": "first", "length_penalty": 1.0, "max_length": 250, "max_length_extra": 5, "min_length": 0,
}  # fmt: skip
_RATIOS = {"OpenNMT-py": 1.25, "EOLE": 2.0}
"""Their defaults of `max_length_ratio`."""
_SAME: dict[str, tuple[object, ...]] = {
    "encoder_type": ("transformer",), "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "copy_attn": (False,), "coverage_attn": (False,), "n_src_feats": (0,), "model_task": ("seq2seq",), "num_kv": (0,),
    "parallel_residual": (False,), "num_experts": (0,), "sliding_window": (0,), "relative_positions_buckets": (0,),
    "rotary_theta": (10_000,), "rotary_dim": (0,), "lora_layers": ([],), "quant_layers": ([],),
    "generator_function": ("softmax",), "max_relative_positions": (0, -1),
}  # fmt: skip
"""Options of OpenNMT-py for which we have no setting, with the values that we compute."""
_SAME_IN_EOLE: dict[str, tuple[object, ...]] = {
    "architecture": ("transformer",), "embeddings.normalize": (False,), "embeddings.position_shift": (0,),
    "embeddings.embedding_type": ("standard",), "embeddings.embedding_layer_norm": (False,),
    **{f"{at}{name}": values for at in ("", "encoder.", "decoder.") for name, values in {
        "heads_kv": (None,), "head_dim": (None,), "attn_scaling": (None,), "query_norm": (False,), "key_norm": (False,),
        "value_norm": (False,), "parallel_residual": (False,), "ffn_layernorm": (False,), "num_experts": (0,),
        "sliding_window": (0,), "relative_positions_buckets": (0,), "rope_config.rotary_theta": (10_000,),
        "rope_config.rotary_dim": (0,), "rope_config.scaling_type": (None,),
    }.items()},
}  # fmt: skip
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swiglu"}
_ACTIVATIONS_OF_EOLE = {"relu": "relu", "gelu": "gelu", "silu": "swish", "gated-silu": "swiglu"}


_TABLES = ("encoder.embeddings.make_embedding.emb_luts.0.weight", "decoder.embeddings.make_embedding.emb_luts.0.weight")
_TABLES_OF_EOLE = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight")
_OUTPUT = "generator.weight"
_NORMS = {
    "around_attention.norm": "layer_norm", "around_self.norm": "layer_norm_1", "around_cross.norm": "layer_norm_2",
    "around_feed_forward.norm": "feed_forward.layer_norm",
}  # fmt: skip
_NORMS_OF_EOLE = {
    "around_attention.norm": "input_layernorm", "around_self.norm": "input_layernorm",
    "around_cross.norm": "precontext_layernorm", "around_feed_forward.norm": "post_attention_layernorm",
}  # fmt: skip
_SELF = {
    "self_attention.query_key_value": ("self_attn.linear_query", "self_attn.linear_keys", "self_attn.linear_values"),
    "self_attention.output": ("self_attn.final_linear",),
}  # fmt: skip
_CROSS = {
    "cross_attention.query": ("context_attn.linear_query",),
    "cross_attention.key_value": ("context_attn.linear_keys", "context_attn.linear_values"),
    "cross_attention.output": ("context_attn.final_linear",),
}  # fmt: skip
_UNREAD = frozenset({"onmt_tokenize", "normalize", "uppercase", "prefix", "suffix", "clean"})
"""Transforms of texts that are not done here."""


def read_opennmt(path: Path, values: Mapping[str, Any]) -> Foreign:
    """Read a checkpoint of OpenNMT-py."""
    options = Options(f"{path}: opt", getattr(values["opt"], "__dict__", {}))
    options.require(_SAME)
    if "model" in values:
        output = {
            f"generator.{name.removeprefix('0.')}": each for name, each in (values.get("generator") or {}).items()
        }
        weights = {**values["model"], **output}
    else:
        weights = _safetensors(path.with_suffix(".safetensors"))
    rotary = options.integer("max_relative_positions", 0) if options.stated("max_relative_positions") != -1 else -1
    sines = options.switch("position_encoding")
    if rotary and sines:
        raise options.error("position_encoding", "False with max_relative_positions -1")
    kind = "Rotary" if rotary else options.stated("position_encoding_type", "SinusoidalInterleaved") if sines else ""
    model = {
        "width": options.integer("hidden_size", options.stated("enc_hid_size", 512)),
        "feed_forward": options.integer("transformer_ff", 2048),
        "encoder_layers": options.integer("enc_layers"),
        "decoder_layers": options.integer("dec_layers"),
        "attention_heads": options.integer("heads", 8),
        "activation": options.one_of("pos_ffn_activation_fn", _ACTIVATIONS, "relu"),
        "normalization": options.one_of("layer_norm", {"standard": "layer", "rms": "rms"}, "standard"),
        "norm_epsilon": options.number("norm_eps", 1e-6),
    }
    names = {**_NORMS, "inner": "feed_forward.w_1", "gate": "feed_forward.w_3", "outer": "feed_forward.w_2"}
    interleaved = options.switch("rotary_interleave", True)
    layers = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
    vocabulary = Options(f"{path}: vocab", values["vocab"] if isinstance(values["vocab"], Mapping) else {})
    return _foreign(
        "OpenNMT-py", path, options, model, kind, weights, (*_TABLES, _OUTPUT), names, layers, vocabulary, interleaved
    )


def read_eole(folder: Path) -> Foreign:
    """Read a folder of EOLE."""
    stated, vocabulary = (read_object(folder / name) for name in EOLE)
    options = Options(f"{folder / EOLE[0]}: model", stated.get("model", {}))
    options.require(_SAME_IN_EOLE)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelFolderError(f"{folder}: found no model.00.safetensors, expected the weights as EOLE saves them")
    weights = {name: each for file in files for name, each in _safetensors(file).items()}

    def of_both(name: str, default: Any = None) -> Any:
        return options.alike(f"{{}}.{name}", lambda at: options.stated(at, options.stated(name, default)))

    flat = Options(options.place, {
        name: of_both(name, default)
        for name, default in {
            "hidden_size": 512, "transformer_ff": 2048, "heads": 8, "mlp_activation_fn": "relu",
            "layer_norm": "standard", "norm_eps": 1e-5, "rope_config": {},
        }.items()
    })  # fmt: skip
    model = {
        "width": flat.integer("hidden_size"),
        "feed_forward": flat.integer("transformer_ff"),
        "encoder_layers": options.integer("encoder.layers", options.stated("layers")),
        "decoder_layers": options.integer("decoder.layers", options.stated("layers")),
        "attention_heads": flat.integer("heads"),
        "activation": flat.one_of("mlp_activation_fn", _ACTIVATIONS_OF_EOLE),
        "normalization": flat.one_of("layer_norm", {"standard": "layer", "rms": "rms"}),
        "norm_epsilon": flat.number("norm_eps", 1e-5),
    }
    kind = options.stated("embeddings.position_encoding_type", "SinusoidalInterleaved")
    names = {**_NORMS_OF_EOLE, "inner": "mlp.gate_up_proj", "gate": "mlp.up_proj", "outer": "mlp.down_proj"}
    layers = {side: f"{side}.transformer_layers" for side in SIDES}
    source, target = (
        next(filter(weights.__contains__, pair), pair[0]) for pair in (_TABLES_OF_EOLE, _TABLES_OF_EOLE[::-1])
    )
    tables = (source, target, _OUTPUT if _OUTPUT in weights else target)  # a shared one is stored once
    top = Options(str(folder / EOLE[0]), stated)
    return _foreign(
        "EOLE", files[0], top, model, kind, weights, tables, names, layers,
        Options(str(folder / EOLE[1]), vocabulary), flat.switch("rope_config.rotary_interleave", True),
    )  # fmt: skip


def _foreign(
    toolkit: str, path: Path, options: Options, model: dict[str, Any], kind: str, weights: dict[str, Any],
    tables: Sequence[str], parts: Mapping[str, str], layers: Mapping[str, str], vocabulary: Options, interleaved: bool,
) -> Foreign:  # fmt: skip
    """Return a checkpoint of either toolkit.

    model: [model] settings but those of positions and the head.  kind: of positions.  tables: names of the embeddings
    and the output layer.  parts: names of norms and feed-forward maps in a layer.  layers: names of the layers of a
    side.  interleaved: whether rotations are of neighbouring pairs.
    """
    if not isinstance(kind, str) or (kind and kind not in _POSITIONS):
        raise options.error("position_encoding_type", " or ".join(_POSITIONS))
    if kind == "Rotary" and interleaved:
        weights = _with_halves(path, weights, model["attention_heads"])
    tie, names_of_tables = tied_tables(path, weights, tables)
    biased = {name.split(".")[-2] for name in weights if name.endswith(".bias")}
    inner = [parts["inner"], parts["gate"]] if model["activation"] == "swiglu" else [parts["inner"]]
    blocks = {"feed_forward.inner": inner, "feed_forward.outer": [parts["outer"]], **_SELF}
    norms = {"encoder": ("around_attention",), "decoder": ("around_self", "around_cross")}
    of_sides = {
        side: {
            **blocks,
            **(_CROSS if side == "decoder" else {}),
            **{f"{each}.norm": [parts[f"{each}.norm"]] for each in (*norms[side], "around_feed_forward")},
        }
        for side in SIDES
    }

    def names(settings: ModelSettings) -> Names:
        stacks = stack_names(settings, of_sides, layers) | {f"{side}.norm": [f"{side}.layer_norm"] for side in SIDES}
        named = with_kinds(stacks)
        for ours, theirs in named.items():
            if ours.endswith(".bias") and all(each.split(".")[-2] not in biased for each in theirs):
                named[ours] = []
        return {**names_of_tables, "head.bias": ["generator.bias"], **named}

    return Foreign(
        toolkit=toolkit,
        place=path,
        model={
            **model,
            "norm": "pre",
            "positions": _POSITIONS[kind] if kind else "none",
            "max_positions": LONGEST,
            "scale_embeddings": kind.startswith("Sinusoidal"),
            "head": {"kind": "softmax", "tie": tie, "bias": "generator.bias" in weights},
        },
        decoding={**_SEARCH, "max_length_ratio": _RATIOS[toolkit]},
        feed_forward=dict.fromkeys(SIDES, model["feed_forward"]),
        tokenizers=_tokenizers(path, vocabulary),
        weights=weights,
        names=names,
        ignored=r"\.pe$|\.rope\.|layer_scalar$",
        notes=tuple(
            f"{options.place}: transforms: {name} is not done here: text must be so already"
            for name in map(str, options.stated("transforms") or [])
            if name in _UNREAD
        ),
    )


def _with_halves(path: Path, weights: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Return the weights with the queries and keys of self-attention in the order of our rotations."""
    changed = dict(weights)
    for name in weights:
        if re.search(r"\.self_attn\.linear_(query|keys)\.", name):
            tensor = stored_tensor(path, weights, name)
            if not heads or len(tensor) % (2 * heads):
                raise ModelFolderError(f"{path}: {name} has {len(tensor):,} rows, expected pairs for {heads} heads")
            changed[name] = split_halves(tensor, heads)
    return changed


def _tokenizers(path: Path, vocabulary: Options) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of the vocabularies in a checkpoint, whose sources are read without EOS."""
    names = {ours: str(vocabulary.stated(f"specials.{ours}_token", name)) for ours, name in SPECIALS.items()} | {
        "bos": str(vocabulary.stated("decoder_start_token", SPECIALS["bos"]))
    }
    tokenizers = []
    for side, subwords in zip(_SIDES, find_subwords(path.parent, list(_SIDES.values())), strict=True):
        pieces = vocabulary.stated(side)
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise DataError(f"{vocabulary.place}: {side}: expected a list of tokens")
        tokenizers.append(build_tokenizer(path, pieces, special_ids(path, pieces, names, ends_source=False), subwords))
    return tokenizers[0], tokenizers[1]


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with refused(path, "cannot be read", ModelFolderError):
            return load_file(path)
    except SafetensorError as error:
        raise damaged(path, error) from None
