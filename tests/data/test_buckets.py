"""Batches in few shapes: every pair once, shapes of the buckets only, little padding, the same on every machine."""

import gzip
import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batches import pad_batch

from translume.config.data import CleaningSettings, DataSettings
from translume.data import buckets
from translume.data.batch import BatchTags
from translume.data.buckets import GROWTH, MAX_BUCKETS, Bucket, BucketPlan, choose_buckets
from translume.data.cleaning import Account
from translume.data.corpus import TokenizedCorpus
from translume.data.pairs import Origin
from translume.data.plan import BatchPlan
from translume.data.streaming import open_stream
from translume.data.token_cache import prepare
from translume.errors import SettingsError
from translume.tasks import find_task
from translume.text import Labels
from translume.training.batches import BatchStream, BufferPlans, EpochPlans, PlanOptions, plan_kind
from translume.training.group import Group

LENGTHS = st.tuples(st.integers(1, 17), st.integers(1, 13))
TENSORS = ("source", "source_mask", "target", "labels", "target_mask")


def of_lengths(tokenizer, source, target, *, tags=None, limit=None, weights=(1.0,), first=None):
    """Return a corpus of pairs with so many tokens, all of which are `a` and `b`."""
    source, target = np.asarray(source, np.uint16), np.asarray(target, np.uint16)
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    lengths = np.stack([source, target], 1).astype(np.int64)
    total = lengths.sum(1)
    return TokenizedCorpus(
        pairs=len(source),
        account=Account(read=len(source), used=len(source), held_out=0, dropped={}, examples={}),
        digest="",
        source_lengths=source,
        target_lengths=target,
        origins=tuple(Origin(file="a", target_file="b", columns=(), weight=weight) for weight in weights),
        first=first or (0, len(source)),
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        limits=(limit, limit),
        task=find_task("sequence"),
        tokens=np.repeat(np.tile(np.array([a, b], np.uint16), len(source)), lengths.ravel()),
        starts=(total.cumsum() - total)[::32],
        line_numbers=np.arange(1, len(source) + 1, dtype=np.uint32),
        tags=tags,
    )


@pytest.fixture(autouse=True)
def few_trials(monkeypatch, request):
    """Search for good buckets only where padding is measured: it takes half a second."""
    if "padding" not in request.node.name:
        monkeypatch.setattr(buckets, "TRIALS", 10)


def log_normal(pairs, seed=1):
    draw = np.random.default_rng(seed)
    source = np.exp(draw.normal(2.55, 0.4, pairs)).round().clip(1, 60)
    return source, (source * np.exp(draw.normal(0.0, 0.2, pairs))).round().clip(1, 60)


def shapes(batch):
    return tuple(batch.source.shape), tuple(batch.target.shape)


def padding_of(plan):
    """Count the padding in the tensors of all batches."""
    places = tokens = 0
    for batch in plan.batches():
        places += batch.source.numel() + batch.target.numel()
        tokens += int(batch.source_mask[: len(batch)].sum() + batch.target_mask.sum())
    return 1 - tokens / places


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=150),
    max_tokens=st.integers(18, 300),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
@settings(max_examples=20)
def test_every_pair_is_in_one_batch_of_the_shape_of_a_bucket(by_bytes, lengths, max_tokens, seed, epoch):
    corpus = of_lengths(by_bytes, *zip(*lengths, strict=True))
    plan = BucketPlan(corpus, max_tokens=max_tokens, seed=seed, epoch=epoch)
    assert len(plan.buckets) <= MAX_BUCKETS
    assert all(each.rows == max_tokens // max(each.source, each.target) for each in plan.buckets)
    seen = []
    for index, batch in enumerate(plan.batches()):
        bucket = plan.bucket(index)
        assert shapes(batch) == ((bucket.rows, bucket.source), (bucket.rows, bucket.target))
        assert batch.lines == tuple(plan.numbers(index).tolist())
        alone = pad_batch(
            [corpus.source(line) for line in batch.lines],
            [corpus.target(line) for line in batch.lines],
            by_bytes.specials,
            by_bytes.specials,
        )
        assert batch.tokens == alone.tokens == int(batch.target_mask.sum())
        for name, value in (("source", 0), ("source_mask", 0), ("target", 1), ("labels", 1), ("target_mask", 1)):
            found, expected = getattr(batch, name), getattr(alone, name)
            assert found[: len(batch), : expected.size(1)].equal(expected), name
            beyond = found[: len(batch), expected.size(1) :]
            assert (beyond == (by_bytes.specials.pad if found.dtype == torch.long else 0)).all(), (name, value)
        seen += batch.lines
    assert sorted(seen) == list(range(len(lengths)))
    assert plan.padding == pytest.approx(padding_of(plan))


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=90),
    max_tokens=st.integers(18, 150),
    size=st.integers(1, 3),
    epoch=st.integers(0, 2),
)
@settings(max_examples=15)
def test_ranks_that_share_a_batch_have_equal_shapes_and_together_all_of_its_pairs(
    by_bytes, lengths, max_tokens, size, epoch
):
    corpus = of_lengths(by_bytes, *zip(*lengths, strict=True))
    plan = BucketPlan(corpus, max_tokens=max_tokens, seed=7, epoch=epoch)
    for index in range(len(plan)):
        whole, rows = plan.batch(index), -(-plan.bucket(index).rows // size)
        parts = [plan.batch(index, slice(rank, None, size)) for rank in range(size)]
        assert {(part.source.shape, part.target.shape) for part in parts} == {
            ((rows, whole.source.size(1)), (rows, whole.target.size(1)))
        }
        assert [part.lines for part in parts] == [whole.lines[rank::size] for rank in range(size)]
        assert sum(part.tokens for part in parts) == whole.tokens
        assert [part.source_mask.any(1).all() for part in parts] == [True] * size


def test_a_row_without_a_pair_is_one_end_mark_and_has_no_label(by_bytes):
    corpus = of_lengths(by_bytes, [2, 1], [1, 2])
    batch = BucketPlan(corpus, max_tokens=11, seed=1, epoch=0).batch(0)
    marks, (a,), (b,) = by_bytes.specials, by_bytes.encode("a"), by_bytes.encode("b")
    pad, bos, eos = marks.pad, marks.bos, marks.eos
    order = list(batch.lines)
    assert batch.source.tolist() == [*([[a, a, eos], [a, eos, pad]][line] for line in order), [eos, pad, pad]]
    assert batch.target.tolist() == [*([[bos, b, pad], [bos, b, b]][line] for line in order), [bos, pad, pad]]
    assert batch.labels.tolist() == [*([[b, eos, pad], [b, b, eos]][line] for line in order), [pad, pad, pad]]
    assert batch.source_mask[2].tolist() == [True, False, False]
    assert batch.target_mask[2].tolist() == [False, False, False]
    assert (len(batch), batch.rows, batch.tokens) == (2, 3, 5)


@given(pairs=st.integers(1, 7), empty=st.integers(0, 7))
def test_halves_divide_pairs_and_rows_without_pairs(by_bytes, pairs, empty):
    marks = by_bytes.specials
    ids = [[5] * (1 + n % 3) for n in range(pairs)]
    batch = pad_batch(ids, ids, marks, marks, range(11, 11 + pairs))
    batch = batch.filled(pairs + empty, 5, 7, source_specials=marks, target_specials=marks)
    first, second = batch.halves()
    assert first.lines + second.lines == batch.lines
    assert [len(half) for half in (first, second)] == [pairs // 2, pairs - pairs // 2]
    assert abs(second.rows - first.rows) <= 2
    assert first.rows + second.rows == pairs + empty
    for half in (first, second):
        assert half.tokens == int(half.target_mask.sum())
        assert half.target_mask[: len(half)].any(1).all()
        assert not half.target_mask[len(half) :].any()
        assert half.source_mask.any(1).all()
    for name in TENSORS:
        real = [getattr(half, name)[: len(half)] for half in (first, second)]
        assert torch.cat(real).equal(getattr(batch, name)[:pairs])


def test_a_batch_that_is_larger_than_its_bucket_is_refused(by_bytes):
    marks = by_bytes.specials
    batch = pad_batch([[5, 5, 5], [5]], [[5], [5]], marks, marks)
    for rows, source, target in ((1, 4, 2), (2, 3, 2), (2, 4, 1)):
        with pytest.raises(ValueError, match="a batch of 2 × 4 and 2 is too large"):
            batch.filled(rows, source, target, source_specials=marks, target_specials=marks)


def test_a_batch_stays_where_it_is_without_cuda(by_bytes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    batch = pad_batch([[5]], [[5]], by_bytes.specials, by_bytes.specials)
    assert batch.pinned() is batch


def test_batches_depend_on_seed_and_epoch_and_are_shuffled(by_bytes):
    corpus = of_lengths(by_bytes, *log_normal(300))
    chosen = choose_buckets(corpus, max_tokens=211)

    def plan(seed, epoch):
        return BucketPlan(corpus, max_tokens=211, seed=seed, epoch=epoch, buckets=chosen)

    def lines(seed, epoch):
        return [batch.lines for batch in plan(seed, epoch).batches()]

    assert lines(1, 0) == lines(1, 0)
    assert len({str(lines(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert {frozenset(batch) for batch in lines(1, 0)} != {frozenset(batch) for batch in lines(1, 1)}
    widths = [plan(1, 0).bucket(index).width for index in range(len(plan(1, 0)))]
    assert len(set(widths)) > 3
    assert widths not in (sorted(widths), sorted(widths, reverse=True))
    examples = [shapes(each) for each in plan(1, 0).examples()]
    assert sorted(examples) == sorted({shapes(batch) for batch in plan(1, 0).batches()})
    assert BatchPlan(corpus, max_tokens=211, seed=1, epoch=0).examples() == []


def test_examples_have_the_shapes_of_all_buckets_in_every_epoch(by_bytes):
    corpus = of_lengths(by_bytes, [3, 5, 7], [4, 4, 9])
    buckets = (Bucket(source=11, target=13, rows=3), Bucket(source=23, target=29, rows=5))
    plan = BucketPlan(corpus, max_tokens=211, seed=1, epoch=0, buckets=buckets)
    assert len(plan) == 1
    used, unused = plan.examples()
    assert used.tokens == 20
    assert (used.source.shape, used.target.shape) == ((3, 11), (3, 13))
    assert (unused.source.shape, unused.target.shape) == ((5, 23), (5, 29))
    assert (unused.tokens, unused.lines, int(unused.target_mask.sum())) == (0, (), 0)
    assert unused.source_mask.sum(1).tolist() == [1] * 5
    assert [each.source.shape for each in plan.examples(slice(1, None, 2))] == [(2, 11), (3, 23)]


def test_buckets_depend_on_the_lengths_and_not_on_the_order_of_the_pairs(by_bytes):
    source, target = log_normal(1000)
    corpus = of_lengths(by_bytes, source, target)
    order = np.random.default_rng(3).permutation(1000)
    chosen = choose_buckets(corpus, max_tokens=1009)
    assert choose_buckets(of_lengths(by_bytes, source[order], target[order]), max_tokens=1009) == chosen
    assert BucketPlan(corpus, max_tokens=1009, seed=5, epoch=9).buckets == chosen


SPECIAL = {
    "three pairs": ([3, 5, 7], [4, 4, 9]),
    "one pair": ([3], [4]),
    "equal lengths": ([12] * 5000, [11] * 5000),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_corpora_of_one_shape_get_one_bucket(by_bytes, name):
    source, target = SPECIAL[name]
    plan = BucketPlan(of_lengths(by_bytes, source, target), max_tokens=8192, seed=1, epoch=0)
    side = max(source) + 1, max(target) + 1
    assert plan.buckets == (Bucket(*side, rows=8192 // max(side)),)
    assert len(plan) == -(-len(source) // plan.buckets[0].rows)
    assert plan.summary() == f"batches in 1 shape, {100 * plan.padding:.1f} % padding"
    assert plan.padding == pytest.approx(padding_of(plan))


def test_an_extreme_pair_costs_one_batch(by_bytes):
    source, target = log_normal(10_000)
    usual = BucketPlan(of_lengths(by_bytes, source, target), max_tokens=4096, seed=1, epoch=0)
    source[77], target[77] = 2000, 1900
    plan = BucketPlan(of_lengths(by_bytes, source, target), max_tokens=4096, seed=1, epoch=0)
    assert plan.buckets[-1] == Bucket(2001, 1901, rows=2)
    assert [plan.bucket(index).source for index in range(len(plan))].count(2001) == 1
    assert abs(plan.padding - usual.padding) < 0.04


@pytest.mark.parametrize(("max_tokens", "most"), [(4096, 0.13), (8192, 0.13), (25_000, 0.18)])
def test_padding_of_multi30k_is_at_most_13_percent(data_folder, by_bytes, max_tokens, most):
    """Of its words; 25,000 tokens are a twentieth of the corpus."""
    place = data_folder / "multi30k" / "tok"
    if not place.is_dir():
        pytest.skip(f"no Multi30k: {place} is not a folder")
    sides = []
    for language in ("en", "de"):
        with gzip.open(place / f"train.lc.norm.tok.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append([len(line.split()) for line in file])
    plan = BucketPlan(of_lengths(by_bytes, *sides), max_tokens=max_tokens, seed=1, epoch=0)
    assert plan.padding <= most
    partly = [index for index in range(len(plan)) if len(plan.numbers(index)) < plan.bucket(index).rows]
    assert len(partly) <= 4


def test_more_pairs_get_more_buckets(by_bytes):
    counts = [len(choose_buckets(of_lengths(by_bytes, *log_normal(n)), max_tokens=4096)) for n in (100, 1000, 10_000)]
    assert all(small < large for small, large in pairwise(counts))


def test_a_pair_wider_than_the_budget_is_named(by_bytes):
    corpus = of_lengths(by_bytes, [3, 5], [3, 17])
    for chosen in ((), (Bucket(6, 18, rows=1),)):
        with pytest.raises(SettingsError) as error:
            BucketPlan(corpus, max_tokens=17, seed=1, epoch=0, buckets=chosen)
        assert str(error.value) == (
            "training.max_tokens: 17, but a:2 alone has 18 tokens; expected more, or a smaller data.cleaning.max_tokens"
        )


@pytest.mark.parametrize("sides", [[(6, 9)], [(9, 3), (5, 18)]])
def test_buckets_of_other_pairs_are_refused(by_bytes, sides):
    corpus = of_lengths(by_bytes, [3, 7], [3, 7])
    with pytest.raises(ValueError, match="a pair is longer than all buckets"):
        BucketPlan(corpus, max_tokens=99, seed=1, epoch=0, buckets=[Bucket(*each, rows=5) for each in sides])


def test_weights_say_how_often_a_file_is_read(by_bytes):
    source, target = log_normal(160)
    weights = (1.0, 2.0, 0.25, 0.0)
    source[125] = 999  # is not read
    corpus = of_lengths(by_bytes, source, target, weights=weights, first=(0, 40, 80, 120, 160))

    def counts(epoch):
        return Counter(
            line for batch in BucketPlan(corpus, max_tokens=211, seed=1, epoch=epoch).batches() for line in batch.lines
        )

    first, second = counts(0), counts(1)
    for found in (first, second):
        assert [found[number] for number in range(80)] == [1] * 40 + [2] * 40
        assert sum(found[number] for number in range(80, 120)) == 10
        assert not any(found[number] for number in range(120, 160))
    assert first != second


def test_tags_are_part_of_the_shape(by_bytes):
    tags = BatchTags(np.array([[7]]), np.array([[8, 9]]))
    corpus = of_lengths(by_bytes, [3, 2], [4, 1], tags=tags)
    plan = BucketPlan(corpus, max_tokens=23, seed=1, epoch=0)
    assert plan.buckets == (Bucket(5, 7, rows=3),)
    batch = plan.batch(0)
    assert shapes(batch) == ((3, 5), (3, 7))
    assert batch.source[:2, 0].tolist() == [7, 7]
    assert batch.target[:2, 1:3].tolist() == [[8, 9]] * 2
    assert batch.tokens == 7
    assert [half.tokens for half in batch.halves()] == [2 + 3 * (line == 0) for line in batch.lines]


def test_subword_dropout_changes_segments_that_fit_the_batch(corpus_files, by_merges, tmp_path):
    words = ["the", "rain", "in", "spain", "falls", "mainly"]
    pairs = [(" ".join(words[: 1 + i % 6]), " ".join(words[i % 3 : i % 3 + 1 + i % 4])) for i in range(180)]
    corpus = prepare(
        corpus_files(pairs), by_merges, by_merges, tmp_path / "cache", split="train", max_positions=(29, 29)
    )

    def drawn(seed, epoch):
        plan = BucketPlan(corpus, max_tokens=400, seed=seed, epoch=epoch, dropout=0.2)
        assert {shapes(batch) for batch in plan.batches()} <= {
            ((each.rows, each.source), (each.rows, each.target)) for each in plan.buckets
        }
        found = {}
        for batch in plan.batches():
            for row, line in enumerate(batch.lines):
                source = batch.source[row][batch.source_mask[row]].tolist()[:-1]
                found[line] = source, batch.labels[row][batch.target_mask[row]].tolist()[:-1]
        return found

    found = drawn(1, 0)
    for number, (source, target) in enumerate(pairs):
        assert (by_merges.decode(found[number][0]), by_merges.decode(found[number][1])) == (source, target)
    changed = [number for number in found if found[number][0] != corpus.source(number).tolist()]
    assert len(changed) > 90
    assert max(len(source) for source, _ in found.values()) <= 28
    assert drawn(1, 0) == found
    assert drawn(1, 1) != found


def test_a_plan_with_dropout_expects_longer_sides(by_bytes):
    def chosen(source, target, **more):
        return choose_buckets(of_lengths(by_bytes, [source] * 5, [target] * 5, **more), max_tokens=211, dropout=0.11)

    assert GROWTH == 3
    assert chosen(10, 20) == (Bucket(15, 28, rows=7),)
    assert chosen(10, 20, limit=22) == (Bucket(15, 23, rows=9),)
    assert chosen(10, 200) == (Bucket(15, 211, rows=1),)


def test_a_batch_of_classes_has_one_column_of_labels(write, by_bytes, tmp_path):
    labels = Labels(("p", "q"))
    file = write("train.tsv", [f"{'a' * (1 + i % 5)}\t{'pq'[i % 2]}" for i in range(13)])
    chosen = DataSettings(
        train=(file,),
        valid=(file,),
        task="classification",
    )
    corpus = prepare(chosen, by_bytes, labels, tmp_path / "cache", split="train")
    plan = BucketPlan(corpus, max_tokens=47, seed=1, epoch=0)
    assert {each.target for each in plan.buckets} == {1}
    assert sorted(line for batch in plan.batches() for line in batch.lines) == list(range(13))
    for batch in plan.batches():
        assert batch.labels.shape == batch.target.shape == (batch.rows, 1)
        assert batch.labels[: len(batch), 0].tolist() == [line % 2 for line in batch.lines]
        assert batch.target_mask[:, 0].tolist() == [row < len(batch) for row in range(batch.rows)]
        assert batch.tokens == len(batch)


def test_blocks_of_documents_have_the_same_buckets_in_every_epoch(write, by_bytes, tmp_path):
    documents = ["ab" * (1 + 7 * i % 31) for i in range(23)]
    file = write("train.txt", documents)
    chosen = DataSettings(train=(file,), valid=(file,), task="language_model", block_length=11)
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    options = PlanOptions(max_tokens=67, seed=3, dropout=0.0, kind="buckets").with_buckets(corpus)
    assert max(each.target for each in options.buckets) == 11
    for epoch in range(4):
        plan = options.plan(corpus, epoch)
        other = BatchPlan(corpus, max_tokens=67, seed=3, epoch=epoch)
        assert sum(batch.tokens for batch in plan.batches()) == sum(batch.tokens for batch in other.batches())
        for batch in plan.batches():
            assert batch.source.shape == (batch.rows, 1)
            assert batch.source_mask.all()
            assert Bucket(1, batch.target.size(1), batch.rows) in options.buckets


def test_a_block_wider_than_the_budget_is_named(write, by_bytes, tmp_path):
    file = write("train.txt", ["abc", "a" * 11])  # with EOS one token more than a block
    chosen = DataSettings(train=(file,), valid=(file,), task="language_model", block_length=11)
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    with pytest.raises(SettingsError) as error:
        choose_buckets(corpus, max_tokens=11)
    assert str(error.value) == (
        f"training.max_tokens: 11, but {file}:2 alone has 12 tokens; "
        "expected more, or a smaller data.cleaning.max_tokens"
    )


def test_frames_have_the_length_of_the_longest_source_of_a_bucket(by_bytes):
    frames = np.arange(3, 25)
    corpus = of_lengths(by_bytes, -(-frames // 4), 1 + frames % 5)
    values = np.arange(frames.sum() * 2, dtype=np.float16).reshape(-1, 2)
    corpus = TokenizedCorpus(
        **{name: getattr(corpus, name) for name in corpus.__dataclass_fields__ if name not in ("frames", "frame_ends")},
        frames=values,
        frame_ends=frames.cumsum(),
    )
    plan = BucketPlan(corpus, max_tokens=37, seed=1, epoch=0)
    assert all(each.source == -(-each.frames // 4) for each in plan.buckets)
    seen = []
    for index, batch in enumerate(plan.batches()):
        bucket = plan.bucket(index)
        assert batch.source.shape == (bucket.rows, bucket.frames, 2)
        assert batch.source_mask.sum(1).tolist() == [*frames[list(batch.lines)], *[1] * (bucket.rows - len(batch))]
        assert not batch.source[len(batch) :].any()
        assert batch.target.size(1) == bucket.target
        seen += batch.lines
    assert sorted(seen) == list(range(len(frames)))
    empty = plan.batch(0, slice(1000, None, 1001))
    assert (len(empty), tuple(empty.source.shape)) == (0, (1, plan.bucket(0).frames, 2))


def test_choosing_and_planning_take_24_bytes_a_pair(by_bytes, monkeypatch):
    monkeypatch.setattr(buckets, "EDGES", 5)  # the search takes time, and no memory for pairs

    def peak(pairs):
        corpus = of_lengths(by_bytes, *log_normal(pairs))
        tracemalloc.start()
        plan = BucketPlan(corpus, max_tokens=4096, seed=1, epoch=0)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert plan._order.nbytes == 4 * pairs
        return most

    assert peak(420_000) - peak(280_000) <= 24 * 140_000


# ---- in training


def test_a_run_on_a_gpu_has_buckets():
    assert [plan_kind(torch.device(name)) for name in ("cpu", "cuda", "mps")] == ["lengths", "buckets", "buckets"]


@given(
    size=st.integers(1, 3), count=st.integers(1, 4), in_step=st.booleans(), kind=st.sampled_from(["lengths", "buckets"])
)
@settings(max_examples=10)
def test_an_update_has_the_same_pairs_for_any_number_of_processes(by_bytes, size, count, in_step, kind):
    corpus = of_lengths(by_bytes, *log_normal(50))
    options = PlanOptions(max_tokens=107, seed=5, dropout=0.0, kind=kind).with_buckets(corpus)
    alone = BatchStream(EpochPlans(corpus, options))
    ranks = [BatchStream(EpochPlans(corpus, options), rank=rank, size=size, in_step=in_step) for rank in range(size)]
    allowed = {(-(-each.rows // (1 if count % size == 0 else size)), each.source) for each in options.buckets}
    for _ in range(2 * len(alone.plans.plan) // count):  # beyond the first epoch
        expected = alone.take(count)
        found = [rank.take(count) for rank in ranks]
        lines = sorted(line for batches in found for batch in batches.values() for line in batch.lines)
        assert lines == sorted(line for batch in expected.values() for line in batch.lines)
        tokens = sum(batch.tokens for batches in found for batch in batches.values())
        assert tokens == sum(batch.tokens for batch in expected.values())
        if kind == "buckets":
            assert {tuple(batch.source.shape) for batches in found for batch in batches.values()} <= allowed
        if in_step:
            assert len({len(batches) for batches in found}) == 1


def test_all_buffers_of_a_stream_have_the_buckets_of_its_sample(write, by_bytes):
    lines = [f"{'a' * (1 + 5 * i % 17)}\t{'b' * (1 + 3 * i % 13)}" for i in range(200)]
    file = write("train.tsv", lines)
    chosen = DataSettings(
        train=(file,), valid=(file,), streaming=True, shuffle_buffer=70, cleaning=CleaningSettings(max_tokens=40)
    )
    stream = open_stream(chosen, by_bytes, by_bytes, seed=1)
    options = PlanOptions(max_tokens=401, seed=1, dropout=0.0, kind="buckets")
    plans = BufferPlans(stream, options, Group(), {})
    try:
        assert plans.options.buckets[-1] == Bucket(41, 41, rows=9)  # for pairs that the sample does not have
        assert EpochPlans(stream.sample, plans.options).options is plans.options
        batches = BatchStream(plans)
        seen = Counter()
        while True:
            ((_, batch),) = batches.take(1).items()
            if plans.epoch:
                break
            assert Bucket(batch.source.size(1), batch.target.size(1), batch.rows) in plans.options.buckets
            seen.update(batch.lines)
        assert len(seen) == 200
        assert set(seen.values()) == {1}
    finally:
        plans.close()
