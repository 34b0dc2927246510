"""Convert weights to and from transformers: post-norm models as MarianMTModel, pre-norm ones as Pegasus.

Both have one vocabulary for both sides, LayerNorm and biases. Marian computes its sinusoids when it is loaded;
Pegasus stores its position table, which may be learned.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from translume.config import ModelSettings, SoftmaxSettings
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.weight_names import Row, same, stacked, to_ours, to_theirs
from translume.model import Transformer
from translume.model.positions import encoding_class, encodings_where

_OURS = ("encoder.embedding.table.weight", "decoder.embedding.table.weight", "head.weight")
_THEIRS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
_TABLES: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "all": [(_OURS, ("model.shared.weight", *_THEIRS))],
    "target": [(_OURS[:1], _THEIRS[:1]), (_OURS[1:], _THEIRS[1:])],
    "none": [((ours,), (theirs,)) for ours, theirs in zip(_OURS, _THEIRS, strict=True)],
}
"""For each `model.head.tie`, our names and their names of each shared table."""
LOGIT_BIAS = "final_logits_bias"
POSITIONS = {
    f"{side}.embedding.positions.table": f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")
}


def weights_to_pegasus(model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
    """Return a state dict for PegasusForConditionalGeneration.

    Raises SettingsError naming the first setting that Pegasus cannot express.
    """
    refuse_for_pegasus(settings)
    renamed = _renamed(model, settings)
    tables = (model.encoder.embedding.positions.table, model.decoder.embedding.positions.table)
    for name, table in zip(POSITIONS.values(), tables, strict=True):
        assert table is not None  # `refuse_for_pegasus` names other encodings
        renamed[name] = table.detach().clone()
    return renamed


def weights_from_pegasus(state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
    """Return our state dict from that of a Pegasus model of the shape in `settings`."""
    refuse_for_pegasus(settings)
    renamed = _ours(state, settings)
    if encoding_class(settings.positions).trained:
        renamed |= {ours: _found(state, ours, (theirs,)) for ours, theirs in POSITIONS.items()}
    return renamed


def weights_to_marian(model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
    """Return a state dict for `MarianMTModel.load_state_dict(…, strict=False)`, without position tables.

    Raises SettingsError naming the first setting that Marian cannot express.
    """
    refuse_for_marian(settings)
    return _renamed(model, settings)


def _renamed(model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
    weights = model.state_dict()
    renamed = to_theirs(_rows(settings), weights)
    for ours, theirs in _TABLES[settings.head.tie]:
        renamed.update(dict.fromkeys(theirs, weights[ours[0]].detach().clone()))
    head, bias = weights[_OURS[-1]], weights.get("head.bias")
    renamed[LOGIT_BIAS] = head.new_zeros(1, head.size(0)) if bias is None else bias.detach().clone()[None]
    return renamed


def weights_from_marian(state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
    """Return our state dict from that of a MarianMTModel of the shape in `settings`.

    Raises SettingsError naming the first setting that Marian cannot express.
    """
    refuse_for_marian(settings)
    return _ours(state, settings)


def _ours(state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
    renamed = to_ours(_rows(settings), state)
    for ours, theirs in _TABLES[settings.head.tie]:
        renamed.update(dict.fromkeys(ours, _found(state, ours[0], theirs)))
    if isinstance(settings.head, SoftmaxSettings) and settings.head.bias:
        renamed["head.bias"] = _found(state, "head.bias", (LOGIT_BIAS,))[0]
    return renamed


def _found(state: Mapping[str, Tensor], ours: str, theirs: Sequence[str]) -> Tensor:
    """Copy the tensor with one of their names. Raises ModelFolderError if there is none, or if two differ."""
    present = [name for name in theirs if name in state]
    if not present:
        raise ModelFolderError(f"{theirs[0]}: no such weights, expected them for {ours}")
    for name in present[1:]:
        if not torch.equal(state[name], state[present[0]]):
            raise ModelFolderError(f"{name}: differs from {present[0]}, with which config.json ties it")
    return state[present[0]].detach().clone()


def refuse_for_marian(settings: ModelSettings) -> None:
    """Raise SettingsError naming the first setting that MarianMTModel cannot express."""
    _refuse(settings, "MarianMTModel", {"norm": ("post",), "positions": _positions("MarianMTModel")}, tuple(_TABLES))


def refuse_for_pegasus(settings: ModelSettings) -> None:
    """Raise SettingsError naming the first setting that PegasusForConditionalGeneration cannot express."""
    positions = _positions("PegasusForConditionalGeneration")
    _refuse(settings, "Pegasus", {"norm": ("pre",), "positions": positions}, ("all",))


def _positions(architecture: str) -> tuple[str, ...]:
    return encodings_where(lambda encoding: architecture in encoding.huggingface)


def _refuse(
    settings: ModelSettings, family: str, special: Mapping[str, tuple[object, ...]], ties: tuple[str, ...]
) -> None:
    possible: dict[str, tuple[object, ...]] = {
        **special, "normalization": ("layer",), "norm_epsilon": (1e-5,), "activation": ("relu", "gelu", "swish"),
        "bias": (True,), "segments": (0,), "decoder_mixing": ("attention",),
    }  # fmt: skip
    for name, values in possible.items():
        found = getattr(settings, name)
        if found not in values:
            wanted = " or ".join(map(repr, values))
            raise SettingsError(f"model.{name}: found {found!r}, expected {wanted} for {family}")
    if not isinstance(settings.head, SoftmaxSettings):
        raise SettingsError(f"model.head.kind: found {settings.head.kind!r}, expected 'softmax' for {family}")
    if settings.head.tie not in ties:
        raise SettingsError(f"model.head.tie: found {settings.head.tie!r}, expected 'all' for {family}")


def _rows(settings: ModelSettings) -> Iterator[Row]:
    if settings.norm == "pre":
        for side in ("encoder", "decoder"):
            yield from same(f"{side}.norm", f"model.{side}.layer_norm")
    for side, count in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        for number in range(count):
            ours, theirs = f"{side}.layers.{number}", f"model.{side}.layers.{number}"
            attention = f"{theirs}.self_attn"
            parts = [(f"{attention}.{name}_proj", 1) for name in ("q", "k", "v")]
            yield from stacked([(f"{ours}.self_attention.query_key_value", 3)], parts)
            yield from same(f"{ours}.self_attention.output", f"{attention}.out_proj")
            around = "around_attention" if side == "encoder" else "around_self"
            yield from same(f"{ours}.{around}.norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                yield from same(f"{ours}.cross_attention.query", f"{theirs}.encoder_attn.q_proj")
                parts = [(f"{theirs}.encoder_attn.{name}_proj", 1) for name in ("k", "v")]
                yield from stacked([(f"{ours}.cross_attention.key_value", 2)], parts)
                yield from same(f"{ours}.cross_attention.output", f"{theirs}.encoder_attn.out_proj")
                yield from same(f"{ours}.around_cross.norm", f"{theirs}.encoder_attn_layer_norm")
            yield from same(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
            yield from same(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
            yield from same(f"{ours}.around_feed_forward.norm", f"{theirs}.final_layer_norm")
