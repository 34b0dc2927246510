"""Grouping tokens into words, and their positions in the texts."""

import math

from hypothesis import given
from hypothesis import strategies as st

import translume
from translume.config import TokenizerSettings
from translume.inspection.inputs import tokens_of, words_of
from translume.inspection.values import Token
from translume.text import train_tokenizer

TOKENIZER = train_tokenizer(TokenizerSettings(kind="bpe", size=330), ["low lower lowest newer wider", "犬が走る"])
SPECIAL = TOKENIZER.specials.eos


def words(text):
    ids = [*TOKENIZER.encode(text), SPECIAL]
    normal = TOKENIZER.normalise(text)
    tokens = tokens_of(TOKENIZER, ids, TOKENIZER.spans_in(text))
    return words_of(normal, tokens, (SPECIAL,), [-1.0] * len(tokens)), tokens, normal


def test_words_are_separated_by_spaces():
    found, tokens, _ = words("lower xyz lowest.")
    assert [word.text for word in found] == ["lower", "xyz", "lowest.", "</s>"]
    assert [(word.begin, word.end) for word in found] == [(0, 5), (6, 9), (10, 17), (17, 17)]
    assert sum(word.last - word.first for word in found) == len(tokens)
    assert [word.log_p for word in found] == [-float(word.last - word.first) for word in found]


def test_scripts_without_spaces_are_split_at_every_token():
    found, tokens, _ = words("犬が low")
    assert [word.text for word in found] == [*(token.text for token in tokens[:-2]), "low", "</s>"]
    assert "".join(word.text for word in found[:-2]) == "犬が"


def test_the_bytes_of_a_character_are_one_word():
    found, tokens, _ = words("low 猫")
    assert [word.text for word in found] == ["low", "猫", "</s>"]
    assert len(tokens) == 1 + 1 + 3 + 1
    assert {(token.begin, token.end) for token in tokens[2:5]} == {(4, 5)}


@given(st.text(st.sampled_from("low ern犬が🙂. "), max_size=20))
def test_every_token_is_in_one_word_and_no_word_holds_a_space(text):
    found, tokens, normal = words(text)
    assert [(word.first, word.last) for word in found] == list(
        zip([0, *(word.last for word in found[:-1])], [word.last for word in found], strict=True)
    )
    assert found[-1].last == len(tokens)
    for word in found[:-1]:
        assert normal[word.begin : word.end] == word.text or word.begin == word.end
    assert "".join("".join(word.text for word in found[:-1]).split()) == "".join(normal.split())


def test_a_trace_holds_tokens_and_words_of_both_texts(make):
    trace = translume.trace(make(), "  the cat!", "le chat", show=())
    assert (trace.given, trace.source, trace.target) == ("  the cat!", "the cat!", "le chat")
    assert [trace.source[token.begin : token.end] for token in trace.source_tokens] == [*"the cat!", ""]
    assert [word.text for word in trace.source_words] == ["the", "cat!", "</s>"]
    assert [word.text for word in trace.target_words] == ["le", "chat", "</s>"]
    chat = trace.target_words[1]
    assert trace.target[chat.begin : chat.end] == "chat"
    assert chat.log_p == sum(step.log_p_model for step in trace.steps[chat.first : chat.last])
    assert all(word.log_p is None for word in trace.source_words)


def test_a_word_with_an_impossible_token_has_no_log_probability():
    tokens = tuple(Token(id=9, text=each, begin=place, end=place + 1) for place, each in enumerate("ab"))
    assert [word.log_p for word in words_of("ab", tokens, (), [-1.0, -math.inf])] == [None]
    assert [word.log_p for word in words_of("ab", tokens, (), [-1.0, -0.5])] == [-1.5]
