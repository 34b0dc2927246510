"""EncoderDecoderModel: BERT or RoBERTa as the encoder, and one of them or GPT-2 as the decoder (Rothe et al. 2020)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import ModelFolderError, SettingsError, check_known
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_integer, read_side, shown
from translume.interchange.huggingface.family import (
    Converted,
    Family,
    Names,
    TiedTable,
    encoder_differences,
    layer_names,
    require,
    shared_tensor,
    with_kinds,
)
from translume.interchange.huggingface.tokenizer import NAME, read_tokenizer, read_wrapped_tokenizer
from translume.model import Transformer
from translume.text import Tokenizer

ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Model types with RoBERTa's names of weights, whose first position comes after the padding id."""
DECODERS = ("bert", *ROBERTA, "gpt2")
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "swish", "swish": "swish"}
_BERT: Names = {
    "self_attention.query_key_value": [f"attention.self.{name}" for name in ("query", "key", "value")],
    "self_attention.output": ["attention.output.dense"], "feed_forward.inner": ["intermediate.dense"],
    "feed_forward.outer": ["output.dense"], "around_feed_forward.norm": ["output.LayerNorm"],
}  # fmt: skip
ENCODER: Names = {**_BERT, "around_attention.norm": ["attention.output.LayerNorm"]}
DECODER: Names = {
    **_BERT, "around_self.norm": ["attention.output.LayerNorm"], "cross_attention.query": ["crossattention.self.query"],
    "cross_attention.key_value": ["crossattention.self.key", "crossattention.self.value"],
    "cross_attention.output": ["crossattention.output.dense"], "around_cross.norm": ["crossattention.output.LayerNorm"],
}  # fmt: skip
GPT2: Names = {
    "self_attention.query_key_value": ["attn.c_attn"], "self_attention.output": ["attn.c_proj"],
    "around_self.norm": ["ln_1"], "cross_attention.query": ["crossattention.q_attn"],
    "cross_attention.key_value": ["crossattention.c_attn"], "cross_attention.output": ["crossattention.c_proj"],
    "around_cross.norm": ["ln_cross_attn"], "feed_forward.inner": ["mlp.c_fc"], "feed_forward.outer": ["mlp.c_proj"],
    "around_feed_forward.norm": ["ln_2"],
}  # fmt: skip
ENCODER_TOKENS = {"pad": "pad", "bos": "cls", "eos": "sep"}
"""Our names and their names of the special tokens around a text that BERT reads."""
VOCABULARIES = (NAME, "vocab.txt", "merges.txt", "sentencepiece.bpe.model")
"""Files of which one is in every folder of a tokenizer of BERT, RoBERTa, GPT-2, XLM-RoBERTa or CamemBERT."""
TRANSPOSED = tuple(f"{name}.weight" for name in ("c_attn", "q_attn", "c_proj", "c_fc"))
"""Endings of the names of GPT-2's weights [inputs, outputs]."""
POSITIONS = ("encoder.embedding.positions.table", "decoder.embedding.positions.table")
TABLE, HEAD = "decoder.embedding.table.weight", "head.weight"


class BertPair(Family):
    """EncoderDecoderModel.

    Our position tables include the vector of the token type 0, which every token has.
    """

    architecture = "EncoderDecoderModel"
    model_type = "encoder-decoder"
    tokenizer_class = "RobertaTokenizer"
    ties = ("target", "none")
    language_tags = "source"
    possible: Mapping[str, tuple[object, ...]] = {
        "normalization": ("layer",), "activation": tuple({*ACTIVATIONS.values()}), "bias": (True,), "segments": (0,),
        "decoder_mixing": ("attention",), "scale_embeddings": (False,), "head_width": (0,),
    }  # fmt: skip
    modern: ClassVar[frozenset[str]] = frozenset({"encoder", "final_transform"})
    _kinds = ("bert", "bert")
    """The model types of encoder and decoder; `model_values` reads them. An export has BERT's."""
    _unused = (0, 0)
    """Rows before the first position, in the tables of encoder and decoder; `model_values` reads them."""

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        encoder, decoder = (_side(place, values, side) for side in ("encoder", "decoder"))
        stated = {name: value for name, value in values.items() if value is not None}
        ids = {name: decoder.get(name, encoder.get(name)) for name in ("pad_token_id", "eos_token_id")}
        start = decoder.get("decoder_start_token_id", decoder.get("bos_token_id"))
        return super().read_config(
            place,
            {
                **ids,
                "decoder_start_token_id": start,
                **stated,
                "vocab_size": read_integer(place, encoder, "vocab_size"),
            },
        )

    def target_vocabulary(self, place: Path, values: Mapping[str, Any]) -> int:
        return read_integer(place, _side(place, values, "decoder"), "vocab_size")

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        place = config.place
        encoder, decoder = (_side(place, config.values, side) for side in ("encoder", "decoder"))
        self._kinds = encoder["model_type"], decoder["model_type"]
        self._unused = _unused(encoder), _unused(decoder)
        source, target = (_layers(place, each) for each in (encoder, decoder))
        widths = source["width"], target["width"]
        if widths[0] != widths[1]:
            raise SettingsError(
                f"{place}: encoder.hidden_size: found {widths[0]}, expected {widths[1]}, that of the decoder"
            )
        gpt2 = self._kinds[1] == "gpt2"
        if self._kinds[1] == "bert" and target["activation"] != "gelu":
            raise SettingsError(
                f'{place}: decoder.hidden_act: found {shown(decoder["hidden_act"])}, expected "gelu", that of the head'
            )
        tie = "target" if read_boolean(place, decoder, "tie_word_embeddings", True) else "none"
        dropouts = ("resid_pdrop", "attn_pdrop") if gpt2 else ("hidden_dropout_prob", "attention_probs_dropout_prob")
        layers = "n_layer" if gpt2 else "num_hidden_layers"
        return {
            **target,
            "encoder": encoder_differences(source, target),
            "encoder_layers": read_integer(place, encoder, "num_hidden_layers"),
            "decoder_layers": read_integer(place, decoder, layers),
            **dict(zip(("dropout", "attention_dropout"), (decoder.get(name, 0.1) for name in dropouts), strict=True)),
            "positions": "learned",
            "max_positions": min(_positions(place, each) for each in (encoder, decoder)),
            "scale_embeddings": False,
            "final_transform": not gpt2,
            "head": {"kind": "softmax", "tie": tie, "bias": not gpt2},
        }

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if config.vocabulary != config.target_vocabulary:
            raise SettingsError(
                f"{config.place}: decoder.vocab_size: found {config.target_vocabulary}, expected {config.vocabulary}, "
                "that of the encoder: the folder has one tokenizer; --vocabs ENCODER DECODER names folders of two"
            )
        if (folder / NAME).exists():
            return read_tokenizer(folder, config)
        tokenizer = read_wrapped_tokenizer(_with_vocabulary(folder), config)
        return tokenizer, tokenizer

    def separate_tokenizers(self, folders: Sequence[Path], config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        from translume.interchange.huggingface.loading import load_tokenizer

        source, target = map(_with_vocabulary, (folders[0], folders[-1]))
        theirs = load_tokenizer(source)
        ids = {ours: getattr(theirs, f"{name}_token_id") for ours, name in ENCODER_TOKENS.items()}
        if None in ids.values():
            raise SettingsError(
                f"{source}: lacks cls_token, sep_token or pad_token, expected a tokenizer of BERT or RoBERTa"
            )
        decoder = replace(config, vocabulary=config.target_vocabulary)
        return (
            read_wrapped_tokenizer(source, replace(config, **ids)),
            read_wrapped_tokenizer(target, decoder, sources=False),
        )

    def describes(self, settings: ModelSettings) -> bool:
        return settings.final_transform or bool(settings.encoder.get("embedding_norm"))

    def refuse(self, settings: ModelSettings) -> None:
        super().refuse(settings)
        encoder, gpt2 = settings.of_encoder, not settings.final_transform
        found = {
            "model.encoder.norm": (encoder.norm, "post"),
            "model.encoder.embedding_norm": (encoder.embedding_norm, True),
            "model.norm": (settings.norm, "pre" if gpt2 else "post"),
            "model.embedding_norm": (settings.embedding_norm, not gpt2),
            "model.head.bias": (getattr(settings.head, "bias", None), not gpt2),
            "model.encoder.width": (encoder.width, settings.width),
        }
        for name, (value, wanted) in found.items():
            if value != wanted:
                raise SettingsError(f"{name}: found {value!r}, expected {wanted!r} for {self.architecture}")

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings, size = checkpoint.config.model, len(checkpoint.source_tokenizer)
        specials = checkpoint.target_tokenizer.specials
        ids = {"pad_token_id": specials.pad, "bos_token_id": specials.bos, "eos_token_id": specials.eos}
        encoder = _bert_values(settings.of_encoder, size, settings.encoder_layers) | ids
        decoder = _bert_values(settings, len(checkpoint.target_tokenizer), settings.decoder_layers) | ids
        if not settings.final_transform:
            decoder = ids | {
                "model_type": "gpt2", "vocab_size": decoder["vocab_size"], "n_embd": settings.width,
                "n_inner": settings.feed_forward, "n_layer": settings.decoder_layers,
                "n_head": settings.attention_heads, "n_positions": settings.max_positions,
                "activation_function": _theirs(settings), "layer_norm_epsilon": settings.norm_epsilon,
                "resid_pdrop": settings.dropout, "embd_pdrop": settings.dropout,
                "attn_pdrop": settings.attention_dropout,
            }  # fmt: skip
        tied = {"tie_word_embeddings": settings.head.tie == "target"}
        return {
            "encoder": encoder,
            "decoder": {**decoder, **tied, "is_decoder": True, "add_cross_attention": True},
        }

    def prepared(self, theirs: Any, settings: ModelSettings) -> Any:
        del theirs.config.vocab_size  # each side has its own
        return theirs

    # Weights

    def _parts(self, settings: ModelSettings) -> tuple[str, str, bool]:
        """Return the names of the decoder and of its head, and whether it is GPT-2."""
        if not settings.final_transform:
            return "decoder.transformer", "decoder.lm_head", True
        if self._kinds[1] == "bert":
            return "decoder.bert", "decoder.cls.predictions", False
        return "decoder.roberta", "decoder.lm_head", False

    def names(self, settings: ModelSettings) -> Names:
        decoder, head, gpt2 = self._parts(settings)
        names: dict[str, list[str]] = {"encoder.embedding.norm": ["encoder.embeddings.LayerNorm"]}
        for number in range(settings.encoder_layers):
            names |= layer_names(f"encoder.layers.{number}", f"encoder.encoder.layer.{number}", ENCODER)
        place, parts = (f"{decoder}.h", GPT2) if gpt2 else (f"{decoder}.encoder.layer", DECODER)
        for number in range(settings.decoder_layers):
            names |= layer_names(f"decoder.layers.{number}", f"{place}.{number}", parts)
        if gpt2:
            return with_kinds({**names, "decoder.norm": [f"{decoder}.ln_f"]})
        names["decoder.embedding.norm"] = [f"{decoder}.embeddings.LayerNorm"]
        bert = self._kinds[1] == "bert"
        names["decoder.norm.1"] = [f"{head}.transform.dense" if bert else f"{head}.dense"]
        names["decoder.norm.3"] = [f"{head}.transform.LayerNorm" if bert else f"{head}.layer_norm"]
        return with_kinds(names)

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        decoder, head, gpt2 = self._parts(settings)
        words = f"{decoder}.wte.weight" if gpt2 else f"{decoder}.embeddings.word_embeddings.weight"
        output = f"{head}.weight" if gpt2 else f"{head}.decoder.weight"
        encoder: TiedTable = (("encoder.embedding.table.weight",), ("encoder.embeddings.word_embeddings.weight",))
        bias: list[TiedTable] = [] if gpt2 else [(("head.bias",), (f"{head}.bias", f"{head}.decoder.bias"))]
        if settings.head.tie == "target":
            return [encoder, ((TABLE, HEAD), (words, output)), *bias]
        return [encoder, ((TABLE,), (words,)), ((HEAD,), (output,)), *bias]

    def _added(self, settings: ModelSettings) -> dict[str, tuple[str, str]]:
        """Return the names of their position table, and of their token types if there are some, for each of ours."""
        decoder, _, gpt2 = self._parts(settings)
        names = [(f"{side}.position_embeddings.weight", f"{side}.token_type_embeddings.weight")
                 for side in ("encoder.embeddings", f"{decoder}.embeddings")]  # fmt: skip
        if gpt2:
            names[1] = f"{decoder}.wpe.weight", ""
        return dict(zip(POSITIONS, names, strict=True))

    def computed(self, settings: ModelSettings) -> frozenset[str]:
        decoder, *_ = self._parts(settings)
        unread = {f"encoder.pooler.dense.{kind}" for kind in ("weight", "bias")}
        unread |= {f"{side}.embeddings.position_ids" for side in ("encoder", decoder)}
        for number in range(settings.decoder_layers):  # masks in old files
            unread |= {f"{decoder}.h.{number}.{part}.{name}" for part in ("attn", "crossattention")
                       for name in ("bias", "masked_bias")}  # fmt: skip
        return frozenset(unread.union(*self._added(settings).values()))

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        state = super().weights_to(model, settings)
        weights = model.state_dict()
        for ours, (positions, types) in self._added(settings).items():
            state[positions] = weights[ours].detach()
            if types:
                state[types] = torch.zeros(2, settings.width)
        return {name: each.t().contiguous() if _is_transposed(name) else each for name, each in state.items()}

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        weights = super().weights_from(
            Converted(state, lambda name, each: each.t() if _is_transposed(name) else each), settings
        )
        for (ours, (positions, types)), unused in zip(self._added(settings).items(), self._unused, strict=True):
            table = shared_tensor(state, ours, (positions,))[unused:][: settings.max_positions]
            weights[ours] = table + shared_tensor(state, ours, (types,))[0] if types else table
        return weights


def _with_vocabulary(folder: Path) -> Path:
    """Return a folder that holds a vocabulary. Raises ModelFolderError for another, of which transformers makes one."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise ModelFolderError(f"{folder}: no tokenizer, expected one of {', '.join(VOCABULARIES)}")
    return folder


def _is_transposed(name: str) -> bool:
    return name.startswith("decoder.transformer.") and name.endswith(TRANSPOSED)


def _side(place: Path, values: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Return the settings of a side. Raises SettingsError for another architecture, naming those that there are."""
    return read_side(place, values, side, DECODERS if side == "decoder" else DECODERS[:-1])


def _layers(place: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the layers of a side."""
    gpt2 = values["model_type"] == "gpt2"
    required = {
        "position_embedding_type": "absolute", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    }  # fmt: skip
    require(f"{place}: ", values, required)
    given = values.get("activation_function" if gpt2 else "hidden_act", "gelu_new" if gpt2 else "gelu")
    check_known(f"{place}: activation", given, ACTIVATIONS)
    width = read_integer(place, values, "n_embd" if gpt2 else "hidden_size")
    inner = (values.get("n_inner") or 4 * width) if gpt2 else read_integer(place, values, "intermediate_size")
    return {
        "width": width,
        "feed_forward": inner,
        "attention_heads": read_integer(place, values, "n_head" if gpt2 else "num_attention_heads"),
        "norm": "pre" if gpt2 else "post",
        "norm_epsilon": values.get("layer_norm_epsilon", 1e-5) if gpt2 else values.get("layer_norm_eps", 1e-12),
        "activation": ACTIVATIONS[given],
        "embedding_norm": not gpt2,
    }


def _positions(place: Path, values: Mapping[str, Any]) -> int:
    """Return the number of positions of a side."""
    if values["model_type"] == "gpt2":
        return read_integer(place, values, "n_positions")
    return read_integer(place, values, "max_position_embeddings") - _unused(values)


def _unused(values: Mapping[str, Any]) -> int:
    """Return the number of rows before the first position of a side."""
    return int(values.get("pad_token_id", 1)) + 1 if values["model_type"] in ROBERTA else 0


def _theirs(settings: ModelSettings) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == settings.activation)


def _bert_values(settings: ModelSettings, vocabulary: int, layers: int) -> dict[str, Any]:
    """Return the settings of a BERT."""
    return {
        "model_type": "bert", "vocab_size": vocabulary, "hidden_size": settings.width, "num_hidden_layers": layers,
        "intermediate_size": settings.feed_forward, "num_attention_heads": settings.attention_heads,
        "hidden_act": _theirs(settings), "layer_norm_eps": settings.norm_epsilon,
        "max_position_embeddings": settings.max_positions, "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.attention_dropout, "type_vocab_size": 2,
    }  # fmt: skip
