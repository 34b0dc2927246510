"""How texts become words and words texts: BlenderBot-small's rules, and those of Moses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.split_words import SplitWords
from translume.text.word_rules import Blenderbot

WORDS = (
    "a",
    "the",
    "12",
    ".",
    ",",
    "'",
    "&quot;",
    "&apos;",
    "&apos;s",
    "@-@",
    "l&apos;",
    "$",
    "(",
    ")",
    "...",
    "我",
    "們",
    "N",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's (all) ΑΣ.Β, right?!", ["it", "'", "s", "(all", ")", "ας", ".β", ",", "right", "?", "!"]),
        ("a\nb'\nc \n d\x1ce", ["a", "__newln__", "b", "'", "c", "d\x1ce"]),
        (" \t ", []),
    ],
)
def test_blenderbot_sets_punctuation_apart_and_marks_the_ends_of_lines(text, words):
    assert Blenderbot(lowercase=False).words(text) == words


@pytest.fixture(scope="module", params=["en", "de", "fr", "cs", "fi"])
def tokenizer(request):
    pytest.importorskip("sacremoses", reason="sacremoses is not installed (extra: moses)")
    words = SplitWords(joiner="", rules="moses", language=request.param)
    pieces = ["<pad>", "</s>", "<unk>", *(f"{word}</w>" for word in WORDS), "@", "&ap", "x"]
    return Tokenizer(Vocabulary.from_words(words, pieces, SpecialIds(pad=0, bos=0, eos=1, unk=2)))


IDS = st.lists(st.integers(0, len(WORDS) + 5), max_size=9)


@given(first=IDS, rest=IDS)
def test_a_beginning_is_that_of_every_continuation(tokenizer, first, rest):
    assert tokenizer.decode(first + rest).startswith(tokenizer.beginning(first))


@given(ids=IDS)
def test_spans_go_through_the_text_from_left_to_right(tokenizer, ids):
    spans, text = tokenizer.spans(ids), tokenizer.decode(ids)
    assert len(spans) == len(ids)
    place = 0
    for begin, end in spans:
        assert place == begin <= end <= len(text)
        place = end


def test_moses_joins_punctuation_dashes_and_escaped_characters():
    pytest.importorskip("sacremoses", reason="sacremoses is not installed (extra: moses)")
    pieces = [
        "<pad>",
        "</s>",
        "<unk>",
        "the</w>",
        "do",
        "g</w>",
        "&apos;s</w>",
        "@-@</w>",
        "&quot;</w>",
        ".</w>",
        "3</w>",
    ]
    words = SplitWords(merges=(("t", "h"), ("th", "e</w>")), joiner="", rules="moses", language="en", lowercase=True)
    tokenizer = Tokenizer(Vocabulary.from_words(words, pieces, SpecialIds(pad=0, bos=0, eos=1, unk=2)))
    ids = [8, 3, 4, 5, 6, 7, 10, 8, 9]
    assert tokenizer.decode([*ids, 1]) == (text := '"the dog\'s-3".')
    assert [text[begin:end] for begin, end in tokenizer.spans(ids)] == [
        '"',
        "the",
        " do",
        "g",
        "'s",
        "-",
        "3",
        '"',
        ".",
    ]
    assert tokenizer.beginning(ids[:4]) == '"the'
    assert tokenizer.normalise("«The»  dog’s") == "&quot; the &quot; dog &apos;s"
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.tokens(again.encode("The 3")) == ["the</w>", "3</w>"]


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match=r"^the rules 'perl' of words are not known$"):
        SplitWords.from_dict({**SplitWords().to_dict(), "rules": "perl"})
