"""From a step to finished hypotheses: the plainest consumer of the loop."""

from collections.abc import Iterable, Sequence
from itertools import chain

from torch import Tensor

from translume.decoding.beam import Beam, Hypothesis
from translume.decoding.loop import decode
from translume.decoding.rules import Rule
from translume.decoding.step import S, Step
from translume.decoding.strategy import Strategy


def search(
    step: Step[S],
    state: S,
    *,
    bos: int,
    eos: int,
    strategy: Strategy,
    limits: Tensor,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """For each sentence its 1 to `strategy.nbest` best finished hypotheses, best first.

    No two have equal tokens, unless the strategy draws its hypotheses one by one, as `Sampling` does: what several
    groups of a strategy found counts once. A group of K/G hypotheses gives at most K/G.
    Ranked by score alone, whether eos or the limit finished them; of equal ones the earlier finished stands first.
    The arguments and errors are those of `decode`.
    """
    beams = decode(step, state, bos=bos, eos=eos, strategy=strategy, limits=limits, rules=rules)
    return best_of(beams, strategy, limits.numel())


def best_of(beams: Iterable[Beam], strategy: Strategy, count: int) -> list[list[Hypothesis]]:
    """What `search` finds for each of `count` sentences, from the beams of `decode`, all of which are read."""
    best = Best(strategy, count)
    for beam in beams:
        best.see(beam)
    return [best.of(number) for number in range(count)]


class Best:
    """The best hypotheses of each of a search's sentences, as they finish."""

    def __init__(self, strategy: Strategy, count: int) -> None:
        """count: B."""
        self._strategy = strategy
        self._found: list[list[Hypothesis]] = [[] for _ in range(count * strategy.groups)]

    def see(self, beam: Beam) -> None:
        """Keep what finished in a step."""
        for ending in beam.ended:
            self._found[ending.sentence * self._strategy.groups + ending.group].append(ending.hypothesis)

    def of(self, sentence: int) -> list[Hypothesis]:
        """What `search` finds for one sentence, once it is done."""
        strategy, groups = self._strategy, self._strategy.groups
        each = min(strategy.nbest, strategy.width // groups)
        found = self._found[sentence * groups : (sentence + 1) * groups]
        best = [sorted(group, key=_worst_last)[:each] for group in found]
        if groups == 1:
            return best[0]
        return _different(sorted(chain(*best), key=_worst_last))[: strategy.nbest]


def _worst_last(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


def _different(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The first of those with equal tokens."""
    found: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in hypotheses:
        found.setdefault(hypothesis.tokens, hypothesis)
    return list(found.values())
