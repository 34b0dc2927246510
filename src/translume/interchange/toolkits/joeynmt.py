"""Read checkpoints of JoeyNMT's Transformers, with the config.yaml and vocabularies beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from translume.config import ModelSettings
from translume.errors import expect_file
from translume.interchange.huggingface.bart import SIDES
from translume.interchange.huggingface.family import Names, with_kinds
from translume.interchange.marian.vocabulary import read_yaml
from translume.interchange.toolkits import JOEYNMT
from translume.interchange.toolkits.checkpoints import (
    Foreign,
    Options,
    Subwords,
    build_tokenizer,
    read_codes,
    read_lines,
    special_ids,
    stack_names,
    tied_tables,
)
from translume.text import Tokenizer
from translume.text.split_words import SplitWords

LONGEST = 5000
"""Number of positions in its tables."""
TABLES = ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
SPECIALS = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
"""The default names of the first ids."""
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish"}
_NORMS = {"pre": "pre", "post": "post"}
_SIDES = ("src", "trg")
_BLOCKS = {
    "feed_forward.inner": ("feed_forward.pwff_layer.0",), "feed_forward.outer": ("feed_forward.pwff_layer.3",),
    "around_feed_forward.norm": ("feed_forward.layer_norm",),
}  # fmt: skip


def _attention(ours: str, parts: Mapping[str, str], theirs: str) -> dict[str, tuple[str, ...]]:
    """Return the names of an attention block.  parts: ours, with the letters of theirs that they are made of."""
    linear = {f"{ours}.{part}": tuple(f"{theirs}.{each}_layer" for each in letters) for part, letters in parts.items()}
    return {**linear, f"{ours}.output": (f"{theirs}.output_layer",)}


_LAYERS: dict[str, Names] = {
    "encoder": {
        **_BLOCKS, **_attention("self_attention", {"query_key_value": "qkv"}, "src_src_att"),
        "around_attention.norm": ("layer_norm",),
    },
    "decoder": {
        **_BLOCKS, **_attention("self_attention", {"query_key_value": "qkv"}, "trg_trg_att"),
        **_attention("cross_attention", {"query": "q", "key_value": "kv"}, "src_trg_att"),
        "around_self.norm": ("x_layer_norm",), "around_cross.norm": ("dec_layer_norm",),
    },
}  # fmt: skip


def read_joeynmt(path: Path, values: Mapping[str, Any]) -> Foreign:
    """Read a checkpoint."""
    place = path.with_name(JOEYNMT[0])
    options = Options(str(place), {str(name): value for name, value in read_yaml(place).items()})
    options.require({
        **{f"model.{side}.type": ("transformer",) for side in SIDES},
        **{f"model.{side}.alpha": (1.0, 1) for side in SIDES},
        **{f"data.{side}.normalize": (False,) for side in _SIDES},
        "data.special_symbols.lang_tags": ([],), "data.special_symbols.sep_token": ("",),
    })  # fmt: skip
    notes = [
        f"{place}: data.{side}.tokenizer_cfg.pretokenizer: text must be split by Moses, which is not done here"
        for side in _SIDES
        if options.stated(f"data.{side}.tokenizer_cfg.pretokenizer", "none") == "moses"
    ]
    inner = {side: options.integer(f"model.{side}.ff_size") for side in SIDES}
    tie, tables = tied_tables(path, values["model_state"], TABLES)

    model = {
        "width": options.alike("model.{}.hidden_size", options.integer), "feed_forward": max(inner.values()),
        "encoder_layers": options.integer("model.encoder.num_layers"),
        "decoder_layers": options.integer("model.decoder.num_layers"),
        "attention_heads": options.alike("model.{}.num_heads", options.integer),
        "dropout": options.number("model.decoder.dropout", 0.0),
        "norm": options.alike("model.{}.layer_norm", lambda name: options.one_of(name, _NORMS)), "norm_epsilon": 1e-6,
        "activation": options.alike("model.{}.activation", lambda name: options.one_of(name, _ACTIVATIONS, "relu")),
        "positions": "interleaved", "max_positions": LONGEST,
        "scale_embeddings": options.alike("model.{}.embeddings.scale", options.switch),
        "head": {"kind": "softmax", "tie": tie, "bias": False},
    }  # fmt: skip

    def names(settings: ModelSettings) -> Names:
        stacks = stack_names(settings, _LAYERS)
        if settings.norm == "pre":
            stacks |= {f"{side}.norm": [f"{side}.layer_norm"] for side in SIDES}
        return {**tables, **with_kinds(stacks)}

    return Foreign(
        toolkit="JoeyNMT", place=path, model=model, decoding=_decoding(options), feed_forward=inner,
        tokenizers=(_tokenizer(path, options, "src"), _tokenizer(path, options, "trg")),
        weights=values["model_state"], names=names, ignored=r"\.pe\.pe$", notes=tuple(notes),
    )  # fmt: skip


def _decoding(options: Options) -> dict[str, Any]:
    """Return the [decoding] settings of its tests. Its beam ends when no hypothesis is unfinished, ours as it may."""
    beam, alpha = options.integer("testing.beam_size", 1), options.number("testing.beam_alpha", -1.0)
    search: dict[str, Any] = (
        {"strategy": "beam", "beam": beam, "stop": "optimal"} if beam > 1 else {"strategy": "greedy"}
    )
    longest = options.stated("testing.max_output_length", -1)
    limit: dict[str, Any] = {"max_length": longest} if type(longest) is int and longest > 0 else {}
    if not options.switch("testing.generate_unk", True):
        limit["suppress"] = [options.integer("data.special_symbols.unk_id")]
    return {**search, **limit, "min_length": 1, "length_penalty": max(alpha, 0.0), "length_penalty_form": "gnmt"}


def _tokenizer(path: Path, options: Options, side: str) -> Tokenizer:
    """Return the tokenizer of a side, whose vocabulary is SIDE_vocab.txt, a token in each line."""
    data = f"data.{side}"
    level = options.one_of(f"{data}.level", {each: each for each in ("word", "bpe", "char")})
    words = SplitWords(
        joiner=str(options.stated(f"{data}.tokenizer_cfg.separator", "@@")),
        lowercase=options.switch(f"{data}.lowercase"),
        characters=level == "char",
        restricted=True,
    )
    subwords: Subwords = words
    if level == "bpe":
        kinds = {"sentencepiece": "model_file", "subword-nmt": "codes"}
        kind = options.one_of(f"{data}.tokenizer_type", kinds, "sentencepiece")
        file = path.with_name(Path(str(options.stated(f"{data}.tokenizer_cfg.{kind}", kind))).name)
        expect_file(file, f"it as {data}.tokenizer_cfg.{kind} beside {path.name}")
        subwords = file if kind == "model_file" else read_codes(file, words)
    names = {ours: str(options.stated(f"data.special_symbols.{ours}_token", name)) for ours, name in SPECIALS.items()}
    vocabulary = path.with_name(f"{side}_vocab.txt")
    pieces = [*dict.fromkeys([*names.values(), *read_lines(vocabulary)])]
    specials = special_ids(vocabulary, pieces, names)
    for ours, name in names.items():
        options.require({f"data.special_symbols.{ours}_id": (pieces.index(name),)})
    return build_tokenizer(vocabulary, pieces, specials, subwords, restricted=True)
