"""Many files are translated into a folder: one output for each input, and a second call does what is missing."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import zstandard
from click.testing import Result

from translume.data import read_lines
from translume.errors import DataError, TranslationError
from translume.translator import Translation
from translume.translator.bulk import Shard, as_line, shards_of, write_shard
from translume.translator.planning import Line, LineError
from translume.translator.workers import outcomes


@pytest.fixture(scope="module")
def folder(train_for_a_moment: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_for_a_moment(tmp_path_factory.mktemp("bulk"), model=1)


def test_each_file_gets_its_translations_and_failures_are_named(
    run: Callable[..., Result], folder: Path, tmp_path: Path
) -> None:
    lines = {"a.txt": ["ab kl", "cde " * 700, "fgh a"], "b.txt.zst": ["cde mno"], "d.jsonl": ["ab a", "fgh b"]}
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines["a.txt"]))
    (tmp_path / "b.txt.zst").write_bytes(zstandard.compress(b"cde mno\n"))
    (tmp_path / "c.txt").write_bytes(b"ab\n\xff\n")
    (tmp_path / "d.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in lines["d.jsonl"]))
    out = tmp_path / "out"
    words = ["translate", folder / "model", "--output", out, "--workers", "1", "--split", "never", "--beam", "1"]
    first = run(*words, "--input", f"{tmp_path}/*.txt*")
    assert first.exit_code == 1
    assert [line for line in first.stderr.splitlines() if line.startswith("warning: ") and "c.txt" in line] == [
        f"warning: {tmp_path}/c.txt:2: not UTF-8 (byte 0xff at column 1); if it is Windows-1252, convert it: "
        f"iconv -f WINDOWS-1252 -t UTF-8 {tmp_path}/c.txt > {tmp_path}/c.utf-8.txt; the other files are translated"
    ]
    (failure,) = [line for line in first.stderr.splitlines() if f"{tmp_path}/a.txt:2" in line]
    assert failure.startswith(f"warning: {tmp_path}/a.txt:2: the text has 2,")
    assert failure.endswith("; it has no translation")
    assert sorted(path.name for path in out.iterdir()) == ["a.txt", "b.txt.zst"]
    found = list(read_lines(out / "a.txt"))
    alone = run("translate", folder / "model", "--split", "never", "--beam", "1", text="ab kl\nfgh a\ncde mno\n")
    assert [found[0], found[2], *read_lines(out / "b.txt.zst")] == alone.stdout.splitlines()
    assert found[1] == ""

    (tmp_path / "c.txt").write_text("ab\n")
    times = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    second = run(*words, "--input", f"{tmp_path}/*.txt*")
    assert (second.exit_code, second.stderr.splitlines()[0]) == (0, f"{out}: 2 of 3 files are there already")
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(list(read_lines(out / "c.txt"))) == 1

    assert run(*words, "--input", f"{tmp_path}/*.jsonl", "--column", "text").exit_code == 0
    assert len(list(read_lines(out / "d.jsonl.txt"))) == 2


def test_options_of_single_files_are_refused(run: Callable[..., Result], folder: Path, tmp_path: Path) -> None:
    model = folder / "model"
    alone = run("translate", model, "--input", "a")
    assert alone.stderr == ("Error: --input, --output: found one of them, expected both; --column is for them\n")
    both = run("translate", model, folder / "a.en", "--input", "a", "--output", tmp_path)
    assert both.stderr == "Error: FILE: found with --input, expected only --input and --output\n"


def test_inputs_of_the_same_name_are_refused(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a\n")
    with pytest.raises(DataError) as caught:
        shards_of([f"{tmp_path}/**/*.txt"], tmp_path / "out")
    assert str(caught.value) == (
        f"{tmp_path}/y/a.txt: has the same name as {tmp_path}/x/a.txt; give each --input its own --output"
    )


def test_lines_after_one_that_fails_are_translated_in_order(tmp_path: Path) -> None:
    def translate(lines: list[Line]) -> Iterator[Translation]:
        for line in lines:
            if line.text == "bad":
                raise LineError(line, "too bad")
            yield Translation(source=line.text, text=line.text.upper())

    lines = [Line(number=n, text=text) for n, text in enumerate(["a", "bad", "b", "bad", "bad", "c"], 1)]
    shard = Shard("a", tmp_path / "out.txt.gz")
    (tmp_path / ".out.txt.gz.0123abcd.part").write_bytes(b"of a killed process")
    found = list(write_shard(shard, outcomes(translate, lines), as_line))
    assert [str(each) for each in found if isinstance(each, LineError)] == [f"line {n}: too bad" for n in (2, 4, 5)]
    assert list(read_lines(shard.target)) == ["A", "", "B", "", "", "C"]

    def lost(lines: list[Line]) -> Iterator[Translation]:
        yield Translation(source="a", text="A")
        raise TranslationError("after line 1: a worker was lost")

    with pytest.raises(TranslationError, match="after line 1: a worker was lost"):
        list(write_shard(Shard("a", tmp_path / "lost.txt"), outcomes(lost, lines), as_line))
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt.gz"]


def test_files_of_an_address_are_translated_and_trained_on(
    run: Callable[..., Result], folder: Path, tmp_path: Path
) -> None:
    files = fsspec.filesystem("memory")
    for side in ("en", "de"):
        files.pipe(f"/pairs/a.{side}.gz", gzip.compress((folder / f"a.{side}").read_bytes()))
    words = ["translate", folder / "model", "--input", "memory://pairs/*.en.gz", "--output", tmp_path, "--workers", "1"]
    assert run(*words).exit_code == 0
    alone = run("translate", folder / "model", folder / "a.en")
    assert list(read_lines(tmp_path / "a.en.gz")) == alone.stdout.splitlines()
    trained = ["train", folder / "a.toml", "--out", tmp_path / "model", "--threads", "1"]
    for side, name in (("en", "source"), ("de", "target")):
        trained += ["--set", f"data.train_{name}=memory://pairs/a.{side}.gz"]
    made = run(*trained, "--set", "training.updates=2")
    assert made.exit_code == 0, made.stderr
    lost = run("translate", folder / "model", "--input", "memory://pairs/b", "--output", tmp_path, "--workers", "1")
    assert lost.stderr == "warning: memory://pairs/b: no such file; the other files are translated\n"
    lost = run("translate", folder / "model", "--input", "odd://pairs/b", "--output", tmp_path, "--workers", "1")
    assert lost.stderr.startswith("warning: odd://pairs/b: cannot be read: Protocol not known: odd")
    lost = run("translate", folder / "model", "--input", "ftp://localhost:1/*.en", "--output", tmp_path)
    assert lost.stderr == "Error: ftp://localhost:1/*.en: cannot be read: [Errno 111] Connection refused\n"


@pytest.mark.parametrize("option", [("--ray", "local"), ("--on-error", "skip")])
def test_options_of_bulk_translation_are_refused_without_files(
    run: Callable[..., Result], folder: Path, option: tuple[str, str]
) -> None:
    found = run("translate", folder / "model", *option, text="ab\n")
    assert found.stderr == f"Error: {option[0]}: found without --input, expected --input and --output\n"
