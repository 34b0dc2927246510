"""Two-level distributions over groups of tokens: exact ranking, and only the necessary groups are computed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.heads.conftest import LargestTensor

from translume.belief import BeliefError, Bias
from translume.config import AdaptiveSettings, HierarchicalSettings
from translume.heads.adaptive import AdaptiveHead
from translume.heads.hierarchical import HierarchicalHead
from translume.heads.next_tokens import Groups
from translume.model import HeadSizes

WIDTH, VOCABULARY, ROWS = 5, 43, 7


def adaptive(vocabulary=VOCABULARY, width=WIDTH, cutoffs=()):
    sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=3)
    head = AdaptiveHead(AdaptiveSettings(cutoffs=cutoffs), sizes, None)
    head.table.arrange(torch.randperm(vocabulary))
    return head


def hierarchical(vocabulary=VOCABULARY, width=WIDTH, classes=0):
    sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=3)
    head = HierarchicalHead(HierarchicalSettings(classes=classes, tie="none"), sizes, None)
    head.order.copy_(torch.cat([part.sort().values for part in torch.randperm(vocabulary).split(head._class_size)]))
    head.rank[head.order] = torch.arange(vocabulary)
    return head


MADE = [
    adaptive, lambda: adaptive(cutoffs=(2, 3, 31)), lambda: adaptive(vocabulary=1), hierarchical,
    lambda: hierarchical(classes=1), lambda: hierarchical(classes=VOCABULARY), lambda: hierarchical(classes=5),
]  # fmt: skip


@torch.no_grad()
def rounded(head):
    """A head with coarse parameters, so that logits are exact and often tie."""
    for parameter in head.parameters():
        parameter.copy_((2 * parameter).round() / 2)
    return head.double()


@given(
    make=st.sampled_from(MADE),
    seed=st.integers(0, 1000),
    k=st.integers(1, VOCABULARY + 1),
    pairs=st.integers(-1, 19),
    allowed=st.sampled_from(["all", "of all rows", "of each row", "one"]),
)
@torch.no_grad()
def test_topk_equals_the_full_ranking_under_any_bias(make, seed, k, pairs, allowed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    head = rounded(make())
    size = head.vocabulary
    hidden = torch.randint(-2, 3, (ROWS, WIDTH), generator=generator).double()
    belief = head.next_token(hidden, None)
    masks = {"all": None, "of all rows": (size,), "of each row": (ROWS, size)}
    bias = None
    if pairs >= 0:
        mask = torch.zeros(size, dtype=torch.bool)
        mask[seed % size] = True
        if allowed != "one":
            shape = masks[allowed]
            mask = None if shape is None else torch.rand(shape, generator=generator) < 0.3
        values = torch.randint(-3, 4, (pairs,), generator=generator).double()
        values = values.masked_fill(torch.rand(pairs, generator=generator) < 0.3, -math.inf)
        rows, ids = (torch.randint(most, (pairs,), generator=generator) for most in (ROWS, size))
        bias = Bias(rows, ids, values, mask)
    whole = belief.log_probs()
    scores = whole if bias is None else bias.add_to(whole)
    wanted, ids = (each[:, :k] for each in scores.sort(dim=-1, descending=True, stable=True))
    top = belief.topk(k, bias)
    assert torch.equal(top.ids, ids)
    torch.testing.assert_close(top.ranks_by, wanted)
    torch.testing.assert_close(top.log_probs, whole.gather(1, ids))
    asked = torch.randint(size, (ROWS, 11), generator=generator)
    torch.testing.assert_close(belief.log_prob_of(asked), whole.gather(1, asked))
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(ROWS, dtype=torch.float64))


@torch.no_grad()
def test_a_confident_distribution_computes_no_tail():
    vocabulary, rows = 5003, 61
    head = adaptive(vocabulary, 13)
    head.tail_bias.fill_(-50.0)
    belief = head.next_token(torch.randn(rows, 13), None)
    opened = []
    inner, belief._open = belief._open, lambda rows, groups: opened.append(len(rows)) or inner(rows, groups)
    with LargestTensor() as watch:
        belief.topk(5)
    assert opened == []
    assert watch.elements < rows * vocabulary / 2


@torch.no_grad()
def test_a_tail_is_computed_only_for_rows_that_may_rank_its_tokens():
    head = adaptive(cutoffs=(11, 31))
    head.tails.zero_()
    head.table.matrices[0].zero_()
    head.tail_bias.copy_(torch.tensor([-30.0, -30.0]))
    head.tails[0, 0] = 31.0
    hidden = torch.zeros(3, WIDTH)
    hidden[1, 0] = 1.0
    belief = head.next_token(hidden, None)
    opened = []
    inner = belief._open

    def recording_open(rows, groups):
        opened.append((rows.tolist(), groups.tolist()))
        return inner(rows, groups)

    belief._open = recording_open
    belief.topk(3)
    assert opened == [([1], [0])]


@torch.no_grad()
def test_classes_are_computed_best_first_until_no_more_can_matter():
    head = hierarchical(classes=5)
    for parameter in head.parameters():
        parameter.zero_()
    head.class_bias.copy_(torch.tensor([0.0, 9.0, 1.0, 6.0, -2.0]))
    belief = head.next_token(torch.zeros(1, WIDTH), None)
    opened = []
    inner, belief._open = belief._open, lambda rows, groups: opened.append(groups.tolist()) or inner(rows, groups)
    # The nine tokens of class 1 share nearly all probability: each e^9/9 exceeds the e^6 of class 3, unless more than
    # nine are requested.
    belief.topk(9)
    assert opened == [[1]]
    opened.clear()
    belief.topk(10)
    assert opened == [[1], [3, 2]]


@torch.no_grad()
def test_only_the_groups_of_allowed_tokens_are_computed():
    head = hierarchical(classes=5)
    belief = head.next_token(torch.randn(2, WIDTH), None)
    opened = []
    inner, belief._open = belief._open, lambda rows, groups: opened.append(groups.tolist()) or inner(rows, groups)
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[17] = True
    top = belief.topk(1, Bias.only(allowed))
    assert top.ids.tolist() == [[17], [17]]
    assert opened == [[int(head.rank[17]) // head._class_size] * 2]


@pytest.mark.parametrize("make", [adaptive, hierarchical])
@torch.no_grad()
def test_a_nan_in_a_group_is_refused_with_the_row_that_computes_it(make):
    head = make()
    head.table.matrices[-1].fill_(math.nan) if make is adaptive else head.weight.fill_(math.nan)
    belief = head.next_token(torch.randn(3, WIDTH), None)
    with pytest.raises(BeliefError) as caught:
        belief.topk(VOCABULARY)
    row = caught.value.row
    assert 0 <= row < 3
    assert str(caught.value) == f"the head's logits of row {row} hold a NaN, an infinity or no finite number"


def test_ids_map_to_their_group():
    groups = Groups(torch.arange(7), torch.arange(7), torch.tensor([2, 5]), 2)
    assert groups.group_of(torch.arange(7)).tolist() == [-1, -1, 0, 0, 0, 1, 1]
