"""What a rule is: it stands beside the belief and yields a bias, or None where it has nothing to say."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from translume.belief import Bias


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """Where a search stands, for a rule over N rows.

    eos: its id.  size: V.  step: tokens chosen so far, t.
    sentences: [N], the number of each row's sentence.  limits: [N], most tokens each row may have, eos counted.
    """

    eos: int
    size: int
    step: int
    sentences: Tensor
    limits: Tensor


class Rule(Protocol):
    """A ban, a force, a preference."""

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        """What to add to the belief about the token after prefix [N, 1 + t], which begins with bos."""
