"""Convert weights to and from torch.nn.Transformer, which has no embeddings, positions or head."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.interchange.weight_names import Part, Row, same, to_ours, to_theirs
from translume.model import Transformer
from translume.model.positions import encodings_where


def weights_to_torch(model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
    """Return a state dict for torch.nn.Transformer; with post-norm, one built without final norms.

    Raises SettingsError naming the first setting that it cannot express.
    """
    refuse_for_torch(settings)
    return to_theirs(_rows(settings), model.state_dict())


def weights_from_torch(state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
    """Return our weights of all layers by name, without embeddings and head.

    Raises SettingsError naming the first setting that a torch.nn.Transformer cannot express.
    """
    refuse_for_torch(settings)
    return to_ours(_rows(settings), state)


def refuse_for_torch(settings: ModelSettings) -> None:
    """Raise SettingsError naming the first setting that torch.nn.Transformer cannot express."""
    possible: dict[str, tuple[object, ...]] = {
        "normalization": ("layer",), "activation": ("relu", "gelu"), "bias": (True,), "embedding_norm": (False,),
        "positions": encodings_where(lambda encoding: not encoding.in_attention),
        "decoder_mixing": ("attention",), "head_width": (0, settings.width // settings.attention_heads),
    }  # fmt: skip
    for name, values in possible.items():
        found = getattr(settings, name)
        if found not in values:
            wanted = " or ".join(map(repr, values))
            raise SettingsError(f"model.{name}: found {found!r}, expected {wanted} for torch.nn.Transformer")


def _rows(settings: ModelSettings) -> Iterator[Row]:
    for side, count in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        for number in range(count):
            name = f"{side}.layers.{number}"
            yield from _attention([(f"{name}.self_attention.query_key_value", 3)], f"{name}.self_attn")
            yield from same(f"{name}.self_attention.output", f"{name}.self_attn.out_proj")
            norms = ["around_attention", "around_feed_forward"]
            if side == "decoder":
                norms = ["around_self", "around_cross", "around_feed_forward"]
                cross = f"{name}.cross_attention"
                yield from _attention([(f"{cross}.query", 1), (f"{cross}.key_value", 2)], f"{name}.multihead_attn")
                yield from same(f"{cross}.output", f"{name}.multihead_attn.out_proj")
            for place, ours in enumerate(norms, 1):
                yield from same(f"{name}.{ours}.norm", f"{name}.norm{place}")
            yield from same(f"{name}.feed_forward.inner", f"{name}.linear1")
            yield from same(f"{name}.feed_forward.outer", f"{name}.linear2")
        if settings.norm == "pre":
            yield from same(f"{side}.norm", f"{side}.norm")


def _attention(ours: list[Part], theirs: str) -> Iterator[Row]:
    for kind in ("weight", "bias"):
        yield Row(tuple((f"{name}.{kind}", share) for name, share in ours), ((f"{theirs}.in_proj_{kind}", 3),))
