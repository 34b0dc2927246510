"""What heads keep in fp32 where hidden states and weights are narrower: sums, and the logit of the label."""

import torch
from torch import Tensor


def wide(tensor: Tensor) -> torch.dtype:
    """What is summed in: fp32, or fp64 for fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """[n]: the logits of labels [n] after hidden states [n, D], not rounded to the dtype of the weights."""
    logits = (hidden.to(wide(hidden)) * weight.index_select(0, labels).to(wide(hidden))).sum(-1)
    return logits if bias is None else logits + bias.index_select(0, labels).to(logits.dtype)
