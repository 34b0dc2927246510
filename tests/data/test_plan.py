"""Batches: every pair once, within the budget, the same for the same seed, each can be made without the others."""

import shutil
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.batches import pad_batch

from translume.config.data import CleaningSettings, DataSettings
from translume.data import plan
from translume.data.plan import BatchPlan
from translume.data.token_cache import prepare
from translume.errors import SettingsError

LENGTHS = st.tuples(st.integers(1, 11), st.integers(1, 11))


def corpus_of(lengths, corpus_files, tokenizer, tmp_path, **more):
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    pairs = [("a" * source, "b" * target) for source, target in lengths]
    return prepare(corpus_files(pairs), tokenizer, tokenizer, tmp_path / "cache", split="train", **more)


def same(one, two):
    tensors = ("source", "source_mask", "target", "labels", "target_mask")
    return one.lines == two.lines and all(torch.equal(getattr(one, name), getattr(two, name)) for name in tensors)


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=120),
    max_tokens=st.integers(12, 60),
    seed=st.integers(0, 3),
    chunk=st.sampled_from([1, 7, 1 << 18]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_pair_once_within_the_budget(
    corpus_files, by_bytes, tmp_path, monkeypatch, lengths, max_tokens, seed, chunk
):
    monkeypatch.setattr(plan, "_CHUNK", chunk)
    corpus = corpus_of(lengths, corpus_files, by_bytes, tmp_path)
    batches = list(BatchPlan(corpus, max_tokens=max_tokens, seed=seed, epoch=0).batches())
    assert sorted(line for batch in batches for line in batch.lines) == list(range(len(lengths)))
    assert all(max(batch.source.numel(), batch.target.numel()) <= max_tokens for batch in batches)
    assert sum(batch.tokens for batch in batches) == sum(target + 1 for _, target in lengths)


@given(lengths=st.lists(LENGTHS, min_size=1, max_size=60), epoch=st.integers(0, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_batch_can_be_made_without_the_others(corpus_files, by_bytes, tmp_path, lengths, epoch):
    corpus = corpus_of(lengths, corpus_files, by_bytes, tmp_path)
    batches = list(BatchPlan(corpus, max_tokens=30, seed=5, epoch=epoch).batches())
    for index in reversed(range(len(batches))):
        assert same(BatchPlan(corpus, max_tokens=30, seed=5, epoch=epoch).batch(index), batches[index])
    start = len(batches) // 2
    later = list(BatchPlan(corpus, max_tokens=30, seed=5, epoch=epoch).batches(start))
    assert len(later) == len(batches) - start
    assert all(same(one, two) for one, two in zip(later, batches[start:], strict=True))


def test_batch_adds_begin_and_end_tokens(corpus_files, by_bytes, tmp_path):
    corpus = corpus_of([(3, 2), (1, 4)], corpus_files, by_bytes, tmp_path)
    batch = BatchPlan(corpus, max_tokens=99, seed=1, epoch=0).batch(0)
    marks, (a,), (b,) = by_bytes.specials, by_bytes.encode("a"), by_bytes.encode("b")
    pad, bos, eos = marks.pad, marks.bos, marks.eos
    rows = {
        0: ([a, a, a, eos], [bos, b, b, pad, pad], [b, b, eos, pad, pad]),
        1: ([a, eos, pad, pad], [bos, b, b, b, b], [b, b, b, b, eos]),
    }
    for row, line in enumerate(batch.lines):
        source, target, labels = rows[line]
        assert batch.source[row].tolist() == source
        assert batch.target[row].tolist() == target
        assert batch.labels[row].tolist() == labels
        assert batch.source_mask[row].tolist() == [token != pad for token in source]
        assert batch.target_mask[row].tolist() == [token != pad for token in labels]
    assert batch.tokens == 8
    assert {batch.source.dtype, batch.target.dtype, batch.labels.dtype} == {torch.long}


def test_padding_ids_by_hand_agrees_with_the_corpus(corpus_files, by_bytes, tmp_path):
    corpus = corpus_of([(3, 2), (1, 4), (7, 7)], corpus_files, by_bytes, tmp_path)
    batch = BatchPlan(corpus, max_tokens=99, seed=1, epoch=0).batch(0)
    sources = [corpus.source(line).tolist() for line in batch.lines]
    targets = [corpus.target(line).tolist() for line in batch.lines]
    assert same(pad_batch(sources, targets, by_bytes.specials, by_bytes.specials, batch.lines), batch)


def test_special_ids_are_the_tokenizers_own(by_bytes):
    source = type(by_bytes.specials)(pad=99, bos=98, eos=97, unk=None)
    target = type(by_bytes.specials)(pad=89, bos=88, eos=87, unk=None)
    batch = pad_batch([[5], [5, 0]], [[6, 7], [0]], source, target)
    assert batch.source.tolist() == [[5, 97, 99], [5, 0, 97]]
    assert batch.target.tolist() == [[88, 6, 7], [88, 0, 89]]
    assert batch.labels.tolist() == [[6, 7, 87], [0, 87, 89]]
    assert batch.lines == (0, 1)


def test_two_halves_of_a_batch_contain_the_whole_batch(by_bytes):
    whole = pad_batch([[5], [5, 6], [7]], [[6, 7], [8], [9]], by_bytes.specials, by_bytes.specials, (11, 13, 17))
    first, second = whole.halves()
    assert (first.lines, second.lines) == ((11,), (13, 17))
    assert (first.tokens, second.tokens) == (3, 4)
    assert torch.cat([first.labels, second.labels]).equal(whole.labels)
    assert same(whole.to("cpu"), whole)


def test_epochs_and_seeds_differ_and_repeat(corpus_files, by_bytes, tmp_path):
    corpus = corpus_of([(5, 5)] * 100, corpus_files, by_bytes, tmp_path)

    def lines(seed, epoch):
        return [batch.lines for batch in BatchPlan(corpus, max_tokens=30, seed=seed, epoch=epoch).batches()]

    assert lines(1, 0) == lines(1, 0)
    assert len({str(lines(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert {frozenset(batch) for batch in lines(1, 0)} != {frozenset(batch) for batch in lines(1, 1)}


def test_batches_are_not_sorted_by_length(corpus_files, by_bytes, tmp_path):
    corpus = corpus_of([(n, n) for n in range(1, 101)], corpus_files, by_bytes, tmp_path)
    widths = [batch.source.size(1) for batch in BatchPlan(corpus, max_tokens=202, seed=1, epoch=0).batches()]
    assert widths not in (sorted(widths), sorted(widths, reverse=True))


def test_padding_is_a_small_share(corpus_files, by_bytes, tmp_path):
    lengths = [(1 + i * 7 % 23, 1 + i * 5 % 19) for i in range(20_000)]
    corpus = corpus_of(lengths, corpus_files, by_bytes, tmp_path)
    batches = list(BatchPlan(corpus, max_tokens=1024, seed=1, epoch=0).batches())
    cells = sum(batch.source.numel() + batch.target.numel() for batch in batches)
    assert sum(batch.tokens + int(batch.source_mask.sum()) for batch in batches) / cells > 0.95


def test_weights_say_how_often_a_file_is_read(write, by_bytes, tmp_path):
    files = tuple(write(f"{name}.tsv", [f"{name}\t{i}" for i in range(40)]) for name in "abcd")
    chosen = DataSettings(train=files, valid=files[:1], weights=(1.0, 2.0, 0.25, 0.0))
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")

    def counts(epoch):
        batches = BatchPlan(corpus, max_tokens=50, seed=1, epoch=epoch).batches()
        return Counter(line for batch in batches for line in batch.lines)

    first, second = counts(0), counts(1)
    for found in (first, second):
        assert [found[number] for number in range(80)] == [1] * 40 + [2] * 40
        assert sum(found[number] for number in range(80, 120)) == 10
        assert all(found[number] <= 1 for number in range(80, 120))
        assert not any(found[number] for number in range(120, 160))
    assert first != second


def test_a_file_of_small_weight_is_read_and_an_epoch_is_never_empty(write, by_bytes, tmp_path):
    file = write("a.tsv", ["a\tb", "c\td", "e\tf"])
    for weight, pairs in ((0.1, 1), (0.4, 1), (0.6, 2)):
        chosen = DataSettings(train=(file,), valid=(file,), weights=(weight,))
        corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
        batches = BatchPlan(corpus, max_tokens=50, seed=1, epoch=0).batches()
        assert sum(len(batch.lines) for batch in batches) == pairs


def test_a_pair_wider_than_the_budget_is_named(corpus_files, by_bytes, tmp_path):
    corpus = corpus_of([(3, 3), (5, 17)], corpus_files, by_bytes, tmp_path)
    with pytest.raises(SettingsError) as error:
        BatchPlan(corpus, max_tokens=17, seed=1, epoch=0)
    assert str(error.value) == (
        f"training.max_tokens: 17, but {corpus.place(1)} alone has 18 tokens; "
        "expected more, or a smaller data.cleaning.max_tokens"
    )


def test_dropout_changes_segments_not_text(corpus_files, by_merges, tmp_path):
    pairs = [("the rain in spain", f"falls mainly {i % 3}") for i in range(30)]
    corpus = prepare(corpus_files(pairs), by_merges, by_merges, tmp_path / "cache", split="train")

    def drawn(seed, epoch):
        made = BatchPlan(corpus, max_tokens=400, seed=seed, epoch=epoch, dropout=0.5)
        return {line: row for batch in made.batches() for line, row in zip(batch.lines, rows(batch), strict=True)}

    def rows(batch):
        kept = zip(batch.source, batch.source_mask, batch.labels, batch.target_mask, strict=True)
        return [(source[mask].tolist()[:-1], labels[seen].tolist()[:-1]) for source, mask, labels, seen in kept]

    found = drawn(1, 0)
    for number, (source, target) in enumerate(pairs):
        assert (by_merges.decode(found[number][0]), by_merges.decode(found[number][1])) == (source, target)
    assert len({str(found[number][0]) for number in found}) > 10
    assert drawn(1, 0) == found
    assert drawn(1, 1) != found
    assert drawn(2, 0) != found


def test_dropout_never_makes_a_side_longer_than_the_model_reads(corpus_files, by_merges, tmp_path):
    text = "the rain in spain"
    length = len(by_merges.encode(text))
    corpus = prepare(
        corpus_files([(text, text)] * 20),
        by_merges,
        by_merges,
        tmp_path / "cache",
        split="train",
        max_positions=(length + 2, length + 2),
    )
    batches = BatchPlan(corpus, max_tokens=400, seed=1, epoch=0, dropout=0.9).batches()
    assert all(batch.source.size(1) <= length + 2 for batch in batches)


def test_a_plan_takes_four_bytes_a_pair(corpus_files, by_bytes, tmp_path):
    corpus = corpus_of([(1, 1)] * 5000, corpus_files, by_bytes, tmp_path)
    made = BatchPlan(corpus, max_tokens=4096, seed=1, epoch=0)
    assert made._order.nbytes == 4 * 5000
    assert corpus.starts.nbytes <= 8 * (5000 // 32 + 1)


def test_batches_of_real_text_are_as_expected(data_folder, by_bytes, tmp_path):
    place = data_folder / "tatoeba_en_zh"
    chosen = DataSettings(
        train_source=(str(place / "train.en"),),
        train_target=(str(place / "train.zh"),),
        cleaning=CleaningSettings(duplicates=True, target_script="han"),
    )
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    account = corpus.account
    assert account.read == account.used + account.held_out + sum(account.dropped.values())
    made = BatchPlan(corpus, max_tokens=4096, seed=1, epoch=0)
    assert sum(len(batch) for batch in made.batches()) == corpus.pairs
