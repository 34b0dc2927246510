"""What a rule is: it stands beside the belief and yields a bias, or None where it has nothing to say."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class Lifting(Protocol):
    """A rule that may add something positive; one that only lowers or forbids need not say so."""

    @property
    def lift(self) -> float:
        """The most that it adds to the total of a hypothesis with one token."""


def most_lift(rules: Iterable[Rule]) -> float:
    """The most that all rules together add with one token: what "optimal" must reckon with."""
    return math.fsum(max(rule.lift, 0.0) for rule in rules if isinstance(rule, Lifting))
