"""The shortlist head: candidates learned from pairs, listed per sentence, and predicted exclusively."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import Bias, exact_topk
from translume.checkpoint.building import build_model
from translume.config import ModelSettings, ShortlistSettings
from translume.decoding import BeamSearch, ForbidTokens, Greedy, search
from translume.heads.candidates import translation_table
from translume.heads.shortlist import ShortlistHead
from translume.model import HeadData, HeadSizes, LossOptions

WIDTH, SOURCES, VOCABULARY = 13, 89, 101
END = 2
few = settings(deadline=None, max_examples=60)


class Pairs:
    def __init__(self, pairs):
        self._pairs = [tuple(np.array(side, np.int32) for side in pair) for pair in pairs]
        self.pairs = len(pairs)

    def source(self, index):
        return self._pairs[index][0]

    def target(self, index):
        return self._pairs[index][1]


def data(pairs, sources, targets):
    return HeadData(
        corpus=Pairs(pairs),
        source_pieces=[f"s{number}" if isinstance(sources, int) else sources[number] for number in range_of(sources)],
        target_pieces=[f"t{number}" if isinstance(targets, int) else targets[number] for number in range_of(targets)],
        end=END,
        specials=frozenset({0, 1, END, 3}),
    )


def range_of(pieces):
    return range(pieces if isinstance(pieces, int) else len(pieces))


def random_pairs(seed, pairs=61, low=4):
    generator = np.random.default_rng(seed)
    return [
        (generator.integers(low, SOURCES, generator.integers(1, 9)), generator.integers(low, VOCABULARY, 5))
        for _ in range(pairs)
    ]


def head_of(frequent=5, candidates=3, bias=True, learn=True, seed=5):
    torch.manual_seed(seed)
    sizes = HeadSizes(width=WIDTH, vocabulary=VOCABULARY, source_vocabulary=SOURCES)
    chosen = ShortlistSettings(tie="none", frequent=frequent, candidates=candidates, bias=bias)
    head = ShortlistHead(chosen, sizes, None)
    if head.softmax.bias is not None:
        torch.nn.init.normal_(head.softmax.bias)
    if learn:
        head.learn(data(random_pairs(3), SOURCES, VOCABULARY))
    return head.eval()


def sources(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, SOURCES, (len(lengths), max(lengths)), generator=generator)
    return ids, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def begin_context(head, lengths, seed=1):
    ids, mask = sources(lengths, seed)
    return head.begin(ids, mask, torch.zeros(*ids.shape, WIDTH))


def states(rows, seed=1):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def expected_candidates(head, ids, mask):
    """The candidates of one sentence, from the head's tables."""
    found = set(head.always.tolist())
    for token in ids[mask].tolist():
        found |= set(head.translations[token].tolist())
    return sorted(found - {-1})


class TestTranslations:
    WORDS = ("<pad>", "<s>", "</s>", "<unk>", "das", "haus", "buch", "ein", "2026", "nie")
    TARGETS = ("<pad>", "<s>", "</s>", "<unk>", "the", "house", "book", "a", "2026", "never")
    PAIRS = (([4, 5], [4, 5]), ([4, 6], [4, 6]), ([7, 6], [7, 6]))

    def test_words_that_occur_together_are_aligned(self):
        """The pairs das haus, das buch, ein buch: the example of Brown et al. as Koehn presents it."""
        table = translation_table(data(self.PAIRS, self.WORDS, self.TARGETS), 2)
        assert table[[4, 5, 6, 7], 0].tolist() == [4, 5, 6, 7]

    def test_one_iteration_worked_by_hand(self, monkeypatch):
        monkeypatch.setattr("translume.heads.candidates.ROUNDS", 1)
        # Target 6 is from 4, from 5 or unaligned, a third each; 7 is from 4 or unaligned, a half each.
        table = translation_table(data([([4, 5], [6]), ([4], [7])], 6, 8), 3)
        assert table[4].tolist() == [7, 6, -1]  # ½ against ⅓
        assert table[5].tolist() == [6, -1, -1]

    def test_an_equally_spelt_token_is_a_candidate_even_if_unseen(self):
        table = translation_table(data(self.PAIRS, self.WORDS, self.TARGETS), 2)
        assert table[8].tolist() == [8, -1]
        assert table[9].tolist() == [-1, -1]
        assert table[:4].tolist() == [[-1, -1]] * 4  # special tokens are no words
        full = translation_table(data([([8], [4, 5, 6, 7])], self.WORDS, self.TARGETS), 2)
        assert full[8].tolist() == [4, 8]

    def test_without_pairs_only_equally_spelt_tokens_are_candidates(self):
        table = translation_table(data([], self.WORDS, self.TARGETS), 1)
        assert table[:, 0].tolist() == [-1] * 8 + [8, -1]

    @pytest.mark.parametrize("links", [0, 1, 40, 10**6])
    def test_the_table_is_deterministic_and_within_its_bounds(self, monkeypatch, links):
        monkeypatch.setattr("translume.heads.candidates.MAX_LINKS", links)
        pairs = random_pairs(3)
        table = translation_table(data(pairs, SOURCES, VOCABULARY), 7)
        assert np.array_equal(table, translation_table(data(pairs, SOURCES, VOCABULARY), 7))
        assert (table.dtype, table.shape) == (np.int32, (SOURCES, 7))
        met = {(int(s), int(t)) for source, target in pairs for s in source for t in target}
        for source, row in enumerate(table.tolist()):
            kept = [target for target in row if target >= 0]
            assert row == kept + [-1] * (7 - len(kept))
            assert len(set(kept)) == len(kept)
            assert all((source, target) in met for target in kept)

    def test_a_pair_with_an_empty_source_has_no_effect(self):
        assert bool((translation_table(data([([], [5])], SOURCES, VOCABULARY), 2) == -1).all())


def test_candidates_are_the_end_mark_frequent_tokens_and_translations():
    head = head_of(frequent=3, candidates=2, learn=False)
    head.learn(data([([10], [20, 20, 20]), ([11], [21, 21, 22]), ([10, 11], [20, 21])], SOURCES, VOCABULARY))
    assert head.always.tolist() == [END, 20, 21, 22]
    ids, mask = torch.tensor([[10, 12], [12, 11]]), torch.tensor([[True, True], [True, False]])
    lists = head.begin(ids, mask, torch.zeros(2, 2, WIDTH)).lists
    assert lists.ids.tolist() == [[END, 20, 21, 22]] * 2
    head = head_of(frequent=0, candidates=1, learn=False)
    head.learn(data([([10], [20, 20]), ([11], [21])], SOURCES, VOCABULARY))
    ids = torch.tensor([[10, 11], [12, 11], [11, 12]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    lists = head.begin(ids, mask, torch.zeros(3, 2, WIDTH)).lists
    assert lists.ids.tolist() == [[END, 20, 21], [END, VOCABULARY, VOCABULARY], [END, 21, VOCABULARY]]


@torch.no_grad()
def test_the_distribution_is_the_softmax_over_the_candidates():
    head = head_of()
    ids, mask = sources([11, 1, 7])
    owners = torch.tensor([2, 0, 1, 1, 0])
    hidden = states(5)
    found = head.next_token(hidden, begin_context(head, [11, 1, 7]).select(owners)).log_probs()
    logits = F.linear(hidden, head.softmax.weight, head.softmax.bias)
    for row, owner in enumerate(owners.tolist()):
        listed = expected_candidates(head, ids[owner], mask[owner])
        assert END in listed
        wanted = torch.full((VOCABULARY,), -math.inf)
        wanted[listed] = logits[row, listed].log_softmax(-1)
        torch.testing.assert_close(found[row], wanted)


@few
@given(st.data(), st.integers(1, 30), st.integers(0, 10**6))
def test_topk_equals_the_full_ranking_with_a_bias(draws, k, seed):
    head = head_of(frequent=2, candidates=2, seed=seed)
    rows, count = 7, draws.draw(st.integers(0, 12))
    place = torch.tensor(
        draws.draw(st.lists(st.integers(0, rows - 1), min_size=count, max_size=count)), dtype=torch.long
    )
    ids = torch.tensor(draws.draw(st.lists(st.integers(0, 100), min_size=count, max_size=count)), dtype=torch.long)
    values = draws.draw(st.lists(st.sampled_from([-math.inf, -2.0, 0.5]), min_size=count, max_size=count))
    shape = draws.draw(st.sampled_from([None, (VOCABULARY,), (rows, VOCABULARY)]))
    mask = None if shape is None else torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.3
    bias = draws.draw(st.sampled_from([None, Bias(place, ids, torch.tensor(values), mask)]))
    with torch.no_grad():
        context = begin_context(head, [5, 1, 3], seed).select(torch.tensor([0, 0, 1, 2, 2, 2, 1]))
        belief = head.next_token(states(rows, seed), context)
    scores = belief.log_probs()
    ranks, wanted = exact_topk(scores if bias is None else bias.add_to(scores), k)
    top = belief.topk(k, bias)
    torch.testing.assert_close(top.ranks_by, ranks)
    assert torch.equal(top.ids, wanted)
    torch.testing.assert_close(top.log_probs, scores.gather(1, wanted))
    asked = torch.randint(VOCABULARY, (rows, 9), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(belief.log_prob_of(asked), scores.gather(1, asked))


@few
@given(st.lists(st.integers(1, 11), min_size=1, max_size=6), st.integers(0, 10**6))
@torch.no_grad()
def test_a_sentences_distribution_does_not_depend_on_its_batch(lengths, seed):
    head = head_of()
    ids, mask = sources(lengths, seed)
    hidden = states(len(lengths), seed)
    together = head.next_token(hidden, head.begin(ids, mask, torch.zeros(*ids.shape, WIDTH)))
    for row, length in enumerate(lengths):
        own, alone = ids[row : row + 1, :length], mask[row : row + 1, :length]
        belief = head.next_token(hidden[row : row + 1], head.begin(own, alone, torch.zeros(1, length, WIDTH)))
        torch.testing.assert_close(belief.log_probs()[0], together.log_probs()[row])
        assert torch.equal(belief.topk(4).ids[0], together.topk(4).ids[row])


@torch.no_grad()
def test_the_full_product_is_used_if_the_lists_are_long_together(monkeypatch):
    head, owners = head_of(), torch.tensor([0, 0, 1, 2])
    alone = head.next_token(states(4), begin_context(head, [5, 2, 9]).select(owners)).log_probs()
    shuffled = torch.tensor([2, 0, 3, 1])
    apart = head.next_token(states(4)[shuffled], begin_context(head, [5, 2, 9]).select(owners[shuffled])).log_probs()
    torch.testing.assert_close(apart, alone[shuffled])
    monkeypatch.setattr("translume.heads.shortlist.MAX_ROW_SHARE", 0.1)
    whole = head.next_token(states(4), begin_context(head, [5, 2, 9]).select(owners)).log_probs()
    torch.testing.assert_close(whole, alone)


@torch.no_grad()
def test_selecting_twice_equals_selecting_once():
    head = head_of()
    context = begin_context(head, [5, 2, 9])
    first, second = torch.tensor([2, 0, 0, 1]), torch.tensor([3, 3, 1, 0])
    twice, once = context.select(first).select(second), context.select(first[second])
    assert torch.equal(twice.owners, once.owners)
    left, right = (head.next_token(states(4), each).log_probs() for each in (twice, once))
    assert torch.equal(left, right)


@pytest.mark.parametrize("bias", [True, False])
def test_training_uses_the_softmax(bias):
    head = head_of(bias=bias).train()
    hidden, labels = states(17).requires_grad_(), torch.arange(17)
    assert begin_context(head, [5, 2]) is None
    loss, wanted = (each.loss(hidden, labels, None, LossOptions(0.1, 1e-3)) for each in (head, head.softmax))
    assert (float(loss.objective.detach()), float(loss.nll)) == (float(wanted.objective.detach()), float(wanted.nll))
    assert torch.equal(head.score(hidden, labels, None), head.softmax.score(hidden, labels, None))


@torch.no_grad()
def test_validation_measures_the_full_softmax():
    head = head_of()
    hidden, labels = states(5), torch.arange(5)
    loss = head.loss(hidden, labels, begin_context(head, [3, 1, 2, 2, 7]), LossOptions())
    assert loss.nll is None
    assert float(loss.objective) == float(head.softmax.loss(hidden, labels, None, LossOptions()).nll)


@torch.no_grad()
def test_without_learned_candidates_all_tokens_are_possible():
    head = head_of(learn=False)
    assert begin_context(head, [5, 2]) is None
    assert bool(head.next_token(states(2), None).log_probs().isfinite().all())


@torch.no_grad()
def test_tables_are_saved_with_the_weights():
    head, other = head_of(), head_of(learn=False, seed=6)
    other.load_state_dict(head.state_dict())
    left, right = (each.next_token(states(3), begin_context(each, [5, 2, 3])).log_probs() for each in (head, other))
    assert torch.equal(left, right)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=3, nbest=3)], ids=["greedy", "beam"])
@torch.no_grad()
def test_search_results_are_candidates_and_score_as_in_forced_decoding(strategy):
    torch.manual_seed(7)
    model = build_model(
        ModelSettings(
            width=12, feed_forward=23, encoder_layers=1, decoder_layers=1, attention_heads=2, max_positions=29,
            head=ShortlistSettings(tie="target", frequent=4, candidates=2),
        ), SOURCES, VOCABULARY,
    ).eval()  # fmt: skip
    model.head.learn(data(random_pairs(3), SOURCES, VOCABULARY))
    ids, mask = sources([7, 1, 4])
    found = search(
        model.step, model.start(ids, mask), bos=1, eos=END, strategy=strategy, limits=torch.tensor([5, 3, 6]),
        rules=[ForbidTokens((0, 1))],
    )  # fmt: skip
    for sentence, hypotheses in enumerate(found):
        listed = expected_candidates(model.head, ids[sentence], mask[sentence])
        for hypothesis in hypotheses:
            labels = torch.tensor([hypothesis.tokens])
            given_tokens = torch.cat([torch.tensor([[1]]), labels[:, :-1]], 1)
            own, alone = ids[sentence : sentence + 1], mask[sentence : sentence + 1]
            scores = model.score(own, alone, given_tokens, labels, torch.ones_like(labels, dtype=torch.bool))
            assert set(hypothesis.tokens) <= set(listed)
            assert float(scores.sum()) == pytest.approx(hypothesis.log_prob, abs=1e-4)
