"""What guards the weights on a device whose numbers are read late: only finite updates change them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

INITIAL_SCALE = 2.0**6
"""The factor of fp16 losses at the beginning. Losses are sums over a batch, so that a few thousand times the usual mean
has to fit; a factor that is too large is halved."""
GROWTH_INTERVAL = 2000
"""Finite updates after which the factor is doubled (Micikevicius et al. 2018, section 3.2)."""
LOSS_SCALE = "loss_scale"
"""The name of factor and finite updates in a saved state."""


class DeviceGuard:
    """Decides on the device whether an update is made, and by what its gradients are divided.

    An update whose loss or gradient is not finite, and every later one, changes nothing: the host, which reads the
    numbers one or two updates later, ends the training. In fp16 only the loss has to be finite: a gradient that is too
    large for the dtype halves the scale, and only that update is left out.
    scale: [], the factor of losses in fp16; None in other precisions.
    """

    def __init__(self, device: torch.device, *, scales: bool) -> None:
        self._broken = torch.zeros((), device=device)
        self.scale = torch.full((), INITIAL_SCALE, device=device) if scales else None
        self._finite = torch.zeros((), dtype=torch.int32, device=device)

    def check(
        self, norm: Tensor, tokens: int | Tensor, objective: Tensor | float, clip_norm: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the norm per token, the divisor of the gradients, and 1 if the update must be left out, else 0.

        norm: of the sum of gradients, with the scale.  objective: the sum of losses.  clip_norm: 0 never clips.
        """
        norm = norm / tokens if self.scale is None else norm / (tokens * self.scale)
        divisor = (norm / clip_norm).clamp(min=1.0) if clip_norm else torch.ones_like(norm)
        divisor = divisor * tokens
        bad = (~torch.isfinite(norm)).to(norm.dtype)
        if self.scale is None:
            self._broken.copy_(torch.maximum(self._broken, torch.where(_finite(objective, norm), bad, 1.0)))
            return norm, divisor, self._broken
        divisor = divisor * self.scale
        self._broken.copy_(torch.where(_finite(objective, norm), self._broken, 1.0))
        skips = torch.maximum(self._broken, bad)
        torch._amp_update_scale_(self.scale, self._finite, skips, 2.0, 0.5, GROWTH_INTERVAL)
        return norm, divisor, skips

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs: nothing, except in fp16."""
        if self.scale is None:
            return {}
        return {LOSS_SCALE: torch.stack([self.scale, self._finite.to(self.scale.dtype)])}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if self.scale is not None and LOSS_SCALE in state:
            self.scale.copy_(state[LOSS_SCALE][0])
            self._finite.copy_(state[LOSS_SCALE][1])


def _finite(objective: Tensor | float, like: Tensor) -> Tensor:
    value = objective if isinstance(objective, Tensor) else torch.full_like(like, objective)
    return torch.isfinite(value)


class LateNumbers:
    """Numbers that a device computes, on their way to the host, which does not wait for them."""

    def __init__(self, values: Sequence[Tensor | float]) -> None:
        self._values = list(values)
        self._late: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not tensors:
            return
        self._late = torch.stack(tensors)
        if self._late.is_cuda:
            on_host = torch.empty(self._late.shape, dtype=self._late.dtype, pin_memory=True)
            on_host.copy_(self._late, non_blocking=True)
            self._late, self._arrived = on_host, torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's has no types
            self._arrived.record()

    def read(self) -> list[float]:
        """Return all numbers, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        measured = iter([] if self._late is None else self._late.tolist())
        return [next(measured) if isinstance(value, Tensor) else float(value) for value in self._values]
