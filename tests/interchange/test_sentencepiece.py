"""Texts have the ids that SentencePiece and MarianTokenizer give them."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.interchange.huggingface.config import CONFIG, read_json
from translume.interchange.huggingface.families.marian import Marian
from translume.interchange.huggingface.tokenizer import read_marian_tokenizers
from translume.interchange.sentencepiece import read_sentencepiece
from translume.text import SentencePieces, SpecialIds, Tokenizer, Vocabulary, train_tokenizer
from translume.text.standard import standard_json

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

LINES = [
    "A man is riding a bicycle.", "Zwei Hunde spielen im Schnee...", "Die Kinder singen, und 1.234 Leute hören zu!",
    "Everyone knows the café.", "Is the little girl eating ice cream?", "Alle kennen das Café.",
]  # fmt: skip
COMPOSED = "áéＡﬁ½…\u00ad\u200b\u0301\u0308\u1100\u1161\u11a8ｶﾞ㍍😀▁\u3000\u00a0\u2028\ufffd\u00a8 .,abcdehimno"
TEXTS = st.one_of(
    st.text(st.sampled_from(COMPOSED), max_size=23),
    st.text(max_size=17),
    st.lists(st.sampled_from([*LINES, " ", "...", "ha", "ſ", "\t"]), max_size=5).map("".join),
)


def tokenizer_of(opus, path, model):
    path.write_bytes(model)
    pieces = tuple(piece.replace("▁", " ") for piece in opus.vocabulary_of(model))
    return Tokenizer(
        Vocabulary(
            settings=TokenizerSettings(kind="sentencepiece", size=len(pieces), normalization="none", unknown="token"),
            specials=SpecialIds(pad=len(pieces) - 1, bos=len(pieces) - 1, eos=0, unk=1),
            pieces=pieces, first=0, sentences=read_sentencepiece(path),
        )
    )  # fmt: skip


BYTES = {"byte_fallback": True, "vocab_size": 353}
"""Options of a model whose unknown characters become bytes."""


@pytest.fixture(
    scope="module",
    params=[
        ("nmt_nfkc", "unigram", {}), ("identity", "unigram", {}), ("nmt_nfkc", "bpe", {}),
        ("identity", "unigram", BYTES), ("identity", "bpe", BYTES),
    ],
)  # fmt: skip
def pair(opus, request, tmp_path_factory):
    """Our tokenizer and SentencePiece's, of one model."""
    rules, kind, options = request.param
    model = opus.sentencepiece_of(LINES, normalization_rule_name=rules, model_type=kind, **options)
    ours = tokenizer_of(opus, tmp_path_factory.mktemp("spm") / "a.spm", model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    words = opus.vocabulary_of(model)
    return ours, lambda text: [words.get(piece, 1) for piece in peer.encode(text, out_type=str)]


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
@example("." * 41)
def test_a_text_has_the_pieces_that_sentencepiece_finds(pair, text):
    ours, theirs = pair
    if not text.startswith(">>") and not any("\ud800" <= character <= "\udfff" for character in text):
        assert ours.encode(text) == theirs(text)


@pytest.fixture(scope="module")
def written(pair):
    """Our tokenizer, and the same as the `tokenizers` library reads it from our tokenizer.json."""
    ours, _ = pair
    if ours.vocabulary.sentences.merges:  # the library has no codes of languages there
        ours = Tokenizer(replace(ours.vocabulary, sentences=replace(ours.vocabulary.sentences, codes=False)))
    return ours, LibraryTokenizer.from_str(standard_json(ours))


def same_ids(ours, library, text):
    """Whether the library gives the same ids, or a segmentation with the same score, which rounding decides."""
    found, ids = library.encode(text, add_special_tokens=False).ids, ours.encode(text)
    pieces, scores = ours.vocabulary.pieces, ours.vocabulary.sentences.scores
    one, other = (sum(scores.get(pieces[id_], 0.0) for id_ in each) for each in (found, ids))
    return found == ids or (len(found) == len(ids) and one == pytest.approx(other, abs=1e-4))


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
@example("</s><unk> a</s>ha \ufff0\ufff1 e\u0301\u0302\u0301")
def test_the_tokenizers_library_gives_the_same_ids_and_texts(written, text):
    ours, library = written
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert same_ids(ours, library, text)
        ids = ours.encode(text)
        assert library.decode(ids, skip_special_tokens=False) == ours.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_known_text_is_decoded_normalised_also_after_a_round_trip_through_json(pair, text):
    ours, _ = pair
    ids = ours.encode(text)
    normal = ours.normalise(text)
    assert ours.encode_all([text]) == [ids]
    if ours.specials.unk not in ids:
        assert ours.decode(ids) == normal
    spans = ours.spans_in(text)
    assert len(spans) == len(ids)
    spans = list(dict.fromkeys(spans))  # the bytes of a character have the same
    assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]]
    if "▁" not in text and ids:
        assert (spans[0][0], spans[-1][1]) == (0, len(normal))


def test_a_saved_tokenizer_is_loaded_again(pair):
    ours, _ = pair
    back = Tokenizer.from_json(ours.to_json())
    assert back.digest == ours.digest
    assert back.specials == ours.specials
    assert [back.encode(line) for line in LINES] == [ours.encode(line) for line in LINES]


@pytest.fixture(scope="module", params=[False, True], ids=["one-vocabulary", "two-vocabularies"])
def folder(opus, request, tmp_path_factory):
    return opus.write(tmp_path_factory.mktemp("marian") / "model", separate=request.param)


def config_of(folder):
    return Marian().read_config(folder / CONFIG, read_json(folder / CONFIG))


@pytest.fixture(scope="module")
def marian(folder):
    from transformers import AutoTokenizer

    return *read_marian_tokenizers(
        folder, Marian().read_config(folder / CONFIG, read_json(folder / CONFIG))
    ), AutoTokenizer.from_pretrained(folder)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
@example(">>deu<< A man.")
@example(">>xyz<<A man.")
@example(">><<>>deu<< A")
@example("")
def test_source_and_target_have_the_ids_of_marian_tokenizer(marian, text):
    source, target, theirs = marian
    if any("\ud800" <= character <= "\udfff" for character in text):
        return
    if any(special in text for special in ("<unk>", "<pad>", "</s>")):  # text here, special tokens in MarianTokenizer
        return
    assert [*source.encode(text), 0] == theirs(text)["input_ids"]
    assert [*target.encode(text), 0] == theirs(text_target=text)["input_ids"]


@pytest.mark.parametrize("folder", [False], indirect=True, ids=["one-vocabulary"])
def test_codes_of_languages_and_pieces_of_the_other_side_have_the_same_ids_in_the_library(marian):
    for ours in marian[:2]:
        library = LibraryTokenizer.from_str(standard_json(ours))
        for text in (
            "A man.", ">>deu<< A man", ">>xyz<<A man.", ">><<>>deu<< A", ">>deu<<", " >>deu<< a", "＞＞deu＜＜ a", "",
            "é éz ézé Zß ü", *LINES,
        ):  # fmt: skip
            assert library.encode(text).ids == [*ours.encode(text), ours.specials.eos]


def test_what_the_library_cannot_express_is_named(opus, tmp_path):
    model = opus.sentencepiece_of(LINES, model_type="bpe")
    (tmp_path / "a.spm").write_bytes(model)
    sentences = read_sentencepiece(tmp_path / "a.spm")
    pieces = ("</s>", "<unk>", *sentences.scores, ">>deu<<", "<pad>")
    codes = Vocabulary(
        settings=TokenizerSettings(kind="sentencepiece", size=len(pieces), unknown="token"), pieces=pieces, first=0,
        specials=SpecialIds(pad=len(pieces) - 1, bos=len(pieces) - 1, eos=0, unk=1), sentences=sentences,
    )  # fmt: skip
    least = replace(codes, pieces=tuple("Ω" if each == "e" else each for each in pieces))
    for vocabulary, message in (
        (codes, "the library cannot express language codes with byte-pair encoding"),
        (least, "the library needs an id for each piece of SentencePiece, 'e' has none"),
    ):
        with pytest.raises(SettingsError) as error:
            standard_json(Tokenizer(vocabulary))
        assert str(error.value) == f"tokenizer: {message}"


def test_ids_are_decoded_as_by_marian_tokenizer(marian):
    _, target, theirs = marian
    for line in LINES:
        ids = target.encode(line)
        ids = [id_ for id_ in ids if id_ != target.specials.unk]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_typed_special_tokens_are_text(marian):
    source, _, _ = marian
    assert not {source.specials.eos, source.specials.pad} & set(source.encode("</s> <pad> a"))


def test_special_ids_are_the_models(folder, marian):
    source, _, _ = marian
    words = json.loads((folder / "vocab.json").read_text())
    assert source.specials == SpecialIds(pad=words["<pad>"], bos=words["<pad>"], eos=0, unk=1)


def test_the_most_probable_segmentation_in_an_example_by_hand():
    # " ab": " a" + "b" is −3, " " + "ab" is −2.5; c is in no piece, and two of them are one unknown token.
    pieces = SentencePieces(scores={" ": -1.0, " a": -1.0, "b": -2.0, "ab": -1.5}, rules={"Q": "a", "..": ""})
    words = ("</s>", "<unk>", " ", " a", "b", "ab", "<pad>")
    tokenizer = Tokenizer(
        Vocabulary(
            settings=TokenizerSettings(kind="sentencepiece", size=8, unknown="token"), pieces=words, first=0,
            specials=SpecialIds(pad=6, bos=6, eos=0, unk=1), sentences=pieces,
        )
    )  # fmt: skip
    assert tokenizer.encode("Qb..") == [2, 5]
    assert tokenizer.encode("  accb ") == [3, 1, 4]
    assert tokenizer.normalise("  Q   b.. ") == "a b"
    assert tokenizer.tokens([2, 5, 3, 0]) == ["▁", "ab", "▁a", "</s>"]
    assert tokenizer.spans_in("accb") == [(0, 1), (1, 3), (3, 4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "char"}, "model_type: found 'char', expected 'unigram'"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix: found True, expected False"),
        ({"user_defined_symbols": ["<x>"]}, "user_defined_symbols: found ['<x>'], expected []"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix: found False, expected True"),
        ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces: found False, expected True"),
    ],
)  # fmt: skip
def test_options_that_change_the_segmentation_are_refused_by_name(opus, tmp_path, options, message):
    path = tmp_path / "a.spm"
    path.write_bytes(opus.sentencepiece_of(LINES, normalization_rule_name="identity", **options))
    with pytest.raises(SettingsError) as error:
        read_sentencepiece(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.fixture(scope="module")
def plain(opus, tmp_path_factory):
    path = tmp_path_factory.mktemp("spm") / "a.spm"
    path.write_bytes(opus.sentencepiece_of(LINES, normalization_rule_name="identity"))
    return path


@settings(max_examples=100, deadline=None)
@given(cut=st.floats(0, 1), noise=st.binary(max_size=7))
def test_a_damaged_file_is_a_one_line_error(plain, cut, noise):
    model, path = plain.read_bytes(), plain.with_name("damaged.spm")
    path.write_bytes(model[: int(cut * len(model))] + noise)
    try:
        read_sentencepiece(path)
    except (DataError, SettingsError) as error:
        line = str(error)
    else:
        line = f"{path}: whole enough"
    assert line.startswith(f"{path}: ")
    assert "\n" not in line


def test_a_sentencepiece_tokenizer_cannot_be_trained():
    with pytest.raises(SettingsError) as error:
        train_tokenizer(TokenizerSettings(kind="sentencepiece"), LINES)
    assert str(error.value) == "tokenizer.kind: 'sentencepiece' is not learned but imported; expected 'unigram'"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "not JSON: Expecting value: line 1 column 2 (char 1)"),
        ("[]", "expected a JSON object of tokens, each with its id, 0, 1, 2, …"),
        ('{"a": 1}', "expected a JSON object of tokens, each with its id, 0, 1, 2, …"),
        ('{"</s>": 0, "<unk>": 1}', "found 2 tokens, expected {size} by config.json"),
    ],
)
def test_a_bad_vocabulary_is_a_one_line_error(opus, tmp_path, content, message):
    folder = opus.write(tmp_path / "model", tokenizer={"normalization_rule_name": "identity"})
    config = config_of(folder)
    (folder / "vocab.json").write_text(content)
    with pytest.raises(DataError) as error:
        read_marian_tokenizers(folder, config)
    assert str(error.value) == f"{folder / 'vocab.json'}: {message.format(size=config.vocabulary)}"


def test_pieces_of_the_file_are_those_of_sentencepiece(opus, tmp_path):
    model = opus.sentencepiece_of(LINES, normalization_rule_name="identity")
    (tmp_path / "a.spm").write_bytes(model)
    found = read_sentencepiece(tmp_path / "a.spm")
    assert [piece.replace(" ", "▁") for piece in found.scores] == opus.pieces_of(model)
    assert not found.rules
