"""Spans of tokens in the text; the stable beginning of an incomplete text is a prefix of the text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from translume.config import TokenizerSettings
from translume.text import train_tokenizer

TEXTS = st.text(st.sampled_from("the cat.über犬が🙂\t  \n9ß\u0301"), max_size=24)
numbers = st.lists(st.integers(0, 10**6), max_size=9)


@given(text=TEXTS)
def test_spans_of_a_text_cover_it_from_left_to_right(tokenizer, text):
    spans = tokenizer.spans_in(text)
    normal = tokenizer.normalise(text)
    assert len(spans) == len(tokenizer.encode(text))
    reached = 0
    for begin, end in spans:
        assert begin in (reached, reached - 1)  # the last character's other bytes begin where it began
        assert end >= reached
        reached = end
    assert reached == len(normal)


@given(text=TEXTS)
def test_span_text_equals_the_decoded_token(tokenizer, text):
    normal, specials = tokenizer.normalise(text), tokenizer.specials
    for id_, (begin, end) in zip(tokenizer.encode(text), tokenizer.spans_in(text), strict=True):
        shown = tokenizer.tokens([id_])[0]
        if id_ == specials.unk or shown.startswith("<0x"):
            continue
        spelt = shown.replace("▁▁", "\0").replace("▁", " ").replace("\0", "▁")
        assert normal[begin:end] in (spelt, spelt.removeprefix(" "))


@given(st.data())
def test_spans_of_any_ids_cover_the_decoded_text(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    spans, text = tokenizer.spans(ids), tokenizer.decode(ids)
    assert len(spans) == len(ids)
    assert max((end for _, end in spans), default=0) == len(text)
    assert all(0 <= begin <= end <= len(text) for begin, end in spans)
    assert [end for _, end in spans] == sorted(end for _, end in spans)


def test_spans_worked_by_hand(tokenizers):
    tokenizer = tokenizers["bpe-bytes"]
    ids = tokenizer.encode("the cat🙂.")
    spelt = tokenizer.tokens(ids)
    spans = tokenizer.spans(ids)
    assert spelt[0] == "▁the"
    assert spans[0] == (0, 3)
    assert [span for piece, span in zip(spelt, spans, strict=True) if piece.startswith("<0x")] == [(7, 8)] * 4
    assert spans[-1] == (8, 9)
    specials = tokenizer.specials
    assert tokenizer.spans([*ids[:1], specials.eos, specials.pad]) == [(0, 3), (3, 3), (3, 3)]


def test_span_of_an_unknown_word_is_the_word(tokenizers):
    tokenizer = tokenizers["word-token"]
    assert tokenizer.spans_in("the xylophone cat") == [(0, 3), (3, 13), (13, 17)]


def test_bytes_of_half_a_surrogate_decode_to_two_replacement_characters(tokenizers):
    tokenizer = tokenizers["character-bytes"]
    ids = [tokenizer.pieces().index(piece) for piece in ("<0xED>", "<0xA0>", "t")]
    assert tokenizer.decode(ids) == "\ufffd\ufffdt"
    assert tokenizer.spans(ids) == [(0, 1), (0, 2), (2, 3)]


@given(first=numbers, rest=numbers)
def test_stable_text_is_a_prefix_of_every_continuation(tokenizer, first, rest):
    ids, more = ([number % len(tokenizer) for number in numbers] for numbers in (first, rest))
    assert tokenizer.decode([*ids, *more]).startswith(tokenizer.beginning(ids))


@given(text=TEXTS)
def test_text_is_stable_once_its_bytes_are_complete_except_trailing_space(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.beginning(ids) == tokenizer.decode(ids).rstrip()
    said = [tokenizer.beginning(ids[:count]) for count in range(len(ids) + 1)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(said))


def test_character_is_stable_after_its_last_byte():
    tokenizer = train_tokenizer(TokenizerSettings(kind="byte"), [])
    ids = tokenizer.encode("aß 犬")
    assert [tokenizer.beginning(ids[:count]) for count in range(len(ids) + 1)] == [
        *("", "a", "a", "aß", "aß", "aß", "aß", "aß 犬")
    ]
    assert tokenizer.beginning([*ids[:2], ids[0]]) == "a\ufffda"
