"""A tokenizer.json of the `tokenizers` library is run as it is."""

import json

import pytest
from tests.errors import raises
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from translume.errors import DataError
from translume.text import Tokenizer
from translume.text.imported import HOSTILE

LINES = ["A man is riding a bicycle.", "Two dogs don't play in the snow...", "Ein Mann fährt Fahrrad, 1,234 mal!"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<2de>", "<2fr>"]
METASPACE = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
FROM_METASPACE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
KINDS = {
    "unigram": (models.Unigram(), trainers.UnigramTrainer, normalizers.NFKC(), pre_tokenizers.Metaspace(),
                decoders.Metaspace()),
    "bytes": (models.BPE(), trainers.BpeTrainer, None, pre_tokenizers.ByteLevel(add_prefix_space=False),
              decoders.ByteLevel()),
    "fallback": (models.BPE(unk_token="<unk>", byte_fallback=True), trainers.BpeTrainer,
                 normalizers.Sequence(METASPACE), None, decoders.Sequence(FROM_METASPACE)),
    "suffix": (models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainers.BpeTrainer, normalizers.Lowercase(),
               pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder("</w>")),
    "wordpiece": (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer, normalizers.BertNormalizer(),
                  pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()),
    "words": (models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, None, pre_tokenizers.WhitespaceSplit(),
              None),
}  # fmt: skip


def write(path, kind):
    model, trainer, normalizer, pre_tokenizer, decoder = KINDS[kind]
    library = LibraryTokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if part is not None:
            setattr(library, name, part)
    options = {"unigram": {"unk_token": "<unk>"}, "suffix": {"end_of_word_suffix": "</w>"}}.get(kind, {})
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256) if kind == "fallback")]
    if kind != "words":
        options |= {"initial_alphabet": alphabet}
    library.train_from_iterator(
        LINES * 5, trainer(vocab_size=420, special_tokens=special, show_progress=False, **options)
    )
    library.save(str(path))
    return LibraryTokenizer.from_file(str(path))  # the last bits of scores may change


@pytest.mark.parametrize("kind", KINDS)
def test_ids_texts_and_offsets_are_the_librarys_and_typed_special_tokens_are_text(tmp_path, kind):
    library = write(tmp_path / "tokenizer.json", kind)
    library.encode_special_tokens = True
    ours = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (ours.specials.pad, ours.specials.bos, ours.specials.eos, ours.languages) == (
        1, 0, 2, {"de": 4, "fr": 5},
    )  # fmt: skip
    assert ours.specials.unk == 3
    again = Tokenizer.from_json(ours.to_json())
    for text in (*LINES, *HOSTILE):
        wanted, ids = library.encode(text, add_special_tokens=False), ours.encode(text)
        assert again.encode(text) == ids
        assert not {0, 1, 2, 4, 5} & set(ids)
        if "</s>" not in text:
            assert ids == wanted.ids
        if text in LINES:
            assert ours.decode(ids) == library.decode(wanted.ids)
            assert ours.beginning(ids) == ours.decode(ids)
            if ours.normalise(text) == text:
                assert ours.spans_in(text) == wanted.offsets
        spans = ours.spans(ids)
        assert len(ours.spans_in(text)) == len(spans) == len(ids)
        assert all(0 <= begin <= end <= len(ours.decode(ids)) for begin, end in spans)


def test_special_tokens_are_those_that_the_files_beside_it_name(tmp_path):
    path = tmp_path / "tokenizer.json"
    write(path, "words")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<2de>"}, "bos_token": "<s>"}))
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 1}')
    specials = Tokenizer.load(path).specials
    assert (specials.pad, specials.bos, specials.eos, specials.unk) == (1, 1, 4, 3)
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    map_ = tmp_path / "special_tokens_map.json"
    with raises(DataError, f"{map_}: pad_token: found '[PAD]', expected a token of tokenizer.json"):
        Tokenizer.load(path)


def test_a_file_without_an_end_or_with_a_broken_model_is_a_one_line_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    LibraryTokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))
    with raises(DataError, f"{path}: no token ends a text, expected eos_token in a tokenizer_config.json beside it"):
        Tokenizer.load(path)
    path.write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}, "added_tokens": []}')
    with pytest.raises(DataError) as raised:
        Tokenizer.load(path)
    assert str(raised.value).startswith(f"{path}: damaged, or not a tokenizer of the library `tokenizers`: ")
