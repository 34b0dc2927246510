"""What a search is certain of before it ends: it looks on, beam after beam."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.decoding.beam import Beam, Ending

Watch = Callable[[Beam], None]
"""Looks at each beam of a search before anybody makes hypotheses of it."""


class Certainty:
    """A `Watch` that tells what targets are certain to begin with.

    Nothing told is ever taken back. Whoever is first in the end has finished already, or continues a hypothesis that is
    live now, for the loop makes no others. Of those that have finished, only the one that is first among them can still
    be first of all: their scores and their order do not change, so whoever stands behind it stays there. The longest
    common prefix of that one and of all live ones therefore begins the first of all. It never gets shorter: at the next
    step, those that it is taken of are some of these or continue one of them. Whatever else a strategy or a rule does,
    drawing, grouping, penalties, constraints, changes neither. Of greedy search, the live hypothesis is the only one,
    and every token is certain at once.
    """

    def __init__(
        self, tell: Callable[[int, Sequence[int]], None], sentences: Collection[int], *, ranked_anew: bool = False
    ) -> None:
        """tell: is called with the number of one of `sentences` and ids that the first hypothesis of `search` for it
        begins with, whatever comes, as soon as these are more than were told before; at last with all of its ids.

        ranked_anew: whether any hypothesis that finished may be put first afterwards, as by its utility. Then what is
        told at last is only what they all begin with.
        """
        self._tell, self._ranked_anew = tell, ranked_anew
        self._known = {number: _Known() for number in sentences}

    def __call__(self, beam: Beam) -> None:
        known = self._known
        for ending in beam.ended:
            if ending.sentence in known:
                known[ending.sentence].end(ending, ranked_anew=self._ranked_anew)
        places = [place for place, number in enumerate(beam.sentences.tolist()) if number in known]
        if not places:
            return
        chosen = torch.tensor(places, device=beam.tokens.device)
        ids, lengths = _shared(beam.tokens[chosen], ~beam.total[chosen].isneginf())
        numbers, finished = beam.sentences[chosen].tolist(), beam.finished[chosen].tolist()
        for row, (number, length, done) in enumerate(zip(numbers, lengths.tolist(), finished, strict=True)):
            if done or length > known[number].told:
                certain = known[number].certain(() if done else ids[row, :length].tolist(), done=done)
                if certain:
                    self._tell(number, certain)


@dataclass(slots=True)
class _Known:
    """What is known of a sentence. told: how many ids were.  first: of those that have finished.

    ended: the ids that whichever of these may be first in the end begins with; None while none has finished.
    """

    told: int = 0
    first: Ending | None = None
    ended: Sequence[int] | None = None

    def end(self, ending: Ending, *, ranked_anew: bool) -> None:
        """Reckon with one more that has finished."""
        ids = ending.hypothesis.tokens
        if ranked_anew:
            self.ended = ids if self.ended is None else ids[: _common(self.ended, ids)]
        # Of equal ones the earlier stands first; of groups, the earlier group's: as `search` orders them.
        elif self.first is None or _rank(ending) > _rank(self.first):
            self.first, self.ended = ending, ids

    def certain(self, live: Sequence[int], *, done: bool) -> Sequence[int]:
        """The ids that are certain, from those that all live ones share; none where no more are than were told."""
        ids = live if self.ended is None else self.ended
        if self.ended is not None and not done:
            ids = ids[: _common(ids, live)]
        if len(ids) <= self.told:
            return ()
        self.told = len(ids)
        return ids


def _rank(ending: Ending) -> tuple[float, int]:
    return ending.hypothesis.score, -ending.group


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences have in common from their beginning on."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _shared(tokens: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Of tokens [B, K, t] and those of K that are live [B, K]: one of these, [B, t], and how many all share, [B]."""
    one = tokens[torch.arange(live.size(0), device=live.device), live.byte().argmax(1)]
    same = ((tokens == one[:, None]) | ~live[:, :, None]).all(1)
    return one, same.cumprod(1).sum(1)
