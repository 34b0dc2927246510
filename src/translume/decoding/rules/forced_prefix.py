"""A beginning that is given, as tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.error import SearchError
from translume.decoding.rules.rule import RuleContext


class ForcedPrefix:
    """Allows only the given tokens until a sentence's own prefix is over.

    The prefix is part of the hypothesis: it counts for its length, its log_prob and its limit.
    Raises SearchError in the first step where a prefix is longer than its sentence's limit.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        """prefixes: ids without bos, one sequence per sentence, empty where nothing is forced."""
        self._longest = max(map(len, prefixes), default=0)
        self._lengths = [len(prefix) for prefix in prefixes]
        self._table = torch.tensor([[*prefix, *[-1] * (self._longest - len(prefix))] for prefix in prefixes])

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self._longest:
            return None
        if context.step == 0:
            self._check(context)
        self._table = self._table.to(prefix.device)
        forced = self._table[context.sentences, context.step]  # [N], -1 where nothing is forced
        allowed = (forced < 0)[:, None].repeat(1, context.size)
        allowed.scatter_(1, forced.clamp(min=0)[:, None], True)
        # A row whose prefix is over was all True before the scatter and still is.
        return Bias.only(allowed)

    def _check(self, context: RuleContext) -> None:
        for sentence, limit in zip(context.sentences.tolist(), context.limits.tolist(), strict=True):
            if self._lengths[sentence] > limit:
                wanted = f"a prefix of {self._lengths[sentence]} tokens, wanted at most the limit of {limit}"
                raise SearchError(wanted, sentence=sentence, token=limit + 1)
