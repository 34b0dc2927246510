"""The classification head: pooling of encoder states, class weights, multi-label loss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from translume.config import ClassifySettings
from translume.errors import SettingsError
from translume.heads.classify import ClassifyHead
from translume.model import HeadData, HeadSizes, LossOptions
from translume.model.classifier import NGrams, Pooling

WAYS = ("mean", "max", "first", "attention")


def pooling_of(way, width=5):
    settings = ClassifySettings(pooling="ngrams", ngrams=(2, 3), filters=7)
    return Pooling.from_settings(settings if way == "ngrams" else ClassifySettings(pooling=way), width)


class Labelled:
    """Texts with one label each, or several."""

    def __init__(self, targets):
        self.targets, self.pairs = targets, len(targets)

    def source(self, index):
        return np.zeros(1, np.int64)

    def target(self, index):
        return np.array(self.targets[index], np.int64)


def head(targets, classes=3, **settings):
    torch.manual_seed(1)
    made = ClassifyHead(
        ClassifySettings(**settings), HeadSizes(width=5, vocabulary=classes, source_vocabulary=7), None
    ).double()
    data = HeadData(
        corpus=Labelled(targets), source_pieces=[], target_pieces=["a", "b", "c"], end=-1, specials=frozenset()
    )
    made.learn(data)
    return made


@given(
    way=st.sampled_from((*WAYS, "ngrams")),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_padding_is_not_pooled_and_an_empty_source_gives_zeros(way, lengths, seed):
    torch.manual_seed(seed)
    pooling = pooling_of(way)
    if pooling.query is not None:
        torch.nn.init.normal_(pooling.query)
    memory = torch.randn(len(lengths), 7, 5)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    pooled = pooling(memory, mask)
    assert bool(pooled.isfinite().all())
    other = torch.where(mask[..., None], memory, torch.tensor(1e4))
    torch.testing.assert_close(pooling(other, mask), pooled)
    for row, length in enumerate(lengths):
        alone = pooling(memory[row : row + 1, : max(length, 1)], mask[row : row + 1, : max(length, 1)])[0]
        torch.testing.assert_close(pooled[row], alone)
        if not length:
            assert not bool(pooled[row].any())


def test_each_pooling_of_an_example():
    memory = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [50.0, 50.0]]])
    mask = torch.tensor([[True, True, False]])
    by_hand = {"mean": [2.0, -3.0], "max": [3.0, -2.0], "first": [1.0, -4.0], "attention": [2.0, -3.0]}
    assert {way: Pooling(way, 2)(memory, mask)[0].tolist() for way in WAYS} == by_hand
    attention = Pooling("attention", 2)
    attention.query.data = torch.tensor([0.0, 2.0**0.5])  # scores -4 and -2
    share = 1 / (1 + np.exp(-2.0))
    assert attention(memory, mask)[0, 0].item() == pytest.approx(1 * (1 - share) + 3 * share, rel=1e-6)


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 99), holes=st.booleans())
@torch.no_grad()
def test_ngrams_take_the_maximum_over_windows_that_contain_a_token(lengths, seed, holes):
    torch.manual_seed(seed)
    pooling = pooling_of("ngrams").double()
    memory = torch.randn(len(lengths), 7, 5, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    if holes:
        mask &= torch.rand(mask.shape) < 0.5
    pooled, weights = pooling(memory, mask), pooling.weights(memory, mask)
    for row in range(len(lengths)):
        states = F.pad(memory[row] * mask[row, :, None], (0, 0, 7, 7))  # zeros far beyond both ends
        inside = F.pad(mask[row], (7, 7))
        wanted, counted, responding = [], torch.zeros(21, dtype=torch.float64), 0
        for layer in pooling.ngrams.filters:
            length = layer.kernel_size[0]
            starts = [start for start in range(21 - length) if inside[start : start + length].any()]
            for weight, bias in zip(layer.weight, layer.bias, strict=True):
                answers = [float((weight.mT * states[start : start + length]).sum() + bias) for start in starts]
                best = max([0.0, *answers])
                wanted.append(best)
                if best > 0:
                    responding += 1
                    start = starts[answers.index(best)]
                    share = inside[start : start + length].double()
                    counted[start : start + length] += share / share.sum()
        torch.testing.assert_close(pooled[row], torch.tensor(wanted, dtype=torch.float64))
        torch.testing.assert_close(weights[row], counted[7:14] / max(1, responding))


def test_ngrams_of_an_example():
    ngrams = NGrams(1, (2,), 3)
    ngrams.filters[0].weight.data = torch.tensor([[[1.0, 2.0]], [[-1.0, 0.0]], [[1.0, 1.0]]])
    ngrams.filters[0].bias.data = torch.tensor([0.0, 1.0, -9.0])
    states, mask = torch.tensor([[[1.0], [2.0], [50.0]]]), torch.tensor([[True, True, False]])
    # windows (0, 1), (1, 2), (2, 0): the first filter gives 2, 5, 2, the second 1, 0, -1, the third no positive value
    assert ngrams(states, mask).tolist() == [[5.0, 1.0, 0.0]]
    assert ngrams.shares(states, mask).tolist() == [[0.75, 0.25, 0.0]]


def test_gradients_of_ngrams_are_finite_for_an_empty_source():
    pooling = pooling_of("ngrams")
    memory = torch.randn(2, 7, 5, requires_grad=True)
    pooling(memory, torch.tensor([[True] * 7, [False] * 7])).sum().backward()
    assert bool(memory.grad.isfinite().all())
    assert all(bool(each.grad.isfinite().all()) for each in pooling.parameters())
    assert not bool(memory.grad[1].any())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filters": 7}, ": filters is 7 with pooling 'mean', expected pooling 'ngrams'"),
        ({"pooling": "max", "ngrams": (2,)}, ": ngrams is (2,) with pooling 'max', expected pooling 'ngrams'"),
        ({"pooling": "ngrams", "ngrams": ()}, ".ngrams: found (), expected at least 1"),
        ({"pooling": "ngrams", "ngrams": (0, 3)}, ".ngrams.0: found 0, expected greater than or equal to 1"),
    ],
)
def test_filters_without_ngram_pooling_are_refused(settings, message):
    with pytest.raises(SettingsError) as error:
        ClassifySettings(**settings)
    assert str(error.value) == f"model.head{message}"


def test_bf16_states_are_pooled_in_fp32():
    memory = torch.ones(1, 1009, 1, dtype=torch.bfloat16)  # in bf16 the sum would stop at 256
    pooled = Pooling("mean", 1)(memory, torch.ones(1, 1009, dtype=torch.bool))
    assert (pooled.item(), pooled.dtype) == (1.0, torch.bfloat16)


def test_balanced_weights_of_an_example():
    assert head([[0], [0], [0], [1]], class_weights="balanced").weights.tolist() == pytest.approx(
        [4 / (3 * 3), 4 / (3 * 1), 4 / (3 * 1)]
    )
    several = head([[0, 1], [0], [0, 2], []], labels="several", class_weights="balanced")
    assert several.weights.tolist() == pytest.approx([1 / 3, 3.0, 3.0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weighted_losses_equal_those_of_torch(smoothing):
    made = head([[0], [0], [0], [1]], class_weights="balanced")
    hidden, labels = torch.randn(11, 5, dtype=torch.float64, requires_grad=True), torch.arange(11) % 3
    loss = made.loss(hidden, labels, None, LossOptions(smoothing))
    logits = F.linear(hidden, made.weight, made.bias)
    smooth = -logits.log_softmax(-1).mean(-1)
    each = (1 - smoothing) * F.cross_entropy(logits, labels, reduction="none") + smoothing * smooth
    wanted = (made.weights[labels] * each).sum()
    torch.testing.assert_close(loss.objective, wanted)
    torch.testing.assert_close(loss.nll, F.cross_entropy(logits, labels, reduction="sum").detach())
    grown, slope = (torch.autograd.grad(value, hidden)[0] for value in (loss.objective, wanted))
    torch.testing.assert_close(grown, slope)


def test_the_multi_label_loss_is_the_sum_over_decisions():
    made = head([[0, 1], [0], [2]], labels="several")
    hidden = torch.randn(7, 5, dtype=torch.float64)
    labels = torch.randint(2, (7, 3))
    loss = made.loss(hidden, labels, None, LossOptions())
    logits = F.linear(hidden, made.weight, made.bias)
    wanted = F.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum")
    torch.testing.assert_close(loss.objective, wanted)
    torch.testing.assert_close(loss.nll, wanted.detach())
    assert loss.tokens == 7
    belief = made.next_token(hidden, None)
    assert not belief.normalised
    torch.testing.assert_close(belief.log_probs().exp(), logits.sigmoid())
