"""No sequence of tokens twice."""

from dataclasses import dataclass

from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules.rule import RuleContext


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """Forbids a token that would end an n-gram of `order` tokens which the hypothesis has already (Paulus et al. 2018).

    The end mark ends no n-gram of the hypothesis, so it is never forbidden.
    """

    order: int

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        said, before = prefix[:, 1:], self.order - 1
        if context.step < self.order:
            return None
        grams = said.unfold(1, self.order, 1)  # [N, t − n + 1, n]
        last = said[:, context.step - before :]  # [N, n − 1]
        rows, places = (grams[..., :before] == last[:, None]).all(-1).nonzero(as_tuple=True)
        if rows.numel() == 0:
            return None
        return Bias.forbid(rows, grams[rows, places, before])
