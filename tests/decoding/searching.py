"""What tests of searches share: ids, drawn settings, strategies, rules, and a search of a step."""

import torch
from hypothesis import strategies as st

from translume.belief import Bias
from translume.config import DecodingSettings
from translume.decoding import (
    BeamSearch,
    ForbidTokens,
    Greedy,
    LengthPenalty,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    Sampling,
    Truncation,
    decode,
    search,
    strategy_from,
)
from translume.errors import SettingsError

BOS, EOS = 0, 1
KEYS = torch.tensor([11, 5, 2**62])
seeds = st.integers(0, 10**6)
limits3 = st.lists(st.integers(1, 4), min_size=3, max_size=3)
penalties = st.builds(
    LengthPenalty, form=st.sampled_from(["power", "gnmt"]), exponent=st.sampled_from([-1.0, -0.5, 0.0, 0.6, 1.0, 1.7])
)


def run(step, strategy, limits, rules=(), state=None):
    state = step.start() if state is None else state
    return search(step, state, bos=BOS, eos=EOS, strategy=strategy, limits=torch.tensor(limits), rules=rules)


def steps_of(step, strategy, limits, rules=()):
    return decode(step, step.start(), bos=BOS, eos=EOS, strategy=strategy, limits=torch.tensor(limits), rules=rules)


def build_strategy(name, keys=KEYS, **options):
    """The strategy with a width of four, those options that it accepts, and the most hypotheses that it returns."""
    for chosen in ({"nbest": 4, **options}, options, {"nbest": 4}, {}):
        try:
            return strategy_from(DecodingSettings(strategy=name, beam=4, samples=4, **chosen), keys)
        except SettingsError:
            continue
    raise AssertionError(name)


def fixed(step, *probabilities):
    """Set the probabilities after every prefix of length t to the t-th of `probabilities`."""
    for logits, row in zip(step.logits, probabilities, strict=True):
        logits[:] = torch.tensor(row).log()
    return step


class EmptyState:
    """The state of a step that reads nothing but its prefix."""

    def select(self, rows):
        return self


class NeverDone(BeamSearch):
    """Searches to the limits."""

    def done(self, standing):
        return torch.zeros_like(standing.limits, dtype=torch.bool)


class Prefer:
    """Adds `lift` to the score of one token, and reports that upper bound."""

    def __init__(self, token, lift):
        self.token, self.lift = token, lift

    def __call__(self, prefix, context):
        rows = torch.arange(prefix.size(0))
        return Bias(rows, torch.full_like(rows, self.token), torch.full(rows.shape, self.lift))


@st.composite
def beams(draw, coverages=(None,)):
    """Greedy search and beam searches of up to five hypotheses."""
    width, penalty, coverage = draw(st.integers(1, 5)), draw(penalties), draw(st.sampled_from(coverages))
    stop = draw(st.sampled_from(["optimal", "first"]))
    patience = draw(st.sampled_from([0.3, 1.0, 2.5])) if stop == "first" else 1.0
    if width == 1:
        return Greedy(length_penalty=penalty, coverage=coverage)
    return BeamSearch(
        width=width, nbest=draw(st.integers(1, width)), length_penalty=penalty, coverage=coverage, stop=stop,
        patience=patience,
    )  # fmt: skip


@st.composite
def samplings(draw):
    """Sampling for five sentences with all truncations, of which none or some are on."""
    truncation = Truncation(
        top_k=draw(st.sampled_from([0, 0, 1, 5, 300, 600])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1])),
        epsilon=draw(st.sampled_from([0.0, 0.0, 3e-3])),
        eta=draw(st.sampled_from([0.0, 0.0, 3e-3])),
    )
    width = draw(st.integers(1, 4))
    return Sampling(
        keys=torch.tensor(draw(st.lists(st.integers(0, 2**63 - 1), min_size=5, max_size=5))),
        width=width,
        nbest=draw(st.integers(1, width)),
        seed=draw(st.integers(-9, 2**64)),
        temperature=draw(st.sampled_from([1.0, 1.0, 0.3, 1.7])),
        truncation=truncation,
        length_penalty=draw(penalties),
    )


def lists_of_rules(*kinds):
    """Rules of some of the kinds that both searches outside the loop know and of `kinds`, in any order."""
    every = [
        st.builds(ForbidTokens, st.just((0, 1))),
        st.builds(MinimumLength, st.integers(0, 30)),
        st.builds(NoRepeatNgram, st.integers(1, 4)),
        st.builds(RepetitionPenalty, st.sampled_from([1.0, 1.1, 3.0, 1e6])),
        st.builds(OnlyTokens, st.sets(st.integers(3, 522), min_size=1, max_size=90)),
        *kinds,
    ]
    some = st.lists(st.sampled_from(every), unique_by=id, max_size=len(every))
    return some.flatmap(lambda chosen: st.tuples(*chosen).map(list))
