"""The copy head: copying from the row's own sentence, with repeated tokens pooled and special tokens excluded."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.heads.conftest import LargestTensor, relative_error

from translume.belief import BeliefError, Bias
from translume.checkpoint import build_model
from translume.config import CopySettings, ModelSettings
from translume.decoding import BeamSearch, search
from translume.heads.copy import CopyHead
from translume.model import HeadData, HeadSizes, LossOptions

WIDTH, SOURCES, VOCABULARY, ROWS = 13, 89, 101, 67
LENGTHS = (11, 1, 9, 7, 0)
SENTENCES = len(LENGTHS)
PLAIN = LossOptions()
TEXT = torch.arange(VOCABULARY) > 3
few = settings(deadline=None, max_examples=30)


def copy_head(dtype=torch.float64, seed=5, spread=1.0, copied=True, bias=True):
    """A copy head for which source and target share some tokens, with random gate weights."""
    torch.manual_seed(seed)
    sizes = HeadSizes(width=WIDTH, vocabulary=VOCABULARY, source_vocabulary=SOURCES)
    head = CopyHead(CopySettings(tie="none", bias=bias), sizes, None)
    with torch.no_grad():
        head.gate.weight.normal_(std=spread)
        head.query.weight.mul_(spread)
        head.gate.bias.zero_()
        if copied:
            head.copied[:] = torch.randint(-1, 31, (SOURCES,)).clamp(max=29)
            head.copied[:20] = -1
    return head.to(dtype)


def begin_context(head, dtype=torch.float64, seed=1, lengths=LENGTHS):
    """The context of several sentences with repeated tokens, and their ids [B, S], masks and memories."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    source = torch.randint(SOURCES, (len(lengths), longest), generator=generator)
    source[:, longest // 2 :] = source[:, : longest - longest // 2]
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    memory = torch.randn(len(lengths), longest, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    memory.requires_grad_()
    return head.begin(source, mask, memory), source, mask, memory


def states(rows=ROWS, dtype=torch.float64, seed=2, sentences=SENTENCES):
    """Hidden states, labels (many of them in the source), and the sentences of the rows in any order."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, (rows,), generator=generator)
    labels[::2] %= 31
    return hidden, labels, torch.randint(sentences, (rows,), generator=generator)


def by_definition(head, hidden, owners, source, mask, memory):
    """[n, V]: log p, computed row by row and place by place from probabilities in fp64."""
    found = []
    for state, owner in zip(hidden, owners.tolist(), strict=True):
        written = F.linear(state, head.softmax.weight, head.softmax.bias).softmax(-1)
        places = [
            place for place in range(source.size(1)) if mask[owner, place] and head.copied[source[owner, place]] >= 0
        ]
        if places:
            read = memory[owner, places]
            weights = (read @ (head.query.weight @ state) / math.sqrt(WIDTH)).softmax(-1)
            gate = torch.sigmoid(head.gate(torch.cat([state, weights @ read])))
            copies = torch.zeros_like(written).index_add(0, head.copied[source[owner, places]], weights)
            written = gate * written + (1 - gate) * copies
        found.append(written.log())
    return torch.stack(found)


@few
@given(
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.1, 1.0, 3.0]),
    bias=st.booleans(),
    options=st.builds(
        LossOptions, st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 1e-2]), st.sampled_from([None, TEXT])
    ),
)
def test_loss_and_gradients_match_the_definition(seed, spread, bias, options):
    """This includes the gradient of the memory, which trains the encoder."""
    head = copy_head(seed=seed, spread=spread, bias=bias)
    context, source, mask, memory = begin_context(head, seed=seed)
    hidden, labels, owners = states(seed=seed)
    wanted = by_definition(head, hidden, owners, source, mask, memory)
    nll = -wanted.gather(1, labels[:, None]).sum()
    smoothed = wanted if options.smoothed is None else wanted[:, options.smoothed]
    objective = (1 - options.label_smoothing) * nll - options.label_smoothing * smoothed.mean(-1).sum()
    normalisers = F.linear(hidden, head.softmax.weight, head.softmax.bias).logsumexp(-1)
    objective = objective + options.z_loss * normalisers.square().sum()
    loss = head.loss(hidden, labels, context.select(owners), options)
    assert relative_error(loss.objective, objective) < 1e-10
    assert relative_error(loss.nll, nll) < 1e-10
    learnt = [hidden, memory, *head.parameters()]
    found, slopes = (torch.autograd.grad(each, learnt) for each in (loss.objective, objective))
    for left, right in zip(found, slopes, strict=True):
        assert float((left - right).norm()) < 1e-8 * max(1.0, float(right.norm()))
    belief = head.next_token(hidden, context.select(owners))
    torch.testing.assert_close(belief.log_probs(), wanted, rtol=1e-9, atol=1e-9)


@few
@given(seed=st.integers(0, 99), k=st.integers(1, 14), data=st.data())
@torch.no_grad()
def test_topk_is_exact_under_any_bias(seed, k, data):
    head = copy_head(seed=seed, spread=2.0)
    hidden, _, owners = states(seed=seed)
    belief = head.next_token(hidden, begin_context(head, seed=seed)[0].select(owners))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(ROWS, (131,), generator=generator)
    values = torch.randn(131, generator=generator, dtype=torch.float64) * 4
    values[::3] = -math.inf
    allowed = data.draw(st.sampled_from(["all", "some", "each", "two"]))
    marked = {
        "all": None,
        "some": TEXT,
        "each": torch.rand(ROWS, VOCABULARY, generator=generator) < 0.5,
        "two": (torch.arange(VOCABULARY) == 50) | (torch.arange(VOCABULARY) == int(head.copied.max())),
    }[allowed]
    bias = Bias(rows, torch.randint(31, (131,), generator=generator), values, marked)
    for given_bias, ranks in ((None, belief.log_probs()), (bias, bias.add_to(belief.log_probs()))):
        top = belief.topk(k, given_bias)
        assert torch.equal(top.ids, ranks.sort(descending=True, stable=True).indices[:, :k])
        torch.testing.assert_close(top.ranks_by, ranks.gather(1, top.ids), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(top.log_probs, belief.log_probs().gather(1, top.ids), rtol=1e-9, atol=1e-9)


@few
@given(seed=st.integers(0, 99), rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=29))
@torch.no_grad()
def test_a_selection_of_rows_keeps_their_scores(seed, rows):
    head = copy_head()
    hidden, labels, owners = states(seed=seed)
    context, chosen = begin_context(head)[0].select(owners), torch.tensor(rows)
    whole = head.score(hidden, labels, context)
    part = head.score(hidden[chosen], labels[chosen], context.select(chosen))
    torch.testing.assert_close(part, whole[chosen], rtol=1e-10, atol=1e-10)
    assert context.select(chosen).keys is context.keys


def small(attention, gate, copied, source):
    """The distribution of a head over five tokens with these attention weights and this gate, and the head's terms."""
    sizes = HeadSizes(width=1, vocabulary=5, source_vocabulary=len(copied))
    head = CopyHead(CopySettings(tie="none"), sizes, None).double()
    with torch.no_grad():
        head.softmax.weight.zero_()
        head.query.weight.fill_(1.0)
        head.gate.bias.fill_(math.log(gate / (1 - gate)))
        head.copied.copy_(torch.tensor(copied))
    memory = torch.tensor(attention, dtype=torch.float64).log()[None, :, None]
    context = head.begin(torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool), memory)
    hidden = torch.ones(1, 1, dtype=torch.float64)
    terms = head.terms(hidden, context)
    return head.next_token(hidden, context), terms["gate"][0].tolist(), terms["copy_attention"][0].tolist()


def test_a_repeated_token_gets_the_sum_of_its_weights():
    belief, gate, attention = small([0.5, 0.2, 0.3], gate=0.25, copied=[0, 1, 2, 3, 4], source=[3, 1, 3])
    assert belief.log_probs()[0].exp().tolist() == pytest.approx([0.05, 0.2, 0.05, 0.65, 0.05])
    assert belief.topk(3).ids.tolist() == [[3, 1, 0]]
    assert gate == pytest.approx([0.25])
    assert attention == pytest.approx([0.5, 0.2, 0.3])


def test_source_tokens_without_a_target_token_get_no_attention():
    belief, _, attention = small([0.5, 0.2, 0.3], gate=0.5, copied=[-1, 1, 2, -1, 4], source=[3, 1, 2])
    assert belief.log_probs()[0].exp().tolist() == pytest.approx([0.1, 0.3, 0.4, 0.1, 0.1])
    assert attention == pytest.approx([0.0, 0.4, 0.6])


def test_without_copyable_tokens_the_softmax_remains():
    belief, gate, attention = small([0.5, 0.5], gate=0.01, copied=[-1, -1, 2, 3, 4], source=[0, 1])
    assert belief.log_probs()[0].exp().tolist() == pytest.approx([0.2] * 5)
    assert (gate, attention) == ([1.0], [0.0, 0.0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_empty_source_gives_finite_results(smoothing):
    head = copy_head(torch.float32)
    context, _, _, memory = begin_context(head, torch.float32, lengths=(0, 5))
    hidden, labels, owners = states(dtype=torch.float32, sentences=2)
    loss = head.loss(hidden, labels, context.select(owners), LossOptions(smoothing))
    grown = torch.autograd.grad(loss.objective, [hidden, memory, *head.parameters()])
    assert bool(loss.objective.isfinite())
    assert all(bool(each.isfinite().all()) for each in grown)
    assert float(grown[1][0].abs().sum()) == 0.0  # of the empty source's memory


@torch.no_grad()
def test_padding_changes_nothing():
    head = copy_head()
    context, source, mask, memory = begin_context(head)
    hidden, labels, owners = states()
    wanted = head.score(hidden, labels, context.select(owners))
    other = head.begin(source.masked_fill(~mask, 77), mask, memory.masked_fill(~mask[..., None], 1e4))
    torch.testing.assert_close(head.score(hidden, labels, other.select(owners)), wanted, rtol=1e-12, atol=0)


@torch.no_grad()
def test_a_very_unlikely_copy_has_a_finite_log_probability():
    """A probability of e⁻²⁰⁰ would underflow to zero, with a logarithm of −∞."""
    head = copy_head(torch.float32)
    head.query.weight.zero_()
    head.softmax.bias[:] = 300.0 * (torch.arange(VOCABULARY) == 99)
    head.gate.weight.zero_()
    head.gate.bias.fill_(200.0)
    hidden, _, owners = states(dtype=torch.float32)
    context, *_ = begin_context(head, torch.float32, lengths=(11, 9))
    ids = context.ids[owners % 2]
    labels = ids.amax(-1)
    score = head.score(hidden, labels, context.select(owners % 2))
    counts = (ids == labels[:, None]).sum(-1) / (ids >= 0).sum(-1)
    torch.testing.assert_close(score, counts.log() - 200.0, rtol=1e-6, atol=1e-4)


def data(sources, targets):
    return HeadData(corpus=None, source_pieces=sources, target_pieces=targets, end=2, specials=frozenset({0, 1, 2, 3}))


class TestCopiedIds:
    MARKS = ("<pad>", "<s>", "</s>", "<unk>")

    def head(self, sources, targets):
        return CopyHead(
            CopySettings(tie="none"), HeadSizes(width=3, vocabulary=targets, source_vocabulary=sources), None
        )

    def test_an_untrained_head_copies_ids_if_the_vocabularies_may_be_equal(self):
        assert self.head(7, 7).copied.tolist() == list(range(7))
        assert self.head(6, 7).copied.tolist() == [-1] * 6

    def test_learning_maps_equally_spelt_tokens_except_special_ones(self):
        head = self.head(7, 6)
        head.learn(data((*self.MARKS, "Anna", "lives", "in"), (*self.MARKS, "in", "Anna")))
        assert head.copied.tolist() == [-1, -1, -1, -1, 5, -1, 4]

    def test_the_map_is_saved_with_the_weights(self):
        head, other = self.head(6, 6), self.head(6, 6)
        head.learn(data((*self.MARKS, "a", "b"), (*self.MARKS, "b", "a")))
        other.load_state_dict(head.state_dict())
        assert other.copied.tolist() == [-1, -1, -1, -1, 5, 4]


@pytest.mark.parametrize("where", ["hidden", "memory"])
@torch.no_grad()
def test_a_nan_is_refused_with_its_row(where):
    head = copy_head(torch.float32)
    context, source, mask, memory = begin_context(head, torch.float32)
    hidden, _, _ = states(rows=5, dtype=torch.float32)
    hidden = hidden.detach().clone()
    if where == "hidden":
        hidden[2, 3] = math.nan
    else:
        memory[2] = math.nan
        context = head.begin(source, mask, memory)
    belief = head.next_token(hidden, context)
    for read in (lambda: belief.topk(3), belief.log_probs, lambda: belief.log_prob_of(torch.zeros(5, 1).long())):
        with pytest.raises(BeliefError) as caught:
            read()
        assert caught.value.row == 2
        assert str(caught.value) == "the head's logits of row 2 hold a NaN, an infinity or no finite number"


def test_no_tensor_of_rows_times_memory_is_created():
    head = copy_head(torch.float32)
    context, *_ = begin_context(head, torch.float32, lengths=(31, 29))
    hidden, labels, owners = states(rows=307, dtype=torch.float32, sentences=2)
    with LargestTensor() as largest:
        head.loss(hidden, labels, context.select(owners), LossOptions(0.1)).objective.backward()
    assert largest.elements < 307 * 31 * WIDTH / 2


def build_copy_model(size=101, width=64, tie="all", layers=1):
    settings = ModelSettings(
        width=width, feed_forward=2 * width, encoder_layers=layers, decoder_layers=layers, attention_heads=4,
        head=CopySettings(tie=tie),
    )  # fmt: skip
    torch.manual_seed(3)
    return build_model(settings, size, size).eval()


@torch.no_grad()
def test_scores_of_a_search_equal_those_of_the_loss_alone_and_in_a_batch():
    model = build_copy_model()
    model.head.gate.bias.zero_()
    lengths = torch.tensor([7, 3, 5])
    source = torch.randint(4, 101, (3, 7))
    mask = torch.arange(7) < lengths[:, None]
    limits = torch.full((3,), 6)
    found = search(model.step, model.start(source, mask), bos=1, eos=2, strategy=BeamSearch(width=4), limits=limits)
    for number, hypotheses in enumerate(found):
        own, place = source[number : number + 1, : lengths[number]], slice(number, number + 1)
        alone = search(
            model.step, model.start(own, mask[place, : lengths[number]]), bos=1, eos=2, strategy=BeamSearch(width=4),
            limits=limits[place],
        )  # fmt: skip
        assert [each.tokens for each in alone[0]] == [each.tokens for each in hypotheses]
        best = hypotheses[0]
        labels = torch.tensor([best.tokens])
        target = F.pad(labels[:, :-1], (1, 0), value=1)
        score = model.score(own, torch.ones_like(own, dtype=torch.bool), target, labels, torch.ones_like(labels) > 0)
        assert float(score.sum()) == pytest.approx(best.log_prob, abs=1e-4)


def test_copying_generalises_to_tokens_that_were_never_labels():
    """Each target equals its source; half of the tokens occur only in the test data."""
    model = build_copy_model(61, 32, "all", 1).train()
    generator = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    mask = torch.ones(16, 5, dtype=torch.bool)
    for _ in range(150):
        source = torch.from_numpy(generator.integers(4, 34, (16, 5)))
        optimizer.zero_grad()
        model.loss(source, mask, F.pad(source[:, :-1], (1, 0), value=1), source, mask).objective.backward()
        optimizer.step()
    source = torch.from_numpy(generator.integers(34, 61, (16, 5)))
    loss = model.eval().loss(source, mask, F.pad(source[:, :-1], (1, 0), value=1), source, mask)
    assert float(loss.nll) / loss.tokens < math.log(61) - 1
