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
    groups = strategy.groups
    found: list[list[Hypothesis]] = [[] for _ in range(count * groups)]
    for beam in beams:
        for ending in beam.ended:
            found[ending.sentence * groups + ending.group].append(ending.hypothesis)
    best = [sorted(each, key=_worst_last)[: min(strategy.nbest, strategy.width // groups)] for each in found]
    if groups == 1:
        return best
    sentences = (best[start : start + groups] for start in range(0, len(best), groups))
    return [_different(sorted(chain(*each), key=_worst_last))[: strategy.nbest] for each in sentences]


def _worst_last(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


def _different(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The first of those with equal tokens."""
    found: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in hypotheses:
        found.setdefault(hypothesis.tokens, hypothesis)
    return list(found.values())
