"""PegasusForConditionalGeneration: pre-norm, with a stored position table, of sinusoids or learned vectors."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from translume.config import ModelSettings
from translume.interchange.huggingface.families.bart_layout import POSITIONS, BartLayout
from translume.model.positions.added import sinusoids

ROUNDINGS = 4.0
"""Largest difference from sinusoids, in units of the dtype's epsilon, that does not count as learned positions."""


class Pegasus(BartLayout):
    """PegasusForConditionalGeneration."""

    architecture = "PegasusForConditionalGeneration"
    model_type = "pegasus"
    norm = "pre"
    logit_bias = "final_logits_bias"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": False, "do_blenderbot_90_layernorm": False, "normalize_before": True,
        "add_final_layer_norm": True,
    }  # fmt: skip

    def describes(self, settings: ModelSettings) -> bool:
        return settings.norm == "pre"

    def positions(self, state: Mapping[str, Tensor]) -> str:
        for table in (state[name] for name in POSITIONS.values() if name in state):
            if table.ndim == 2 and table.size(1) % 2 == 0 and table.is_floating_point():
                off = float((table.float() - sinusoids(table.size(0), table.size(1))).abs().max())
                if not off <= ROUNDINGS * torch.finfo(table.dtype).eps:
                    return "learned"
        return "sinusoidal"

    def stored_positions(self, settings: ModelSettings) -> bool:
        return True
