"""An optimiser of torch from outside: its steps and its state."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.errors import SettingsError
from translume.parts import find
from translume.training.adam import Map

_SAVED = "other"


class OtherOptimizer:
    """The optimiser that `training.optimizer` names, over some weights."""

    def __init__(
        self,
        settings: TrainingSettings,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        decayed: Collection[str],
    ) -> None:
        """weights, gradients: live fp32 tensors by name.  decayed: names of the weights that `weight_decay` is for."""
        self._name, self._step = settings.optimizer, torch.zeros(1)
        self._parameters = {name: nn.Parameter(weight) for name, weight in weights.items()}
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
        parts = ([p for name, p in self._parameters.items() if (name in decayed) == decays] for decays in (True, False))
        groups = [
            {"params": part, "weight_decay": decay}
            for part, decay in zip(parts, (settings.weight_decay, 0.0), strict=True)
            if part
        ]
        self._optimizer: torch.optim.Optimizer = find("optimizer", settings.optimizer)(groups, settings)

    def step(self, rate: float, decay: float, factor: float | Tensor, run: Map) -> None:
        """Change the weights.  factor: of the gradients.  The other arguments are those of Muon."""
        for parameter in self._parameters.values():
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._step += 1

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to save; none before the first step. Raises SettingsError if a value is not a tensor."""
        tensors = {"step": self._step} if self._optimizer.state else {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    found = f"{key} of {name} is {type(value).__name__}"
                    raise SettingsError(f"training.optimizer: '{self._name}': found {found}, expected tensors to save")
                tensors[f"{_SAVED}.{key}.{name}"] = value
        return tensors

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._step.copy_(state["step"])
        for saved, value in state.items():
            kind, _, rest = saved.partition(".")
            key, _, name = rest.partition(".")
            if kind == _SAVED:
                parameter = self._parameters[name]
                self._optimizer.state[parameter][key] = value.to(parameter.device, copy=True)
