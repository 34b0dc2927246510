"""A rule: no token twice in a row."""

from typing import Any

import torch

from translume.belief import Bias
from translume.config import DecodingSettings
from translume.decoding import RuleContext
from translume.lazy import Tensor
from translume.parts import part


@part("rule", "my_part", interface=1)
class MyPart:
    """Forbid the last token."""

    def __init__(self, settings: DecodingSettings, tokenizer: Any) -> None:
        """tokenizer: of the target."""

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        """Return what to add to the scores of N rows, given their tokens [N, t]."""
        if not context.step:
            return None
        return Bias.forbid(torch.arange(len(prefix)), torch.as_tensor(prefix[:, -1]))
