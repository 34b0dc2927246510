"""Texts have the ids that SentencePiece and MarianTokenizer give them."""

import json
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.errors import raises
from tokenizers import Tokenizer as LibraryTokenizer

from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.interchange.huggingface.bart import Marian
from translume.interchange.huggingface.config import CONFIG, read_json
from translume.interchange.huggingface.tokenizer import read_marian_tokenizers
from translume.interchange.sentencepiece import read_sentencepiece
from translume.text import SentencePieces, SpecialIds, Tokenizer, Vocabulary, train_tokenizer
from translume.text.imported import HOSTILE, build_proto
from translume.text.standard import standard_json

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

LINES = [
    "A man is riding a bicycle.", "Zwei Hunde spielen im Schnee...", "Die Kinder singen, und 1.234 Leute hören zu!",
    "Everyone knows the café.", "Is the little girl eating ice cream?", "Alle kennen das Café.",
]  # fmt: skip
COMPOSED = [
    "e\u0301",
    "a\u0308",
    *"áéＡﬁ½…\u00ad\u200b\u1100\u1161\u11a8ｶﾞ㍍😀▁\u3000\u00a0\u2028\ufffd\u00a8 .,abcdehimno",
]
"""Marks follow the letters that they belong to: after a ligature, the library composes one, SentencePiece does not."""
TEXTS = st.one_of(
    st.lists(st.sampled_from(COMPOSED), max_size=23).map("".join),
    st.text(max_size=17),
    st.lists(st.sampled_from([*LINES, " ", "...", "ha", "ſ", "\t"]), max_size=5).map("".join),
)


def with_specials(sentences, pieces):
    """The tokenizer of a vocabulary as OPUS-MT has it: EOS, the unknown token, pieces, padding."""
    specials = SpecialIds(pad=len(pieces) - 1, bos=len(pieces) - 1, eos=0, unk=1)
    return Tokenizer(Vocabulary.from_sentencepiece(sentences, pieces, specials))


BYTES = {"byte_fallback": True, "vocab_size": 353}
"""Options of a model whose unknown characters become bytes."""


@pytest.fixture(
    scope="module",
    params=[
        ("nmt_nfkc", "unigram", {}), ("identity", "unigram", {}), ("nmt_nfkc", "bpe", {}),
        ("identity", "unigram", BYTES), ("identity", "bpe", BYTES),
    ],
)  # fmt: skip
def model(opus, request):
    rules, kind, options = request.param
    return opus.sentencepiece_of(LINES, normalization_rule_name=rules, model_type=kind, **options)


@pytest.fixture(scope="module")
def pair(opus, model, tmp_path_factory):
    """Our tokenizer and SentencePiece's, of one model."""
    path = tmp_path_factory.mktemp("spm") / "a.spm"
    path.write_bytes(model)
    words = opus.vocabulary_of(model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = with_specials(read_sentencepiece(path), list(words))
    return ours, lambda text: [words.get(piece, 1) for piece in peer.encode(text, out_type=str)]


def test_the_library_segments_as_sentencepiece_and_replaces_it(pair, monkeypatch):
    ours, theirs = pair
    assert ours.vocabulary.sentences.library is not None
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    again = Tokenizer.from_json(ours.to_json())
    assert again.digest == ours.digest
    for text in (*LINES, *HOSTILE):
        assert again.encode(text) == theirs(text)


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
@example("." * 41)
def test_a_text_has_the_pieces_that_sentencepiece_finds(pair, text):
    ours, theirs = pair
    if not text.startswith(">>") and not any("\ud800" <= character <= "\udfff" for character in text):
        assert same_ids(ours.encode(text), theirs(text))


def same_ids(one, other):
    """Whether ids are the same, but for the order of pieces, which rounding decides between equally likely ones."""
    return sorted(one) == sorted(other)


def test_a_model_that_the_library_segments_otherwise_needs_sentencepiece(opus, model, monkeypatch):
    sentences = SentencePieces(content=model, library=None, fallback=b"<0x41>" in model)
    words = opus.vocabulary_of(model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = with_specials(sentences, list(words))
    for text in (*LINES, *HOSTILE, "ｶﾞ\u0301\u1100\u1161\u11a8Ω∀"):
        assert ours.encode(text) == [words.get(piece, 1) for piece in peer.encode(text, out_type=str)]
    text = ours.to_json()
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with raises(
        SettingsError, "tokenizer: needs sentencepiece, which is not installed; pip install 'translume[sentencepiece]'"
    ):
        Tokenizer.from_json(text)
    with pytest.raises(SettingsError, match=r"^tokenizer: the library segments some texts d"):
        standard_json(ours)


def test_a_tokenizer_of_release_0_1_0_has_the_same_ids(pair):
    """It stored the scores of pieces, with spaces, and the rules of the normaliser."""
    ours, _ = pair
    sentences = ours.vocabulary.sentences
    scores = {each.piece.replace("▁", " "): each.score for each in sentences.proto.pieces if each.type == 1}
    normaliser = sentencepiece.SentencePieceNormalizer(model_proto=sentences.content)
    rules = dict(normaliser.decompile()) if sentences.proto.normalizer_spec.precompiled_charsmap else {}
    stored = {"scores": scores, "rules": rules, "merges": sentences.proto.trainer_spec.model_type == 2}
    stored |= {"fallback": sentences.fallback}
    document = json.loads(ours.to_json())
    again = Tokenizer.from_json(json.dumps(document | {"sentencepiece": stored}))
    for text in (*LINES, *HOSTILE, ">>deu<< a"):
        assert again.encode(text) == ours.encode(text)
    assert again.specials == ours.specials
    document["sentencepiece"]["scores"] = {}
    with pytest.raises(DataError, match=r"^t\.json: damaged: 'rules' is missing"):
        Tokenizer.from_json(json.dumps(document), "t.json")


@pytest.fixture(scope="module")
def written(pair):
    """Our tokenizer, and the same as the `tokenizers` library reads it from our tokenizer.json."""
    ours, _ = pair
    return ours, LibraryTokenizer.from_str(standard_json(ours))


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
@example("</s><unk> a</s>ha e\u0301\u0302\u0301")
def test_the_tokenizers_library_gives_the_same_ids_and_texts(written, text):
    ours, library = written
    if not any("\ud800" <= character <= "\udfff" for character in text):
        ids = ours.encode(text)
        assert library.encode(text, add_special_tokens=False).ids == ids
        assert library.decode(ids, skip_special_tokens=False) == ours.decode(ids)


@settings(max_examples=60, deadline=None)
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


@pytest.fixture(scope="module", params=[False, True], ids=["one-vocabulary", "two-vocabularies"])
def folder(opus, request, tmp_path_factory):
    return opus.write(tmp_path_factory.mktemp("marian") / "model", separate=request.param)


def config_of(folder):
    return Marian().read_config(folder / CONFIG, read_json(folder / CONFIG))


@pytest.fixture(scope="module")
def marian(folder):
    from transformers import AutoTokenizer

    return *read_marian_tokenizers(folder, config_of(folder)), AutoTokenizer.from_pretrained(folder)


@settings(max_examples=60, deadline=None)
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
    assert same_ids([*source.encode(text), 0], theirs(text)["input_ids"])
    assert same_ids([*target.encode(text), 0], theirs(text_target=text)["input_ids"])


@pytest.mark.parametrize("folder", [False], indirect=True, ids=["one-vocabulary"])
def test_the_library_knows_codes_of_languages_and_no_pieces_of_the_other_side(marian):
    for ours in marian[:2]:
        library = LibraryTokenizer.from_str(standard_json(ours))
        proto = ours.vocabulary.sentences.proto
        known = {">>deu<<", "<unk>", *(each.piece.replace("▁", " ") for each in proto.pieces)}
        for text in ("A man.", ">>deu<< A man", ">>deu<<", "", *LINES):
            ids = [id_ if ours.vocabulary.pieces[id_] in known else 1 for id_ in ours.encode(text)]
            assert library.encode(text).ids == [*ids, ours.specials.eos]


def test_a_piece_without_an_id_is_named(opus, tmp_path):
    model = opus.sentencepiece_of(LINES, model_type="bpe")
    (tmp_path / "a.spm").write_bytes(model)
    pieces = ["Ω" if each == "e" else each for each in opus.vocabulary_of(model)]
    with raises(SettingsError, "tokenizer: the library needs an id for each piece of SentencePiece, 'e' has none"):
        standard_json(with_specials(read_sentencepiece(tmp_path / "a.spm"), pieces))


def test_ids_are_decoded_as_by_marian_tokenizer_and_typed_special_tokens_are_text(folder, marian):
    source, target, theirs = marian
    for line in LINES:
        ids = [id_ for id_ in target.encode(line) if id_ != target.specials.unk]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    words = json.loads((folder / "vocab.json").read_text())
    assert source.specials == SpecialIds(pad=words["<pad>"], bos=words["<pad>"], eos=0, unk=1)
    assert not {source.specials.eos, source.specials.pad} & set(source.encode("</s> <pad> a"))


def test_the_most_probable_segmentation_in_an_example_by_hand():
    # " ab": " a" + "b" is −3, " " + "ab" is −2.5; c is in no piece, and two of them are one unknown token.
    normaliser = sentencepiece.SentencePieceNormalizer(norm_map=[("Q", "a"), ("..", "")])
    proto = build_proto({" ": -1.0, " a": -1.0, "b": -2.0, "ab": -1.5}, b"", fallback=False)
    proto.normalizer_spec.precompiled_charsmap = (
        type(proto).FromString(normaliser.serialized_model_proto()).normalizer_spec.precompiled_charsmap
    )
    sentences = SentencePieces.from_proto(proto)
    tokenizer = with_specials(sentences, ("</s>", "<unk>", " ", " a", "b", "ab", "<pad>"))
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
    with raises(SettingsError, f"{path}: {message}"):
        read_sentencepiece(path)


@pytest.fixture(scope="module")
def plain(opus, tmp_path_factory):
    path = tmp_path_factory.mktemp("spm") / "a.spm"
    path.write_bytes(opus.sentencepiece_of(LINES, normalization_rule_name="identity"))
    return path


@settings(max_examples=50, deadline=None)
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
    with raises(SettingsError, "tokenizer.kind: 'sentencepiece' is not learned but imported; expected 'unigram'"):
        train_tokenizer(TokenizerSettings(kind="sentencepiece"), LINES)


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
    with raises(DataError, f"{folder / 'vocab.json'}: {message.format(size=config.vocabulary)}"):
        read_marian_tokenizers(folder, config)
