"""Beliefs that are no softmax, but whose log-probabilities grow with the logits."""

from abc import ABC, abstractmethod

from torch import Tensor

from translume.belief import Bias, TopK, drawn, exact_topk, first_impossible, refuse_broken
from translume.heads.precision import wide

SLACK = 4
"""How many times fewer than V the candidates must be for looking at them alone to pay."""


class MonotoneBelief(ABC):
    """A belief of logits [N, V] where a token with a larger logit has no smaller log-probability.

    Raises BeliefError when it is read and the logits hold a NaN or an infinity.
    """

    normalised: bool = True

    def __init__(self, logits: Tensor) -> None:
        """logits: [N, V], any float dtype; computed with in fp32, or fp64 if they are."""
        self._logits = logits.to(wide(logits))
        self._largest: Tensor | None = None

    @abstractmethod
    def _of(self, logits: Tensor) -> Tensor:
        """The log-probabilities of tokens of each row that have these logits [N, m]."""

    @property
    def rows(self) -> int:
        return self._logits.size(0)

    @property
    def size(self) -> int:
        return self._logits.size(1)

    def _peak(self) -> Tensor:
        """[N, 1]: the largest logits."""
        if self._largest is None:
            self._largest = self._logits.amax(-1, keepdim=True)
            refuse_broken(self._largest)
        return self._largest

    def log_probs(self) -> Tensor:
        self._peak()
        return self._of(self._logits)

    def log_prob_of(self, ids: Tensor) -> Tensor:
        self._peak()
        return self._of(self._logits.gather(1, ids))

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        self._peak()
        k = min(k, self.size)
        found = self._among_few(k, bias)
        if found is None:
            found = exact_topk(self._biased(bias), k)
        ranks, ids = found
        return TopK(ids, self.log_prob_of(ids), ranks)

    def _biased(self, bias: Bias | None) -> Tensor:
        return self.log_probs() if bias is None else bias.add_to(self.log_probs())

    def _among_few(self, k: int, bias: Bias | None) -> tuple[Tensor, Tensor] | None:
        """(log-probabilities with bias, ids) [N, k] of the best, found among those with the largest logits.

        None where these need not hold the best: a bias that lifts, a mask, or more tokens as good as the last.
        """
        lowered = 0 if bias is None else bias.lowered()
        if lowered is None or (k + lowered + 1) * SLACK > self.size:
            return None
        logits, ids = exact_topk(self._logits, k + lowered + 1)
        ranks = self._of(logits)
        outside = ranks[:, -1]  # what is not among them is at most as likely as the last of them
        if bias is not None and lowered:
            ranks = ranks + bias.of(ids)
        ids, by_id = ids.sort(-1)
        ranks, order = ranks.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
        ranks, ids = ranks[:, :k], ids.gather(1, order)[:, :k]
        if bool(((ranks[:, -1] <= outside) & ~outside.isneginf()).any()):
            return None
        return ranks, first_impossible(ranks, ids, self.size)

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        return drawn(self._biased(bias), uniforms, temperature)
