"""Text to ids and back."""

import os
import threading
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import TokenizerSettings
from translume.errors import DataError
from translume.text import SpecialIds, Tokenizer, train_tokenizer
from translume.text.segmentation import character_class, segmenter

KINDS = ("bpe", "unigram", "wordpiece", "character", "byte", "word")
CORPUS = [
    "the lower the newest house, the wider the newest street.",
    "a newer house is lower than the widest street of 1984!",
    "das neueste Haus ist niedriger als die breiteste Straße.",
    "我喜欢新的房子。新的房子很大。",
    "新しい家が好きです。",
    "ฉันชอบบ้านใหม่",
    "</s> <unk> <0x41> ▁ ▁▁ are typed by users",
] * 3

HARD = [
    "</s>", "<s></s><pad><unk>", "<0x41>", "▁", " ▁ ▁▁", "\x00", "\x00\x01\x1f\x7f\x85", " ", "   ", " a", "a ",
    "a  b\t\n c\r\n", "\u3000a\u00a0b\u2028c\ufeff", "😀👩‍🚀🏳️‍🌈", "e\u0301 \u0301", "\uffff\ufffe\U0010ffff",
    "İstanbul ΣΑΣ ﬁ K", "我喜欢 hello 我", "นี่คือ", "\ud800 half", "", "##ing ###", "x" * 5000, "我" * 5000,
]  # fmt: skip


def settings_of(**values: object) -> TokenizerSettings:
    return TokenizerSettings.model_validate({"size": 450, **values})


@pytest.fixture(scope="module")
def made():
    """A function from settings to the tokenizer trained on CORPUS, trained once."""
    known: dict[str, Tokenizer] = {}

    def make(**values: object) -> Tokenizer:
        key = repr(sorted(values.items()))
        if key not in known:
            known[key] = train_tokenizer(settings_of(**values), CORPUS)
        return known[key]

    return make


mixed_text = st.text(st.sampled_from("ab </s>▁<0x41>\x00\n\t我喜新ก😀\u0301ÉİΣ1🚀\u200d\ufe0f"))
any_text = st.text() | mixed_text | st.sampled_from(HARD)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(text=any_text)
def test_decoding_gives_back_any_normalised_text_and_no_text_yields_a_special_token(made, kind, text):
    for options in ({"whitespace": "keep"}, {"whitespace": "collapse"}, {"whitespace": "keep", "unknown": "token"}):
        tokenizer = made(kind=kind, **options)
        specials, ids = tokenizer.specials, tokenizer.encode(text)
        assert not {specials.pad, specials.bos, specials.eos} & set(ids)
        assert all(0 <= id_ < len(tokenizer) for id_ in ids)
        if "unknown" not in options:
            assert tokenizer.decode(ids) == tokenizer.normalise(text)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_back_hard_texts(made, kind):
    for whitespace in ("keep", "collapse"):
        tokenizer = made(kind=kind, whitespace=whitespace)
        for text in HARD:
            assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalise(text)


@settings(max_examples=50)
@given(text=any_text)
def test_normalising_twice_is_normalising_once(made, text):
    for form, lowercase, whitespace in product(("nfc", "nfd", "nfkc", "none"), (False, True), ("keep", "collapse")):
        tokenizer = made(kind="byte", normalization=form, lowercase=lowercase, whitespace=whitespace)
        once = tokenizer.normalise(text)
        assert tokenizer.normalise(once) == once
        assert tokenizer.decode(tokenizer.encode(text)) == once


def test_nfd_makes_tokens_of_letters_their_accents_and_the_parts_of_a_korean_syllable():
    composed = settings_of(kind="character", normalization="nfd")
    tokenizer = train_tokenizer(composed, ["é", "각"])
    assert [tokenizer.decode([id_]) for id_ in tokenizer.encode("é각")] == ["e", "\u0301", "ᄀ", "ᅡ", "ᆨ"]
    assert composed.of_target().normalization == "nfc"  # so that outputs are composed as their references are


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_leave_no_trace(made, kind):
    tokenizer = made(kind=kind)
    ids, specials = tokenizer.encode("the newest house"), tokenizer.specials
    assert tokenizer.decode([specials.bos, *ids, specials.eos, specials.pad]) == "the newest house"


def test_special_ids_are_values_of_the_tokenizer(made):
    assert made(kind="bpe").specials == SpecialIds(pad=0, bos=1, eos=2, unk=None)
    assert made(kind="bpe", unknown="token").specials == SpecialIds(pad=0, bos=1, eos=2, unk=3)
    assert made(kind="byte", unknown="token").specials == SpecialIds(pad=0, bos=1, eos=2, unk=None)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "character"])
def test_an_unknown_character_is_one_unknown_token(made, kind):
    tokenizer = made(kind=kind, unknown="token")
    ids = tokenizer.encode("the ☃ house")
    assert ids.count(tokenizer.specials.unk) == 1
    assert tokenizer.decode(ids) == "the \ufffd house"


def test_an_unknown_word_is_one_unknown_token(made):
    tokenizer = made(kind="word", unknown="token")
    assert tokenizer.tokens(tokenizer.encode("the snowman of 1984!")) == ["▁the", "<unk>", "▁of", "▁1984!"]
    assert tokenizer.decode(tokenizer.encode("snowman of")) == "\ufffd of"


def test_broken_bytes_become_replacement_characters(made):
    tokenizer = made(kind="byte")
    assert tokenizer.decode(tokenizer.encode("é")[:1]) == "\ufffd"


def test_words_split_on_spaces_only(made):
    tokenizer = made(kind="word")
    assert tokenizer.tokens(tokenizer.encode("the street.")) == ["▁the", "▁street."]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("text", ["我喜欢新的房子。", "家が好き。新しいです。", "บ้านใหม่ฉันชอบ"])
def test_scripts_without_spaces_become_several_plain_tokens(made, kind, text):
    tokenizer = made(kind=kind)
    tokens = tokenizer.tokens(tokenizer.encode(text))
    assert len(tokens) > 1
    assert "".join(tokens) == text


@given(text=any_text)
def test_segments_join_to_the_text_and_are_short(text):
    segments = segmenter("bpe")(text)
    assert "".join(segments) == text
    assert all(len(segment) <= 49 for segment in segments)


def test_characters_have_the_classes_that_cut_segments():
    found = [character_class(character) for character in "aé我かก7½\u0301\u200d .😀\n"]
    assert found == [
        *("letter", "letter", "unspaced", "unspaced", "unspaced", "digit", "digit"),
        *("mark", "mark", "space", "other", "other", "other"),
    ]


def test_text_is_cut_into_words_digits_and_punctuation():
    assert segmenter("bpe")(" It's 42, 我喜欢 cafe\u0301!? x") == [
        *(" It", "'", "s", " 4", "2", ",", " ", "我喜欢", " cafe\u0301", "!?", " x"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_displayed_pieces_are_distinct_and_a_batch_is_encoded_as_its_texts(made, kind):
    tokenizer = made(kind=kind, whitespace="keep")
    assert len(set(tokenizer.pieces())) == len(tokenizer.pieces()) == len(tokenizer)
    assert tokenizer.encode_all(CORPUS) == [tokenizer.encode(text) for text in CORPUS]


def test_space_marker_in_the_input_is_doubled(made):
    tokenizer = made(kind="character")
    assert tokenizer.tokens(tokenizer.encode("a ▁")) == ["a", "▁", "▁▁"]


def test_threads_share_a_tokenizer(made):
    tokenizer = train_tokenizer(settings_of(), CORPUS)
    texts = [f"{line} {number}" for number in range(50) for line in CORPUS[:7]]
    wanted = made().encode_all(texts)
    found: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: found.append(tokenizer.encode_all(texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 4


@pytest.mark.parametrize("suffix", ["en", "de"])
def test_real_captions_round_trip(data_folder: Path, suffix):
    lines = (data_folder / "multi30k" / "raw" / f"test_2016_flickr.{suffix}").read_text(encoding="utf-8").split("\n")
    tokenizer = train_tokenizer(settings_of(size=2000), lines)
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == list(map(tokenizer.normalise, lines))
    assert len(tokenizer) == 2000


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_real_chinese_round_trips(data_folder: Path, kind):
    lines = (data_folder / "tatoeba_en_zh" / "test.zh").read_text(encoding="utf-8").split("\n")
    tokenizer = train_tokenizer(settings_of(kind=kind, size=3000), lines)
    ids = tokenizer.encode_all(lines)
    assert list(map(tokenizer.decode, ids)) == list(map(tokenizer.normalise, lines))
    characters = sum(map(len, lines))
    assert sum(map(len, ids)) < (1.05 if kind == "character" else 0.95) * characters


def test_unwritable_places_are_named(made, tmp_path):
    with pytest.raises(DataError) as error:
        made().save(tmp_path / "missing" / "tokenizer.json")
    assert str(error.value) == f"{tmp_path}/missing/tokenizer.json: cannot be written: No such file or directory"


def test_a_full_disk_leaves_the_tokenizer_that_was_there(made, tmp_path, full_disk):
    path = tmp_path / "tokenizer.json"
    made().save(path)
    before = path.read_bytes()
    with full_disk(), pytest.raises(DataError) as error:
        made(kind="unigram").save(path)
    assert str(error.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_tokenizer_file_is_readable_with_any_umask(made, tmp_path, umask):
    before = os.umask(umask)
    try:
        made().save(tmp_path / "tokenizer.json")
    finally:
        os.umask(before)
    assert (tmp_path / "tokenizer.json").stat().st_mode & 0o777 == 0o644
