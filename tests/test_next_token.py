"""Next-token distributions: exact top-k, biases, normalisation and sampling."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import BLOCK, BeliefError, Bias, Logits, exact_topk, replace_impossible
from translume.errors import TranslationError

few = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 10**6)
sizes = st.sampled_from([1, 5, 127, 128, 129, 1000, 1024, 1031, 3000])
levels = st.sampled_from([2, 5, 40, 10**6])


def coarse(seed, rows, size, levels, forbidden=0.0):
    """Return scores on a few levels, so that many are tied."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (rows, size), generator=generator) / 8
    return scores.masked_fill(torch.rand(rows, size, generator=generator) < forbidden, -math.inf)


@few
@given(seeds, st.integers(1, 7), sizes, levels, st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.995, 1.0]))
def test_exact_topk_equals_the_first_k_of_a_stable_sort(seed, rows, size, levels, k, forbidden):
    scores = coarse(seed, rows, size, levels, forbidden)
    k = min(k, size)
    values, ids = exact_topk(scores, k)
    wanted, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    assert torch.equal(values, wanted[:, :k])
    assert torch.equal(ids, order[:, :k])


@few
@given(seeds, st.integers(1, 7), st.integers(1, 17), levels, st.integers(1, 12), st.sampled_from([0.0, 0.5, 1.0]))
def test_rows_with_too_few_possible_tokens_are_filled_with_the_smallest_impossible_ids(
    seed, rows, size, levels, k, forbidden
):
    scores = coarse(seed, rows, size, levels, forbidden)
    values, ids = exact_topk(scores, min(k, size))
    # Ids of impossible tokens are arbitrary.
    unknown = torch.where(values.isneginf(), torch.randint(size, ids.shape), ids)
    assert torch.equal(replace_impossible(values, unknown, size), ids)


@few
@given(seeds, st.integers(2, 7), st.sampled_from([129, 3000]), levels, st.integers(1, 12))
def test_the_topk_of_a_row_does_not_depend_on_the_other_rows(seed, rows, size, levels, k):
    scores = coarse(seed, rows, size, levels)
    values, ids = exact_topk(scores, k)
    alone = [exact_topk(row[None], k) for row in scores]
    assert torch.equal(values, torch.cat([each[0] for each in alone]))
    assert torch.equal(ids, torch.cat([each[1] for each in alone]))


@pytest.mark.parametrize("size", [5, 129, 40 * BLOCK, 40 * BLOCK + 3])
def test_topk_of_an_empty_batch_is_empty(size):
    belief = Logits(torch.empty(0, size))
    assert belief.topk(3).ids.shape == (0, 3)
    assert belief.topk(1).log_probs.shape == (0, 1)
    assert belief.log_probs().shape == (0, size)


def draw_bias(seed, rows, size, masked):
    """Return a bias with values on the grid of `coarse`, whose sums are exact in any order; pairs may repeat."""
    generator = torch.Generator().manual_seed(seed + 1)
    count = int(torch.randint(1, 3 * rows, (1,), generator=generator))
    values = torch.randint(-80, 80, (count,), generator=generator) / 8
    values[torch.rand(count, generator=generator) < 0.3] = -math.inf
    pairs = (torch.randint(top, (count,), generator=generator) for top in (rows, size))
    shape = {"none": None, "rows": (rows, size), "one": (size,)}[masked]
    allowed = None if shape is None else torch.rand(shape, generator=generator) < 0.5
    return Bias(*pairs, values, allowed)


def add_in_a_loop(bias, scores):
    scores = scores.clone()
    for row, token, value in zip(bias.rows.tolist(), bias.ids.tolist(), bias.values, strict=True):
        scores[row, token] += value
    if bias.allowed is not None:
        scores[~bias.allowed.expand(scores.shape)] = -math.inf
    return scores


masks = st.sampled_from(["none", "rows", "one"])


@few
@given(seeds, st.integers(1, 7), sizes, masks)
def test_a_bias_adds_its_values_and_forbids_tokens_that_are_not_allowed(seed, rows, size, masked):
    scores, bias = coarse(seed, rows, size, 40), draw_bias(seed, rows, size, masked)
    before = scores.clone()
    assert torch.equal(bias.add_to(scores), add_in_a_loop(bias, scores))
    assert torch.equal(scores, before)


@few
@given(seeds, st.integers(1, 7), sizes, st.lists(masks, max_size=4))
def test_joined_biases_equal_adding_each_in_turn(seed, rows, size, kinds):
    scores = wanted = coarse(seed, rows, size, 40)
    parts = [draw_bias(seed + i, rows, size, kind) for i, kind in enumerate(kinds)]
    for part in parts:
        wanted = part.add_to(wanted)
    joined = Bias.join(parts)
    assert (joined is None) == (not parts)
    assert torch.equal(scores if joined is None else joined.add_to(scores), wanted)


@few
@given(seeds, st.integers(1, 7), sizes, levels, st.integers(1, 12), masks, st.booleans())
def test_topk_ranks_with_the_bias_and_returns_log_probabilities_without_it(
    seed, rows, size, levels, k, masked, inference
):
    logits, bias = coarse(seed, rows, size, levels), draw_bias(seed, rows, size, masked)
    with torch.inference_mode(inference):
        belief = Logits(logits.clone())
    k_cut = min(k, size)
    top = belief.topk(k, bias)
    wanted, order = torch.sort(add_in_a_loop(bias, logits), dim=-1, descending=True, stable=True)
    assert torch.equal(top.ids, order[:, :k_cut])
    truth = logits.double().log_softmax(-1)
    torch.testing.assert_close(top.log_probs, truth.gather(1, top.ids).float(), rtol=1e-5, atol=1e-5)
    lse = logits.double().logsumexp(-1, keepdim=True)
    torch.testing.assert_close(top.ranks_by, (wanted[:, :k_cut] - lse).float(), rtol=1e-5, atol=1e-5)
    # The bias does not change the distribution.
    torch.testing.assert_close(belief.log_probs(), truth.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(belief.log_probs(), Logits(logits).log_probs())


@few
@given(seeds, st.integers(1, 7), sizes)
def test_probabilities_sum_to_one_and_are_selected_by_id(seed, rows, size):
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 9
    belief = Logits(logits)
    assert (belief.rows, belief.size) == (rows, size)
    assert belief.log_probs().exp().sum(-1).tolist() == pytest.approx([1.0] * rows, abs=1e-5)
    ids = torch.randint(size, (rows, 3))
    assert torch.equal(belief.log_prob_of(ids), belief.log_probs().gather(1, ids))
    assert belief.log_probs().dtype == torch.float32
    assert torch.equal(Logits(logits.bfloat16()).topk(1).log_probs, Logits(logits.bfloat16().float()).topk(1).log_probs)


@few
@given(seeds, st.sampled_from([5, 127, 128, 1031]), st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=7))
def test_rows_of_any_size_are_normalised_independently(seed, size, offsets):
    logits = torch.randn(len(offsets), size, generator=torch.Generator().manual_seed(seed))
    logits += torch.tensor(offsets)[:, None]
    found = Logits(logits).log_probs()
    torch.testing.assert_close(found, logits.double().log_softmax(-1).float(), rtol=1e-5, atol=1e-5)
    assert (found <= 0).all()
    assert torch.equal(found, torch.cat([Logits(row[None]).log_probs() for row in logits]))


@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_invalid_logits_are_refused_with_their_row(what):
    logits = torch.zeros(5, 3 * BLOCK)
    logits[3, 7] = what
    for read in (
        lambda b: b.topk(2),
        lambda b: b.log_probs(),
        lambda b: b.log_prob_of(torch.zeros(5, 1).long()),
        lambda b: b.sample(torch.zeros(5, 1)),
    ):
        with pytest.raises(BeliefError) as error:
            read(Logits(logits))
        assert str(error.value) == "the head's logits of row 3 hold a NaN, an infinity or no finite number"
        assert error.value.row == 3


def test_a_row_without_a_finite_logit_is_refused():
    with pytest.raises(TranslationError, match=r"^the head's logits of row 1 hold"):
        Logits(torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])).topk(1)


def test_samples_follow_the_distribution_the_bias_and_the_temperature():
    logits = torch.tensor([[0.0, math.log(2.0), math.log(4.0), 3.0], [0.0, 0.0, 0.0, 0.0]])
    bias = Bias.forbid(torch.tensor([0, 1, 1]), torch.tensor([3, 0, 1]))
    count = 100_000
    drawn = Logits(logits).sample(
        torch.rand(2, count, generator=torch.Generator().manual_seed(1)), temperature=0.5, bias=bias
    )
    seen = torch.stack([row.bincount(minlength=4) for row in drawn]) / count
    wanted = torch.tensor([[1 / 21, 4 / 21, 16 / 21, 0.0], [0.0, 0.0, 0.5, 0.5]])
    torch.testing.assert_close(seen, wanted, rtol=0, atol=0.01)
    assert (seen[wanted == 0] == 0).all()


@pytest.mark.parametrize("size", [1, 7, 1031])
def test_a_sample_is_the_inverse_of_the_cumulative_distribution(size):
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(5, size, generator=generator).masked_fill(torch.rand(5, size, generator=generator) < 0.3, -99)
    uniforms = torch.rand(5, 211, generator=generator, dtype=torch.float64)
    drawn = Logits(logits).sample(uniforms, temperature=0.7)
    below = (logits.double() / 0.7).softmax(-1).cumsum(-1)
    assert (uniforms < below.gather(1, drawn) + 1e-6).all()
    assert (uniforms > F.pad(below, (1, 0)).gather(1, drawn) - 1e-6).all()
    rows = torch.cat([Logits(logits[[row]]).sample(uniforms[[row]], temperature=0.7) for row in range(5)])
    assert torch.equal(drawn, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_without_probability_are_never_sampled(dtype):
    """The first and last tokens are forbidden or so unlikely that their weight is 0."""
    logits = torch.full((3, 50_000), -1.0)
    logits[0, :3] = logits[0, -3:] = -math.inf
    logits[1, :3] = logits[1, -3:] = -1e5
    logits[2] = -math.inf
    logits[2, 17] = -40.0
    ends = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-24, 1 - 2**-53], dtype=torch.float64).to(dtype).clamp(max=1 - 2**-24)
    exact = torch.tensor([[0.0, math.nextafter(1.0, 0.0)]], dtype=torch.float64).repeat(3, 1)
    for uniforms in (ends.repeat(3, 1), exact):
        drawn = Logits(logits).sample(uniforms)
        assert drawn[:2].min() == 3
        assert drawn[:2].max() == 49_996
        assert (drawn[2] == 17).all()


@pytest.mark.parametrize("mask", [None, 1, 2])
def test_the_bias_of_selected_tokens_equals_that_of_the_full_bias(mask):
    generator = torch.Generator().manual_seed(3)
    rows, ids = torch.randint(5, (17,), generator=generator), torch.randint(7, (17,), generator=generator)
    shape = (7,) if mask == 1 else (5, 7)
    allowed = None if mask is None else torch.rand(shape, generator=generator) < 0.7
    bias = Bias(rows, ids, torch.randn(17, generator=generator), allowed)
    asked = torch.randint(7, (5, 3), generator=generator)
    torch.testing.assert_close(bias.values_of(asked), bias.add_to(torch.zeros(5, 7)).gather(1, asked))


def test_sampling_with_all_tokens_forbidden_raises():
    bias = Bias.only(torch.tensor([[True, True], [False, False]]))
    with pytest.raises(BeliefError) as error:
        Logits(torch.zeros(2, 2)).sample(torch.zeros(2, 1), bias=bias)
    assert str(error.value) == "every next token of row 1 is forbidden"


def test_a_bias_may_have_another_float_type():
    belief = Logits(torch.tensor([[0.0, 1.0, 2.0]]))
    values = torch.tensor([5.0], dtype=torch.float64)
    assert belief.topk(1, Bias(torch.tensor([0]), torch.tensor([1]), values)).ids.tolist() == [[1]]


@given(data=st.data(), rows=st.integers(1, 5))
def test_a_bias_reports_which_tokens_it_names_and_how_many_it_lowers(data, rows):
    ids = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
    each, said = torch.arange(rows).repeat_interleave(len(ids)), torch.tensor(ids).repeat(rows)
    told, counted = Bias.forbid(each, said, most=len(ids)), Bias.forbid(each, said)
    assert told.lowered() == counted.lowered() == len(ids)
    wanted = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows)))[:, None]
    assert (
        told.names(wanted) == bool(told.values_of(wanted).any()) == any(each in ids for each in wanted[:, 0].tolist())
    )


@given(seed=st.integers(0, 99), rows=st.integers(1, 4), biased=st.integers(1, 40))
def test_many_values_are_found_as_few_are(seed: int, rows: int, biased: int) -> None:
    """Also values that stand twice, and forbidden tokens."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(biased, generator=generator)
    values[torch.rand(biased, generator=generator) < 0.3] = -math.inf
    where = [torch.randint(0, high, (biased,), generator=generator) for high in (rows, 9)]
    bias = Bias(where[0], where[1], values)
    ids = torch.randint(0, 12, (rows, 5), generator=generator)
    assert bias._searched(ids).equal(bias.values_of(ids))


def test_a_long_list_of_forbidden_tokens_is_applied_to_many_candidates() -> None:
    """With no_repeat_ngram = 1, 16 hypotheses of 1,000 tokens forbid 16,000, and as many candidates are looked up."""
    rows = torch.arange(16).repeat_interleave(1000)
    ids = torch.arange(1000).repeat(16)
    candidates = torch.arange(500, 1516).expand(16, -1)
    added = Bias(rows, ids, torch.full((16_000,), -math.inf)).values_of(candidates)
    assert added.isinf().sum(1).tolist() == [500] * 16
