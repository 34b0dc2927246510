"""What a strategy may look at to end a sentence's search."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far B sentences are after a step; where a strategy has G groups, each stands for itself: B is B·G, K is K/G.

    length: tokens of each live hypothesis.  limits: [B], most tokens a hypothesis may have.
    total: [B, K], of the live hypotheses, best first; −inf where there is none.
    best: [B, nbest], scores of the best finished ones, best first; −inf where there are fewer.
    ended: [B], how many have finished.
    lift: the most that rules can still add to the total of a hypothesis with each of its next tokens; 0 where they only
        lower.
    """

    length: int
    limits: Tensor
    total: Tensor
    best: Tensor
    ended: Tensor
    lift: float = 0.0
