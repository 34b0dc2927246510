"""A beginning that is given, as text: the belief decides which tokens spell it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.error import SearchError
from translume.decoding.rules.rule import RuleContext
from translume.decoding.rules.spelling import Spellings


class TextPrefix:
    """Allows only tokens that agree with the rest of a text, until all of it is said; the last may say more than it.

    Tokens after which the rest could not be said within the limit are not allowed either. The prefix is part of the
    hypothesis: it counts for its length, its log_prob and its limit.
    Raises SearchError in the first step where a limit is too small for the text.
    """

    def __init__(self, spellings: Spellings, text: bytes, which: Sequence[bool]) -> None:
        """text: UTF-8, as tokens spell it, a mark of the first word included.  which: the sentences that begin so.

        Raises ValueError if no tokens spell the text.
        """
        needs = _needs(spellings, text)
        if needs[0] is None:
            raise ValueError(f"no tokens spell {text!r}")
        self._fewest, self._length = needs[0], len(text)
        self._which = torch.tensor(which, dtype=torch.bool)
        self._lengths = torch.tensor(spellings.lengths)
        self._ids, self._rest, self._starts = _choices(spellings, text, needs)

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self._length:  # every token says a byte or more
            return None
        if self._which.device != prefix.device:
            tables = (self._which, self._lengths, self._ids, self._rest, self._starts)
            self._which, self._lengths, self._ids, self._rest, self._starts = (
                each.to(prefix.device) for each in tables
            )
        forced = self._which[context.sentences]  # [N]
        if context.step == 0:
            self._check(context, forced)
        said = self._lengths[prefix[:, 1:]].sum(1)
        rows = (forced & (said < self._length)).nonzero()[:, 0]
        if rows.numel() == 0:
            return None
        places = said[rows]
        first, counts = self._starts[places], self._starts[places + 1] - self._starts[places]
        each = rows.repeat_interleave(counts)
        # The choices of a place stand together: first, first + 1, … for each row.
        shift = first - (counts.cumsum(0) - counts)
        choice = torch.arange(each.numel(), device=each.device) + shift.repeat_interleave(counts)
        fits = context.step + 1 + self._rest[choice] <= context.limits[each]
        allowed = torch.ones(prefix.size(0), context.size, dtype=torch.bool, device=prefix.device)
        allowed[rows] = False
        allowed[each[fits], self._ids[choice[fits]]] = True
        return Bias.only(allowed)

    def _check(self, context: RuleContext, forced: Tensor) -> None:
        short = forced & (context.limits < self._fewest)
        if bool(short.any()):
            row = int(short.nonzero()[0, 0])
            limit = int(context.limits[row])
            reason = f"a prefix of {self._fewest} tokens, wanted at most the limit of {limit}"
            raise SearchError(reason, sentence=int(context.sentences[row]), token=limit + 1)


def _needs(spellings: Spellings, text: bytes) -> list[int | None]:
    """The fewest tokens that say the rest of `text` from each place on; None where none do."""
    needs: list[int | None] = [None] * len(text) + [0]
    for place in reversed(range(len(text))):
        rest = text[place:]
        if spellings.beginning_with(rest):
            needs[place] = 1
            continue
        after = [needs[place + length] for length, _ in spellings.shorter_than(rest)]
        needs[place] = min((1 + need for need in after if need is not None), default=None)
    return needs


def _choices(spellings: Spellings, text: bytes, needs: Sequence[int | None]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens that may be said at each place, how many more each wants after it, and where each place's begin."""
    ids: list[int] = []
    rest: list[int] = []
    starts = [0]
    for place in range(len(text)):
        last = spellings.beginning_with(text[place:])
        ids += last
        rest += [0] * len(last)
        for length, tokens in spellings.shorter_than(text[place:]):
            need = needs[place + length]
            if need is not None:
                ids += tokens
                rest += [need] * len(tokens)
        starts.append(len(ids))
    return torch.tensor(ids, dtype=torch.long), torch.tensor(rest, dtype=torch.long), torch.tensor(starts)
