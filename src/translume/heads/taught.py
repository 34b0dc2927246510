"""What a softmax is taught by another model's belief, beside the sum of its exponentials; never holds n×V.

With logits l = W h + b and a teacher's belief q, the distance to learn is

    KL(q‖p) = lse − Σ_v q_v (l_v − log q_v)

whose first term every loss of a softmax has at hand. The rest is linear in l, so that its gradients are −q in the
products with W and h, and its value comes from the product that makes one of them: Σ_v q_v l_v = h · (q W) + q · b.
"""

from typing import Any

import torch
from torch import Tensor

from translume.heads.gradients import LinearGradients, scaled
from translume.heads.precision import wide
from translume.model.teacher import Lesson

CHUNK_ELEMENTS = 1 << 22
"""Probabilities of the teacher held at a time."""


def agreement(hidden: Tensor, weight: Tensor, bias: Tensor | None, lesson: Lesson) -> Tensor:
    """Σ over rows of Σ_v q_v (l_v − log q_v), fp32 (fp64 for fp64), of logits l = W h + b and the lesson's q.

    hidden: [n, D].  weight: [V, D].  bias: [V].  What the teacher holds for impossible counts nothing.
    """
    found: Tensor = _Agreement.apply(hidden, weight, bias, lesson)  # type: ignore[no-untyped-call]  # torch's has no types
    return found


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, lesson: Lesson) -> Tensor:
        rows = max(1, CHUNK_ELEMENTS // weight.size(0))
        total = hidden.new_zeros((), dtype=wide(hidden))
        grown = LinearGradients(hidden, weight, bias)
        for start in range(0, len(hidden), rows):
            place = slice(start, min(start + rows, len(hidden)))
            logs = lesson(torch.arange(place.start, place.stop, device=hidden.device))
            believed = logs.exp()
            # What is impossible has q = 0, and 0 · −∞ is no number.
            total -= torch.linalg.vecdot(believed, logs.clamp_(min=torch.finfo(logs.dtype).min)).sum(dtype=total.dtype)
            if bias is not None:
                total += (believed @ bias.to(believed.dtype)).sum(dtype=total.dtype)
            grown.add(place, believed)
            total += (hidden[place] * grown.hidden[place]).sum(dtype=total.dtype)
        ctx.save_for_backward(grown.hidden, grown.weight, grown.bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled(gradients[0], *ctx.saved_tensors), None
