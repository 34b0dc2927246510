"""The interface of rules, which restrict or reweight the next token, and the rules over token ids."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, runtime_checkable

from translume.belief import Bias, NextToken
from translume.decoding.beam import SearchError
from translume.lazy import Tensor, torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """The position of a search, for a rule over N rows.

    eos: its id.  size: V.  step: tokens chosen so far, t.
    sentences: [N], the number of each row's sentence.  limits: [N], maximum tokens of each row, eos counted.
    """

    eos: int
    size: int
    step: int
    sentences: Tensor
    limits: Tensor


class Rule(Protocol):
    """Forbids, forces or reweights next tokens."""

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        """Return the bias for the token after prefix [N, 1 + t], which begins with bos; None for no bias."""


@runtime_checkable
class BeliefRule(Protocol):
    """A rule that also depends on the distribution of the next token."""

    def after(self, belief: NextToken, bias: Bias | None) -> Bias | None:
        """Return the bias for a distribution and the bias of all rules; None for no bias."""


@runtime_checkable
class LiftingRule(Protocol):
    """A rule that may add a positive bias. Rules that only lower or forbid do not need `lift`."""

    @property
    def lift(self) -> float:
        """The most that it adds to the total of a hypothesis with one token."""


def total_lift(rules: Iterable[Rule]) -> float:
    """Return the most that all rules together add with one token; `stop = "optimal"` accounts for it."""
    return math.fsum(max(rule.lift, 0.0) for rule in rules if isinstance(rule, LiftingRule))


@dataclass(frozen=True, slots=True)
class ForbidTokens:
    """Forbids the tokens `ids` everywhere, such as pad and bos."""

    ids: tuple[int, ...]

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if not self.ids:
            return None
        return _forbidden_everywhere(self.ids, prefix.size(0), prefix.device)


@dataclass(frozen=True, slots=True)
class ForbidFirst:
    """Forbids the tokens `ids` as the first of a target."""

    ids: tuple[int, ...]

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step or not self.ids:
            return None
        return _forbidden_everywhere(self.ids, prefix.size(0), prefix.device)


@lru_cache(maxsize=64)
def _forbidden_everywhere(ids: tuple[int, ...], rows: int, device: "torch.device") -> Bias:
    """Forbid `ids` in every row. Cached because a search repeats the same call at every step."""
    row_numbers = torch.arange(rows, device=device).repeat_interleave(len(ids))
    return Bias.forbid(row_numbers, torch.tensor(ids, device=device).repeat(rows), most=len(set(ids)))


class OnlyTokens:
    """Allows the tokens `ids` and eos, and no others."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = tuple(sorted(set(ids)))
        self._bias: Bias | None = None

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if self._bias is None or self._bias.allowed is None or self._bias.allowed.device != prefix.device:
            allowed = torch.zeros(context.size, dtype=torch.bool, device=prefix.device)
            allowed[torch.tensor((*self.ids, context.eos), device=prefix.device)] = True
            self._bias = Bias.only(allowed)
        return self._bias


@dataclass(frozen=True, slots=True)
class MinimumLength:
    """Forbids eos until a hypothesis has `tokens` tokens; a smaller limit takes precedence."""

    tokens: int

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self.tokens:
            return None
        rows = torch.arange(prefix.size(0), device=prefix.device)
        return Bias.forbid(rows, torch.full_like(rows, context.eos))


@dataclass(frozen=True, slots=True)
class EndTokens:
    """Makes the tokens `ids`, instead of eos, end a hypothesis; forbids them until it has `minimum` tokens."""

    ids: tuple[int, ...]
    minimum: int = 0

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        return _forbidden_everywhere(self.ids, prefix.size(0), prefix.device) if context.step < self.minimum else None


def end_tokens(rules: Iterable[Rule], eos: int) -> tuple[int, ...]:
    """Return the tokens that end a hypothesis: those of a rule `EndTokens`, or eos."""
    plain = (rule.rule if isinstance(rule, AfterTokens) else rule for rule in rules)
    return next((rule.ids for rule in plain if isinstance(rule, EndTokens)), (eos,))


class ForcedPrefix:
    """Forces each sentence's target to begin with given tokens.

    The prefix is part of the hypothesis: it counts towards its length, its log_prob and its limit.
    Raises SearchError in the first step if a prefix is longer than its sentence's limit.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        """prefixes: ids without bos, one sequence per sentence; an empty one forces nothing."""
        self._longest = max(map(len, prefixes), default=0)
        self._lengths = [len(prefix) for prefix in prefixes]
        self._table = torch.tensor([[*prefix, *[-1] * (self._longest - len(prefix))] for prefix in prefixes])

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self._longest:
            return None
        if context.step == 0:
            for sentence, limit in zip(context.sentences.tolist(), context.limits.tolist(), strict=True):
                if self._lengths[sentence] > limit:
                    raise prefix_too_long(self._lengths[sentence], limit, sentence)
        self._table = self._table.to(prefix.device)
        forced = self._table[context.sentences, context.step]  # [N], -1 where nothing is forced
        allowed = (forced < 0)[:, None].repeat(1, context.size)
        # Rows whose prefix has ended are all True before the scatter and stay so.
        allowed.scatter_(1, forced.clamp(min=0)[:, None], True)
        return Bias.only(allowed)


def prefix_too_long(tokens: int, limit: int, sentence: int) -> SearchError:
    """Return the error of a sentence whose prefix of `tokens` tokens does not fit its limit."""
    reason = f"a prefix of {tokens} tokens, expected at most the limit of {limit}"
    return SearchError(reason, sentence=sentence, token=limit + 1)


@dataclass(frozen=True, slots=True)
class AfterTokens:
    """A rule that also sees tokens chosen before the search began, as part of each hypothesis.

    earlier: [S, m], those of each sentence.
    """

    rule: Rule
    earlier: Tensor

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        before = self.earlier[context.sentences]
        whole = torch.cat([prefix[:, :1], before, prefix[:, 1:]], 1)
        return self.rule(whole, replace(context, step=context.step + before.size(1)))


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """Forbids tokens that would complete an n-gram of `order` tokens that the hypothesis contains (Paulus et al. 2018).

    eos is never forbidden, since a hypothesis contains no eos before its end.
    """

    order: int

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        tokens, before = prefix[:, 1:], self.order - 1
        if context.step < self.order:
            return None
        grams = tokens.unfold(1, self.order, 1)  # [N, t − n + 1, n]
        last = tokens[:, context.step - before :]  # [N, n − 1]
        rows, places = (grams[..., :before] == last[:, None]).all(-1).nonzero(as_tuple=True)
        if rows.numel() == 0:
            return None
        return Bias.forbid(rows, grams[rows, places, before])


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Adds −ln `factor` to the log-probability of every token that the hypothesis contains, once per token.

    This divides its probability by `factor`. Keskar et al. (2019, section 4.1) divide logits instead, whose effect
    depends on their sign and scale.
    """

    factor: float

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step == 0 or self.factor == 1.0:
            return None
        tokens = prefix[:, 1:].sort(1).values
        first = torch.ones_like(tokens, dtype=torch.bool)
        first[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        rows, places = first.nonzero(as_tuple=True)
        values = torch.full(rows.shape, -math.log(self.factor), device=prefix.device)
        return Bias(rows, tokens[rows, places], values)


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
