"""A rule that guides a search by the CTC output of the encoder (Watanabe et al. 2017, section II-D)."""

from dataclasses import dataclass

from translume.belief import Bias
from translume.decoding.rules import RuleContext
from translume.lazy import Tensor, torch

IMPOSSIBLE = -1e4
"""The log-probability of a target that no alignment with its source gives. Finite, so that a search still ends."""


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """Log-probabilities of N prefixes by CTC, fp64.

    rows: the row of each (sentence, *tokens).  token_end, blank_end: [N, S + 1], of all alignments of a prefix with
    the first 0 to S positions that end with its last token or with the blank.  total: [N], of any target that begins
    with the prefix.
    """

    rows: dict[tuple[int, ...], int]
    token_end: Tensor
    blank_end: Tensor
    total: Tensor


class CtcPrefix:
    """Adds w · Δ log p of CTC, where p is the probability that a target begins with a hypothesis.

    The sum of a hypothesis is then log p of the decoder and w · log p of CTC, since that of a complete hypothesis is
    the probability of its own. Never positive.
    """

    def __init__(self, log_probs: Tensor, mask: Tensor, blank: int, weight: float) -> None:
        """log_probs: [B, S, V], of CTC.  mask: [B, S].  blank: its id.  weight: w, at least 0."""
        passed = torch.full_like(log_probs[0, 0], IMPOSSIBLE, dtype=torch.float64)
        passed[blank] = 0.0  # a position of padding changes nothing
        self._log_probs = torch.where(mask[:, :, None], log_probs.double().clamp_min(IMPOSSIBLE), passed)
        self._probs = self._log_probs.exp()
        self._blank, self._weight = blank, weight
        self._forward: _Forward | None = None

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        forward = self._forward = self._advance(prefix, context)
        either = torch.logaddexp(forward.token_end, forward.blank_end)
        count, size = len(prefix), context.size
        totals = self._next_totals(either[:, :-1], context.sentences)
        if context.step:  # a blank must separate a token from another of the same
            last = prefix[:, -1:]
            again = self._log_probs[context.sentences].gather(2, last[:, None].expand(-1, either.size(1) - 1, 1))
            totals.scatter_(1, last, (forward.blank_end[:, :-1] + again[:, :, 0]).logsumexp(1, keepdim=True))
        totals[:, context.eos] = either[:, -1]
        change = totals.clamp_min(IMPOSSIBLE) - forward.total.clamp_min(IMPOSSIBLE)[:, None]
        rows = torch.arange(count, device=prefix.device).repeat_interleave(size)
        ids = torch.arange(size, device=prefix.device).repeat(count)
        return Bias(rows, ids, (self._weight * change.clamp_max(0.0)).flatten().float())

    def _next_totals(self, before: Tensor, sentences: Tensor) -> Tensor:
        """Return log Σ_s exp(before[n, s]) · p[n, s, c] as [N, V]."""
        largest = before.amax(1, keepdim=True).clamp_min(torch.finfo(before.dtype).min)
        width = int((sentences == sentences[0]).sum())  # rows of each sentence
        which = sentences[::width]
        scaled = (before - largest).exp().view(len(which), width, -1)
        return (scaled @ self._probs[which]).flatten(0, 1).log() + largest

    def _advance(self, prefix: Tensor, context: RuleContext) -> _Forward:
        """Return the forward variables of the prefixes [N, 1 + t], from those of the prefixes one token shorter."""
        sentences = context.sentences
        keys = [
            (sentence, *tokens) for sentence, tokens in zip(sentences.tolist(), prefix[:, 1:].tolist(), strict=True)
        ]
        rows = {key: row for row, key in enumerate(keys)}
        blank = _started(self._log_probs[sentences, :, self._blank].cumsum(1), 0.0)  # [N, S + 1]
        if not context.step:
            return _Forward(rows, torch.full_like(blank, -torch.inf), blank, blank.new_zeros(len(blank)))
        before = self._forward
        assert before is not None
        origin = torch.tensor([before.rows[key[:-1]] for key in keys], device=prefix.device)
        last = prefix[:, -1]
        repeats = last == prefix[:, -2] if context.step > 1 else torch.zeros_like(last, dtype=torch.bool)
        token_end, blank_end = before.token_end[origin, :-1], before.blank_end[origin, :-1]
        begun = torch.where(repeats[:, None], blank_end, torch.logaddexp(token_end, blank_end))
        own = self._log_probs[sentences].gather(2, last[:, None, None].expand(-1, begun.size(1), 1))[:, :, 0]
        token_end = _started(_recurrence(begun, own), -torch.inf)
        blank_end = _started(_recurrence(token_end[:, :-1], blank.diff(dim=1)), -torch.inf)
        return _Forward(rows, token_end, blank_end, (begun + own).logsumexp(1))


def _started(values: Tensor, first: float) -> Tensor:
    return torch.cat([torch.full_like(values[:, :1], first), values], 1)


def _recurrence(inputs: Tensor, factors: Tensor) -> Tensor:
    """Return the logarithms of x_s = exp(factors_s) · (x_(s−1) + exp(inputs_s)) with x_(−1) = 0; all are [N, S]."""
    product = factors.cumsum(1)
    return (inputs - product + factors).logcumsumexp(1) + product
