"""Ensembles: averaged distributions, and states that are selected together."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding import searching
from tests.decoding.searching import BOS, limits3, seeds

from translume.belief import Bias, Logits
from translume.decoding import Averaged, BeamSearch, Coverage, Ensemble, ForbidTokens

averages = st.sampled_from(["probability", "log_probability"])


def beliefs(seed, count=3, rows=5, size=11):
    generator = torch.Generator().manual_seed(seed)
    return [Logits(torch.randn(rows, size, generator=generator) * 3) for _ in range(count)]


def mean(beliefs, average):
    """The reference mean in fp64."""
    logs = torch.stack([belief.log_probs().double() for belief in beliefs])
    if average == "probability":
        return logs.exp().mean(0).log()
    product = logs.exp().prod(0) ** (1 / len(logs))
    return (product / product.sum(-1, keepdim=True)).log()


@given(seeds, averages, st.integers(1, 4), st.integers(1, 13))
def test_the_mean_is_a_distribution_and_its_methods_agree(seed, average, count, k):
    each = beliefs(seed, count)
    belief, wanted = Averaged(each, average), mean(each, average)
    ids = torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(belief.log_prob_of(ids).double(), wanted.gather(1, ids), rtol=0, atol=1e-5)
    torch.testing.assert_close(belief.log_probs().double(), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(belief.log_prob_of(ids), belief.log_probs().gather(1, ids))
    assert belief.log_probs().exp().sum(-1).tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    assert (belief.rows, belief.size, belief.normalised) == (5, 11, True)
    top = belief.topk(k)
    values, order = belief.log_probs().sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top.ids, order[:, :k])
    assert torch.equal(top.log_probs, values[:, :k])
    assert torch.equal(top.ranks_by, values[:, :k])


@given(seeds, averages)
def test_a_bias_changes_the_ranking_and_no_log_probability(seed, average):
    belief = Averaged(beliefs(seed), average)
    rows = torch.arange(5)
    bias = Bias.join([Bias(rows, rows, torch.full((5,), 2.0)), Bias.forbid(rows, rows + 1)])
    top = belief.topk(11, bias)
    biased = belief.log_probs() + torch.nn.functional.one_hot(rows, 11) * 2.0
    biased[rows, rows + 1] = -math.inf
    torch.testing.assert_close(top.ranks_by, biased.gather(1, top.ids))
    assert torch.equal(top.ranks_by, top.ranks_by.sort(dim=1, descending=True).values)
    assert torch.equal(top.log_probs, belief.log_probs().gather(1, top.ids))
    assert not (belief.sample(torch.rand(5, 97), bias=bias) == (rows + 1)[:, None]).any()


@pytest.mark.parametrize("average", ["probability", "log_probability"])
def test_samples_follow_the_mean(follows_distribution, average):
    belief = Averaged(beliefs(5, rows=1, size=7), average)
    drawn = belief.sample(torch.rand(1, 20_000, generator=torch.Generator().manual_seed(3)))
    assert follows_distribution(drawn.flatten().bincount(minlength=7), belief.log_probs()[0].exp())


def test_both_means_worked_by_hand():
    each = [Logits(torch.tensor([row]).log()) for row in ([0.9, 0.1, 0.0], [0.1, 0.4, 0.5])]
    assert Averaged(each).log_probs().exp()[0].tolist() == pytest.approx([0.5, 0.25, 0.25])
    # √(0.9·0.1) = 0.3 and √(0.1·0.4) = 0.2. A token that one member finds impossible is impossible.
    assert Averaged(each, "log_probability").log_probs().exp()[0].tolist() == pytest.approx([0.6, 0.4, 0.0])


def test_the_log_mean_of_disjoint_supports_is_minus_infinity_and_not_nan():
    each = [Logits(torch.tensor([row]).log()) for row in ([1.0, 0.0], [0.0, 1.0])]
    assert Averaged(each, "log_probability").log_probs().tolist() == [[-math.inf] * 2]


def test_a_mean_with_an_unnormalised_member_is_unnormalised():
    class Unnormalised(Logits):
        normalised = False

    each = [Logits(torch.zeros(1, 3)), Unnormalised(torch.zeros(1, 3))]
    assert not Averaged(each).normalised
    assert Averaged(each, "log_probability").normalised


class Stepper:
    """A toy as a `Stepper`, whose states can give uniform attention."""

    def __init__(self, toy, seed, **options):
        self.toy = toy(seed, **options)

    def start(self, source, mask):
        return self.toy.start(source[:, 0].tolist())

    def step(self, prefix, state):
        return self.toy(prefix, state)


SOURCE = torch.tensor([[0, 9], [1, 9], [2, 9]])
MASK = torch.ones(3, 2, dtype=torch.bool)


def run(ensemble, limits, width=3):
    strategy = BeamSearch(width=width, nbest=width)
    return searching.run(ensemble.step, strategy, limits, [ForbidTokens((BOS,))], ensemble.start(SOURCE, MASK))


@given(seeds, limits3, averages)
def test_a_hypothesis_carries_the_log_probability_of_the_mean(toy, seed, limits, average):
    members = [Stepper(toy, seed), Stepper(toy, seed + 1)]
    for sentence, found in enumerate(run(Ensemble(members, average), limits)):
        for h in found:
            total = 0.0
            for t, token in enumerate(h.tokens):
                place = sum(id * 5 ** (t - 1 - i) for i, id in enumerate(h.tokens[:t]))
                each = [Logits(member.toy.logits[t][sentence, place][None]) for member in members]
                total += mean(each, average)[0, token].item()
            assert h.log_prob == pytest.approx(total, abs=1e-4)


@given(seeds, limits3, averages, st.integers(1, 3))
def test_an_ensemble_of_a_model_with_itself_equals_the_model(toy, seed, limits, average, count):
    alone = run(Ensemble([Stepper(toy, seed)], average), limits)
    together = run(Ensemble([Stepper(toy, seed) for _ in range(count)], average), limits)
    for one, other in zip(alone, together, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-5)


def test_attention_of_an_ensemble_is_the_mean_or_none_if_a_member_has_none(toy):
    class AttentionState:
        def __init__(self, attention):
            self.attention = attention

        def select(self, rows):
            return AttentionState(self.attention[rows])

    class AttentionModel(Stepper):
        def start_with_attention(self, source, mask):
            return AttentionState(torch.full((len(source), 2), self.toy.size / 10))

    ensemble = Ensemble([AttentionModel(toy, 1), AttentionModel(toy, 2, size=7)])
    state = ensemble.start_with_attention(SOURCE, MASK).select(torch.tensor([2, 0]))
    torch.testing.assert_close(state.attention, torch.full((2, 2), 0.6))
    assert ensemble.start(SOURCE, MASK).attention is None
    with pytest.raises(ValueError, match=r"^attention is needed, which Stepper does not report$"):
        Ensemble([AttentionModel(toy, 1), Stepper(toy, 2)]).start_with_attention(SOURCE, MASK)
    strategy = BeamSearch(coverage=Coverage(weight=0.5))
    with pytest.raises(ValueError, match=r"^the coverage penalty needs attention, which the states of this step "):
        searching.run(ensemble.step, strategy, [2, 2, 2], (), ensemble.start(SOURCE, MASK))
