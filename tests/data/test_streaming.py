"""Buffers of a stream: every pair once an epoch, whatever the number of processes and the place of a resumption."""

import gzip
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config.data import DataSettings
from translume.data import streaming
from translume.data.cleaning import Account
from translume.data.streaming import Place, Share, ShareReader, Shares, Stream, open_stream
from translume.data.token_cache import prepare
from translume.errors import DataError, SettingsError
from translume.text import Tokenizer

Write = Callable[[str, object], str]


def tables(folder: Path, sizes: list[int]) -> DataSettings:
    """Write tables of so many pairs, every seventh of them without a target, and return the settings of a stream."""
    number = 0
    for file, size in enumerate(sizes):
        lines = []
        for _ in range(size):
            number += 1
            lines.append(f"source {number}\t{'' if number % 7 == 0 else f'target {number * number}'}\n")
        (folder / f"{file:02}.tsv").write_text("".join(lines))
    (folder / "valid.tsv").write_text("a\tb\n")
    return DataSettings(train=(str(folder / "[0-9]*.tsv"),), valid=(str(folder / "valid.tsv"),), streaming=True)


def opened(data: DataSettings, tokenizer: Tokenizer, seed: int = 1) -> Stream:
    return open_stream(data, tokenizer, tokenizer, seed=seed)


def epoch(reader: ShareReader, place: Place = Place()) -> list[Share]:  # noqa: B008  # a frozen value
    """Return the shares of an epoch from a place on, without the empty one that ends it."""
    found = []
    for share in reader.shares(place):
        if not share.read:
            assert share.after == Place(place.epoch + 1)
            return found
        found.append(share)
    raise AssertionError("the stream ended")


def content(stream: Stream, shares: list[Share]) -> list[tuple[list[int], list[int], str]]:
    """Return ids and place of every pair of a buffer."""
    corpus = stream.corpus(shares, 1000)
    return [
        (corpus.source(number).tolist(), corpus.target(number).tolist(), corpus.place(number + 1000))
        for number in range(corpus.pairs)
    ]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=11),
    buffer=st.integers(1, 50),
    chunk=st.integers(1, 9),
    ranks=st.integers(1, 4),
    data=st.data(),
)
def test_buffers_have_every_pair_once_and_depend_only_on_seed_and_epoch(
    by_bytes: Tokenizer, tmp_path_factory: pytest.TempPathFactory, sizes, buffer, chunk, ranks, data
) -> None:
    """A whole number of buffers, one that ends with a file, and shares without pairs are among the examples."""
    folder = tmp_path_factory.mktemp("files")
    corpus = tables(folder, sizes).model_copy(update={"shuffle_buffer": buffer})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "CHUNK", chunk)
        stream = opened(corpus, by_bytes) if sum(sizes) != 7 or len(sizes) > 1 else None
        if stream is None:
            return
        alone = epoch(stream.reader)
        assert [share.read for share in alone[:-1]] == [buffer] * (len(alone) - 1)
        found = [pair for share in alone for pair in content(stream, [share])]
        cached = prepare(corpus.model_copy(update={"streaming": False}), by_bytes, by_bytes, folder, split="train")
        expected = [
            (cached.source(n).tolist(), cached.target(n).tolist(), cached.place(n)) for n in range(cached.pairs)
        ]
        assert sorted(found) == sorted(expected)
        account = Account.total([share.account for share in alone])
        assert (account.read, account.used, account.dropped) == (
            cached.account.read, cached.account.used, cached.account.dropped
        )  # fmt: skip
        readers = [pickle.loads(pickle.dumps(replace(stream.reader, rank=n, ranks=ranks))) for n in range(ranks)]
        shared = list(zip(*map(epoch, readers), strict=True))
        together = [content(stream, [Share.from_bytes(share.to_bytes()) for share in shares]) for shares in shared]
        assert together == [content(stream, [share]) for share in alone]
        totals = [Account.total([share.account for share in shares]).to_dict() for shares in shared]
        assert totals == [share.account.to_dict() for share in alone]
        begun = data.draw(st.integers(0, len(alone)))
        place = Place() if begun == 0 else alone[begun - 1].after
        resumed = epoch(stream.reader, Place.from_dict(json.loads(json.dumps(asdict(place)))))
        assert [share.to_bytes() for share in resumed] == [share.to_bytes() for share in alone[begun:]]


def test_several_files_are_mixed_and_each_epoch_has_an_order_of_its_own(
    by_bytes: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tables(tmp_path, [90] * 12).model_copy(update={"shuffle_buffer": 180})
    monkeypatch.setattr(streaming, "CHUNK", 20)
    stream = opened(data, by_bytes)
    first, second = (next(stream.reader.shares(Place(number))) for number in (0, 1))
    orders = [list(dict.fromkeys(share.origins.tolist())) for share in (first, second)]
    assert [len(order) for order in orders] == [8, 8]
    assert orders[0] != orders[1]
    assert np.bincount(first.origins).max() <= 40


def test_compressed_files_and_addresses_are_streamed(by_bytes: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    files = fsspec.filesystem("memory")
    for name, text in (("b.en.zst", b"three\n"), ("b.de.zst", b"drei\n")):
        with files.open(f"/stream/{name}", "wb") as file:
            file.write(zstandard.compress(text))
    data = DataSettings(
        train_source=(str(tmp_path / "*.en.gz"), "memory://stream/*.en.zst"),
        train_target=(str(tmp_path / "*.de.gz"), "memory://stream/*.de.zst"),
        valid_source=("v.en",),
        valid_target=("v.de",),
        streaming=True,
    )
    stream = opened(data, by_bytes)
    (share,) = epoch(stream.reader)
    texts = {by_bytes.decode(target) for _, target, _ in content(stream, [share])}
    assert texts == {"eins", "zwei", "drei"}
    sizes = {Path(file.path).name: (file.size, file.digest, file.pairs) for file in stream.files}
    assert sizes["b.de.zst"] == (len(zstandard.compress(b"drei\n")), "", None)


def test_the_digest_changes_with_the_files_and_not_with_their_names(by_bytes: Tokenizer, tmp_path: Path) -> None:
    data = tables(tmp_path, [5, 9])
    before = opened(data, by_bytes).digest
    (tmp_path / "00.tsv").rename(tmp_path / "000.tsv")
    assert opened(data, by_bytes).digest == before
    assert opened(data.model_copy(update={"shuffle_buffer": 3}), by_bytes).digest != before
    with (tmp_path / "01.tsv").open("a") as file:
        file.write("more\tmehr\n")
    assert opened(data, by_bytes).digest != before


def test_a_child_process_reads_the_same_shares(
    by_bytes: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = opened(tables(tmp_path, [9, 30]).model_copy(update={"shuffle_buffer": 11}), by_bytes)
    monkeypatch.setattr(streaming, "processes_for", lambda files: 2)
    shares = Shares(stream.reader, Place())
    try:
        expected = islice(stream.reader.shares(Place()), 9)
        assert [shares.next() for _ in range(9)] == [share.to_bytes() for share in expected]
        (tmp_path / "00.tsv").unlink()
        with pytest.raises(DataError, match=r"00\.tsv: no such file"):
            [shares.next() for _ in range(9)]
    finally:
        shares.close()


@pytest.fixture
def broken(write: Write) -> Callable[[str, str], DataSettings]:
    """Return a function from the lines of the two first files to the settings of a stream."""
    return lambda first, second: DataSettings(
        train_source=(write("a.en", first), write("b.en", "x\ny\n")),
        train_target=(write("a.de", second), write("b.de", "x\ny\n")),
        valid_source=("v.en",),
        valid_target=("v.de",),
        streaming=True,
    )


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("x\n" * 5, "x\n" * 3, "a.en has 5 lines but {folder}/a.de has 3; expected as many in both"),
        (b"x\n" * 4 + b"\xff\n", "x\n" * 5, "a.en:5: not UTF-8 (byte 0xff at column 1); if it is Windows-1252"),
    ],
)
def test_faults_of_a_file_are_reported_when_they_are_reached(
    by_bytes: Tokenizer, tmp_path: Path, broken, monkeypatch: pytest.MonkeyPatch, source, target, message: str
) -> None:
    data = broken(source, target)
    with pytest.raises(DataError) as caught:
        opened(data, by_bytes)
    assert str(caught.value).startswith(f"{tmp_path}/{message.format(folder=tmp_path)}")
    if source:
        monkeypatch.setattr(streaming, "SAMPLE_PAIRS", 4)
        with pytest.raises(DataError) as caught:
            epoch(opened(data, by_bytes).reader)
        assert str(caught.value).startswith(f"{tmp_path}/{message.format(folder=tmp_path)}")


VALID = {"valid": "valid.tsv"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "streaming is true without validation files; expected valid_source and valid_target, or valid"),
        ({**VALID, "weights": [2]}, "streaming is true with weights, expected false; or mix the files beforehand"),
        (
            {**VALID, "cleaning": {"duplicates": True}},
            "streaming is true with cleaning.duplicates = true, expected one of them",
        ),
        ({**VALID, "source": {"kind": "audio"}}, "streaming is true with source = 'audio', expected false"),
    ],
)
def test_settings_that_cannot_be_streamed_are_refused(changes, message: str) -> None:
    from translume.config import Config

    with pytest.raises(SettingsError) as caught:
        Config.build({"data": {"train": "a.tsv", "streaming": True, **changes}})
    assert message in str(caught.value)
