"""Tempered and unsmoothed distributions: the values that a search ranks by and those that it reports."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding import searching
from tests.decoding.searching import seeds

from translume.belief import BeliefError, Bias, Logits
from translume.decoding import BeamSearch, Greedy, LengthPenalty, Tempered, Unsmoothed, reshaped
from translume.decoding.rules import ForcedPrefix, MinimumLength

sizes = st.sampled_from([1, 2, 5, 127, 128, 1031])
sharpness = st.sampled_from([0.1, 1.0, 9.0, 80.0])
shapes = st.sampled_from(
    [
        lambda belief: Tempered(belief, 0.4),
        lambda belief: Tempered(belief, 3.0),
        lambda belief: Unsmoothed(belief, 0.1),
        lambda belief: Unsmoothed(belief, 0.9),
    ]
)


def draw(seed, rows, size, sharpness, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, size, generator=generator, dtype=torch.float64) * sharpness).to(dtype)


def draw_bias(seed, rows, size):
    generator = torch.Generator().manual_seed(seed)
    pairs = (torch.randint(top, (2 * rows,), generator=generator) for top in (rows, size))
    values = torch.randint(-40, 9, (2 * rows,), generator=generator) / 8
    values[torch.rand(2 * rows, generator=generator) < 0.3] = -math.inf
    return Bias(*pairs, values, torch.rand(rows, size, generator=generator) < 0.7)


@given(seeds, st.integers(1, 7), sizes, sharpness, shapes, st.integers(1, 12))
def test_topk_returns_the_first_tokens_of_the_full_ranking(seed, rows, size, sharpness, shape, k):
    own = Logits(draw(seed, rows, size, sharpness))
    belief = shape(own)
    values, order = belief.log_probs().sort(dim=-1, descending=True, stable=True)
    top = belief.topk(k)
    assert (belief.rows, belief.size) == (rows, size)
    assert torch.equal(top.ids, order[:, : min(k, size)])
    assert torch.equal(top.ranks_by, values[:, : min(k, size)])
    assert torch.equal(top.log_probs, own.log_prob_of(top.ids))
    assert torch.equal(belief.log_prob_of(top.ids), top.ranks_by)
    assert bool((belief.log_probs() <= 0).all())
    assert not bool(belief.log_probs().isnan().any())
    assert not bool(belief.log_probs().amax(-1).isneginf().any())


@given(seeds, st.integers(1, 7), sizes, sharpness, shapes, st.integers(1, 12))
def test_a_bias_is_added_to_the_reshaped_scores_and_log_probs_stay_the_models(seed, rows, size, sharpness, shape, k):
    own, bias = Logits(draw(seed, rows, size, sharpness)), draw_bias(seed, rows, size)
    belief = shape(own)
    ranks = bias.add_to(belief.log_probs())
    lost = ranks.amax(-1).isneginf()
    ranks[lost] = bias.add_to(own.log_probs())[lost]
    values, order = ranks.sort(dim=-1, descending=True, stable=True)
    top = belief.topk(k, bias)
    assert torch.equal(top.ids, order[:, : min(k, size)])
    assert torch.equal(top.ranks_by, values[:, : min(k, size)])
    assert torch.equal(top.log_probs, own.log_prob_of(top.ids))


@given(seeds, st.integers(1, 7), sizes, sharpness, st.sampled_from([0.05, 0.5, 1.0, 2.0, 20.0]))
def test_a_tempered_softmax_is_the_softmax_of_scaled_logits(seed, rows, size, sharpness, temperature):
    logits = draw(seed, rows, size, sharpness, torch.float64)
    found = Tempered(Logits(logits), temperature)
    assert found.normalised
    torch.testing.assert_close(found.log_probs(), (logits / temperature).log_softmax(-1), rtol=1e-10, atol=1e-10)


@given(seeds, st.integers(1, 7), sizes, sharpness, st.sampled_from([0.01, 0.1, 0.5]))
def test_unsmoothing_a_smoothed_distribution_restores_the_original(seed, rows, size, sharpness, epsilon):
    original = draw(seed, rows, size, sharpness, torch.float64).softmax(-1)
    smoothed = (1 - epsilon) * original + epsilon / size
    found = Unsmoothed(Logits(smoothed.log()), epsilon).log_probs()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.exp(), original, rtol=0, atol=1e-12)


def test_unsmoothing_worked_by_hand():
    belief = Unsmoothed(Logits(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()), 0.2)
    assert not belief.normalised
    # ε/V = 0.05: (0.45, 0.25, 0.1, 0) / 0.8.
    assert belief.log_probs().exp().tolist()[0] == pytest.approx([0.5625, 0.3125, 0.125, 0.0], abs=1e-6)
    sure = Unsmoothed(Logits(torch.tensor([[0.999, 0.0005, 0.0005]]).log()), 0.3)
    assert sure.log_probs().tolist() == [[0.0, -math.inf, -math.inf]]  # never above one


def test_tokens_without_probability_after_unsmoothing_rank_last_by_id():
    top = Unsmoothed(Logits(torch.tensor([[0.01, 0.02, 0.96, 0.01]]).log()), 0.4).topk(4)
    assert top.ids.tolist() == [[2, 0, 1, 3]]
    assert top.ranks_by[0, 1:].tolist() == [-math.inf] * 3
    assert top.log_probs.exp().tolist()[0] == pytest.approx([0.96, 0.01, 0.02, 0.01])


def test_samples_follow_the_reshaped_distribution():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]]).log()
    bias = Bias.forbid(torch.tensor([0, 1]), torch.tensor([0, 3]))
    count = 100_000
    uniforms = torch.rand(2, count, generator=torch.Generator().manual_seed(1))
    drawn = Unsmoothed(Logits(logits), 0.2).sample(uniforms, bias=bias)
    seen = torch.stack([row.bincount(minlength=4) for row in drawn]) / count
    wanted = torch.tensor([[0.0, 5 / 7, 2 / 7, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0]])
    torch.testing.assert_close(seen, wanted, rtol=0, atol=0.01)
    with pytest.raises(BeliefError) as error:
        Tempered(Logits(logits), 2.0).sample(torch.zeros(2, 1), bias=Bias.only(torch.tensor([[True] * 4, [False] * 4])))
    assert str(error.value) == "every next token of row 1 is forbidden"


@pytest.mark.parametrize("shape", [lambda own: Tempered(own, 2.0), lambda own: Unsmoothed(own, 0.1)])
def test_a_nan_is_refused_with_its_row(shape):
    logits = torch.zeros(5, 11)
    logits[3, 7] = math.nan
    with pytest.raises(BeliefError) as error:
        shape(Logits(logits)).topk(2)
    assert error.value.row == 3


def run(step, state, strategy, rules=(), limit=4):
    return searching.run(step, strategy, [limit] * len(state.sentences), rules, state)


@pytest.mark.parametrize("change", [{"temperature": 3.0}, {"temperature": 0.3}, {"unsmooth": 0.1}])
@pytest.mark.parametrize("seed", range(2))
def test_a_search_ranks_by_the_reshaped_distribution_and_reports_the_models(toy, seed, change):
    step = toy(seed)
    strategy = BeamSearch(width=700, nbest=5, length_penalty=LengthPenalty(exponent=0.0))
    found = run(reshaped(step, **change), step.start(), strategy)

    def rank(sentence, tokens):
        total = 0.0
        for t, token in enumerate(tokens):
            place = sum(id * step.size ** (t - 1 - i) for i, id in enumerate(tokens[:t]))
            p = step.logits[t][sentence, place].double().softmax(-1)
            if "temperature" in change:
                p = p ** (1 / change["temperature"])
                total += math.log(p[token] / p.sum())
            else:
                p = ((p - 0.1 / len(p)).clamp(min=0) / 0.9).clamp(max=1)[token].item()
                total += math.log(p) if p else -math.inf
        return total

    for sentence, hypotheses in enumerate(found):
        ranked = sorted(((rank(sentence, ids), ids) for _, ids in step.complete(sentence, 4)), reverse=True)
        ranked = [each for each in ranked if each[0] > -math.inf][:5]
        assert [each.tokens for each in hypotheses] == [ids for _, ids in ranked]
        assert [each.score for each in hypotheses] == pytest.approx([value for value, _ in ranked], abs=1e-4)
        for each in hypotheses:
            assert each.log_prob == pytest.approx(step.log_prob(sentence, each.tokens), abs=1e-4)


@pytest.mark.parametrize("change", [{"temperature": 3.0}, {"unsmooth": 0.3}])
def test_greedy_search_finds_the_same_with_every_shape(toy, change):
    step = toy(7)
    plain = run(step, step.start(), Greedy())
    other = run(reshaped(step, **change), step.start(), Greedy())
    assert [each[0].tokens for each in other] == [each[0].tokens for each in plain]
    assert [each[0].log_prob for each in other] == [each[0].log_prob for each in plain]


def test_rules_hold_for_tokens_that_lost_their_probability(toy):
    step = toy(3, sharpness=9.0)
    for rules in ((ForcedPrefix([[4, 3], [2, 2], [3, 4]]),), (MinimumLength(3),)):
        found = run(reshaped(step, unsmooth=0.5), step.start(), BeamSearch(width=3, nbest=2), rules)
        assert all(found)
        for sentence, hypotheses in enumerate(found):
            for each in hypotheses:
                assert math.isfinite(each.score)
                assert each.log_prob == pytest.approx(step.log_prob(sentence, each.tokens), abs=1e-3)
                if isinstance(rules[0], ForcedPrefix):
                    assert each.tokens[:2] == ((4, 3), (2, 2), (3, 4))[sentence]


def test_a_step_without_reshaping_is_returned_unchanged(toy):
    step = toy(1)
    assert reshaped(step) is step
    with pytest.raises(ValueError, match=r"^temperature and unsmooth: expected at most one of them$"):
        reshaped(step, temperature=2.0, unsmooth=0.1)
    assert all(run(reshaped(step, unsmooth=0.1), step.start(), Greedy(), limit=1))
