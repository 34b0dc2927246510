"""The tokenizer.json for programs without Translume: the same ids and texts, and what it cannot express."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from translume.config import TokenizerSettings
from translume.errors import SettingsError
from translume.text import Tokenizer, train_tokenizer
from translume.text.imported import LibraryIds
from translume.text.standard import standard_json, tokenizer_files, write_tokenizers

CORPUS = [
    "The house is big, the mouse is small.",
    "Ὀδυσσεύς ΣΟΦΟΣ 我喜欢猫。 12 345",
    "Straße, café: déjà vu!",
] * 3
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lowercase": True, "normalization": "nfkc"},
    {"lowercase": True, "whitespace": "keep", "normalization": "none"},
]
EXPRESSED = [
    (kind, unknown)
    for kind, unknown in product(("bpe", "unigram", "wordpiece", "character", "byte", "word"), ("bytes", "token"))
    if (kind, unknown) != ("wordpiece", "bytes")
]


def made(kind: Any = "bpe", unknown: Any = "bytes", **options: Any) -> Tokenizer:
    return train_tokenizer(TokenizerSettings(kind=kind, size=330, unknown=unknown, **options), CORPUS)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Tokenizer, LibraryTokenizer]]:
    """Return tokenizers of all kinds and options that can be expressed, each with that of the library."""
    ours = [made(kind, unknown, **options) for (kind, unknown), options in product(EXPRESSED, OPTIONS)]
    return [(each, LibraryTokenizer.from_str(standard_json(each))) for each in ours]


# Characters that Unicode assigned after Python's tables are normalised differently, so the blocks are older ones.
LETTERS = st.characters(max_codepoint=0x17F, exclude_categories=["Cs", "Cn"])
OTHERS = st.sampled_from("ΣσςΑα我喜☃\u200d\u0301\u3000\u2028\x1c▁İ가ﬁ👩")
TEXTS = st.lists(st.one_of(LETTERS, OTHERS, st.sampled_from([*CORPUS, "</s>", "<0x41>", "  "])), max_size=9).map(
    "".join
)


@given(text=TEXTS)
def test_the_library_gives_the_same_ids_and_texts(pairs: list[tuple[Tokenizer, LibraryTokenizer]], text: str) -> None:
    for ours, library in pairs:
        ids = ours.encode(text)
        assert library.encode(text, add_special_tokens=False).ids == ids, ours.settings
        assert library.encode(text).ids == [*ids, ours.specials.eos]
        assert library.decode(ids, skip_special_tokens=False) == ours.decode(ids)


def test_lines_of_mixed_scripts_have_the_same_ids(data_folder: Path) -> None:
    lines = [
        line
        for file in ("tatoeba_en_zh/test.zh", "tatoeba_en_zh/test.en")
        for line in (data_folder / file).read_text(encoding="utf-8").splitlines()[:200]
    ]
    for kind, unknown in (("bpe", "bytes"), ("unigram", "token")):
        ours = train_tokenizer(TokenizerSettings(kind=kind, unknown=unknown, size=900), lines[::2])
        library = LibraryTokenizer.from_str(standard_json(ours))
        found = library.encode_batch(lines, add_special_tokens=False)
        assert [each.ids for each in found] == ours.encode_all(lines)


def test_special_tokens_and_tags_of_languages_are_text_in_a_text_and_nothing_in_ids() -> None:
    ours = train_tokenizer(TokenizerSettings(size=330), CORPUS, ["de", "fr"])
    library = LibraryTokenizer.from_str(standard_json(ours))
    text = "the __de__ house</s> <pad>"
    assert library.encode(text, add_special_tokens=False).ids == ours.encode(text)
    ids = [ours.languages["de"], *ours.encode("the house"), ours.specials.eos, ours.specials.pad]
    assert library.decode(ids, skip_special_tokens=False) == "the house"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("wordpiece", "tokenizer.unknown: the library's WordPiece has no bytes for unknown characters"),
        ("word", "tokenizer.unknown: the library cuts unknown words into known characters, not into bytes"),
    ],
)
def test_what_the_library_cannot_express_is_named_and_left_out(kind: Any, message: str) -> None:
    settings = TokenizerSettings(kind=kind, size=300, whitespace="keep")
    ours = train_tokenizer(settings, ["a  big house"])
    with pytest.raises(SettingsError) as caught:
        standard_json(ours)
    assert str(caught.value) == message
    assert list(tokenizer_files("source", ours)) == ["source_settings.json"]


def test_an_export_gets_both_files_of_each_side(tmp_path: Path) -> None:
    source, target = made(), made("character")
    write_tokenizers(tmp_path, source, target)
    names = ["source.json", "source_settings.json", "target.json", "target_settings.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert Tokenizer.load(tmp_path / "source_settings.json").digest == source.digest
    assert LibraryTokenizer.from_file(str(tmp_path / "target.json")).get_vocab_size() == len(target)


def test_the_librarys_file_is_read_as_it_is_with_the_same_ids(tmp_path: Path) -> None:
    write_tokenizers(tmp_path, ours := made(), ours)
    found = Tokenizer.load(tmp_path / "tokenizer.json")
    assert found.settings.kind == "library"
    assert [found.encode(text) for text in CORPUS] == [ours.encode(text) for text in CORPUS]


def test_a_special_token_of_which_pieces_cover_every_cut_is_text_but_has_no_standard_file() -> None:
    pieces = ["<unk>", "<s>", "<", "s", ">", "<s", "s>", "a"]
    marks = [{"id": id_, "content": pieces[id_], "special": True} for id_ in (0, 1)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -float(rank)] for rank, piece in enumerate(pieces)]}
    found = LibraryIds({"added_tokens": [{**mark, **flags} for mark in marks], "model": model}, len(pieces))
    assert [pieces[id_] for id_ in found.encode("a<s>a<s")] == ["a", "<s", ">", "a", "<s"]
    with pytest.raises(SettingsError, match=r"^tokenizer: the library would match the special token '<s>' in a text$"):
        found.without_specials()
