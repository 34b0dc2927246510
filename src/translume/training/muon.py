"""Steps of Muon: momentum whose matrices are made orthogonal (Jordan et al. 2024, Liu et al. 2025).

A step of Adam changes a matrix mostly in a few directions. Muon replaces the momentum U S Vᵀ of a matrix by U Vᵀ, which
changes it equally in all of them.
"""

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from translume.model.classifier import Network
from translume.model.layers import DecoderLayer, EncoderLayer
from translume.training.adam import Map

MOMENTUM = 0.95
"""Decay of the momentum."""
SAVED = "moment1"
"""What the names of saved momenta begin with, as those of Adam's first moments."""
SCALE = 0.4
"""Root mean square of the change of a matrix by a step of rate 1. That of Adam is 0.2 to 0.4 (Liu et al. 2025, 2.2)."""

_TOGETHER = 4
"""Number of matrices of one shape in one product. It does not depend on the number of threads, nor do the results."""


def names_of_matrices(model: Network) -> set[str]:
    """Return the names of the trained matrices of linear maps inside layers: no embedding, and no part of the head."""
    return {
        f"{outer}.{inner}.weight"
        for outer, layer in model.named_modules()
        if isinstance(layer, EncoderLayer | DecoderLayer)
        for inner, module in layer.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad
    }


def orthogonal(matrices: Tensor) -> Tensor:
    """Return about U Vᵀ for each matrix U S Vᵀ of [n, R, C] with R ≤ C, by five Newton–Schulz steps.

    The singular values of the results are between about 0.7 and 1.2, except those of matrices of a lower rank.
    """
    result: Tensor = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        square = result @ result.mT
        polynomial = torch.baddbmm(square, square, square, beta=-4.775, alpha=2.0315)
        result = torch.baddbmm(result, polynomial, result, beta=3.4445)
    return result


class Muon:
    """Momenta of some matrices, and their steps.

    momenta: by name, in the shapes of the matrices.
    """

    def __init__(self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], precision: str) -> None:
        """weights, gradients: live fp32 tensors by name.  precision: of the products, "fp32" or "bf16"."""
        self._weights, self._gradients = weights, gradients
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.momenta = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        shapes: dict[torch.Size, list[str]] = {}
        for name, weight in weights.items():
            shapes.setdefault(weight.shape, []).append(name)
        self._jobs = [
            names[place : place + _TOGETHER] for names in shapes.values() for place in range(0, len(names), _TOGETHER)
        ]

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to save, as the first moments of an optimiser."""
        return {f"{SAVED}.{name}": momentum for name, momentum in self.momenta.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, momentum in self.momenta.items():
            momentum.copy_(state[f"{SAVED}.{name}"])

    def step(self, rate: float, decay: float, factor: float | Tensor, run: Map) -> None:
        """Change the weights.  decay: of the weights, decoupled from the gradients.  factor: of the gradients."""
        run(lambda job: self._step(self._jobs[job], rate, decay, factor), range(len(self._jobs)))

    def _step(self, names: list[str], rate: float, decay: float, factor: float | Tensor) -> float:
        steps = []
        for name in names:
            gradient = self._gradients[name] * factor
            momentum = self.momenta[name].lerp_(gradient, 1 - MOMENTUM)
            steps.append(gradient.lerp(momentum, MOMENTUM))  # Nesterov's
        rows, columns = steps[0].shape
        matrices = torch.stack(steps).to(self._dtype)
        directions = orthogonal(matrices.mT if rows > columns else matrices)
        scaled = (directions.mT if rows > columns else directions).float()
        for name, change in zip(names, scaled, strict=True):
            self._weights[name].mul_(1 - rate * decay).add_(change, alpha=-rate * SCALE * sqrt(max(rows, columns)))
        return 0.0
