"""The cache: ids round-trip, damage is detected, concurrent processes do not interfere."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config.data import CleaningSettings, DataSettings
from translume.data import corpus, encoding, held_out, token_cache
from translume.data.pairs import read_pairs
from translume.data.plan import BatchPlan
from translume.data.token_cache import file_digest, prepare
from translume.errors import DataError
from translume.parallel import ProcessLostError

SIDE = st.text("abc", min_size=1, max_size=7)
PAIRS = [(f"source {i}", f"target number {i}") for i in range(101)]


def made(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


@given(pairs=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=80), chunk=st.integers(1, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_and_line_numbers_round_trip(corpus_files, by_bytes, tmp_path, monkeypatch, pairs, chunk):
    monkeypatch.setattr(token_cache, "_CHUNK", chunk)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    chosen = corpus_files(pairs)
    found = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert found.pairs == len(pairs)
    for number, pair in enumerate(read_pairs(chosen, "train")):
        assert found.source(number).tolist() == by_bytes.encode(pair.source)
        assert found.target(number).tolist() == by_bytes.encode(pair.target)
        assert found.place(number) == f"{pair.file}:{number + 1}"
    assert found.source_lengths.tolist() == [len(source) for source, _ in pairs]


def test_places_name_the_right_file_and_line_after_pairs_were_dropped(write, by_bytes, tmp_path):
    a, b = write("a.tsv", ["x\ty", "\ty", "xx\tyy"]), write("b.tsv", ["\ty", "xxx\tyyy"])
    only_dropped = write("c.tsv", ["\ty"])
    chosen = DataSettings(train=(a, only_dropped, b), valid=(a,))
    found = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert [found.place(number) for number in range(found.pairs)] == [f"{a}:1", f"{a}:3", f"{b}:2"]


def test_second_call_uses_the_cache(corpus_files, by_bytes, tmp_path, monkeypatch):
    chosen = corpus_files(PAIRS)
    first = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    monkeypatch.setattr(token_cache.Builder, "write", None)
    again = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert (again.digest, again.account) == (first.digest, first.account)


def test_digest_depends_on_contents_not_on_paths_or_dates(corpus_files, by_bytes, tmp_path):
    chosen = corpus_files(PAIRS, cleaning=CleaningSettings(identical=True))
    first = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copy(chosen.train_source[0], moved / "s.en")
    shutil.copy(chosen.train_target[0], moved / "t.de")
    os.utime(moved / "s.en", (7, 7))
    elsewhere = chosen.model_copy(
        update={"train_source": (str(moved / "s.en"),), "train_target": (str(moved / "t.de"),), "weights": (2.0,)}
    )
    again = prepare(elsewhere, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert again.digest == first.digest
    assert again.place(3) == f"{moved / 's.en'}:4"
    assert again.weights == (2.0,)


def test_digest_changes_with_every_relevant_setting(corpus_files, by_bytes, by_merges, tmp_path):
    chosen = corpus_files(PAIRS)

    def digest(settings=chosen, source=by_bytes, **more):
        return prepare(settings, source, by_bytes, tmp_path / "cache", split="train", **more).digest

    rules = chosen.model_copy(update={"cleaning": CleaningSettings(duplicates=True)})
    sample = chosen.model_copy(update={"valid_source": (), "valid_target": ()})
    found = [digest(), digest(rules), digest(sample), digest(source=by_merges), digest(max_positions=(50, 50))]
    swapped = chosen.model_copy(update={"train_source": chosen.train_target, "train_target": chosen.train_source})
    found.append(digest(swapped))
    Path(chosen.train_source[0]).write_text("".join(f"SOURCE {i}\n" for i in range(101)))
    found.append(digest())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", [f"used.{array}" for array in corpus.ARRAYS] + ["index.json"])
@pytest.mark.parametrize("kind", ["cut", "gone"])
def test_damaged_cache_is_rebuilt(corpus_files, by_bytes, tmp_path, name, kind):
    chosen, cache = corpus_files(PAIRS), tmp_path / "cache"
    first = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    whole = first.tokens.tolist()
    (folder,) = made(cache)
    if kind == "gone":
        (folder / name).unlink()
    else:
        os.truncate(folder / name, (folder / name).stat().st_size - 1)
    again = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    assert again.tokens.tolist() == whole
    assert made(cache) == [folder]


@pytest.mark.parametrize("array", [*corpus.ARRAYS, "index.json", "../files.json"])
@pytest.mark.parametrize("bit", [0, 7, 8 * 90 + 3])
def test_a_flipped_bit_rebuilds_the_cache_or_is_refused(corpus_files, by_bytes, tmp_path, array, bit):
    chosen, cache, notes = corpus_files(PAIRS), tmp_path / "cache", []
    first = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    whole = [side.tokens.tolist() for side in first.sides(np.arange(101))]
    (folder,) = made(cache)
    path = folder / (array if "." in array else f"used.{array}")
    damaged = bytearray(path.read_bytes())
    place = bit % (8 * len(damaged))
    damaged[place // 8] ^= 1 << place % 8
    path.write_bytes(damaged)
    if array == "tokens":
        again = prepare(chosen, by_bytes, by_bytes, cache, split="train", note=notes.append)
        for read in (lambda: again.sides(np.array([3])), lambda: again.source(3), lambda: again.target(3)):
            with pytest.raises(DataError) as caught:
                read()
            assert str(caught.value) == (
                f"{path}: damaged: the checksum of its block 1 is wrong; "
                f"delete {folder}, and the same command prepares the data again"
            )
        shutil.rmtree(folder)
    again = prepare(chosen, by_bytes, by_bytes, cache, split="train", note=notes.append)
    assert [side.tokens.tolist() for side in again.sides(np.arange(101))] == whole
    if array in ("tokens", "../files.json"):
        assert notes == []
    else:
        (note,) = notes
        assert note.startswith(f"{path}: damaged")
        assert note.endswith("; the data were prepared again")


def test_a_cache_of_an_earlier_version_has_no_checksums_and_is_used(corpus_files, by_bytes, tmp_path, monkeypatch):
    chosen, cache = corpus_files(PAIRS), tmp_path / "cache"
    first = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    (folder,) = made(cache)
    index = json.loads((folder / "index.json").read_text())
    del index["sha256"], index["parts"]["used"]["sums"]
    (folder / "index.json").write_text(json.dumps(index))
    monkeypatch.setattr(token_cache.Builder, "write", None)
    again = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    assert [again.target(number).tolist() for number in range(101)] == [
        first.target(number).tolist() for number in range(101)
    ]


def test_file_rewritten_in_place_with_the_same_size_and_time_is_read_again(corpus_files, by_bytes, tmp_path):
    chosen, cache = corpus_files(PAIRS), tmp_path / "cache"
    first = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    path = Path(chosen.train_source[0])
    before = path.stat()
    time.sleep(0.02)
    with path.open("r+b") as file:
        file.write(b"SOURCE")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = prepare(chosen, by_bytes, by_bytes, cache, split="train")
    assert again.digest != first.digest
    assert again.source(0).tolist() == by_bytes.encode("SOURCE 0")


def test_a_file_that_changes_while_it_is_read_is_refused(corpus_files, by_bytes, tmp_path):
    chosen, cache = corpus_files(PAIRS), tmp_path / "cache"
    path = Path(chosen.train_source[0])

    def change(pairs):
        time.sleep(0.02)
        path.write_text(path.read_text().upper())

    with pytest.raises(DataError) as caught:
        prepare(chosen, by_bytes, by_bytes, cache, split="train", look=change)
    assert str(caught.value) == f"{path}: was changed while it was read; start again when it is complete"
    assert [each.name for each in cache.iterdir()] == ["files.json"]


def test_failed_build_leaves_no_files(corpus_files, by_bytes, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpus.Writer, "append", full)
    with pytest.raises(DataError) as error:
        prepare(corpus_files(PAIRS), by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert str(error.value) == f"{tmp_path / 'cache'}: cannot be written: No space left on device"
    assert made(tmp_path / "cache") == []


def test_full_disk_while_saving_digests_is_reported_and_keeps_the_old_ones(tmp_path, full_disk):
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    memory = tmp_path / "cache" / "digests.json"
    found = file_digest(str(tmp_path / "one"), memory)
    before = memory.read_bytes()
    with full_disk():
        assert file_digest(str(tmp_path / "one"), memory) == found
        with pytest.raises(DataError) as error:
            file_digest(str(tmp_path / "other"), memory)
    assert str(error.value) == f"{tmp_path / 'cache'}: cannot be written: No space left on device"
    assert memory.read_bytes() == before
    assert list(memory.parent.iterdir()) == [memory]


def test_leftovers_of_dead_processes_are_removed_after_a_day(corpus_files, by_bytes, tmp_path):
    old, young = tmp_path / "cache" / ".partial-old", tmp_path / "cache" / ".partial-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 90_000,) * 2)
    prepare(corpus_files(PAIRS), by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert not old.exists()
    assert young.exists()


class Killed(BaseException):
    """Simulates the death of the process."""


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("duplicates", [False, True])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=st.lists(st.integers(1, 20), min_size=1, max_size=3), damaged=st.booleans())
def test_a_build_that_was_killed_is_continued_with_the_same_bytes(
    write, by_bytes, tmp_path, duplicates, deaths, damaged
):
    """Without validation files, so that a sample is held out. `damaged`: a file lost what had been written to it."""
    lines = [f"source {i}\t{'x' * (i % 23)}" for i in range(101)] + ["source 0\txx"] * 9
    files = tuple(write(f"{number}.tsv", lines[number::3]) for number in range(3))
    chosen = DataSettings(train=files, cleaning=CleaningSettings(max_tokens=19, duplicates=duplicates))
    append, encoded = token_cache.Builder._append, []

    def prepared(folder: str, death: int = -1) -> Path:
        numbers = iter(range(1000))

        def until(self: token_cache.Builder, chunk: token_cache._Chunk, writer: corpus.Writer) -> None:
            if next(numbers) == death:
                raise Killed
            encoded.append(len(chunk.pairs))
            append(self, chunk, writer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_cache, "_CHUNK", 7)
            patch.setattr(token_cache, "SAVE_SECONDS", 0.0)
            patch.setattr(token_cache.Builder, "_append", until)
            prepare(chosen, by_bytes, by_bytes, tmp_path / folder, split="train", processes=1)
        (home,) = made(tmp_path / folder)
        return home

    for folder in ("whole", "killed"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    whole = content(prepared("whole"))
    assert sum(encoded) == 110
    encoded.clear()
    for death in deaths:
        try:
            prepared("killed", death)
        except Killed:
            continue
        break
    if damaged:
        for file in (tmp_path / "killed").glob(".partial-*/all.tokens"):
            file.write_bytes(b"")
    assert content(prepared("killed")) == whole
    if not damaged:
        assert sum(encoded) == 110


def test_a_build_that_lost_a_process_is_continued(corpus_files, by_bytes, tmp_path, monkeypatch):
    def lost(*_: object) -> None:
        raise ProcessLostError("a worker process ended in the middle of its work")

    chosen, cache = corpus_files(PAIRS), tmp_path / "cache"
    monkeypatch.setattr(token_cache, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(token_cache, "_CHUNK", 40)
    with monkeypatch.context() as patch:
        append = token_cache.Builder._append
        patch.setattr(token_cache.Builder, "_append", lambda *given: append(*given) if given[1].read < 80 else lost())
        with pytest.raises(DataError) as error:
            prepare(chosen, by_bytes, by_bytes, cache, split="train")
    assert str(error.value) == (
        "tokenizing: a worker process ended in the middle of its work, perhaps because memory ran out; "
        "the same command continues"
    )
    counts = []
    found = prepare(chosen, by_bytes, by_bytes, cache, split="train", progress=counts.append)
    assert counts == [80, 101]
    assert found.pairs == 101


def test_a_build_in_progress_is_not_taken_for_a_leftover(corpus_files, by_bytes, tmp_path):
    busy = tmp_path / "cache" / ".partial-busy"
    busy.mkdir(parents=True)
    with (busy / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(busy, (time.time() - 90_000,) * 2)
        prepare(corpus_files(PAIRS), by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert busy.exists()


BUILD = """
import os, sys, time
from pathlib import Path
from translume.config.data import DataSettings
from translume.config.tokenizer import TokenizerSettings
from translume.data.token_cache import prepare
from translume.text import train_tokenizer

folder = Path(sys.argv[1])
tokenizer = train_tokenizer(TokenizerSettings(kind="byte"), ["a"])
(folder / f"ready.{os.getpid()}").touch()
while len(list(folder.glob("ready.*"))) < 3:
    time.sleep(0.01)
chosen = DataSettings(train=(str(folder / "train.tsv"),))
found = prepare(chosen, tokenizer, tokenizer, folder / "cache", split="train")
print(found.digest, int(found.tokens.sum()), found.pairs)
"""


def test_processes_that_build_at_once_share_one_cache(write, tmp_path, warm_python):
    write("train.tsv", [f"{source}\t{target}" for source, target in PAIRS * 50])
    command = [warm_python, "-c", BUILD, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(found) == 1
    assert len(made(tmp_path / "cache")) == 1


def test_unequal_files_are_refused_before_anything_is_tokenized(write, by_bytes, tmp_path):
    a, b = write("train.en", ["x"] * 2000), write("train.de", ["y"] * 1999)
    told: list[int] = []
    with pytest.raises(DataError) as error:
        prepare(
            DataSettings(train_source=(a,), train_target=(b,)),
            by_bytes,
            by_bytes,
            tmp_path / "cache",
            split="train",
            progress=told.append,
        )
    assert str(error.value) == f"{a} has 2,000 lines but {b} has 1,999; expected as many in both"
    assert told == []


def test_corpus_without_usable_pairs_is_an_error(corpus_files, by_bytes, tmp_path):
    chosen = corpus_files([("", "b"), ("a", "b" * 300)])
    with pytest.raises(DataError) as error:
        prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert str(error.value) == "data: none of 2 pairs is left: empty 1, too long 1"


def test_without_validation_files_a_sample_is_held_out(corpus_files, by_bytes, tmp_path):
    chosen = corpus_files(PAIRS * 3, valid=False)
    train = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    valid = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="valid")
    assert train.account == valid.account
    assert (train.account.read, train.account.used, train.account.held_out) == (303, 297, 6)
    assert (train.pairs, valid.pairs) == (297, 6)
    seen = {bytes(train.source(number)) for number in range(297)}
    assert not seen & {bytes(valid.source(number)) for number in range(6)}
    assert len(made(tmp_path / "cache")) == 1


@pytest.mark.parametrize("weights", [(2.0, 1.0), (0.5, 1.0), (0.0, 1.0)])
def test_held_out_pairs_are_validated_once_regardless_of_weights(write, by_bytes, tmp_path, weights):
    names = [write(f"{name}.{side}", [f"{name} {i}" for i in range(150)]) for name in "ab" for side in ("en", "de")]
    chosen = DataSettings(train_source=tuple(names[::2]), train_target=tuple(names[1::2]), weights=weights)
    valid = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="valid")
    assert valid.pairs == 6
    assert len({valid.place(number).split(":")[0] for number in range(6)}) == 2
    plan = BatchPlan(valid, max_tokens=50, seed=0, epoch=0)
    assert sorted(line for batch in plan.batches() for line in batch.lines) == list(range(6))
    assert prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train").weights == weights


def test_sources_of_pairs_without_a_target_do_not_count_for_the_sample(write, by_bytes, tmp_path):
    files = write("train.tsv", [f"s{i}\t{' ' if i % 3 else 't'}" for i in range(300)])
    train = prepare(DataSettings(train=(files,)), by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert (train.account.used, train.account.held_out, train.account.dropped) == (98, 2, {"empty": 200})


def chosen_of(hashes: list[np.ndarray]) -> list[int]:
    """Return the numbers of the pairs that are held out, if their source hashes come in these chunks."""
    sample, read = held_out.Sample(), 0
    for chunk in hashes:
        sample.add(chunk)
        sample.note(chunk, read + np.arange(len(chunk)))
        sample = held_out.Sample.from_values(json.loads(json.dumps(sample.to_values())))
        read += len(chunk)
    return sample.chosen().tolist()


@given(st.lists(st.integers(0, 300), max_size=400), st.integers(1, 97))
def test_held_out_sample_is_at_most_two_percent_and_not_empty(numbers, chunk):
    pairs = [held_out.Pair(source=f"s{n}", target=str(i), file="f", line=i) for i, n in enumerate(numbers)]
    hashes = held_out.source_hashes(pairs) if pairs else np.zeros(0, np.uint64)
    chosen = chosen_of(np.split(hashes, range(chunk, len(hashes), chunk)))
    assert chosen == chosen_of([hashes])
    sources = {numbers[index] for index in chosen}
    assert chosen == [index for index, number in enumerate(numbers) if number in sources]
    most = max(1, len(numbers) // 50) if len(numbers) > 1 else 0
    assert len(chosen) <= most
    if most and any(numbers.count(number) <= most for number in numbers):
        assert chosen


def test_the_sample_is_at_most_two_thousand_pairs():
    """The hashes of 120,000 sources, and of one that comes 5,000 times, which is too many although it is the lowest."""
    hashes = np.concatenate([np.random.default_rng(3).permutation(120_000) + 1, np.zeros(5000)]).astype(np.uint64)
    chosen = chosen_of(np.array_split(hashes, 7))
    assert sorted(hashes[chosen].tolist()) == list(range(1, 2000))


def test_a_single_pair_cannot_be_held_out(corpus_files, by_bytes, tmp_path):
    chosen = corpus_files([("a", "b")], valid=False)
    assert prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train").pairs == 1
    with pytest.raises(DataError) as error:
        prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="valid")
    assert str(error.value) == (
        "data: none of 1 training pairs could be held out for validation; "
        "expected more pairs, or data.valid_source and data.valid_target"
    )


def test_progress_counts_the_pairs_read(corpus_files, by_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "_CHUNK", 40)
    told: list[int] = []
    prepare(corpus_files(PAIRS), by_bytes, by_bytes, tmp_path / "cache", split="train", progress=told.append)
    assert told == [40, 80, 101]


def test_processes_do_not_change_the_cache(write, by_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "_CHUNK", 7)
    monkeypatch.setattr(encoding, "LONG_BYTES", 1)
    monkeypatch.setattr(encoding, "usable_processors", lambda: 2)
    lines = [f"source {i}\t{'x' * (i % 23)}" for i in range(101)]
    lines += [*lines[40:53], "здравствуйте\tx"]
    files = tuple(write(f"{number}.tsv", lines[number::3]) for number in range(3))
    rules = CleaningSettings(max_tokens=19, duplicates=True, source_script="latin")
    chosen = DataSettings(train=files, cleaning=rules)
    contents = []
    for processes in (1, None):
        found = prepare(chosen, by_bytes, by_bytes, tmp_path / str(processes), split="train", processes=processes)
        (home,) = made(tmp_path / str(processes))
        contents.append({path.name: path.read_bytes() for path in home.iterdir()})
    assert contents[0] == contents[1]
    assert found.account.dropped == {"empty": 6, "wrong script": 1, "duplicate": 12, "too long": 12}
    assert found.account.held_out == 1


def test_a_sentence_of_a_megabyte_is_dropped_and_counted(corpus_files, by_merges, tmp_path):
    chosen = corpus_files([("x" * 1_000_000, "y"), ("a", "b")])
    found = prepare(chosen, by_merges, by_merges, tmp_path / "cache", split="train")
    assert found.account.dropped == {"too long": 1}
    assert len(found.account.examples["too long"].source) == 201


def test_missing_or_damaged_digest_file_changes_nothing(corpus_files, by_bytes, tmp_path):
    chosen, cache = corpus_files(PAIRS), tmp_path / "cache"
    first = prepare(chosen, by_bytes, by_bytes, cache, split="train").digest
    assert len(json.loads((cache / "files.json").read_text())) == 3  # with the digest of the file itself
    for text in ("", "[1]", "{"):
        (cache / "files.json").write_text(text)
        assert prepare(chosen, by_bytes, by_bytes, cache, split="train").digest == first


def test_large_vocabularies_and_long_texts_get_wider_integers(corpus_files, by_bytes, tmp_path, monkeypatch):
    long = corpus_files([("a" * 70_000, "b")], cleaning=CleaningSettings(max_tokens=100_000))
    found = prepare(long, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert int(found.source_lengths[0]) == 70_000
    assert (str(found.tokens.dtype), str(found.source_lengths.dtype)) == ("uint16", "int32")
