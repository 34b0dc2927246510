"""T5Gemma2ForConditionalGeneration: Gemma 3's layers; one attention of the decoder reads target and source.

The encoder reads images too, by a vision tower, which is left out: here it reads texts only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.interchange.huggingface.config import ForeignConfig, read_integer, read_side
from translume.interchange.huggingface.family import Names, TiedTable, require
from translume.interchange.huggingface.t5gemma import LAYERS, OURS, PLAIN, SIDES, T5Gemma
from translume.text import Tokenizer

TYPES = {"encoder": "t5gemma2_text", "decoder": "t5gemma2_decoder"}
NORMS: Names = {f"self_attention.norms.{name}": (f"self_attn.{name[0]}_norm",) for name in ("query", "key")}
THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
"""The bases of rotations of both kinds of layers, unless config.json says otherwise."""
WINDOW, IMAGE_END = 4096, 256_000
"""Usual values of `sliding_window` and `eoi_token_index`."""
ENCODER, TOWER = "model.encoder.", ("model.encoder.vision_tower.", "model.encoder.multi_modal_projector.")
SMALLEST_TOWER = {
    "model_type": "siglip_vision_model", "hidden_size": 1, "intermediate_size": 1, "num_hidden_layers": 1,
    "num_attention_heads": 1, "image_size": 1, "patch_size": 1,
}  # fmt: skip
"""Of an export, whose projection of images is zero, as in every new model of transformers."""


class T5Gemma2(T5Gemma):
    """T5Gemma2ForConditionalGeneration (Zhang et al. 2025)."""

    architecture = "T5Gemma2ForConditionalGeneration"
    model_type = "t5gemma2"
    ties = ("all", "none")
    left_out = TOWER
    period = 6
    possible: Mapping[str, tuple[object, ...]] = {
        **T5Gemma.possible, "decoder_mixing": ("merged",), "query_key_norm": (True,), "window_ahead": (0, 1),
    }  # fmt: skip
    modern: ClassVar[frozenset[str]] = (T5Gemma.modern - {"attention_cap"}) | {
        "rotary_scale", "rotary_local_base", "image_end_id"
    }  # fmt: skip
    like: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6, "rope_theta": 0, "local_theta": 0, "factor": 1.0, "query_pre_attn_scalar": 256,
    }  # fmt: skip
    layers: ClassVar[Mapping[str, Names]] = {
        side: {ours: theirs for ours, theirs in {**names, **NORMS}.items() if "cross" not in ours}
        for side, names in LAYERS.items()
    }
    places: ClassVar[Mapping[str, str]] = {"encoder": "encoder.text_config", "decoder": "decoder"}
    stacks: ClassVar[Mapping[str, str]] = {"encoder": f"{ENCODER}text_model", "decoder": "model.decoder"}

    def sides(self, place: Path, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        encoder, sides = read_side(place, values, "encoder", ("t5gemma2_encoder",)), {}
        for side, given in (("encoder", encoder.get("text_config")), ("decoder", values.get("decoder"))):
            name = self.places[side]
            found = read_side(place, {name: given}, name, (TYPES[side],))
            # transformers has the limit of scores as a setting, and does not apply it.
            require(f"{place}: {name}.", found, {**PLAIN, "attn_logit_softcapping": None, "rope_scaling": None})
            rope = {kind: (found.get("rope_parameters") or {}).get(kind) or {} for kind in THETAS}
            full, local = ({"rope_type": "default", "rope_theta": THETAS[kind], **rope[kind]} for kind in THETAS)
            linear = full["rope_type"] == "linear"
            wanted = {"rope_type": "linear" if linear else "default"}
            require(f"{place}: {name}.rope_parameters.full_attention.", full, wanted)
            require(f"{place}: {name}.rope_parameters.sliding_attention.", local, {"rope_type": "default"})
            thetas = {"rope_theta": full["rope_theta"], "local_theta": local["rope_theta"]}
            window = read_integer(place, found, "sliding_window", WINDOW)
            sides[side] = {
                **found,
                **thetas,
                "sliding_window": window,
                "factor": full.get("factor", 1.0) if linear else 1.0,
            }
        return sides

    def window(self, side: str, size: int) -> int:
        return size if side == "decoder" else (size + 1) // 2

    def renamed(self, name: str) -> str:
        stack = f"{self.stacks['encoder']}."
        return name if name.startswith((stack, *TOWER)) else name.replace(ENCODER, stack, 1)

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values, sides = super().model_values(config, state), self.sides(config.place, config.values)
        windows = {**values, **values["encoder"]}["attention_windows"] or values["attention_windows"]
        return {
            **values,
            "decoder_mixing": "merged",
            "query_key_norm": True,
            "window_ahead": 1 - sides["encoder"]["sliding_window"] % 2,
            "rotary_scale": float(sides["decoder"]["factor"]),
            "rotary_local_base": float(sides["decoder"]["local_theta"]) if windows else 0.0,
            "image_end_id": read_integer(config.place, config.values["encoder"], "eoi_token_index", IMAGE_END),
            "head": {**values["head"], "tie": "all" if values["head"]["tie"] == "target" else "none"},
        }

    def decoding_values(
        self, folder: Path, config: ForeignConfig, tokenizer: Tokenizer
    ) -> tuple[dict[str, Any], list[str]]:
        decoding, notes = super().decoding_values(folder, config, tokenizer)
        return decoding, [*notes, f"{config.place}: encoder.vision_config is left out: the model reads no images here"]

    def describes(self, settings: ModelSettings) -> bool:
        return settings.decoder_mixing == "merged"

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings, values = checkpoint.config.model, super().config_values(checkpoint)
        full, local = ({"rope_type": "default", "rope_theta": settings.rotary_base} for _ in THETAS)
        full |= {"rope_type": "linear", "factor": settings.rotary_scale} if settings.rotary_scale != 1.0 else {}
        local |= {"rope_theta": settings.rotary_local_base} if settings.rotary_local_base else {}
        for side, own in (("encoder", settings.of_encoder), ("decoder", settings)):
            window = max(own.attention_windows, default=0)
            size = 2 * window - 1 + settings.window_ahead if side == "encoder" else window
            rope = {"full_attention": full, "sliding_attention": local}
            values[side] |= {"rope_parameters": rope, "sliding_window": size if window else WINDOW}
        encoder = {"text_config": values["encoder"], "vision_config": SMALLEST_TOWER, "mm_tokens_per_image": 1}
        encoder["eoi_token_index"] = settings.image_end_id if settings.image_end_id >= 0 else IMAGE_END
        return {**values, "encoder": encoder, "tie_word_embeddings": settings.head.tie == "all"}

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        tables = [f"{self.stacks[side]}.embed_tokens" for side in SIDES]
        ours = ("encoder.embedding.table.weight", *OURS)
        theirs = (*(f"{each}.weight" for each in tables), "lm_head.out_proj.weight")
        ends = tuple(f"{side}.embedding.image_end" for side in SIDES), tuple(f"{name}.eoi_embedding" for name in tables)
        if settings.head.tie == "all":
            return [(ours, theirs), *(((each,), ends[1]) for each in ends[0])]
        return [((each,), (name,)) for each, name in zip((*ours, *ends[0]), (*theirs, *ends[1]), strict=True)]

    def _converted(self, sign: int, name: str, tensor: Tensor) -> Tensor:
        if not name.endswith("norm.weight"):
            return tensor
        factor = self._factor if name.endswith("q_norm.weight") else 1.0
        return (tensor + 1) * factor if sign > 0 else tensor / factor - 1
