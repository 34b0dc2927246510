"""Windows of consecutive sentences of documents, as a model with `data.context` reads them in training."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config import Config, ModelSettings
from translume.config.data import CleaningSettings, ContextSettings, DataSettings
from translume.data.batch import GIVEN
from translume.data.pairs import read_pairs
from translume.data.plan import BatchPlan
from translume.data.token_cache import prepare
from translume.errors import SettingsError
from translume.model import LossOptions

EOS = "¶"
SIDE = st.text("abc", min_size=1, max_size=5)
DOCUMENTS = st.lists(st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=5), min_size=1, max_size=4)


def context(source: int, target: int, **others: object) -> dict[str, object]:
    return {"context": ContextSettings(source=source, target=target), "documents": "blank_line", **others}


def blank_lines(documents):
    """Return pairs with a blank pair after each document."""
    return [pair for document in documents for pair in (*document, ("", ""))]


def window(sentences: list[str], count: int, most: int) -> str:
    """Return the last sentence after as many of `count` ones before it as fit, nearest first."""
    own, before = sentences[-1], sentences[:-1]
    for sentence in before[::-1][:count]:
        if len(sentence) + 1 + len(own) > most:
            break
        own = f"{sentence}{EOS}{own}"
    return own


def read(side, tokenizer) -> list[str]:
    """Return the texts of ragged ids, with a sign for each EOS."""
    rows = [side.tokens[start : start + n].tolist() for start, n in zip(side.starts, side.lengths, strict=True)]
    return ["".join(EOS if id_ == tokenizer.specials.eos else tokenizer.decode([id_]) for id_ in row) for row in rows]


@given(documents=DOCUMENTS, source=st.integers(0, 3), target=st.integers(0, 3), most=st.integers(5, 20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_windows_are_the_sentences_before_within_their_document(
    corpus_files, by_bytes, tmp_path, documents, source, target, most
):
    if not source and not target:
        source = 1
    cleaning = CleaningSettings(max_tokens=most)
    chosen = corpus_files(blank_lines(documents), **context(source, target, cleaning=cleaning))
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    wanted = [
        tuple(window([pair[side] for pair in document[: place + 1]], count, most) for side, count in sides)
        for document in documents
        for place in range(len(document))
        for sides in [((0, source), (1, target))]
    ]
    order = np.random.default_rng(len(wanted)).permutation(len(wanted))
    sides = corpus.sides(order)
    assert list(zip(*(read(side, by_bytes) for side in sides), strict=True)) == [wanted[number] for number in order]
    lengths = corpus.read_lengths(order)
    assert [side.lengths.tolist() for side in sides] == [each.tolist() for each in lengths]
    whole = [
        tuple(window([pair[side] for pair in document[: place + 1]], count, 999) for side, count in sides)
        for document in documents
        for place in range(len(document))
        for sides in [((0, source), (1, target))]
    ]
    short = sum(one != other for one, other in zip(wanted, whole, strict=True))
    found = f"{short:,} of {len(wanted):,} pairs with less context, to fit {most} tokens"
    assert corpus.shortened == (found if short else "")
    assert corpus.longest == most >= max(len(side) for pair in wanted for side in pair)
    assert corpus.account.read == corpus.pairs == len(wanted), "lines between documents are no pairs"


@pytest.mark.parametrize("name", ["train.tsv", "train.csv", "train.jsonl"])
def test_documents_end_where_a_column_changes(write, name):
    rows = [("d1", "a", "b"), ("d1", "c", "d"), ("d2", "e", "f"), ("d1", "g", "h")]
    texts = {
        "train.tsv": "".join("\t".join(("x", *row)) + "\n" for row in rows),
        "train.csv": "which,source,target\n" + "".join(",".join(row) + "\n" for row in rows),
        "train.jsonl": "".join(f'{{"which": "{a}", "source": "{b}", "target": "{c}"}}\n' for a, b, c in rows),
    }
    file = write(name, texts[name])
    columns = (2, 3) if name == "train.tsv" else ("source", "target")
    column = 1 if name == "train.tsv" else "which"
    chosen = DataSettings(train=(file,), columns=columns, document_column=column)
    first = 2 if name == "train.csv" else 1
    assert [(pair.source, pair.target, pair.document) for pair in read_pairs(chosen, "train")] == [
        ("a", "b", f"{file}:{first}"),
        ("c", "d", f"{file}:{first}"),
        ("e", "f", f"{file}:{first + 2}"),
        ("g", "h", f"{file}:{first + 3}"),
    ]


def test_each_file_may_be_a_document(write, by_bytes, tmp_path):
    files = [write(name, "a\tb\nc\td\n") for name in ("one.tsv", "two.tsv")]
    chosen = DataSettings(train=tuple(files), valid=(files[0],), context=ContextSettings(source=1), documents="file")
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert read(corpus.sides(np.arange(4))[0], by_bytes) == ["a", f"a{EOS}c", "a", f"a{EOS}c"]


def test_whole_documents_are_held_out(corpus_files, by_bytes, tmp_path):
    documents = [[(f"s{number} {place}", "t") for place in range(1 + number % 3)] for number in range(150)]
    chosen = corpus_files(blank_lines(documents), valid=False, **context(2, 1))
    found = [
        prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split=split).document_hashes
        for split in ("train", "valid")
    ]
    assert len(found[1]) > 1
    assert not set(found[0].tolist()) & set(found[1].tolist())


def test_only_the_last_sentence_of_a_target_is_predicted(corpus_files, by_bytes, tmp_path):
    documents = [[("abc", "de"), ("f", "ghi"), ("jk", "l")]]
    chosen = corpus_files(blank_lines(documents), **context(1, 2))
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    batch = BatchPlan(corpus, max_tokens=99, seed=1, epoch=0).batch(0)
    specials = by_bytes.specials
    shown = {}
    for number, given_, labels, mask in zip(
        batch.lines, batch.target.tolist(), batch.labels.tolist(), batch.target_mask.tolist(), strict=True
    ):
        length = sum(mask)
        texts = [
            "".join(
                {specials.eos: EOS, specials.bos: "^", GIVEN: "-"}.get(id_) or by_bytes.decode([id_])
                for id_ in row[:length]
            )
            for row in (given_, labels)
        ]
        shown[number] = tuple(texts)
    assert shown == {
        0: ("^de", f"de{EOS}"),
        1: (f"^de{EOS}ghi", f"---ghi{EOS}"),
        2: (f"^de{EOS}ghi{EOS}l", f"-------l{EOS}"),
    }
    assert batch.tokens == 3 + 4 + 2
    halves = batch.halves()
    assert sum(half.tokens for half in halves) == batch.tokens
    for half in halves:
        assert half.tokens == int((half.target_mask & (half.labels != GIVEN)).sum())


@pytest.mark.parametrize("on_device", [False, True])
def test_the_loss_is_that_of_the_predicted_tokens(corpus_files, by_bytes, tmp_path, on_device):
    from translume.checkpoint import build_model
    from translume.model.compiled import torch_only

    documents = [[("abc", "de"), ("f", "ghi"), ("jk", "l")], [("b", "c")]]
    chosen = corpus_files(blank_lines(documents), **context(1, 2))
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    batch = BatchPlan(corpus, max_tokens=99, seed=1, epoch=0).batch(0)
    small = ModelSettings(width=16, feed_forward=24, encoder_layers=1, decoder_layers=1, attention_heads=2)
    model = build_model(small, len(by_bytes), len(by_bytes)).eval()
    counted = batch.target_mask & (batch.labels != GIVEN)
    labels = batch.labels.clamp(min=0)
    scores = model.score(batch.source, batch.source_mask, batch.target, labels, batch.target_mask)
    with torch_only() if on_device else nullcontext():
        loss = model.loss(
            batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask, LossOptions(),
            tokens=batch.tokens,
        )  # fmt: skip
    assert torch.allclose(loss.objective, -scores[counted].sum(), rtol=1e-5)
    assert loss.tokens == batch.tokens == int(counted.sum())


def test_subword_dropout_keeps_the_sentences_of_a_window(corpus_files, by_merges, tmp_path):
    documents = [[("the rain", "in spain"), ("falls mainly", "the rain"), ("rain in spain", "falls")]]
    chosen = corpus_files(blank_lines(documents), **context(2, 1))
    corpus = prepare(chosen, by_merges, by_merges, tmp_path / "cache", split="train")
    plan = BatchPlan(corpus, max_tokens=999, seed=1, epoch=0, dropout=0.9)
    batch = plan.batch(0)
    found = dict(zip(batch.lines, batch.source.tolist(), strict=True))
    sentences, row = [[]], found[2]
    for id_ in row:
        if id_ == by_merges.specials.eos:
            sentences.append([])
        elif id_ != by_merges.specials.pad:
            sentences[-1].append(id_)
    assert [by_merges.decode(ids) for ids in sentences] == ["the rain", "falls mainly", "rain in spain", ""]
    assert sentences[:1] != [by_merges.encode("the rain")]


def test_an_interrupted_cache_has_the_same_documents(corpus_files, by_bytes, tmp_path: Path, monkeypatch):
    from translume.data import token_cache

    documents = [[(f"s{number}{place}", "t") for place in range(3)] for number in range(40)]
    chosen = corpus_files(blank_lines(documents), valid=False, **context(1, 0))
    whole = prepare(chosen, by_bytes, by_bytes, tmp_path / "whole", split="train")
    monkeypatch.setattr(token_cache, "_CHUNK", 7)
    monkeypatch.setattr(token_cache, "SAVE_SECONDS", 0.0)
    calls = []

    def stop(pairs):
        calls.append(pairs)
        if len(calls) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(chosen, by_bytes, by_bytes, tmp_path / "cut", split="train", look=stop)
    again = prepare(chosen, by_bytes, by_bytes, tmp_path / "cut", split="train")
    assert again.document_hashes.tolist() == whole.document_hashes.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("data.streaming=true", "data.context: must be 0 with data.streaming"),
        ("training.teacher='models/one'", "data.context: must be 0 with training.teacher"),
        ("data.source.kind='audio'", "data.context: must be 0 with data.source"),
        ("data.objective='denoise'", "data.context: must be 0 with data.objective = 'denoise'"),
        ("data.task='classification'", "data.context: must be 0 for a classifier"),
    ],
)
def test_settings_that_do_not_fit_context_are_refused(changes, message):
    more = ["model.head.kind='classify'"] * ("classification" in changes)
    text = "[data]\ncontext = {source = 1}\ndocuments = 'file'\nvalid = 'v.tsv'\n"
    with pytest.raises(SettingsError) as caught:
        Config.parse(text, [*more, changes], place="x.toml")
    assert str(caught.value) == f"x.toml: {message}"


def test_files_without_documents_are_refused(write):
    file = write("train.tsv", "a\tb\n")
    settings_ = DataSettings(train=(file,), context=ContextSettings(source=1), documents="blank_line")
    with pytest.raises(SettingsError) as caught:
        list(read_pairs(settings_, "train"))
    assert str(caught.value) == (
        f"data.documents: found 'blank_line' for {file}, expected 'file' or data.document_column for data.context"
    )
    source, target = write("train.en", "a\n"), write("train.de", "b\n")
    settings_ = DataSettings(
        train_source=(source,), train_target=(target,), context=ContextSettings(target=1), document_column=0
    )
    with pytest.raises(SettingsError) as caught:
        list(read_pairs(settings_, "train"))
    assert str(caught.value) == (
        f"data.documents: found 'line' for {source}, expected 'blank_line' or 'file' for data.context"
    )
