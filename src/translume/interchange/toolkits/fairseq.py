"""Read checkpoints of fairseq's translation models."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translume.config import ModelSettings
from translume.errors import DataError, ModelFolderError, expect_file
from translume.interchange.huggingface.bart import LAYERS, OURS, SIDES
from translume.interchange.huggingface.family import Names, with_kinds
from translume.interchange.toolkits.checkpoints import (
    MAX_POSITIONS,
    Foreign,
    Options,
    build_tokenizer,
    find_subwords,
    read_lines,
    stack_names,
    stored_tensor,
    tied_tables,
)
from translume.text import SpecialIds, Tokenizer

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first ids; a target begins with `</s>`."""
OFFSET = 2
"""Rows of a table of positions that no token has: positions count from the id of padding."""
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish"}
_SAME: dict[str, tuple[object, ...]] = {
    "adaptive_input": (False,), "tie_adaptive_weights": (False,), "no_cross_attention": (False,),
    "cross_self_attention": (False,), "no_decoder_final_norm": (False,), "encoder_layers_to_keep": ("",),
    "decoder_layers_to_keep": ("",), "character_embeddings": (False,), "task": ("translation",),
}  # fmt: skip
"""Options for which we have no setting, with the values that we compute; an absent option has the first one."""
_IGNORED = r"\.version$|embed_positions|adaptive_softmax|^encoder\.layers\.\d+\.(in_proj|out_proj|fc[12])_"
"""Names that are not read as they are; the last are copies of an encoder's weights for another kernel."""
_ARCHITECTURES = r"transformer(_(tiny|small|base|big|iwslt|wmt|vaswani|t2t|cfg)\w*)?"


def read_fairseq(path: Path, values: Mapping[str, Any], dictionaries: Sequence[Path]) -> Foreign:
    """Read a checkpoint.

    dictionaries: of source and target; by default dict.LANGUAGE.txt beside the checkpoint.
    """
    options = Options(str(path), _options(path, values))
    options.require(_SAME)
    if not re.fullmatch(_ARCHITECTURES, str(options.stated("arch", "transformer"))):
        raise options.error("arch", "a transformer that translates")
    weights = values["model"]
    sizes = {name: options.alike(f"{{}}_{name}", options.integer) for name in ("embed_dim", "attention_heads")}
    options.require(dict.fromkeys(("decoder_input_dim", "decoder_output_dim"), (sizes["embed_dim"],)))
    learned = options.alike("{}_learned_pos", options.switch)
    positions = "learned" if learned else "fairseq"
    if options.switch("no_token_positional_embeddings"):
        learned, positions = False, "none"
    head, tables, computed = _head(options, path, weights)
    longest = MAX_POSITIONS
    if learned:
        rows = {side: stored_tensor(path, weights, f"{side}.embed_positions.weight")[OFFSET:] for side in SIDES}
        longest = max(1, min(map(len, rows.values())))
        computed |= {f"{side}.embedding.positions.table": table[:longest] for side, table in rows.items()}
    embedding_norm = options.switch("layernorm_embedding")
    inner = {side: options.integer(f"{side}_ffn_embed_dim") for side in SIDES}
    model = {
        "width": sizes["embed_dim"], "feed_forward": max(inner.values()),
        "encoder_layers": options.integer("encoder_layers"), "decoder_layers": options.integer("decoder_layers"),
        "attention_heads": sizes["attention_heads"],
        **{name: options.number(name, 0.0) for name in ("dropout", "attention_dropout", "activation_dropout")},
        "norm": "pre" if options.alike("{}_normalize_before", options.switch) else "post",
        "activation": options.one_of("activation_fn", _ACTIVATIONS, "relu"), "positions": positions,
        "max_positions": longest, "scale_embeddings": not options.switch("no_scale_embedding"),
        "embedding_norm": embedding_norm, "head": head,
    }  # fmt: skip

    def names(settings: ModelSettings) -> Names:
        stacks = stack_names(settings, LAYERS)
        for side in SIDES:
            if settings.norm == "pre":
                stacks[f"{side}.norm"] = [f"{side}.layer_norm"]
            if embedding_norm:
                stacks[f"{side}.embedding.norm"] = [f"{side}.layernorm_embedding"]
        return {**tables, **with_kinds(stacks)}

    return Foreign(
        toolkit="fairseq", place=path, model=model, feed_forward=inner,
        decoding={"beam": 5, "stop": "first", "min_length": 1, "max_length": 200},
        tokenizers=_tokenizers(path, options, dictionaries), weights=weights, names=names, computed=computed,
        ignored=_IGNORED,
    )  # fmt: skip


def _options(path: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of model and task, which old and new checkpoints have in different places."""
    parts = [values.get("args")] if values.get("args") is not None else []
    stated = values.get("cfg")
    if isinstance(stated, Mapping):
        parts += [stated.get("task"), stated.get("model")]
    tables = [each if isinstance(each, Mapping) else getattr(each, "__dict__", None) for each in parts]
    if not tables or not all(isinstance(each, Mapping) for each in tables):
        raise ModelFolderError(f"{path}: no options of a model, expected args or cfg as fairseq saves them")
    joined: dict[str, Any] = {}
    for table in tables:
        joined |= table or {}
        joined.setdefault("task", joined.get("_name"))
    return joined


def _head(
    options: Options, path: Path, weights: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, list[str]], dict[str, Tensor]]:
    """Return the settings of the head, the names of the tables, and the head's weights if it is adaptive."""
    cutoffs = options.stated("adaptive_softmax_cutoff")
    if cutoffs is None:
        theirs = (
            *TABLES[:2],
            next((name for name in ("decoder.embed_out", *TABLES[2:]) if name in weights), TABLES[1]),
        )
        tie, tables = tied_tables(path, weights, theirs)
        return {"kind": "softmax", "tie": tie, "bias": False}, tables, {}
    ends = [int(each) for each in cutoffs.split(",")] if re.fullmatch(r"\d+(,\d+)*", str(cutoffs)) else cutoffs
    factor = options.number("adaptive_softmax_factor", 4.0)
    if not isinstance(ends, list) or not ends or not all(type(each) is int for each in ends) or factor % 1:
        raise options.error("adaptive_softmax_cutoff", "ranks of tokens, and a whole adaptive_softmax_factor")
    at = "decoder.adaptive_softmax"
    first = stored_tensor(path, weights, f"{at}.head.weight")
    size = len(stored_tensor(path, weights, TABLES[1]))
    ends = [end for end in ends if end < size]
    if not ends:
        raise options.error("adaptive_softmax_cutoff", f"a rank below {size:,}, the size of the vocabulary")
    computed = {"head.table.bands.0": first[: ends[0]], "head.tails": first[ends[0] :]}
    computed |= {f"head.table.{name}": torch.arange(size) for name in ("order", "rank")}  # one object is saved once
    for band in range(len(ends)):
        computed[f"head.table.projections.{band}"] = stored_tensor(path, weights, f"{at}.tail.{band}.0.weight")
        computed[f"head.table.bands.{band + 1}"] = stored_tensor(path, weights, f"{at}.tail.{band}.2.weight")
    computed["head.tail_bias"] = first.new_zeros(len(ends))
    tables = {ours: [theirs] for ours, theirs in zip(OURS[:2], TABLES, strict=False)}
    return {"kind": "adaptive", "cutoffs": ends, "factor": int(factor)}, tables, computed


def _tokenizers(path: Path, options: Options, dictionaries: Sequence[Path]) -> tuple[Tokenizer, Tokenizer]:
    languages = [str(options.stated(f"{side}_lang", side)) for side in ("source", "target")]
    if not dictionaries:
        dictionaries = [path.with_name(f"dict.{Path(language).name}.txt") for language in languages]
    for dictionary in dictionaries:
        expect_file(dictionary, f"it beside {path.name}, or dictionaries with --vocabs")
    subwords = find_subwords(path.parent, [(languages[0], "source", "src"), (languages[1], "target", "trg", "tgt")])
    source, target = (
        _tokenizer(dictionary, each)
        for dictionary, each in zip((dictionaries[0], dictionaries[-1]), subwords, strict=True)
    )
    return source, target


def _tokenizer(path: Path, subwords: Any) -> Tokenizer:
    """Return the tokenizer of a dictionary, a token and its count in each line, after the special tokens."""
    pieces = [*SPECIALS]
    for number, line in enumerate(read_lines(path), 1):
        token, _, count = line.rstrip().rpartition(" ")
        if not token or not count.isdigit():
            raise DataError(f"{path}: line {number}: found {line[:40]!r}, expected a token and its count")
        pieces.append(token)
    return build_tokenizer(path, pieces, SpecialIds(pad=1, bos=2, eos=2, unk=3), subwords)
