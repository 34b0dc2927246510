"""Drafts change how often a model is called, and nothing that is found."""

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import Bias, Logits
from translume.decoding import (
    Drafted,
    ForbidTokens,
    ForcedPrefix,
    Greedy,
    MinimumLength,
    SearchError,
    SourceDrafts,
    Speculation,
    TableDrafts,
    reshaped,
    search,
)
from translume.decoding.speculation import MOST_ROWS
from translume.decoding.table_drafts import LEAST_LIKELY, ORDERS, STORED

BOS, EOS, SIZE, LONGEST = 0, 1, 5, 4
few = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 10**6)


@dataclass(frozen=True)
class BlockState:
    """Remembers all that its rows have read."""

    sentences: torch.Tensor
    read: torch.Tensor

    def select(self, rows):
        return BlockState(self.sentences[rows], self.read[rows])

    def rewind(self, length):
        assert length <= self.read.size(1)
        return BlockState(self.sentences, self.read[:, :length])


class Blocks:
    """The toy language read in blocks; past its longest target there is nothing to be read."""

    def __init__(self, toy):
        self.toy, self.counts = toy, []

    def start(self, sentences):
        sentences = torch.tensor(sentences)
        return BlockState(sentences, sentences.new_empty(len(sentences), 0))

    def __call__(self, prefix, state, count):
        position = state.read.size(1)
        assert torch.equal(prefix[:, :position], state.read), "the state has read another prefix"
        assert prefix.size(1) - position == count, "what is asked for is what is read"
        self.counts.append(count)

        def beliefs():
            for length in range(position + 1, prefix.size(1) + 1):
                place = self.toy.fingerprint(prefix[:, 1:length]) - 1000 * (length - 1)
                yield Logits(self.toy.logits[length - 1][state.sentences, place])

        return beliefs(), BlockState(state.sentences, prefix)


class Given:
    """Drafts what it was given: for each sentence a whole target, whatever was said so far."""

    def __init__(self, targets):
        longest = max(map(len, targets))
        rows = [[*target, *[-1] * (longest - len(target))] for target in targets]
        self.targets = torch.tensor(rows, dtype=torch.long)

    def propose(self, prefix, sentences, most):
        return self.targets[sentences][:, prefix.size(1) - 1 :][:, :most]


class Garbage:
    """Ids of all sorts, as wide as it likes."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def propose(self, prefix, sentences, most):
        wide = int(torch.randint(0, most + 3, (), generator=self.generator))
        return torch.randint(-1, SIZE + 2, (len(sentences), wide), generator=self.generator)


def plain(toy, sentences, limits, rules, unsmooth):
    return search(
        reshaped(toy, unsmooth=unsmooth), toy.start(sentences), bos=BOS, eos=EOS, strategy=Greedy(),
        limits=torch.tensor(limits), rules=rules,
    )  # fmt: skip


def drafted(blocks, drafter, sentences, limits, rules=(), unsmooth=0.0, length=4):
    speculation = Speculation(blocks, drafter, eos=EOS, size=SIZE, length=length)
    limits = torch.tensor(limits)
    found = search(
        reshaped(speculation, unsmooth=unsmooth), speculation.start(blocks.start(sentences), limits), bos=BOS, eos=EOS,
        strategy=Greedy(), limits=limits, rules=rules,
    )  # fmt: skip
    return found, speculation


class NotTwice:
    """A rule that depends on the prefix: no token directly after itself."""

    def __call__(self, prefix, context):
        rows = torch.arange(len(prefix))
        return Bias.forbid(rows, prefix[:, -1])


@few
@given(
    seed=seeds,
    sentences=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    data=st.data(),
    length=st.integers(1, 6),
    least=st.integers(0, LONGEST),
    unsmooth=st.sampled_from([0.0, 0.1]),
)
def test_whatever_is_drafted_the_hypotheses_are_those_of_plain_greedy(
    toy, seed, sentences, data, length, least, unsmooth
):
    step = toy(seed, SIZE, LONGEST)
    limits = data.draw(st.lists(st.integers(1, LONGEST), min_size=len(sentences), max_size=len(sentences)))
    prefixes = [data.draw(st.lists(st.integers(2, 4), max_size=limit)) for limit in limits]
    rules = [ForbidTokens((BOS,)), MinimumLength(least), ForcedPrefix(prefixes)]
    if data.draw(st.booleans()):
        rules = [ForbidTokens((BOS,)), NotTwice()]
    wanted = plain(step, sentences, limits, rules, unsmooth)
    own = Given([list(found[0].tokens) for found in wanted])
    drafter = data.draw(st.sampled_from([Garbage(seed), own, Given([[2, 3, 2, 4]] * len(sentences))]))
    found, speculation = drafted(Blocks(step), drafter, sentences, limits, rules, unsmooth, length)
    assert found == wanted
    for (hypothesis,), calls in zip(found, speculation.calls.tolist(), strict=True):
        assert 1 <= calls <= len(hypothesis.tokens)


@few
@given(seeds, st.integers(1, 4))
def test_one_sentence_whose_target_is_drafted_takes_a_call_for_every_draft_and_one_more_token(toy, seed, length):
    step = toy(seed, SIZE, LONGEST)
    ((wanted,),) = plain(step, [0], [LONGEST], (), 0.0)
    blocks = Blocks(step)
    ((found,),), speculation = drafted(blocks, Given([list(wanted.tokens)]), [0], [LONGEST], length=length)
    assert found == wanted
    assert int(speculation.calls[0]) == len(blocks.counts) == -(-len(wanted.tokens) // (length + 1))


@few
@given(seeds)
def test_without_drafts_each_token_takes_a_call_of_one(toy, seed):
    step = toy(seed, SIZE, LONGEST)
    blocks = Blocks(step)
    found, speculation = drafted(blocks, Given([[]] * 3), [0, 1, 2], [LONGEST] * 3)
    assert speculation.calls.tolist() == [len(each[0].tokens) for each in found]
    assert set(blocks.counts) == {1}


def test_more_sentences_than_are_worth_it_are_read_token_by_token_until_few_are_left(toy):
    step = toy(7, SIZE, LONGEST)
    many = [0] * MOST_ROWS + [1]
    limits = [LONGEST] * MOST_ROWS + [1]
    rules = [MinimumLength(LONGEST)]
    wanted = plain(step, many, limits, rules, 0.0)
    blocks = Blocks(step)
    found, speculation = drafted(blocks, Given([list(each[0].tokens) for each in wanted]), many, limits, rules)
    assert found == wanted
    assert blocks.counts == [1, LONGEST - 1]
    assert speculation.calls.tolist() == [2] * MOST_ROWS + [1]


def test_a_block_is_as_long_as_the_shortest_draft_and_left_where_one_sentence_goes_another_way(toy):
    step = toy(11, SIZE, LONGEST)
    rules = [MinimumLength(LONGEST)]
    wanted = plain(step, [0, 2], [LONGEST] * 2, rules, 0.0)
    one, other = (list(each[0].tokens) for each in wanted)
    blocks = Blocks(step)
    found, _ = drafted(blocks, Given([one[:2], other]), [0, 2], [LONGEST] * 2, rules)
    assert (found, blocks.counts) == (wanted, [3, 1])
    wrong = [other[0], 2 if other[1] != 2 else 3, *other[2:]]
    blocks = Blocks(step)
    found, _ = drafted(blocks, Given([one, wrong]), [0, 2], [LONGEST] * 2, rules)
    # Four at once, of which the second was wrong; then the third is asked for, with a draft of the last one.
    assert (found, blocks.counts) == (wanted, [4, 2])


def test_what_plain_greedy_cannot_search_cannot_be_searched_with_drafts_for_the_same_reason(toy):
    class Nothing:
        def __call__(self, prefix, context):
            return None if context.step < 2 else Bias.only(torch.zeros(len(prefix), SIZE, dtype=torch.bool))

    step = toy(3, SIZE, LONGEST)
    errors = []
    for run in (
        lambda: plain(step, [0], [LONGEST], [MinimumLength(LONGEST), Nothing()], 0.0),
        lambda: drafted(Blocks(step), Given([[2, 2, 2, 2]]), [0], [LONGEST], [MinimumLength(LONGEST), Nothing()]),
    ):
        with pytest.raises(SearchError) as caught:
            run()
        errors.append((caught.value.reason, caught.value.sentence, caught.value.token))
    assert errors[0] == errors[1]


def test_selecting_rows_forgets_what_was_read_ahead():
    state = BlockState(torch.tensor([4, 5, 6]), torch.tensor([[0, 2, 3], [0, 3, 3], [0, 4, 2]]))
    ahead = Drafted(state, torch.arange(3), torch.tensor([7, 8, 9]), torch.tensor([[3], [3], [2]]), iter([None]), 2)
    rows = ahead.select(torch.tensor([2, 0]))
    assert rows.inner.read.tolist() == [[0, 4], [0, 2]]
    assert (rows.sentences.tolist(), rows.limits.tolist(), rows.ahead.size(1)) == ([2, 0], [9, 7], 0)


# Drafts from the source


def test_the_best_match_in_the_source_is_gone_on_from():
    drafts = SourceDrafts(torch.tensor([[0, 5, 6, 7, 5, 8, 1], [0, 9, 1, -1, -1, -1, -1]]))

    def propose(prefix, sentence=0, most=3):
        return drafts.propose(torch.tensor([prefix]), torch.tensor([sentence]), most)[0].tolist()

    assert propose([0]) == [5, 6, 7]  # the beginning is where bos is
    assert propose([0, 5]) == [6, 7, 5]  # bos 5 agrees in two, the later 5 in one
    assert propose([0, 3, 5]) == [6, 7, 5]  # the first of equal ones
    assert propose([0, 3, 7, 5]) == [8, 1, -1]  # 7 5 agrees in two
    assert propose([0, 3]) == [-1, -1, -1]
    assert propose([0, 9], sentence=1) == [1, -1, -1]


@few
@given(
    source=st.lists(st.integers(1, 4), max_size=7),
    target=st.lists(st.integers(1, 4), max_size=7),
    beside=st.lists(st.integers(1, 4), max_size=9),
    most=st.integers(1, 5),
)
def test_drafts_from_the_source_are_those_found_by_looking_at_each_place(source, target, beside, most):
    rows = [[0, *source], [0, *beside]]
    wide = max(map(len, rows))
    table = torch.tensor([row + [-1] * (wide - len(row)) for row in rows])
    found = SourceDrafts(table).propose(torch.tensor([[0, *target]] * 2), torch.tensor([0, 1]), most)
    for row, drafts in zip(rows, found.tolist(), strict=True):
        prefix, best = [0, *target], (0, 0)
        for place in range(len(row)):
            back = 0
            while back < min(3, place + 1, len(prefix)) and row[place - back] == prefix[-1 - back]:
                back += 1
            if back > best[0]:
                best = (back, place)
        wanted = row[best[1] + 1 :][:most] if best[0] else []
        assert drafts == wanted + [-1] * (most - len(wanted))


# Drafts from a corpus


def test_what_came_most_often_after_the_last_tokens_is_gone_on_with():
    targets = [[5, 6, 7], [5, 6, 7], [5, 6, 8], [9, 6, 8], [9, 6, 8, 4], [4]]
    table = TableDrafts.of(targets, bos=BOS, eos=EOS, size=11)

    def propose(prefix, most=4):
        return table.propose(torch.tensor([prefix]), torch.tensor([0]), most)[0].tolist()

    assert propose([0]) == [5, 6, 7, -1]  # a target begins with 5 most often, and ends after 5 6 7
    assert propose([0, 9]) == [6, 8, -1, -1]
    assert propose([0, 9, 6]) == [8, -1, -1, -1]  # 9 6 8 ends as often as it goes on: the smaller id
    assert propose([0, 3, 5, 6]) == [7, -1, -1, -1]  # 3 5 6 never came, 5 6 did
    assert propose([0, 3, 3]) == [-1] * 4
    assert propose([0], most=2) == [5, 6]


@few
@given(
    targets=st.lists(st.lists(st.integers(2, 5), max_size=7), max_size=9),
    prefix=st.lists(st.integers(2, 5), max_size=5),
    most=st.integers(1, STORED + 2),
)
def test_drafts_from_a_corpus_are_those_found_by_counting(targets, prefix, most):
    follows = defaultdict(Counter)
    for target in targets:
        padded = [BOS] * max(ORDERS) + target + [EOS]
        for place in range(max(ORDERS), len(padded)):
            for order in ORDERS:
                follows[tuple(padded[place - order : place])][padded[place]] += 1
    last, wanted = [BOS] * max(ORDERS) + prefix, []
    order = next((each for each in ORDERS if tuple(last[-each:]) in follows), None)
    likely = 1.0
    while order and len(wanted) < min(most, STORED):
        counts = follows[tuple(last[-order:])]
        token = min(counts, key=lambda id: (-counts[id], id))
        likely *= counts[token] / counts.total()
        if token == EOS or likely < LEAST_LIKELY:
            break
        wanted.append(token)
        last.append(token)
    table = TableDrafts.of(targets, bos=BOS, eos=EOS, size=7)
    found = table.propose(torch.tensor([[BOS, *prefix]] * 2), torch.tensor([0, 1]), most).tolist()
    assert found == [wanted + [-1] * (min(most, STORED) - len(wanted))] * 2


def test_a_vocabulary_too_large_for_a_key_is_refused():
    with pytest.raises(ValueError, match=r"^a vocabulary of 1,048,577 tokens, wanted at most 1,048,576$"):
        TableDrafts.of([[2]], bos=BOS, eos=EOS, size=1_048_577)
