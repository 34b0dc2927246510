"""Truncations of a distribution: compared with their definitions, worked by hand, and compared with transformers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding.searching import seeds

from translume.decoding.sampling import Truncation, epsilon, eta, min_p, top_k, top_p

sizes = st.sampled_from([1, 2, 7, 31, 33, 257, 1031])
sharpness = st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0])
ALL = {
    "top_k": (top_k, st.integers(1, 40)),
    "top_p": (top_p, st.floats(1e-3, 0.999)),
    "min_p": (min_p, st.floats(1e-3, 1.0)),
    "epsilon": (epsilon, st.floats(1e-5, 0.9)),
    "eta": (eta, st.floats(1e-5, 0.9)),
}


def draw(seed, size, sharpness, rows=5, quantum=None):
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * sharpness
    if quantum:
        logits = (logits / quantum).round() * quantum  # many ties
    return logits.float().log_softmax(-1)


def by_definition(name, row, value):
    """The tokens that a truncation keeps of one row of probabilities, computed on lists."""
    order = sorted(range(len(row)), key=lambda id: (-row[id], id))
    if name == "top_k":
        return set(order[:value])
    if name == "top_p":
        kept, mass = [], 0.0
        for id in order:
            if kept and mass >= value:
                break
            kept.append(id)
            mass += row[id]
        return set(kept)
    entropy = -sum(p * math.log(p) for p in row if p)
    threshold = {
        "min_p": value * row[order[0]],
        "epsilon": value,
        "eta": min(value, math.sqrt(value) * math.exp(-entropy)),
    }[name]
    return {id for id in order if row[id] >= threshold} or {id for id in order if row[id] == row[order[0]]}


@pytest.mark.parametrize("name", ALL)
@given(seeds, sizes, sharpness, st.data())
def test_each_truncation_keeps_the_tokens_of_its_definition(name, seed, size, sharpness, data):
    function, values = ALL[name]
    value = data.draw(values)
    log_probs = draw(seed, size, sharpness)
    kept = function(log_probs, value)
    for row, found in zip(log_probs.double().exp().tolist(), kept, strict=True):
        wanted = by_definition(name, row, value)
        found = set(found.nonzero()[:, 0].tolist())
        # fp32 may place a probability at the threshold on its other side.
        nearly = by_definition(name, row, value * (1 - 1e-4) if name != "top_k" else value)
        fewer = by_definition(name, row, value * (1 + 1e-4) if name != "top_k" else value)
        assert wanted & nearly & fewer <= found <= wanted | nearly | fewer
        assert found


@given(seeds, sizes, sharpness, st.integers(0, 9), st.data())
def test_combined_truncations_keep_the_intersection_with_a_likeliest_token(seed, size, sharpness, used, data):
    log_probs = draw(seed, size, sharpness, quantum=0.5)
    names = data.draw(st.lists(st.sampled_from(sorted(ALL)), unique=True))
    values = {name: data.draw(ALL[name][1]) for name in names}
    kept = Truncation(**values).kept(log_probs)
    wanted = torch.ones_like(kept)
    for name, value in values.items():
        wanted &= ALL[name][0](log_probs, value)
    assert torch.equal(kept, wanted)
    assert ((log_probs == log_probs.amax(-1, keepdim=True)) & kept).any(-1).all()
    assert Truncation(**values).nothing == (not values)


@pytest.mark.parametrize("name", ALL)
def test_impossible_tokens_are_never_kept(name):
    log_probs = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.0, 0.0, 1.0, 0.0]]).log()
    value = 2 if name == "top_k" else 0.25
    assert not ALL[name][0](log_probs, value)[0, 1]
    if name != "top_k":  # top_k may keep impossible tokens, which are never drawn
        assert ALL[name][0](log_probs, value)[1].tolist() == [False, False, True, False]


def test_the_nucleus_of_a_flat_distribution_is_found_at_any_size():
    log_probs = torch.full((3, 10_007), -math.log(10_007))
    assert top_p(log_probs, 0.5).sum(1).tolist() == [5004] * 3
    assert top_p(log_probs, 0.5)[:, :5004].all()  # ties by smaller id


def test_truncations_worked_by_hand():
    log_probs = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]]).log()
    assert top_k(log_probs, 2).tolist() == [[False, True, False, True, False]]
    assert top_p(log_probs, 0.64).tolist() == [[False, True, False, True, False]]
    assert top_p(log_probs, 0.66).tolist() == [[False, True, False, True, True]]
    assert min_p(log_probs, 0.3).tolist() == [[False, True, False, True, True]]
    assert epsilon(log_probs, 0.07).tolist() == [[True, True, False, True, True]]
    assert epsilon(log_probs, 0.7).tolist() == [[False, True, False, False, False]]
    # H = 1.4150 nats: √0.16 · e^−H = 0.0972.
    assert eta(log_probs, 0.16).tolist() == [[True, True, False, True, True]]


@given(seeds, sharpness, st.floats(0.05, 0.95))
def test_results_equal_those_of_transformers(seed, sharpness, p):
    transformers = pytest.importorskip("transformers")
    warpers = {
        "top_k": lambda: transformers.TopKLogitsWarper(1 + int(p * 20)),
        "top_p": lambda: transformers.TopPLogitsWarper(p),
        "min_p": lambda: transformers.MinPLogitsWarper(p),
        "epsilon": lambda: transformers.EpsilonLogitsWarper(p),
        "eta": lambda: transformers.EtaLogitsWarper(p),
    }
    log_probs = draw(seed, 257, sharpness or 1.0)
    for name, warper in warpers.items():
        theirs = ~warper()(torch.zeros(5, 1).long(), log_probs.clone()).isneginf()
        ours = ALL[name][0](log_probs, 1 + int(p * 20) if name == "top_k" else p)
        # A sum or product that rounds to the other side of p moves at most one token per row, and two tokens whose
        # probabilities are equal may change places.
        assert (theirs.sum(1) - ours.sum(1)).abs().max() <= 1, name
        assert (theirs ^ ours).sum(1).max() <= 2, name
        assert (theirs ^ ours).float().mean() < 0.002, name
