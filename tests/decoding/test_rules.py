"""Rules: the tokens that each allows, under every strategy and compared with references written out by hand."""

import math
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.searching import BOS, EOS, EmptyState, build_strategy, seeds

from translume.belief import Bias, Logits
from translume.config.decoding import STRATEGIES
from translume.decoding import (
    BannedPhrases,
    ForbidFirst,
    ForbidTokens,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    RuleContext,
    SearchError,
    Spellings,
    TextPrefix,
    search,
)
from translume.engine.rules import KernelRules

few = settings(deadline=None, max_examples=13)
every = pytest.mark.parametrize("name", sorted(STRATEGIES))
PIECES = ("", "", "a", "b", "ä", " ", " a", "ba", "a b", "ab!", " äb", "狗")
SIZE = len(PIECES)
SPELLED = tuple(piece.encode() for piece in PIECES)
BYTES = tuple(bytes([byte]) for byte in sorted(set("abä !狗".encode())))


def search_with_rules(step, name, rules, limit):
    rules = [ForbidTokens((BOS,)), *rules]
    limits = torch.full((step.sentences,), limit)
    return search(step, step.start(), bos=BOS, eos=EOS, strategy=build_strategy(name), limits=limits, rules=rules)


def flat(step, name, rules, limit=4):
    return [h for hypotheses in search_with_rules(step, name, rules, limit) for h in hypotheses]


def text_of(tokens, spelled=SPELLED):
    return b"".join(spelled[token] for token in tokens).decode(errors="replace")


def context(prefix, size=SIZE, limit=99):
    rows = prefix.size(0)
    return RuleContext(
        eos=EOS, size=size, step=prefix.size(1) - 1, sentences=torch.arange(rows), limits=torch.full((rows,), limit)
    )


def forbidden(bias, rows, size):
    """[N, V]: the tokens that a bias forbids."""
    zeros = torch.zeros(rows, size)
    return torch.zeros(rows, size, dtype=torch.bool) if bias is None else bias.add_to(zeros).isneginf()


def is_word_character(character):
    return character.isalnum() and character != "狗"


def holds(text, phrase):
    """Whether the text contains the phrase as whole words."""
    letter = r"[^\W_狗]"  # bytes of two letters may form a third
    before = f"(?<!{letter})" if is_word_character(phrase[0]) else ""
    after = f"(?!{letter})" if is_word_character(phrase[-1]) else ""
    return re.search(before + re.escape(phrase) + after, text) is not None


@every
@few
@given(seeds, st.integers(1, 3))
def test_no_target_repeats_an_ngram(toy, name, seed, order):
    for hypothesis in flat(toy(seed, sharpness=2.0), name, [NoRepeatNgram(order)]):
        said = hypothesis.tokens
        grams = [said[place : place + order] for place in range(len(said) - order + 1)]
        assert len(set(grams)) == len(grams)


@few
@given(st.lists(st.lists(st.integers(2, 4), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 4))
def test_an_ngram_is_blocked_iff_it_occurred_before(rows, order):
    prefix = torch.tensor([[BOS, *row] for row in rows])
    blocked = forbidden(NoRepeatNgram(order)(prefix, context(prefix, 5)), len(rows), 5)
    for row, said in enumerate(rows):
        grams = {tuple(said[place : place + order]) for place in range(len(said) - order + 1)}
        ends = tuple(said[len(said) - order + 1 :])
        assert blocked[row].nonzero()[:, 0].tolist() == [token for token in range(5) if (*ends, token) in grams]


@every
@few
@given(seeds)
def test_the_repetition_penalty_does_not_change_the_log_probability(toy, name, seed):
    step = toy(seed, sharpness=2.0)
    for sentence, hypotheses in enumerate(search_with_rules(step, name, [RepetitionPenalty(3.0)], 4)):
        for hypothesis in hypotheses:
            assert hypothesis.log_prob == pytest.approx(step.log_prob(sentence, hypothesis.tokens), abs=1e-4)
            again = sum(token in hypothesis.tokens[:place] for place, token in enumerate(hypothesis.tokens))
            if name in ("beam", "greedy"):
                total = hypothesis.log_prob - again * math.log(3.0)
                assert hypothesis.score == pytest.approx(total / len(hypothesis.tokens), abs=1e-4)


def test_a_repeated_token_is_penalised_once():
    prefix = torch.tensor([[BOS, 3, 2, 3], [BOS, 4, 4, 4]])
    bias = RepetitionPenalty(2.0)(prefix, context(prefix, 5))
    added = bias.add_to(torch.zeros(2, 5))
    half = math.log(0.5)
    torch.testing.assert_close(added, torch.tensor([[0, 0, half, half, 0], [0, 0, 0, 0, half]]))


@every
@few
@given(seeds, st.sets(st.integers(2, 4), min_size=1, max_size=2))
def test_targets_hold_only_allowed_tokens(toy, name, seed, ids):
    for hypothesis in flat(toy(seed), name, [OnlyTokens(ids)]):
        assert set(hypothesis.tokens) <= ids | {EOS}


@every
@few
@given(seeds, st.lists(st.text("abä !狗", min_size=1, max_size=3).filter(str.strip), min_size=1, max_size=3))
def test_no_target_holds_a_banned_phrase(toy, name, seed, phrases):
    phrases = [" ".join(phrase.split()) for phrase in phrases]
    step = toy(seed, size=SIZE, longest=3)
    for hypothesis in flat(step, name, [BannedPhrases(SPELLED, phrases, is_word_character)], limit=3):
        assert not any(holds(text_of(hypothesis.tokens), phrase) for phrase in phrases)


@few
@given(
    data=st.data(),
    phrases=st.lists(st.text("ab ä!狗", min_size=1, max_size=5).filter(str.strip), min_size=1, max_size=3),
    spelled=st.sampled_from([SPELLED, (b"", b"", *BYTES), (*SPELLED, *BYTES)]),
)
def test_every_token_that_would_complete_a_banned_phrase_is_banned(data, phrases, spelled):
    phrases = [" ".join(phrase.split()) for phrase in phrases]
    rule, said = BannedPhrases(spelled, phrases, is_word_character), []
    for _ in range(17):
        prefix = torch.tensor([[BOS, *said]])
        banned = forbidden(rule(prefix, context(prefix, len(spelled))), 1, len(spelled))[0]
        for token in range(2, len(spelled)):
            text = text_of([*said, token], spelled)
            if any(holds(text, phrase) for phrase in phrases):
                assert banned[token], text
        assert not banned[EOS]
        going = [token for token in range(2, len(spelled)) if not banned[token]]
        if not going:
            return
        said.append(data.draw(st.sampled_from(going)))


@pytest.mark.parametrize(
    ("text", "token", "banned"),
    [
        (" der", " hund", True),
        (" der", " hundert", False),
        (" der", " hunde", False),
        (" schäfer", "hund", False),  # no word begins there
        (" ein hu", "nd", True),
        (" ein hu", "ndert", False),
        ("", " hund!", True),
        (" „", "hund", True),
        (" der", " katze", False),
        (" guten", " tag", True),
        (" guten ", " tag", True),
        (" gut", " tag", False),
        (" unguten", " tag", False),
    ],
)
def test_a_phrase_is_banned_only_as_whole_words(text, token, banned):
    pieces = ["", "", text, token]
    rule = BannedPhrases([piece.encode() for piece in pieces], ["hund", "guten tag"], str.isalpha)
    prefix = torch.tensor([[BOS, 2]] if text else [[BOS]])
    assert bool(forbidden(rule(prefix, context(prefix, 4)), 1, 4)[0, 3]) == banned


def test_earlier_text_neither_bounds_nor_completes_a_banned_phrase():
    spelled = [b"", b"", b"h", b"u", b"n", b"d", "ö".encode(), b"x"]
    rule = BannedPhrases(spelled, ["hund"], str.isalpha)
    for before in ([7] * 9, [6] * 9, [6], [7]):
        for after in range(9):
            prefix = torch.tensor([[BOS, *before, 2, 3, 4, 5, *[7] * after]])
            assert rule(prefix, context(prefix, 8)) is None


@every
@few
@given(seeds, st.text("ab ä!", max_size=4), st.data())
def test_every_target_begins_with_its_forced_text(toy, name, seed, text, data):
    step = toy(seed, size=SIZE, longest=4)
    spellings = Spellings(SPELLED)
    if spellings.reach(text.encode()) < len(text.encode()) or not text:
        return
    which = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    fewest = min(count for count in range(1, 5) if can_spell(text, count))
    rules = [TextPrefix(spellings, text.encode(), which)]
    for limit in range(1, 5):
        if any(which) and fewest > limit:
            with pytest.raises(SearchError) as error:
                search_with_rules(step, name, rules, limit)
            assert error.value.reason == f"a prefix of {fewest} tokens, expected at most the limit of {limit}"
            continue
        for begins, each in zip(which, search_with_rules(step, name, rules, limit), strict=True):
            assert each
            assert not begins or all(text_of(h.tokens).startswith(text) for h in each)


def can_spell(text, count):
    """Whether `count` tokens can spell the text, where the last token may extend beyond it and no token follows it."""
    if count == 1:
        return any(piece.startswith(text) for piece in PIECES)
    shorter = [piece for piece in PIECES if piece and len(piece) < len(text) and text.startswith(piece)]
    return any(can_spell(text[len(piece) :], count - 1) for piece in shorter)


def test_a_forced_text_allows_all_of_its_spellings_and_tokens_that_extend_it():
    rule = TextPrefix(Spellings(SPELLED), b"a b", [True, True, False])
    say = {piece: token for token, piece in enumerate(PIECES) if piece}
    for said, wanted in [([], {"a", "a b"}), (["a"], {" "}), (["a", " "], {"b", "ba"}), (["a", " ", "ba"], None)]:
        prefix = torch.tensor([[BOS, *(say[piece] for piece in said)]] * 3)
        bias = rule(prefix, context(prefix))
        if wanted is None:
            assert bias is None
            continue
        allowed = ~forbidden(bias, 3, SIZE)
        assert [{PIECES[token] for token in row.nonzero()[:, 0].tolist()} for row in allowed[:2]] == [wanted] * 2
        assert allowed[2].all()


def test_a_spelling_longer_than_the_limit_is_not_started():
    rule = TextPrefix(Spellings(SPELLED), b"a b", [True])
    prefix = torch.tensor([[BOS]])
    allowed = ~forbidden(rule(prefix, context(prefix, limit=2)), 1, SIZE)
    assert [PIECES[token] for token in allowed[0].nonzero()[:, 0].tolist()] == ["a b"]


def test_a_spelling_that_cannot_be_completed_is_not_started():
    spelled = [b"", b"", b"ab", b"a", b"bc"]
    rule = TextPrefix(Spellings(spelled), b"abc", [True])
    prefix = torch.tensor([[BOS]])
    assert (~forbidden(rule(prefix, context(prefix, 5)), 1, 5)).nonzero()[:, 1].tolist() == [3]
    assert Spellings(spelled).reach(b"abx") == 2
    with pytest.raises(ValueError, match="no tokens spell"):
        TextPrefix(Spellings(spelled), b"abx", [True])


def test_rules_combine():
    logits = torch.zeros(1, SIZE).index_fill_(1, torch.tensor([PIECES.index("a b")]), 5.0)
    prefix = torch.tensor([[BOS]])
    rules = [
        TextPrefix(Spellings(SPELLED), b"a", [True]),
        BannedPhrases(SPELLED, ["a b"], is_word_character),
        NoRepeatNgram(1),
    ]
    said = []
    for _ in range(3):
        biases = [rule(prefix, context(prefix)) for rule in rules]
        joined = Bias.join([bias for bias in biases if bias is not None])
        token = int(Logits(logits).topk(1, joined).ids[0, 0])
        said.append(PIECES[token])
        prefix = torch.cat([prefix, torch.tensor([[token]])], 1)
    assert said[0] == "a"
    assert all(one != other for one, other in pairwise(said))
    assert not holds("".join(said), "a b")


@every
def test_tokens_that_do_not_begin_a_target_may_follow(name):
    rules = [ForbidFirst((EOS, 3))]
    scores = torch.full((SIZE,), -9.0).index_fill(0, torch.tensor([3]), 5.0)
    scores[4] = 2.0

    def step(prefix, state):
        return Logits(scores.expand(len(prefix), -1)), state

    found = search(
        step, EmptyState(), bos=BOS, eos=EOS, strategy=build_strategy(name), limits=torch.tensor([3]), rules=rules
    )
    assert all(each.tokens[0] not in (EOS, 3) for each in found[0])
    assert found[0][0].tokens[1:] == (3, 3)
    assert KernelRules.from_rules(rules, EOS, SIZE) is not None
