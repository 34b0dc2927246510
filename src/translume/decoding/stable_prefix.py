"""The stable prefix of the best hypothesis during a search, for streaming."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from translume.decoding.beam import Beam, Ending
from translume.lazy import Tensor, torch

SearchObserver = Callable[[Beam], None]
"""A function that is called with each beam of a search."""


class StablePrefix:
    """A `SearchObserver` that reports the prefix with which the best hypothesis is certain to begin.

    Reported tokens are never retracted. The hypothesis that ranks first in the end has either finished already or
    continues a live one. Of the finished ones, only the best can still rank first, because scores do not change. The
    final result therefore begins with the longest common prefix of the best finished and all live hypotheses. This
    prefix never becomes shorter, because the hypotheses of the next step are among these or continue them. This holds
    for every strategy and rule. In greedy search there is one live hypothesis, so every token is certain at once.
    """

    def __init__(
        self, report: Callable[[int, Sequence[int]], None], sentences: Collection[int], *, reranked: bool = False
    ) -> None:
        """report: called with the number of one of `sentences` and the certain ids whenever there are more of them, and
        at the end with all ids of the first hypothesis of `search`.

        reranked: whether finished hypotheses are ranked again after the search, as by utility. Then the common
        prefix of all finished hypotheses is reported at the end.
        """
        self._report, self._reranked = report, reranked
        self._known = {number: _Sentence() for number in sentences}

    def __call__(self, beam: Beam) -> None:
        known = self._known
        for ending in beam.ended:
            if ending.sentence in known:
                known[ending.sentence].end(ending, reranked=self._reranked)
        places = [place for place, number in enumerate(beam.sentences.tolist()) if number in known]
        if not places:
            return
        chosen = torch.tensor(places, device=beam.tokens.device)
        ids, lengths = _shared(beam.tokens[chosen], ~beam.total[chosen].isneginf())
        numbers, finished = beam.sentences[chosen].tolist(), beam.finished[chosen].tolist()
        for row, (number, length, done) in enumerate(zip(numbers, lengths.tolist(), finished, strict=True)):
            if done or length > known[number].reported:
                certain = known[number].certain(() if done else ids[row, :length].tolist(), done=done)
                if certain:
                    self._report(number, certain)


@dataclass(slots=True)
class _Sentence:
    """The certain ids of one sentence.  reported: how many were reported.  first: the best finished hypothesis.

    ended: the common prefix of the finished hypotheses that can still rank first; None while none has finished.
    """

    reported: int = 0
    first: Ending | None = None
    ended: Sequence[int] | None = None

    def end(self, ending: Ending, *, reranked: bool) -> None:
        """Add a finished hypothesis."""
        ids = ending.hypothesis.tokens
        if reranked:
            self.ended = ids if self.ended is None else common_prefix([self.ended, ids])
        # Ties as in `search`: the earlier hypothesis first, and the earlier group's.
        elif self.first is None or _rank(ending) > _rank(self.first):
            self.first, self.ended = ending, ids

    def certain(self, live: Sequence[int], *, done: bool) -> Sequence[int]:
        """Return the certain ids, given the common prefix of the live hypotheses; empty if there are no new ones."""
        ids = live if self.ended is None else self.ended
        if self.ended is not None and not done:
            ids = common_prefix([ids, live])
        if len(ids) <= self.reported:
            return ()
        self.reported = len(ids)
        return ids


def _rank(ending: Ending) -> tuple[float, int]:
    return ending.hypothesis.score, -ending.group


def common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest prefix that all rows begin with; empty if there are none."""
    shared = []
    for tokens in zip(*rows, strict=False):
        if tokens.count(tokens[0]) < len(tokens):
            break
        shared.append(tokens[0])
    return shared


def _shared(tokens: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """Return one live row [B, t] of tokens [B, K, t], masked by `live` [B, K], and the common prefix length [B]."""
    first = tokens[torch.arange(live.size(0), device=live.device), live.byte().argmax(1)]
    same = ((tokens == first[:, None]) | ~live[:, :, None]).all(1)
    return first, same.cumprod(1).sum(1)
