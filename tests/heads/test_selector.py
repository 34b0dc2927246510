"""The learned candidate selector: its loss, its candidate lists, and a head that uses it."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import ShortlistSettings
from translume.errors import SettingsError
from translume.heads.candidates import Selector
from translume.heads.shortlist import SELECTOR_SHARE, ShortlistHead
from translume.model import HeadSizes, LossOptions

from .conftest import data

WIDTH, RANK, VOCABULARY, END = 13, 7, 101, 2


def selector_of(dtype=torch.float64, seed=5):
    torch.manual_seed(seed)
    made = Selector(WIDTH, VOCABULARY, RANK).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def vectors_of(dtype=torch.float64):
    return torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def given_sources(lengths, dtype=torch.float64, seed=1):
    """Memory, mask, the tokens' vectors, owners and labels: three labels per sentence, the second one repeated."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(len(lengths), max(lengths, default=0), WIDTH, generator=generator, dtype=torch.float64)
    mask = torch.arange(memory.size(1)) < torch.tensor(lengths, dtype=torch.long)[:, None]
    labels = torch.randint(VOCABULARY, (len(lengths), 3), generator=generator)
    owners = torch.arange(len(lengths)).repeat_interleave(4)
    return memory.to(dtype), mask, vectors_of(dtype), owners, torch.cat([labels, labels[:, 1:2]], 1).flatten()


def reference_logits(selector, memory, mask, vectors):
    """The logits by definition, one sentence and one place at a time."""
    rows = []
    for states, kept in zip(memory, mask, strict=True):
        places = [vectors @ (selector.tokens.weight.T @ (selector.states.weight @ state)) for state in states[kept]]
        rows.append((torch.stack(places).amax(0) if places else 0.0) + selector.bias)
    return torch.stack(rows)


def reference_loss(selector, memory, mask, vectors, owners, labels):
    bags = torch.zeros(len(memory), VOCABULARY, dtype=memory.dtype)
    bags[owners, labels] = 1.0
    return F.binary_cross_entropy_with_logits(reference_logits(selector, memory, mask, vectors), bags, reduction="sum")


@pytest.mark.parametrize("elements", [1, 50, 700, 1 << 22])
def test_loss_and_gradients_match_the_definition(monkeypatch, elements):
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.CHUNK_ELEMENTS", elements)
    selector = selector_of()
    told = given_sources([5, 1, 0, 3])
    loss, wanted = selector.loss(*told), reference_loss(selector, *told)
    torch.testing.assert_close(loss, wanted)
    parameters = list(selector.parameters())
    found, slopes = (torch.autograd.grad(3.0 * each, parameters) for each in (loss, wanted))
    for left, right in zip(found, slopes, strict=True):
        torch.testing.assert_close(left, right)


def test_tied_places_share_the_gradient():
    selector = selector_of()
    memory, mask, vectors, owners, labels = given_sources([5])
    memory[0, 1:] = memory[0, :1]  # all equal, as a repeated word is without positions
    loss, wanted = (selector.loss(memory[:, :count], mask[:, :count], vectors, owners, labels) for count in (5, 1))
    parameters = list(selector.parameters())
    torch.testing.assert_close(loss, wanted)
    for left, right in zip(*(torch.autograd.grad(each, parameters) for each in (loss, wanted)), strict=True):
        torch.testing.assert_close(left, right)


def test_the_loss_in_bf16_is_close_to_fp32():
    narrow = selector_of(torch.bfloat16)
    told = given_sources([11, 3, 8], torch.bfloat16)
    loss = narrow.loss(*told)
    assert loss.dtype == torch.float32
    grown = torch.autograd.grad(loss, list(narrow.parameters()))
    wide = narrow.double()
    wanted = reference_loss(wide, told[0].double(), told[1], told[2].double(), *told[3:])
    slopes = torch.autograd.grad(wanted, list(wide.parameters()))
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=5e-3)
    for left, right in zip(grown, slopes, strict=True):
        assert float((left.double() - right).norm() / right.norm()) < 0.1


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 10**6), st.sampled_from([0.003, 0.5, 0.9]))
@torch.no_grad()
def test_tokens_at_or_above_the_threshold_are_listed(lengths, seed, threshold):
    selector = selector_of(seed=seed)
    memory, mask, vectors, _, _ = given_sources(lengths, seed=seed)
    listed = selector.listed(memory, mask, vectors, threshold)
    assert torch.equal(listed, reference_logits(selector, memory, mask, vectors).sigmoid() >= threshold)
    assert bool(selector.listed(memory, mask, vectors, 0.0).all())
    memory[~mask] = torch.nan  # padding is not read
    assert torch.equal(selector.listed(memory, mask, vectors, threshold), listed)
    for row, length in enumerate(lengths):
        alone = selector.listed(memory[row : row + 1, :length], mask[row : row + 1, :length], vectors, threshold)
        assert torch.equal(alone[0], listed[row])


@torch.no_grad()
def test_the_bias_starts_from_token_frequencies():
    selector = selector_of()
    counts = np.zeros(VOCABULARY, np.int64)
    counts[[END, 7, 8]] = 1000, 250, 90_000
    selector.learn(counts, END)
    chances = selector.bias.sigmoid()
    assert float(chances[END]) == pytest.approx(1 - math.exp(-1), abs=1e-9)
    assert float(chances[7]) == pytest.approx(1 - math.exp(-0.25), abs=1e-9)
    assert float(chances[8]) == pytest.approx(1 - math.exp(-10), abs=1e-9)
    assert float(chances[9]) == pytest.approx(1 - math.exp(-0.0005), abs=1e-9)


def head_of(seed=5, threshold=0.02, **chosen):
    torch.manual_seed(seed)
    sizes = HeadSizes(width=WIDTH, vocabulary=VOCABULARY, source_vocabulary=VOCABULARY)
    chosen = ShortlistSettings(tie="none", selector="learned", rank=RANK, frequent=5, threshold=threshold, **chosen)
    head = ShortlistHead(chosen, sizes, None)
    head.learn(data(VOCABULARY))
    with torch.no_grad():
        head.selector.states.weight.normal_()
    return head.eval()


def begin_context(head, lengths):
    memory, mask, _, owners, labels = given_sources(lengths, torch.float32)
    context = head.begin(torch.zeros_like(mask, dtype=torch.long), mask, memory)
    return None if context is None else context.select(owners), labels


def states(rows):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_candidates_are_the_listed_and_the_frequent_tokens():
    head = head_of(threshold=0.5)
    memory, mask, _, _, _ = given_sources([5, 0, 3], torch.float32)
    wanted = head.selector.listed(memory, mask, head.softmax.weight, 0.5)
    assert not bool(wanted[:, head.always.long()].all())
    wanted[:, head.always.long()] = True
    lists = head.begin(torch.zeros(3, 5, dtype=torch.long), mask, memory).lists
    for row, length in enumerate(lists.lengths):
        assert lists.ids[row, :length].tolist() == wanted[row].nonzero()[:, 0].tolist()


@torch.no_grad()
def test_a_threshold_of_zero_gives_the_full_softmax():
    head = head_of(threshold=0.0)
    context, labels = begin_context(head, [4, 2])
    hidden = states(8)
    found, wanted = (head.next_token(hidden, each) for each in (context, None))
    torch.testing.assert_close(found.log_probs(), wanted.log_probs())
    assert torch.equal(found.topk(5).ids, wanted.topk(5).ids)
    torch.testing.assert_close(head.score(hidden, labels, context), head.score(hidden, labels, None))


def test_training_adds_the_selectors_loss_without_gradients_to_the_model():
    head = head_of().train()
    memory, mask, _, owners, labels = given_sources([4, 2], torch.float32)
    memory.requires_grad_()
    hidden = states(8).requires_grad_()
    context = head.begin(torch.zeros(2, 4, dtype=torch.long), mask, memory).select(owners)
    loss, plain = (each.loss(hidden, labels, context, LossOptions(0.1)) for each in (head, head.softmax))
    bags = head.selector.loss(memory, mask, head.softmax.weight, owners, labels)
    torch.testing.assert_close(loss.objective, plain.objective + SELECTOR_SHARE * bags)
    assert torch.equal(loss.nll, plain.nll)
    assert loss.tokens == 8
    shared = [hidden, head.softmax.weight, head.softmax.bias]
    for left, right in zip(*(torch.autograd.grad(each.objective, shared) for each in (loss, plain)), strict=True):
        torch.testing.assert_close(left, right)
    loss = head.loss(hidden, labels, context, LossOptions(0.1))
    loss.objective.backward()
    assert memory.grad is None
    assert all(bool(each.grad.abs().sum() > 0) for each in head.selector.parameters())
    assert torch.equal(head.score(hidden, labels, context), head.softmax.score(hidden, labels, None))
    whole = head.next_token(hidden, context).log_probs()
    assert torch.equal(whole, head.softmax.next_token(hidden, None).log_probs())


def test_the_selector_learns_targets_that_depend_on_the_source():
    """Each source word determines three target tokens, unrelated to the order of ids."""
    torch.manual_seed(3)
    words, vectors = torch.randn(17, WIDTH), vectors_of(torch.float32)
    named = (vectors @ torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q @ words.t()).topk(3, 0).indices.t()
    selector = Selector(WIDTH, VOCABULARY, WIDTH)
    selector.learn(np.ones(VOCABULARY, np.int64), END)
    optimizer = torch.optim.Adam(selector.parameters(), lr=0.05)
    mask = torch.ones(8, 2, dtype=torch.bool)
    for _ in range(200):
        source = torch.randint(17, (8, 2))
        owners = torch.arange(8).repeat_interleave(6)
        loss = selector.loss(words[source], mask, vectors, owners, named[source].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source = torch.tensor([[a, (5 * a + 3) % 17] for a in range(17)])
    listed = selector.listed(words[source], torch.ones(17, 2, dtype=torch.bool), vectors, 0.2)
    found = listed.gather(1, named[source].flatten(1)).float().mean()
    assert float(found) > 0.9
    assert float(listed.float().sum(1).mean()) < 15


@torch.no_grad()
def test_the_selector_is_saved_with_the_weights():
    head, other = head_of(), head_of(seed=6)
    assert "translations" not in head.state_dict()
    other.load_state_dict(head.state_dict())
    left, right = (each.next_token(states(8), begin_context(each, [5, 2])[0]).log_probs() for each in (head, other))
    assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"threshold": 0.1}, "threshold is 0.1 with selector 'translations', expected selector 'learned'"),
        ({"rank": 8}, "rank is 8 with selector 'translations', expected selector 'learned'"),
        (
            {"selector": "learned", "candidates": 50},
            "candidates is 50 with selector 'learned', expected selector 'translations'",
        ),
    ],
)
def test_a_setting_of_the_other_selector_is_refused(chosen, message):
    with pytest.raises(SettingsError) as raised:
        ShortlistSettings(**chosen)
    assert str(raised.value) == f"model.head: {message}"
