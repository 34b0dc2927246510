"""From a step to finished hypotheses: the plainest consumer of the loop."""

from collections.abc import Sequence

from torch import Tensor

from translume.decoding.beam import Hypothesis
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

    No two have equal tokens, unless the strategy draws its hypotheses one by one, as `Sampling` does.
    Ranked by score alone, whether eos or the limit finished them; of equal ones the earlier finished stands first.
    The arguments and errors are those of `decode`.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(limits.numel())]
    for beam in decode(step, state, bos=bos, eos=eos, strategy=strategy, limits=limits, rules=rules):
        for ending in beam.ended:
            found[ending.sentence].append(ending.hypothesis)
    return [sorted(each, key=lambda hypothesis: -hypothesis.score)[: strategy.nbest] for each in found]
