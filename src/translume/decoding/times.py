"""The rule for tokens of times in targets of speech (Radford et al. 2023, section 2.3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import Bias, NextToken
from translume.decoding.rules import RuleContext


@dataclass(frozen=True, slots=True)
class TimesInPairs:
    """Times stand at the beginning and the end of each segment, and never decrease.

    A target begins with a time, at most the token `latest`, if it is given. After the first time of a segment text
    follows, after its last time the first one of the next segment or EOS. If all times together are more
    likely than any other token, a time follows.
    first: the token of the time 0; the larger ids are those of later times.  untimed: a token that is never generated.
    Equal to `WhisperTimeStampLogitsProcessor` of transformers.
    """

    first: int
    untimed: int
    latest: int | None = None

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias:
        """Return the bias that follows from the tokens alone; see `Rule`."""
        return Bias.only(self._allowed(prefix[:, 1:], context))

    def after(self, belief: NextToken, bias: Bias | None) -> Bias | None:
        """Return the bias that follows from the distribution of the next token and the bias of all rules."""
        log_probs = belief.log_probs() if bias is None else bias.add_to(belief.log_probs())
        certain = log_probs[:, self.first :].logsumexp(-1) > log_probs[:, : self.first].amax(-1)
        if not bool(certain.any()):
            return None
        allowed = torch.ones_like(log_probs, dtype=torch.bool)
        allowed[:, : self.first] = ~certain[:, None]
        return Bias.only(allowed)

    def _allowed(self, tokens: Tensor, context: RuleContext) -> Tensor:
        """Return [N, V], True for tokens that may follow tokens [N, t]."""
        ids = torch.arange(context.size, device=tokens.device)
        times = ids >= self.first
        allowed = (ids != self.untimed).repeat(tokens.size(0), 1)
        if not context.step:
            allowed &= times if self.latest is None else times & (ids <= self.latest)
            return allowed
        timed = tokens >= self.first
        last = timed[:, -1:]
        before = timed[:, -2:-1] if context.step > 1 else torch.ones_like(last)
        ending = last & ~before  # the last token is the end of a segment
        allowed &= ~(last & before & times)
        allowed &= ~(ending & (ids < context.eos))
        latest = tokens.masked_fill(~timed, self.first - 1).gather(
            1, (timed * torch.arange(1, context.step + 1, device=tokens.device)).argmax(1, keepdim=True)
        )
        allowed &= ~times | (ids >= latest + (~ending).long())
        return allowed
