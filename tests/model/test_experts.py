"""Mixtures of experts: against a computation token by token, their capacities, their numbers in a loss."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.errors import raises
from torch.nn import functional as F

from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.model.feed_forward import MixtureOfExperts, _earlier, routings
from translume.model.layers import recompute_layers

WIDTH, INNER, EXPERTS, TOKENS = 7, 11, 5, 23
ROUTING = {"weighted": 0, "balance": 1, "dropped": 2, "choices": 3}


def mixture(**changes: object) -> MixtureOfExperts:
    torch.manual_seed(3)
    values = {"width": WIDTH, "feed_forward": INNER, "attention_heads": 1, "positions": "none", "dropout": 0.0}
    block = MixtureOfExperts(ModelSettings(**{**values, "experts": (EXPERTS,), **changes}), EXPERTS).double()
    with torch.no_grad():
        block.router.weight.mul_(3.0)  # so that some experts are chosen often
    return block


def plain(block, x, sources):
    """Return the output, balance loss and number of choices over the capacity: first choices first, in order."""
    chosen, gates, result = [], [], [torch.zeros(WIDTH).double() for _ in x]
    probabilities = [torch.softmax(block.router.weight @ token, 0) for token in x]
    for p in probabilities:
        best = p.argsort(descending=True)[: block.choices]
        chosen.append(best.tolist())
        gates.append(p[best] if block.choices == 1 else p[best] / p[best].sum())
    most = math.ceil(block.factor * len(x) * block.choices / EXPERTS) if block.training and block.factor else math.inf
    read, of_source, dropped = Counter(), Counter(), 0
    for choice in range(block.choices):
        for place, token in enumerate(x):
            expert = chosen[place][choice]
            source = (expert, None if sources is None else int(sources[place]))
            full = read[expert] >= most or bool(block.capacity and sources is not None and
                                                of_source[source] >= block.capacity)  # fmt: skip
            read[expert] += 1
            of_source[source] += 1
            dropped += full
            if not full:
                layer = block.experts[expert]
                hidden = F.relu(layer.inner.weight @ token + layer.inner.bias)
                result[place] = result[place] + gates[place][choice] * (layer.outer.weight @ hidden + layer.outer.bias)
    shares = Counter(expert for each in chosen for expert in each)
    mean = sum(probabilities) / len(x)
    balance = EXPERTS * sum(shares[i] / (len(x) * block.choices) * mean[i] for i in range(EXPERTS))
    return torch.stack(result), balance, dropped


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize(("factor", "capacity"), [(0.0, 0), (0.7, 0), (0.0, 2), (0.9, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_output_gradients_and_balance_loss_are_those_of_a_plain_computation(choices, factor, capacity, training):
    options = {"experts_per_token": choices, "expert_capacity_factor": factor, "expert_capacity": capacity}
    block = mixture(**options, expert_balance=0.3).train(training)
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    sources = torch.arange(TOKENS) // 9
    with routings() as found:
        y = block(x, sources)
    wanted, balance, dropped = plain(block, x, sources)
    assert dropped > 0 or not (capacity or (training and factor))
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    assert len(found) == training
    total, other = y.square().sum(), wanted.square().sum()
    if training:
        assert found[0][1:].tolist() == pytest.approx([balance.item(), dropped, TOKENS * choices], abs=1e-12)
        total, other = total + found[0][ROUTING["weighted"]], other + 0.3 * balance
    inputs = [x, *block.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(total, inputs, allow_unused=True),
        torch.autograd.grad(other, inputs, allow_unused=True),
        strict=True,
    ):
        for gradient in (ours, theirs):
            assert gradient is not None or ours is theirs is None
        assert ours is None or float((ours - theirs).abs().max()) <= 1e-9


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=29))
def test_earlier_counts_equal_keys_before_a_key_column_by_column(keys):
    found, seen = _earlier(torch.tensor(keys)), Counter()
    for column in range(2):
        for row, each in enumerate(keys):
            assert found[row, column] == seen[each[column]]
            seen[each[column]] += 1


def test_after_training_no_token_depends_on_others():
    block = mixture(experts_per_token=2).eval()
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    alone = torch.cat([block(each[None]) for each in x])
    torch.testing.assert_close(block(x), alone, rtol=0, atol=1e-14)


SHAPE = {"experts": (0, 3), "encoder_layers": 2, "decoder_layers": 2, "expert_capacity_factor": 0.5}


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_objective_has_the_balance_losses_of_all_layers_and_the_nll_has_not(make, make_inputs, recomputed):
    model, given = make(**SHAPE, expert_balance=0.2).double(), make_inputs([5, 3], [7, 2])
    if recomputed:
        recompute_layers(model)
    plain = model.loss(*given.all())
    assert plain.routing is None  # in evaluation mode
    assert plain.objective.item() == pytest.approx(plain.nll.item(), rel=1e-12)
    loss = model.train().loss(*given.all())
    balance, dropped, choices = loss.routing.tolist()
    assert choices == 5 + 3 + 7 + 2  # one mixture on each side
    assert 0 < dropped < choices
    extra = (loss.objective - loss.nll).item()
    assert extra == pytest.approx(0.2 * 2 * balance, rel=1e-9)  # `balance` is the mean of two layers
    loss.objective.backward()
    gradients = [parameter.grad for name, parameter in model.named_parameters() if "router" in name]
    assert len(gradients) == 2
    assert all(float(each.abs().max()) > 0 for each in gradients)


def test_a_pass_with_recomputed_layers_has_the_same_gradients(make, make_inputs):
    given, found = make_inputs([5, 3], [7, 2]), []
    for recomputed in (False, True):
        model = make(**SHAPE).double().train()
        if recomputed:
            recompute_layers(model)
        model.loss(*given.all()).objective.backward()
        found.append([torch.zeros(1) if each.grad is None else each.grad for each in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_mixture_has_at_least_as_many_experts_as_read_a_token():
    with raises(SettingsError, "model: experts_per_token is 3, expected at most 2, as experts"):
        ModelSettings(experts=(0, 2), experts_per_token=3)
