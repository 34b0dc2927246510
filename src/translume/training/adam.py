"""Adam: its state, and its steps by torch or by the compiled kernels.

The kernels read the gradients once, and write bf16 copies of the weights with them.
"""

import ctypes
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.kernels.loading import address, kernels

PART = 1 << 20
"""Number of weights that a thread updates at a time. Norms are summed part by part, whatever the number of threads."""

Map = Callable[[Callable[[int], float], Iterable[int]], list[float]]
"""Return the results of a function for some items, in their order, by one thread or several."""


class _Gradients(ctypes.Structure):
    """`gradients` of training.c."""

    _fields_ = (
        ("fp32", ctypes.c_void_p),
        ("others", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("bf16", ctypes.c_int64),
    )


class _Adam(ctypes.Structure):
    """`adam` of training.c."""

    _fields_ = (
        *((name, ctypes.c_float) for name in ("factor", "rate", "root", "beta1", "beta2", "epsilon", "decay")),
        ("decoupled", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Vectors:
    """fp32 weights, and their gradients: the sum of `gradient`, fp32, and of `others`, of one dtype.

    copies: bf16 copies of the weights, to be written.
    """

    weights: Tensor
    gradient: Tensor | None
    others: list[Tensor]
    copies: Tensor | None

    def _read(self, function: Callable[[Any, int, int], float], run: Map) -> list[float]:
        """Return what a function of the gradients, a begin and an end returns for each part of the weights."""
        pointers = (ctypes.c_void_p * len(self.others))(*(each.data_ptr() for each in self.others))
        bf16 = bool(self.others) and self.others[0].dtype == torch.bfloat16
        gradients = _Gradients(address(self.gradient), ctypes.addressof(pointers), len(self.others), bf16)
        count = self.weights.numel()
        return run(
            lambda start: function(ctypes.byref(gradients), start, min(start + PART, count)), range(0, count, PART)
        )

    def square_norm(self, run: Map) -> float:
        """Return the sum of the squares of the gradients."""
        return math.fsum(self._read(kernels().library.translume_square_sum, run))

    def step(
        self, settings: TrainingSettings, state: dict[str, Tensor], rate: float, decay: float, factor: float, run: Map
    ) -> None:
        """Update the weights as `torch.optim.Adam` does, and set the gradients to zero.

        state: as torch's; an empty one begins with zeros.  factor: of the gradients.
        """
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(self.weights) for _ in range(2))
        state["step"] += 1
        count, beta1, beta2 = int(state["step"]), settings.beta1, settings.beta2
        decoupled = settings.optimizer != "adam"
        options = _Adam(
            factor=factor, rate=rate / (1 - beta1**count), root=1 / math.sqrt(1 - beta2**count), beta1=beta1,
            beta2=beta2, epsilon=settings.epsilon, decay=decay * (rate if decoupled else 1.0), decoupled=decoupled,
        )  # fmt: skip
        places = [address(each) for each in (self.weights, state["exp_avg"], state["exp_avg_sq"], self.copies)]

        def update(gradients: Any, start: int, end: int) -> float:
            kernels().library.translume_adam(ctypes.byref(options), gradients, *places, start, end)
            return 0.0

        self._read(update, run)


class Adam:
    """Adam, or AdamW, for groups of parameters, each group with its weight decay.

    state: of each parameter `step`, `exp_avg` and `exp_avg_sq`, as torch's; empty before the first update.
    """

    def __init__(self, settings: TrainingSettings, groups: list[tuple[list[nn.Parameter], float]]) -> None:
        self.settings, self.groups = settings, groups
        self.state = defaultdict[Tensor, dict[str, Tensor]](dict)

    def step(self, rate: float) -> None:
        """Update the weights by torch's optimiser."""
        for group in self._by_torch.param_groups:
            group["lr"] = rate
        self._by_torch.step()

    def step_guarded(self, rate: float, divisor: Tensor, skips: Tensor) -> None:
        """Update the weights with the gradients divided by `divisor` [], unless `skips` [] is 1: then change nothing.

        Both are fp32 tensors on the device, so that the host need not know them.
        """
        settings, step = self.settings, torch._fused_adam_
        if settings.optimizer != "adam":
            step = torch._fused_adamw_
        for parameters, decay in self.groups:
            for parameter in parameters:
                assert parameter.grad is not None
                state, scale = self.state[parameter], divisor
                if parameter.dtype == torch.float64:  # torch reads an fp32 scale
                    parameter.grad.div_(divisor)
                    scale = torch.ones_like(divisor)
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter.data) for _ in range(2))
                state["step"].add_(1.0).sub_(skips)
                step(
                    [parameter.data], [parameter.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]],
                    lr=rate, beta1=settings.beta1, beta2=settings.beta2, weight_decay=decay, eps=settings.epsilon,
                    amsgrad=False, maximize=False, grad_scale=scale.float(), found_inf=skips.float(),
                )  # fmt: skip

    def step_compiled(self, vectors: Iterable[Vectors], rate: float, factor: float, run: Map) -> None:
        """Update the weights by the kernels, and set the gradients to zero. Each group must be one vector.

        factor: of the gradients.
        """
        for ((parameter,), decay), each in zip(self.groups, vectors, strict=True):
            each.step(self.settings, self.state[parameter], rate, decay, factor, run)

    @cached_property
    def _by_torch(self) -> torch.optim.Optimizer:
        """torch's optimiser with this state. The first one of a process takes two seconds: it imports the compiler."""
        kind = torch.optim.Adam if self.settings.optimizer == "adam" else torch.optim.AdamW
        parts = [{"params": parameters, "weight_decay": decay} for parameters, decay in self.groups]
        betas = (self.settings.beta1, self.settings.beta2)
        optimizer = kind(parts, lr=0.0, betas=betas, eps=self.settings.epsilon, fused=True)
        optimizer.state = self.state
        return optimizer
