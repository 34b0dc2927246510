"""Small checkpoints with the keys and shapes of the toolkits, whose numbers are the same everywhere.

The toolkits load them, too: `RECORDED` in test_toolkits.py has the log-probabilities that they computed.
"""

import json
from argparse import Namespace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

try:
    from safetensors.torch import save_file
except ImportError:  # in the environments of some toolkits
    save_file = None

SOURCE, TARGET = "ab cdb a x", "cdb ab d"
CODES = "#version: 0.2\na b</w>\nc d\n"
PIECES = ("ab", "c@@", "d", "a", "b", "cd@@", "a@@")
"""Pieces of both sides, after the special tokens."""
D, H, F = 8, 2, 12
SIDES = ("encoder", "decoder")
State = dict[str, Tensor]


def numbers(name: str, *shape: int) -> Tensor:
    """Return numbers that depend on a name."""
    seed = sum(ord(letter) * (place + 1) for place, letter in enumerate(name)) % 997
    waves = torch.sin(torch.arange(prod(shape), dtype=torch.float64) * 0.7 + seed) * 0.4
    return waves.float().reshape(shape)


def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> State:
    weight = {f"{name}.weight": numbers(f"{name}.weight", outputs, inputs)}
    return {**weight, **({f"{name}.bias": numbers(f"{name}.bias", outputs)} if bias else {})}


def norm(name: str, *, bias: bool = True) -> State:
    return {name: each + (name.endswith("weight")) for name, each in linear(name, D, 1, bias=bias).items()} | {
        f"{name}.weight": 1 + numbers(f"{name}.weight", D)
    }


def tables(*names: str) -> State:
    """Return tables for PIECES and four special tokens: those before the last have one content."""
    size = len(PIECES) + 4
    return {name: numbers(names[0], size, D) for name in names}


def interleaved() -> Tensor:
    """Return the table of positions [5000, D] of JoeyNMT and OpenNMT-py."""
    angles = torch.arange(5000.0)[:, None] / 10000 ** (torch.arange(0, D, 2.0) / D)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def fairseq(folder: Path, variant: str = "post") -> Path:
    pre, adaptive = variant == "pre", variant == "adaptive"
    state = tables("encoder.embed_tokens.weight") | tables("decoder.embed_tokens.weight")
    state |= {f"{side}.version": torch.tensor([3.0]) for side in SIDES}
    for side in SIDES:
        at = f"{side}.layers.0"
        blocks = ["self_attn"] if side == "encoder" else ["self_attn", "encoder_attn"]
        for block in blocks:
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                state |= linear(f"{at}.{block}.{part}", D, D)
            state |= norm(f"{at}.{block}_layer_norm")
        state |= linear(f"{at}.fc1", F, D) | linear(f"{at}.fc2", D, F) | norm(f"{at}.final_layer_norm")
        if pre:
            state |= norm(f"{side}.layer_norm")
        if adaptive:
            state |= norm(f"{side}.layernorm_embedding")
            state[f"{side}.embed_positions.weight"] = numbers(f"{side}.embed_positions.weight", 22, D)
        else:
            state[f"{side}.embed_positions._float_tensor"] = torch.ones(1)
    if adaptive:
        head = "decoder.adaptive_softmax"
        state |= linear(f"{head}.head", 6, D, bias=False)
        state[f"{head}.version"] = torch.tensor([1])
        for band, size, count in ((0, 4, 4), (1, 2, 3)):
            state |= linear(f"{head}.tail.{band}.0", size, D, bias=False)
            state |= linear(f"{head}.tail.{band}.2", count, size, bias=False)
    else:
        state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    options = {
        "arch": "transformer", "task": "translation", "source_lang": "de", "target_lang": "en",
        **{f"{side}_{name}": value for side in SIDES for name, value in {
            "embed_dim": D, "ffn_embed_dim": F, "layers": 1, "attention_heads": H, "normalize_before": pre,
            "learned_pos": adaptive,
        }.items()},
        "max_source_positions": 20, "max_target_positions": 20, "share_decoder_input_output_embed": not adaptive,
        "layernorm_embedding": adaptive, "no_scale_embedding": adaptive, "dropout": 0.1,
        "activation_fn": "gelu" if pre else "relu",
        "adaptive_softmax_cutoff": "4,8" if adaptive else None, "adaptive_softmax_factor": 2,
    }  # fmt: skip
    for language in ("de", "en"):
        lines = "".join(f"{piece} 1\n" for piece in PIECES)
        (folder / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
    (folder / "bpecodes").write_text(CODES, encoding="utf-8")
    path = folder / "checkpoint_best.pt"
    cfg = {"model": Namespace(**options), "task": {"source_lang": "de", "target_lang": "en", "_name": "translation"}}
    torch.save(
        {"args": None, "cfg": cfg, "model": state} if pre else {"args": Namespace(**options), "model": state}, path
    )
    return path


def joeynmt(folder: Path, variant: str = "pre") -> Path:
    state = tables("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
    for side, blocks in (("encoder", ("src_src_att",)), ("decoder", ("trg_trg_att", "src_trg_att"))):
        at = f"{side}.layers.0"
        for block in blocks:
            for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
                state |= linear(f"{at}.{block}.{part}", D, D)
        state |= norm(f"{at}.feed_forward.layer_norm")
        state |= linear(f"{at}.feed_forward.pwff_layer.0", F, D) | linear(f"{at}.feed_forward.pwff_layer.3", D, F)
        for each in ("layer_norm",) if side == "encoder" else ("x_layer_norm", "dec_layer_norm"):
            state |= norm(f"{at}.{each}")
        state |= norm(f"{side}.layer_norm") if variant == "pre" else {}
        state[f"{side}.pe.pe"] = interleaved()[None]
    layers = {
        "type": "transformer", "num_layers": 1, "num_heads": H, "hidden_size": D, "ff_size": F, "dropout": 0.1,
        "embeddings": {"embedding_dim": D, "scale": True}, "layer_norm": variant, "activation": "relu",
    }  # fmt: skip
    side = {
        "level": "bpe", "lowercase": True, "normalize": False, "tokenizer_type": "subword-nmt",
        "tokenizer_cfg": {"codes": "/home/me/codes.bpe", "num_merges": 2, "pretokenizer": "none"},
    }  # fmt: skip
    marks = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    symbols = {f"{name}_token": mark for name, mark in marks.items()}
    config = {
        "data": {
            "src": {"lang": "de", **side}, "trg": {"lang": "en", **side},
            "special_symbols": symbols | {f"{name}_id": place for place, name in enumerate(marks)},
        },
        "testing": {"beam_size": 4, "beam_alpha": 0.6, "max_output_length": 30},
        "model": {"encoder": layers, "decoder": layers, "tied_embeddings": True, "tied_softmax": True},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    for each in ("src", "trg"):
        (folder / f"{each}_vocab.txt").write_text("\n".join([*marks.values(), *PIECES]) + "\n", encoding="utf-8")
    (folder / "codes.bpe").write_text(CODES, encoding="utf-8")
    torch.save({"model_state": state, "optimizer_state": {}}, folder / "best.ckpt")
    return folder / "best.ckpt"


def sockeye(folder: Path, variant: str = "pre") -> Path:
    ssru = variant == "ssru"
    place, after = ("post", "drn") if ssru else ("pre", "dr")
    state = tables("embedding_source.embedding.weight")
    state |= tables("embedding_target.embedding.weight", "output_layer.weight")
    state["output_layer.bias"] = numbers("output_layer.bias", len(PIECES) + 4)
    for side in SIDES:
        at = f"{side}.layers.0"
        own = "self_attention" if side == "encoder" else "autoregr_layer"
        if ssru and side == "decoder":
            state |= linear(f"{at}.{own}.forget_gate", D, D) | linear(f"{at}.{own}.linear", D, D, bias=False)
        else:
            state |= linear(f"{at}.{own}.ff_in", 3 * D, D, bias=False) | linear(f"{at}.{own}.ff_out", D, D, bias=False)
        if side == "decoder":
            for part, rows in (("ff_q", D), ("ff_kv", 2 * D), ("ff_out", D)):
                state |= linear(f"{at}.enc_attention.{part}", rows, D, bias=False)
            state |= norm(f"{at}.{place}_enc_attention.layer_norm")
        state |= norm(f"{at}.{place}_{own}.layer_norm") | norm(f"{at}.{place}_ff.layer_norm")
        state |= linear(f"{at}.ff.ff1", F, D) | linear(f"{at}.ff.ff2", D, F)
        state |= {} if ssru else norm(f"{side}.final_process.layer_norm")
        angles = torch.arange(30.0)[:, None] / 10000 ** (torch.arange(0, D, 2.0) / D)
        state[f"{side}.pos_embedding.weight"] = torch.cat([angles.sin(), angles.cos()], 1)
    stack = {
        "model_size": D, "attention_heads": H, "feed_forward_num_hidden": F, "act_type": "relu", "num_layers": 1,
        "dropout_attention": 0.0, "dropout_act": 0.0, "dropout_prepost": 0.1, "positional_embedding_type": "fixed",
        "preprocess_sequence": "" if ssru else "n", "postprocess_sequence": after, "max_seq_len_source": 30,
        "max_seq_len_target": 30, "decoder_type": "ssru_transformer" if ssru else "transformer", "depth_key_value": D,
        "block_prepended_cross_attention": False, "use_lhuc": False, "use_glu": False,
    }  # fmt: skip
    embedding = {
        "vocab_size": len(PIECES) + 4, "num_embed": D, "dropout": 0.0, "num_factors": 1, "factor_configs": None,
        "allow_sparse_grad": False,
    }  # fmt: skip
    data = {
        "data_statistics": None, "max_seq_len_source": 30, "max_seq_len_target": 30, "num_source_factors": 1,
        "num_target_factors": 1, "eop_id": -1,
    }  # fmt: skip
    parts = {
        "config_data": ("DataConfig", data), "config_embed_source": ("EmbeddingConfig", embedding),
        "config_embed_target": ("EmbeddingConfig", embedding), "config_encoder": ("TransformerConfig", stack),
        "config_decoder": ("TransformerConfig", stack),
    }  # fmt: skip
    plain = {
        "config_length_task": None, "dtype": "float32", "lhuc": False, "neural_vocab_selection": None,
        "neural_vocab_selection_block_loss": False, "vocab_source_size": len(PIECES) + 4,
        "vocab_target_size": len(PIECES) + 4, "weight_tying_type": "trg_softmax",
    }  # fmt: skip
    lines = ["!ModelConfig"]
    for name, (tag, values) in parts.items():
        lines += [f"{name}: !{tag}", *(f"  {key}: {json.dumps(value)}" for key, value in values.items())]
    lines += [f"{key}: {json.dumps(value)}" for key, value in plain.items()]
    (folder / "config").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("vocab.src.0.json", "vocab.trg.0.json"):
        ids = {piece: id_ for id_, piece in enumerate(("<pad>", "<unk>", "<s>", "</s>", *PIECES))}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
    (folder / "version").write_text("3.1.34", encoding="utf-8")
    (folder / "codes.bpe").write_text(CODES, encoding="utf-8")
    torch.save(state, folder / "params.best")
    return folder


def opennmt(folder: Path, variant: str = "sinusoidal") -> Path:
    rotary = variant == "rotary"
    embedding = "embeddings.make_embedding.emb_luts.0.weight"
    state = tables(f"encoder.{embedding}") | tables(f"decoder.{embedding}")
    for side, stack in (("encoder", "transformer"), ("decoder", "transformer_layers")):
        at = f"{side}.{stack}.0"
        for block in ("self_attn",) if side == "encoder" else ("self_attn", "context_attn"):
            for part in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                state |= linear(f"{at}.{block}.{part}", D, D, bias=rotary)
        for each in ("layer_norm",) if side == "encoder" else ("layer_norm_1", "layer_norm_2"):
            state |= norm(f"{at}.{each}", bias=not rotary)
        for part, sizes in (("w_1", (F, D)), ("w_2", (D, F)), *([("w_3", (F, D))] if rotary else [])):
            state |= linear(f"{at}.feed_forward.{part}", *sizes)
        state |= {} if rotary else {f"{side}.embeddings.make_embedding.pe.pe": interleaved()[:, None]}
        state |= norm(f"{at}.feed_forward.layer_norm", bias=not rotary) | norm(f"{side}.layer_norm", bias=not rotary)
    options = Namespace(
        encoder_type="transformer", decoder_type="transformer", enc_layers=1, dec_layers=1, heads=H, hidden_size=D,
        transformer_ff=F, position_encoding=not rotary, position_encoding_type="SinusoidalInterleaved",
        max_relative_positions=-1 if rotary else 0, rotary_interleave=True, add_qkvbias=rotary, add_ffnbias=True,
        layer_norm="rms" if rotary else "standard", norm_eps=1e-6, pos_ffn_activation_fn="silu" if rotary else "relu",
        transforms=["filtertoolong"], share_decoder_embeddings=True, dropout=[0.1], attention_dropout=[0.1],
    )  # fmt: skip
    marks = ["<unk>", "<blank>", "<s>", "</s>"]
    vocabulary = {"src": [*marks, *PIECES], "tgt": [*marks, *PIECES]}
    generator = {"weight": state[f"decoder.{embedding}"], "bias": numbers("generator.bias", len(PIECES) + 4)}
    values = {
        "model": state, "generator": generator, "opt": options, "optim": {},
        "vocab": vocabulary | {"data_task": "seq2seq", "decoder_start_token": "<s>"},
    }  # fmt: skip
    torch.save(values, folder / "model_step_9.pt")
    (folder / "codes.bpe").write_text(CODES, encoding="utf-8")
    return folder / "model_step_9.pt"


def eole(folder: Path, variant: str = "sinusoidal") -> Path:
    rotary = variant == "rotary"
    state = tables("src_emb.embeddings.weight", *([] if rotary else ["tgt_emb.embeddings.weight"]))
    if not rotary:  # it stores a shared table once
        state["tgt_emb.embeddings.weight"] = numbers("tgt_emb.embeddings.weight", len(PIECES) + 4, D)
        state |= {f"{side}_emb.pe.pe": interleaved()[:, None].clone() for side in ("src", "tgt")}
    state["generator.bias"] = numbers("generator.bias", len(PIECES) + 4)
    for side in SIDES:
        at = f"{side}.transformer_layers.0"
        for block in ("self_attn",) if side == "encoder" else ("self_attn", "context_attn"):
            for part in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                state |= linear(f"{at}.{block}.{part}", D, D, bias=rotary)
        norms = ("input_layernorm", "post_attention_layernorm", "precontext_layernorm")
        for each in norms[:2] if side == "encoder" else norms:
            state |= norm(f"{at}.{each}", bias=not rotary)
        for part, sizes in (
            ("gate_up_proj", (F, D)),
            ("down_proj", (D, F)),
            *([("up_proj", (F, D))] if rotary else []),
        ):
            state |= linear(f"{at}.mlp.{part}", *sizes, bias=False)
        state |= norm(f"{side}.layer_norm", bias=not rotary)
        state |= {f"{at}.layer_scalar": torch.ones(1)} if side == "decoder" else {}
    save_file(state, folder / "model.00.safetensors")
    kind = "Rotary" if rotary else "SinusoidalInterleaved"
    both = {"hidden_size": D, "transformer_ff": F, "heads": H, "layers": 1, "position_encoding_type": kind}
    if rotary:
        extra = {"add_qkvbias": True, "add_final_linear_bias": True, "mlp_activation_fn": "gated-silu"}
        both |= {**extra, "layer_norm": "rms", "rope_config": {"rotary_interleave": True}}
    sizes = {f"{name}word_vec_size": D for name in ("", "src_", "tgt_")}
    model = {
        **both, "architecture": "transformer", "share_decoder_embeddings": True, "share_embeddings": rotary,
        "encoder": {"encoder_type": "transformer", **both}, "embeddings": {"position_encoding_type": kind, **sizes},
        "decoder": {"decoder_type": "transformer", "with_cross_attn": True, **both}, "word_vec_size": D,
    }  # fmt: skip
    config = {
        "src_vocab": "src",
        "tgt_vocab": "tgt",
        "share_vocab": rotary,
        "transforms": [],
        "training": {},
        "data": {},
    }
    (folder / "config.json").write_text(json.dumps(config | {"model": model}), encoding="utf-8")
    marks = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    pieces = [*marks.values(), *PIECES]
    vocabulary = {"src": pieces, "tgt": pieces, "decoder_start_token": "<s>", "specials": marks}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "codes.bpe").write_text(CODES, encoding="utf-8")
    return folder


WRITERS = {
    "fairseq post": (fairseq, "post"), "fairseq pre": (fairseq, "pre"), "fairseq adaptive": (fairseq, "adaptive"),
    "joeynmt pre": (joeynmt, "pre"), "joeynmt post": (joeynmt, "post"), "sockeye pre": (sockeye, "pre"),
    "sockeye ssru": (sockeye, "ssru"), "opennmt sinusoidal": (opennmt, "sinusoidal"),
    "opennmt rotary": (opennmt, "rotary"), "eole sinusoidal": (eole, "sinusoidal"), "eole rotary": (eole, "rotary"),
}  # fmt: skip
