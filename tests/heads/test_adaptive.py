"""The adaptive softmax: frequency bands, torch's own as reference, and tying to the embedding."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from translume.checkpoint.building import build_model
from translume.checkpoint.weights import fill, tensor_file, unique_tensors
from translume.config import AdaptiveSettings, ModelSettings
from translume.errors import SettingsError
from translume.heads.adaptive import AdaptiveHead
from translume.heads.token_statistics import target_counts
from translume.model import HeadData, HeadSizes, LossOptions
from translume.model.embedding import BandedTable

WIDTH, VOCABULARY = 61, 211
CUTOFFS = (17, 101)


class Targets:
    """Training targets of seven tokens; low ids are more frequent."""

    pairs = 97

    def __init__(self, vocabulary):
        self._ids = (np.random.default_rng(3).random((self.pairs, 7)) ** 3 * vocabulary).astype(np.int64)

    def source(self, index):
        return self._ids[index]

    def target(self, index):
        return self._ids[index]


def data(vocabulary):
    pieces = [str(each) for each in range(vocabulary)]
    return HeadData(
        corpus=Targets(vocabulary), source_pieces=pieces, target_pieces=pieces, end=2, specials=frozenset({0, 1, 2, 3})
    )


def head_of(**changes):
    torch.manual_seed(3)
    settings = AdaptiveSettings(**{"cutoffs": CUTOFFS, **changes})
    return AdaptiveHead(settings, HeadSizes(width=WIDTH, vocabulary=VOCABULARY, source_vocabulary=3), None).double()


def test_results_equal_torchs_adaptive_softmax():
    head = head_of()
    with torch.no_grad():
        head.tail_bias.normal_()
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, CUTOFFS, div_value=4.0, head_bias=True).double()
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat([head.table.matrices[0], head.tails]))
        theirs.head.bias.zero_()[CUTOFFS[0] :] = head.tail_bias
        for band, (down, up) in enumerate(theirs.tail, 1):
            down.weight.copy_(head.table.projections[band - 1])
            up.weight.copy_(head.table.matrices[band])
    head.table.arrange(torch.randperm(VOCABULARY))
    hidden = torch.randn(53, WIDTH, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (53,))
    output, mean = theirs(hidden, head.table.rank[labels])
    loss = head.loss(hidden, labels, None, LossOptions())
    torch.testing.assert_close(loss.objective, mean * 53)
    torch.testing.assert_close(head.score(hidden, labels, None), output)
    belief = head.next_token(hidden, None)
    torch.testing.assert_close(belief.log_probs()[:, head.table.order], theirs.log_prob(hidden))
    assert torch.equal(head.table.rank[belief.topk(1).ids[:, 0]], theirs.predict(hidden))


@pytest.mark.parametrize("text", [False, True])
def test_label_smoothing_follows_the_documentation(text):
    head, epsilon = head_of(), 0.1
    head.table.arrange(torch.randperm(VOCABULARY))
    hidden = torch.randn(53, WIDTH, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (53,))
    marks = torch.arange(VOCABULARY) > 3 if text else torch.ones(VOCABULARY, dtype=torch.bool)
    by_place = marks[head.table.order].double()
    log_probs = head.next_token(hidden, None).log_probs()[:, head.table.order]
    ends = [0, *head.table.ends]
    tails = torch.stack([log_probs[:, a:b].logsumexp(-1) for a, b in pairwise(ends[1:])], 1)
    share = torch.cat([by_place[: ends[1]], torch.stack([by_place[a:b].sum() for a, b in ((17, 101), (101, 211))])])
    first = torch.cat([log_probs[:, : ends[1]], tails], 1)
    wanted = -epsilon * (first @ (share / share.sum())).sum()
    for row, label in enumerate(labels.tolist()):
        place = int(head.table.rank[label])
        band = sum(place >= end for end in CUTOFFS)
        wanted -= (1 - epsilon) * first[row, place if not band else ends[1] + band - 1]
        if band:
            inside = log_probs[row, ends[band] : ends[band + 1]] - tails[row, band - 1]
            spread = by_place[ends[band] : ends[band + 1]]
            wanted -= (1 - epsilon) * inside[place - ends[band]] + epsilon * (inside @ spread) / spread.sum()
    loss = head.loss(hidden, labels, None, LossOptions(epsilon, smoothed=marks if text else None))
    torch.testing.assert_close(loss.objective, wanted)


def test_a_head_without_signal_predicts_the_uniform_distribution():
    log_probs = head_of().next_token(torch.zeros(1, WIDTH, dtype=torch.float64), None).log_probs()
    torch.testing.assert_close(log_probs, torch.full_like(log_probs, -math.log(VOCABULARY)))


def test_bands_order_tokens_by_frequency_in_the_targets():
    head = head_of()
    head.learn(data(VOCABULARY))
    counts = torch.from_numpy(target_counts(data(VOCABULARY), VOCABULARY))[head.table.order]
    first, second, third = counts.split([17, 84, 110])
    assert first.min() >= second.max() >= second.min() >= third.max()
    assert int(head.table.rank[2]) < 17  # every target ends with EOS
    assert torch.equal(head.table.rank[head.table.order], torch.arange(VOCABULARY))
    for part in head.table.order.split([17, 84, 110]):
        assert torch.equal(part, part.sort().values)


@pytest.mark.parametrize("size", [1, 2, 5, 101])
def test_default_bands_end_at_an_eighth_and_a_half_of_the_vocabulary(size):
    table = BandedTable(size, 7, (), 4)
    ends = {1: (1,), 2: (1, 2), 5: (2, 5), 101: (12, 50, 101)}[size]
    assert table.ends == ends
    assert [tuple(matrix.shape) for matrix in table.matrices] == [
        (end - begin, [7, 1, 1][band]) for band, (begin, end) in enumerate(zip((0, *ends), ends, strict=False))
    ]
    assert table(torch.arange(size).expand(3, -1)).shape == (3, size, 7)


@pytest.mark.parametrize("cutoffs", [(5, 3), (0, 3), (3, 11), (3, 3)])
def test_cutoffs_that_do_not_ascend_below_the_vocabulary_are_refused(cutoffs):
    with pytest.raises(SettingsError) as caught:
        BandedTable(11, 7, cutoffs, 4)
    assert str(caught.value) == (
        f"model.head.cutoffs: {list(cutoffs)}, expected ascending numbers from 1 to below the 11 tokens of the "
        "vocabulary"
    )


def test_a_banded_embedding_projects_each_bands_vectors_to_the_width():
    table = BandedTable(11, 13, (3, 7), 2)
    table.arrange(torch.tensor([10, 4, 0, 3, 9, 1, 2, 8, 7, 6, 5]))
    assert table.order.tolist() == [0, 4, 10, 1, 2, 3, 9, 5, 6, 7, 8]
    vectors = table(torch.tensor([[4, 9], [8, 4]]))
    first, second, third = table.matrices
    torch.testing.assert_close(vectors[0, 0], first[1])
    torch.testing.assert_close(vectors[0, 1], second[3] @ table.projections[0])
    torch.testing.assert_close(vectors[1, 0], third[3] @ table.projections[1])
    torch.testing.assert_close(vectors[1, 1], first[1])


def settings_of(tie, **changes):
    return ModelSettings(
        width=16, feed_forward=23, encoder_layers=1, decoder_layers=1, attention_heads=2, dropout=0.0,
        head=AdaptiveSettings(tie=tie, factor=2), **changes,
    )  # fmt: skip


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_a_tied_head_shares_every_band_and_the_order_with_its_embedding(tie):
    torch.manual_seed(2)
    model = build_model(settings_of(tie), 101, 101).eval()
    shared = model.decoder.embedding.table is model.head.table
    assert shared == (tie != "none")
    assert (model.encoder.embedding.table is model.head.table) == (tie == "all")
    names = list(unique_tensors(model))
    assert sum(name.endswith("order") for name in names) == 1
    source, target, labels = torch.randint(4, 101, (3, 29, 23))
    mask = torch.ones_like(source, dtype=torch.bool)
    loss = model.loss(source, mask, target, labels, mask)
    assert math.log(101) - 1 < float(loss.nll) / (29 * 23) < math.log(101) + 1
    model.head.learn(data(101))
    before = model.decoder.embedding.table(target)
    loss = model.loss(source, mask, target, labels, mask)
    loss.objective.backward()
    assert before.shape == (29, 23, 16)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("tie", "side"), [("all", "source"), ("all", "target"), ("target", "target")])
def test_pretrained_vectors_are_refused_with_bands(tie, side):
    with pytest.raises(SettingsError) as caught:
        build_model(settings_of(tie, **{f"pretrained_{side}": "vectors.txt"}), 101, 101)
    assert str(caught.value) == (
        f"model.pretrained_{side}: an embedding that is tied to an adaptive head has vectors of several sizes; "
        "set model.head.tie = 'none'"
    )


def test_a_saved_model_keeps_its_bands(tmp_path):
    model = build_model(settings_of("all"), 101, 101).eval()
    model.head.learn(data(101))
    path = tmp_path / "weights.safetensors"
    tensor_file(unique_tensors(model))(path)
    again = build_model(settings_of("all"), 101, 101).eval()
    fill(again, path)
    assert torch.equal(again.encoder.embedding.table.order, model.head.table.order)
    ids = torch.randint(4, 101, (3, 5, 7))
    mask = torch.ones(5, 7, dtype=torch.bool)
    losses = [each.loss(ids[0], mask, ids[1], ids[2], mask).nll for each in (model, again)]
    assert torch.equal(*losses)


class Shapes(TorchDispatchMode):
    """Records the shapes of all concatenated tensors."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and "cat" in str(func):
            self.seen.add(tuple(result.shape))
        return result


def test_a_decoding_step_concatenates_logits_and_not_vectors():
    head = head_of()
    first = head.table.ends[0] + len(head.tails)
    with Shapes() as shapes, torch.no_grad():
        head.next_token(torch.randn(3, WIDTH).double(), None)
    assert shapes.seen == {(3, first)}
