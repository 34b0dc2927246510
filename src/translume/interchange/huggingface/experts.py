"""Switch Transformers and NLLB-MoE: T5's and M2M-100's layouts with mixtures of experts."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.interchange.huggingface.bart import M2M100
from translume.interchange.huggingface.config import ForeignConfig, read_integer, shown
from translume.interchange.huggingface.family import Converted, Names, encoder_differences
from translume.interchange.huggingface.t5 import T5

_BLOCK = re.compile(r"((encoder|decoder)\.layers\.(\d+)\.feed_forward)\.(.+)")
_SIDES = ("encoder", "decoder")
MAX_LAYERS = 1000
"""Number of layers that a model may have."""


class Switch(T5):
    """SwitchTransformersForConditionalGeneration: T5 whose sparse layers give each token to one expert.

    A source gives an expert at most `expert_capacity` of its tokens. Targets have no limit, since `generate` reads them
    token by token, each of which is the first one.
    """

    architecture = "SwitchTransformersForConditionalGeneration"
    model_type = "switch_transformers"
    activation_name = "dense_act_fn"
    required: ClassVar[Mapping[str, object]] = {"is_encoder_decoder": True, "router_bias": False}
    modern: ClassVar[frozenset[str]] = frozenset({"experts", "encoder"})

    def describes(self, settings: ModelSettings) -> bool:
        return False  # mixtures of experts are not exported

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values, place, steps = super().model_values(config, state), config.place, {}
        for side in _SIDES:
            sparse, layers = (
                read_integer(place, config.values, f"num_sparse_{side}_layers", 3),
                values[f"{side}_layers"],
            )
            usual = layers // sparse if sparse > 0 else layers
            steps[side] = read_integer(place, config.values, f"{side}_sparse_step", usual)
        capacity = read_integer(place, config.values, "expert_capacity", 64)
        return {**values, **_mixtures(config, steps, values, first=1), "expert_capacity": capacity}

    def mended(self, theirs: Any) -> Any:
        for module in theirs.decoder.modules():
            if hasattr(module, "expert_capacity"):
                module.expert_capacity = 1 << 62  # of a target that a search reads token by token
        return theirs

    def names(self, settings: ModelSettings) -> Names:
        renamed = {
            ours: [each.replace(".DenseReluDense.", ".mlp.") for each in theirs]
            for ours, theirs in super().names(settings).items()
        }
        return _with_experts(renamed, settings, ".mlp.")


class NllbMoe(M2M100):
    """NllbMoeForConditionalGeneration: M2M-100 whose sparse layers give each token to two experts.

    Their outputs are multiplied by 1 − `moe_token_dropout` also after training; here their weights are.
    """

    architecture = "NllbMoeForConditionalGeneration"
    model_type = "nllb-moe"
    required: ClassVar[Mapping[str, object]] = {
        "router_bias": False, "second_expert_policy": "all", "moe_eval_capacity_token_fraction": 1.0,
    }  # fmt: skip
    modern: ClassVar[frozenset[str]] = frozenset({"experts", "encoder"})
    _kept = 1.0
    """What the outputs of experts are multiplied by."""

    def describes(self, settings: ModelSettings) -> bool:
        return False  # mixtures of experts are not exported

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        dropout = config.values.get("moe_token_dropout", 0.2)
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise SettingsError(
                f"{config.place}: moe_token_dropout: found {shown(dropout)}, expected a number from 0 to below 1"
            )
        self._kept, values = 1.0 - dropout, super().model_values(config, state)
        steps = {side: read_integer(config.place, config.values, f"{side}_sparse_step", 4) for side in _SIDES}
        return {**values, **_mixtures(config, steps, values, first=-1), "experts_per_token": 2}

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        def weighted(name: str, tensor: Tensor) -> Tensor:
            return tensor * self._kept if ".experts." in name and ".fc2." in name else tensor

        return super().weights_from(Converted(state, weighted), settings)

    def mended(self, theirs: Any) -> Any:
        for module in theirs.modules():
            if type(module).__name__ == "NllbMoeExperts":  # of transformers 5.0 to 5.23 at least
                module.forward = partial(_nllb_experts, module)  # which gives all tokens to the experts 0 and 1
        return theirs

    def names(self, settings: ModelSettings) -> Names:
        changes = (".fc", ".ffn.fc"), (".final_layer", ".ff_layer"), (".encoder_attn", ".cross_attention")
        names = super().names(settings)
        for before, after in changes:
            names = {ours: [each.replace(before, after) for each in theirs] for ours, theirs in names.items()}
        return _with_experts(names, settings, ".ffn.")


def _mixtures(config: ForeignConfig, steps: Mapping[str, int], model: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Return the settings of the mixtures.

    steps: of each side, n if every n-th layer is sparse, 0 if none is.  model: the other settings.  first: the number
    of the first sparse layer, −1 for n − 1.
    """
    count = read_integer(config.place, config.values, "num_experts")
    experts = {}
    for side, step in steps.items():
        numbers = range(min(step, model[f"{side}_layers"], MAX_LAYERS))
        experts[side] = {"experts": tuple(count * (number == first % step) for number in numbers)}
    different = encoder_differences(experts["encoder"], experts["decoder"])
    return {
        **experts["decoder"],
        **({"encoder": different} if different else {}),
        "expert_balance": config.values.get("router_aux_loss_coef", 0.001),
    }


def _with_experts(names: Names, settings: ModelSettings, block: str) -> Names:
    """Return names of dense layers with those of routers and experts.  block: what stands before a feed-forward map."""
    found = dict[str, list[str]]()
    for ours, theirs in names.items():
        match = _BLOCK.fullmatch(ours)
        side = settings.of_encoder if match and match[2] == "encoder" else settings
        if match is None or not (count := side.experts_of(int(match[3]))):
            found[ours] = [*theirs]
            continue
        found[f"{match[1]}.router.weight"] = [f"{theirs[0].partition(block)[0]}{block}router.classifier.weight"]
        for number in range(count):
            expert = f"{block}experts.expert_{number}."
            found[f"{match[1]}.experts.{number}.{match[4]}"] = [each.replace(block, expert) for each in theirs]
    return found


def _nllb_experts(experts: Any, states: Tensor, _: Tensor, gates: Tensor) -> Tensor:
    """Return Σ g_i · expert_i(x) for states [n, D] and gates [n, E]."""
    outputs = [experts[f"expert_{number}"](states) * gate[:, None] for number, gate in enumerate(gates.unbind(1))]
    result: Tensor = sum(outputs) * (1.0 - experts.moe_token_dropout)
    return result
