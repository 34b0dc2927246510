"""Pretrained word vectors: their rows equal the file's, other rows keep their values, frozen rows do not train."""

import gzip
import math
from pathlib import Path

import pytest
import torch
from tests.batches import pad_batch

from translume.checkpoint import build_model, load_pretrained, mark_separators
from translume.config import ModelSettings, SoftmaxSettings, TokenizerSettings, TrainingSettings
from translume.errors import DataError, SettingsError
from translume.model import LossOptions
from translume.text import train_tokenizer
from translume.training.optimisation import Updater

VECTORS = {"the": [1.0, 2.0, 3.0, 4.0], "dog": [5.0, 6.0, 7.0, 8.0], "zebra": [9.0, 9.0, 9.0, 9.0]}


@pytest.fixture(scope="module")
def words():
    settings = TokenizerSettings(kind="word", size=60, unknown="token")
    return train_tokenizer(settings, ["The dog and the cat | run", "a dog | the end"] * 3)


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, each))}\n" for word, each in VECTORS.items()))
    return path


def settings_of(path: Path | str = "", **changes: object) -> ModelSettings:
    values = {
        "width": 4, "feed_forward": 5, "attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1,
        "dropout": 0.0, "pretrained_source": str(path), "head": SoftmaxSettings(tie="none"),
    }  # fmt: skip
    return ModelSettings(**{**values, **changes})


def build(settings, words):
    torch.manual_seed(1)
    return build_model(settings, len(words), len(words))


def row(words, piece):
    return next(id_ for id_, each in enumerate(words.pieces()) if each.removeprefix("▁") == piece)


@pytest.mark.parametrize("header", ["", "3 4\n"], ids=["glove", "word2vec"])
@pytest.mark.parametrize("scale", [True, False])
def test_words_in_the_file_get_their_vectors_and_others_keep_theirs(words, glove, header, scale):
    glove.write_text(header + glove.read_text())
    settings = settings_of(glove, scale_embeddings=scale)
    model, before = build(settings, words), build(settings, words)
    notes = load_pretrained(model, settings, words, words)
    assert notes == [f"{glove}: word vectors for 3 of {len(words) - 4} tokens"]
    embedding = model.encoder.embedding
    known = {row(words, piece): VECTORS[piece.lower()] for piece in ("the", "The", "dog")}
    for id_ in range(len(words)):
        read = embedding.table.weight[id_].detach() * (math.sqrt(4) if scale else 1.0)
        if id_ in known:
            torch.testing.assert_close(read, torch.tensor(known[id_]))
        else:
            assert torch.equal(embedding.table.weight[id_], before.encoder.embedding.table.weight[id_])


@pytest.mark.parametrize(
    ("packed", "header", "note"),
    [
        ("", "", ""),
        ("", "3 4\n", ""),
        ("", "500 4\n", "; its first line names 500 words, found 3"),
        ("", "2 4\n", "; its first line names 2 words, found 3"),
        (".gz", "3 4\n", ""),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_no_part_of_a_word_and_a_wrong_count_is_noted(words, glove, mark, packed, header, note):
    path = glove.with_name(f"{glove.name}{packed}")
    content = (mark + header + glove.read_text()).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    settings = settings_of(path)
    notes = load_pretrained(build(settings, words), settings, words, words)
    assert notes == [f"{path}: word vectors for 3 of {len(words) - 4} tokens{note}"]


def test_an_exact_match_is_preferred_to_the_lower_case_word(words, glove):
    glove.write_text("The 1 1 1 1\nthe 2 2 2 2\nTHE 3 3 3 3\n")
    settings = settings_of(glove, scale_embeddings=False)
    model = build(settings, words)
    load_pretrained(model, settings, words, words)
    table = model.encoder.embedding.table.weight
    assert (float(table[row(words, "The"), 0].detach()), float(table[row(words, "the"), 0].detach())) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2 3\n", ":1: vectors of 3 numbers, expected 4, the model's width"),
        ("2 5\nthe 1 2 3 4 5\n", ":1: vectors of 5 numbers, expected 4, the model's width"),
        ("the 1 2 3 4\ndog 1 2 3\n", ":2: vectors of 3 numbers, expected 4, the model's width"),
        ("the 1 2 x 4\n", ":1: not a word and 4 numbers"),
        ("\nthe 1 2 nan 4\n", ":2: a number that is not finite"),
        ("gnu 1 2 3 4\n", ": none of its words is a token of the vocabulary, expected at least one"),
        ("", ": none of its words is a token of the vocabulary, expected at least one"),
        (None, ": no such file"),
        (b"gnu 1 2 3 4\n\xff 1 2 3 4\n", ":2: not UTF-8 (byte 0xff at column 1)"),
    ],
)
def test_an_unreadable_or_unsuitable_file_is_refused_in_one_line(words, tmp_path, text, message):
    path = tmp_path / "vectors.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    settings = settings_of(path)
    with pytest.raises(DataError) as caught:
        load_pretrained(build(settings, words), settings, words, words)
    assert str(caught.value).partition("; if it is Windows")[0] == f"{path}{message}"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_frozen_rows_keep_their_values_while_others_train(words, glove, tie, precision):
    settings = settings_of(glove, pretrained_target=str(glove), freeze_pretrained=True, head=SoftmaxSettings(tie=tie))
    model = build(settings, words)
    assert "kept as they are," in load_pretrained(model, settings, words, words)[0]
    training = TrainingSettings(optimizer="adamw", weight_decay=0.1, precision=precision)
    updater = Updater(model, training, options=LossOptions(0.1), precision=precision, device=torch.device("cpu"))
    texts = [words.encode("The dog and the cat run"), words.encode("a dog")]
    batch = pad_batch(texts, texts[::-1], words.specials, words.specials)
    name = "encoder.embedding.table.weight"
    before = updater.parameters_fp32()[name].clone()
    for _ in range(3):
        updater.update(updater.add(batch).tokens, 1e-2)
    after, frozen = updater.parameters_fp32()[name], model.encoder.embedding.frozen
    assert int(frozen.sum()) == 3
    assert torch.equal(after[frozen], before[frozen])
    learnt = row(words, "cat")
    assert not torch.equal(after[learnt], before[learnt])


def test_glove_and_word2vec_files_give_the_same_vectors(data_folder, words):
    folder, rows = data_folder / "word_vectors", []
    for name in ("glove.6B.100d.sample.txt", "glove.6B.100d.sample.word2vec.txt"):
        settings = settings_of(folder / name, width=100)
        model = build(settings, words)
        (note,) = load_pretrained(model, settings, words, words)
        assert "word vectors for " in note
        rows.append(model.encoder.embedding.table.weight)
    assert torch.equal(*rows)
    settings = settings_of(folder / "glove.6B.300d.sample.txt", width=100)
    message = r"300d\.sample\.txt:1: vectors of 300 numbers, expected 100, the model's width$"
    with pytest.raises(DataError, match=message):
        load_pretrained(build(settings, words), settings, words, words)


@pytest.mark.parametrize("kind", ["word", "bpe", "character", "byte"])
def test_segments_follow_the_separator_in_the_text_for_every_tokenizer_kind(kind):
    tokenizer = train_tokenizer(TokenizerSettings(kind=kind, size=300), ["a dog | the end | ok"] * 3)
    settings = settings_of(segments=2)
    model = build(settings, tokenizer)
    mark_separators(model, settings, tokenizer)
    embedding, ids = model.encoder.embedding, tokenizer.encode("a dog | the end | ok")
    segments = embedding.segments_of(torch.tensor([ids]))[0].tolist()
    first = [id_ for id_, segment in zip(ids, segments, strict=True) if segment == 0]
    assert tokenizer.decode(first) == "a dog |"
    assert set(segments) == {0, 1}
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    with torch.no_grad():
        before = model.start(torch.tensor([ids]), mask).memory
        embedding.segments.weight[1] += torch.arange(4.0)
        assert not torch.allclose(model.start(torch.tensor([ids]), mask).memory, before)


def test_a_separator_without_a_spelling_in_tokens_is_refused(words):
    settings = settings_of(segments=2, segment_separator="‖")
    with pytest.raises(SettingsError) as caught:
        mark_separators(build(settings, words), settings, words)
    assert str(caught.value) == (
        "model.segment_separator: no token of the source vocabulary holds '‖', "
        "expected a character that separates segments in the training text"
    )
