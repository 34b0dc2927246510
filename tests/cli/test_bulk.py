"""Many files are translated into a folder: one output for each input, and a second call does what is missing."""

import gzip
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet as parquet
import pytest
import zstandard
from click.testing import Result
from tests.errors import raises

from translume.cli.bulk import BusyError, outputs_of, written
from translume.data.lines import read_lines
from translume.errors import DataError, SettingsError, TranslationError
from translume.translator import scoring


@pytest.fixture(scope="module")
def folder(train_for_a_moment: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_for_a_moment(tmp_path_factory.mktemp("bulk"), model=1)


def test_each_file_gets_its_translations_and_failures_are_named(run, folder: Path, tmp_path: Path) -> None:
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
        f"iconv -f WINDOWS-1252 -t UTF-8 {tmp_path}/c.txt > {tmp_path}/c.utf-8.txt; the other files are processed"
    ]
    (failure,) = [line for line in first.stderr.splitlines() if f"{tmp_path}/a.txt:2" in line]
    assert failure.startswith(f"warning: {tmp_path}/a.txt:2: the text has 2,")
    assert failure.endswith("; it has no result")
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

    parquet.write_table(pyarrow.table({"line": [1, 2], "text": lines["d.jsonl"]}), tmp_path / "e.parquet")
    assert run(*words, "--input", f"{tmp_path}/[de].*", "--column", "text").exit_code == 0
    assert list(read_lines(out / "e.parquet.txt")) == list(read_lines(out / "d.jsonl.txt"))
    assert len(list(read_lines(out / "d.jsonl.txt"))) == 2
    (out / "e.parquet.txt").unlink()
    refused = run(*words, "--input", f"{tmp_path}/e.parquet")
    assert refused.stderr.splitlines()[-1] == (
        f"Error: {tmp_path}/e.parquet: a Parquet table; expected --column, that of the texts, with --input"
    )


def test_options_of_single_files_are_refused(run: Callable[..., Result], folder: Path, tmp_path: Path) -> None:
    model = folder / "model"
    alone = run("translate", model, "--input", "a")
    assert alone.stderr == ("Error: --input, --output: found one of them, expected both; --column is for them\n")
    both = run("translate", model, folder / "a.en", "--input", "a", "--output", tmp_path)
    assert both.stderr == "Error: FILE cannot be combined with --input\n"


def test_inputs_of_the_same_name_and_outputs_that_are_inputs_are_refused(tmp_path: Path) -> None:
    with raises(DataError, "y/a.txt: has the same name as x/a.txt; give each --input its own --output"):
        outputs_of(["x/a.txt", "y/a.txt"], tmp_path / "out")
    with pytest.raises(SettingsError) as refused:
        outputs_of([f"{tmp_path}/a.txt"], tmp_path / "." / "b" / "..")
    assert str(refused.value).startswith(f"--output: {tmp_path}/b/../a.txt would replace an input; expected another")


def test_an_output_is_complete_or_missing(tmp_path: Path) -> None:
    (tmp_path / ".out.txt.gz.part").write_bytes(b"of a killed process")
    with written(tmp_path / "out.txt.gz") as file:
        file.write("a\nb\n")
    assert list(read_lines(tmp_path / "out.txt.gz")) == ["a", "b"]

    def lost() -> Iterator[str]:
        yield "a\n"
        raise TranslationError("after line 1: a worker was lost")

    with pytest.raises(TranslationError), written(tmp_path / "lost.txt") as file:
        file.writelines(lost())
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt.gz"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2", ".xz"])
def test_an_output_is_compressed_as_its_input(tmp_path: Path, suffix: str) -> None:
    (path,) = outputs_of([f"a.en{suffix}"], tmp_path)
    assert path.name == f"a.en{suffix}"
    with written(path) as file:
        file.write("\u00e4\nb\n")
    assert list(read_lines(path)) == ["\u00e4", "b"]
    assert path.read_bytes().startswith(b"\xc3\xa4" if not suffix else SIGNATURES[suffix])


SIGNATURES = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5", ".bz2": b"BZh", ".xz": b"\xfd7zXZ"}


def test_two_processes_do_not_write_one_output(run, folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("ab kl\n")
    out = tmp_path / "out"
    begun = threading.Event()

    def other() -> None:
        with written(out / "a") as file:
            with pytest.raises(BusyError), written(out / "a"):
                pass
            file.write("of the other\n")
            begun.set()
            deadline = time.monotonic() + 60
            while not (out / "b").exists() and time.monotonic() < deadline:
                time.sleep(0.01)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    done = run("translate", folder / "model", "--input", f"{tmp_path}/[ab]", "--output", out, "--workers", "1")
    thread.join()
    assert done.exit_code == 0
    notes = [line for line in done.stderr.splitlines() if line.startswith(f"{out}/a: ")]
    assert notes == [f"{out}/a: another process is writing it", f"{out}/a: written by another process"]
    assert (out / "a").read_text() == "of the other\n"
    assert sorted(path.name for path in out.iterdir()) == ["a", "b"]


GOOD = ["ab kl", "cde", "fgh a"]
ROWS = [f'{{"s": "{text}"}}' for text in GOOD]
TABLES = {  # a table whose third row of four cannot be used, and why
    "a.jsonl": ([*ROWS[:2], '{"s": nul', ROWS[2]], "not JSON; expected one object a line"),
    "b.jsonl": ([*ROWS[:2], "", ROWS[2]], "not JSON; expected one object a line"),
    "c.jsonl": ([*ROWS[:2], '{"s": null}', ROWS[2]], "'s' is null"),
    "d.jsonl": ([*ROWS[:2], '{"t": "x"}', ROWS[2]], "'s' is missing"),
    "e.jsonl": ([*ROWS[:2], "[1]", ROWS[2]], "a JSON array; expected one object a line, with 's'"),
    "f.csv": (["id,s", "1,ab kl", "2,cde", "3", "4,fgh a"], "1 columns, expected at least 2"),
    "g.tsv": (["id\ts", "1\tab kl", "2\tcde", "", "4\tfgh a"], "1 tab-separated fields, expected at least 2"),
    "h.parquet": ([*GOOD[:2], None, GOOD[2]], "'s' is null"),
}


def test_a_bad_row_is_named_and_leaves_the_others(run, folder: Path, tmp_path: Path) -> None:
    for name, (rows, _) in TABLES.items():
        if name.endswith(".parquet"):
            parquet.write_table(pyarrow.table({"s": rows}), tmp_path / name)
        else:
            (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    words = ["translate", folder / "model", "--column", "s", "--workers", "1"]
    done = run(*words, "--input", f"{tmp_path}/*", "--output", tmp_path / "out")
    assert done.exit_code == 1
    alone = run("translate", folder / "model", text="".join(f"{text}\n" for text in GOOD)).stdout.splitlines()
    for name, (_, reason) in TABLES.items():
        assert f"warning: {tmp_path}/{name}:3: {reason}; it has no result" in done.stderr.splitlines()
        assert f"{tmp_path}/out/{name}.txt: 4 lines, 1 without a result, " in done.stderr
        assert list(read_lines(tmp_path / "out" / f"{name}.txt")) == [*alone[:2], "", alone[2]]
        stop = ["--input", tmp_path / name, "--output", tmp_path / "stop", "--on-error", "stop"]
        assert run(*words, *stop).stderr.splitlines()[-1] == f"Error: {tmp_path}/{name}:3: {reason}"
    assert not list((tmp_path / "stop").iterdir())


def test_a_bad_row_of_pairs_is_named_and_leaves_the_others(run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"s": "ab", "t": "AB"}\n{"s": "ab", "t": null}\n{"s": "cde", "t": "CDE"}\n')
    words = ["--input", tmp_path / "p.jsonl", "--columns", "s,t", "--output", tmp_path / "out", "--workers", "1"]
    done = run("score", folder / "model", *words)
    assert done.exit_code == 1
    assert f"warning: {tmp_path}/p.jsonl:2: 't' is null; it has no result" in done.stderr.splitlines()
    found = list(read_lines(tmp_path / "out" / "p.jsonl.log_probs"))
    assert [bool(line) for line in found] == [True, False, True]


def test_pairs_of_many_files_are_scored_and_inspected_as_alone(run, folder: Path, tmp_path: Path, monkeypatch) -> None:
    pairs = [("ab kl", "AB KL"), ("cde " * 700, "CDE"), ("fgh a", "FGH B"), ("", "AB")]
    rows = "".join(f'{{"s": "{source}", "t": "{target}"}}\n' for source, target in pairs)
    (tmp_path / "p.jsonl.zst").write_bytes(zstandard.compress(rows.encode()))
    for number, name in enumerate(("p.en", "p.de")):
        (tmp_path / name).write_text("".join(f"{pair[number]}\n" for pair in pairs if len(pair[0]) < 99))
    model, out = folder / "model", tmp_path / "out"
    words = ["--input", tmp_path / "p.jsonl.zst", "--columns", "s,t", "--output", out, "--workers", "1"]
    made = run("score", model, *words)
    assert made.exit_code == 1
    (failure,) = [line for line in made.stderr.splitlines() if line.startswith("warning: ")]
    assert failure.startswith(f"warning: {tmp_path}/p.jsonl.zst:2: the source has 2,")
    assert failure.endswith("; it has no result")
    found = list(read_lines(out / "p.jsonl.log_probs.zst"))
    sources, targets = zip(*pairs, strict=True)
    parquet.write_table(pyarrow.table({"s": sources, "t": targets}), tmp_path / "p.parquet")
    again = ["--input", tmp_path / "p.parquet", *words[2:]]
    assert run("score", model, *again).exit_code == 1
    assert list(read_lines(out / "p.parquet.log_probs")) == found
    alone = run("score", model, tmp_path / "p.en", tmp_path / "p.de").stdout.splitlines()
    assert (found[1], len(found), len(alone)) == ("", 4, 3)
    assert list(map(float, [found[0], *found[2:]])) == pytest.approx(list(map(float, alone)), abs=1e-5)

    parallel = ["--input", tmp_path / "p.en", "--targets", tmp_path / "p.de", "--output", out, "--workers", "1"]
    assert run("score", model, *parallel, "--json").exit_code == 0
    objects = [json.loads(line)["log_prob"] for line in read_lines(out / "p.en.jsonl")]
    assert objects == pytest.approx(list(map(float, alone)), abs=1e-5)

    (out / "p.en.jsonl").unlink()
    assert run("inspect", "pairs", model, *parallel).exit_code == 0
    views = {view["line"]: view for view in map(json.loads, read_lines(out / "p.en.jsonl"))}
    lens = run("inspect", "corpus", model, tmp_path / "p.en", tmp_path / "p.de", "--json")
    suspects = json.loads(lens.stdout)["suspects"]
    assert [view["line"] for view in suspects] == sorted(views, key=lambda line: views[line]["gain"])
    for view in suspects:
        assert {**views[view["line"]], "log_p": 0, "gain": 0, "worst_log_p": 0} == {
            **view, "log_p": 0, "gain": 0, "worst_log_p": 0
        }  # fmt: skip
        for name in ("log_p", "gain", "worst_log_p"):
            assert views[view["line"]][name] == pytest.approx(view[name], abs=1e-5)

    scored = scoring.score_pairs
    monkeypatch.setattr(
        scoring, "score_pairs", lambda *given: [replace(each, log_prob=-math.inf) for each in scored(*given)]
    )
    (out / "p.en.log_probs").unlink(missing_ok=True)
    impossible = run("score", model, *parallel)
    assert impossible.stderr.splitlines()[-1] == "3 targets contain a token of probability 0"
    assert list(read_lines(out / "p.en.log_probs")) == ["-inf"] * 3


def test_files_that_are_no_pairs_are_one_line_each_and_have_no_output(run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short.de").write_text("AB KL\n")
    (tmp_path / "empty").touch()
    model, out = folder / "model", tmp_path / "out"
    words = ["score", model, "--output", out, "--workers", "1", "--input", folder / "a.en", "--targets"]
    unequal = run(*words, tmp_path / "short.de")
    message = f"{folder}/a.en has 12 lines but {tmp_path}/short.de has 1; expected as many in both"
    assert (unequal.exit_code, unequal.stderr) == (1, f"warning: {message}\n")
    assert run(*words, tmp_path / "none").stderr == f"warning: {tmp_path}/none: no such file\n"
    assert run(*words, tmp_path / "none", "--on-error", "stop").stderr == f"Error: {tmp_path}/none: no such file\n"
    both = run(*words, folder / "a.de", "--input", tmp_path / "empty", "--targets", tmp_path / "empty")
    assert (both.exit_code, both.stderr.splitlines()[-1]) == (
        1,
        f"warning: {tmp_path}/empty: empty file, expected one sentence a line; the other files are processed",
    )
    assert [path.name for path in out.iterdir()] == ["a.en.log_probs"]
    for wrong, message in (
        ([*words, folder / "*.de"], f"--input: {folder}/a.en stands for 1 files, but"),
        ([*words, folder / "a.de", "--input", "b"], "--input: found 2, but --targets 1; expected as many of each"),
        ([*words, folder / "a.de", "--columns", "a,b"], "--columns cannot be combined with --targets"),
        (["score", model, "--output", out, "--input", "a", "--columns", "a"], "--columns: found 'a', expected two"),
        (["score", model, folder / "a.en"], "score: expected MODEL SOURCE TARGET, or --input and --output"),
        (["score", model, "a", "b", "--workers", "2"], "--workers: expected --input and"),
    ):
        (folder / "b.de").touch()
        found = run(*wrong)
        (folder / "b.de").unlink()
        assert found.stderr.startswith(f"Error: {message}"), found.stderr
        assert (found.exit_code, found.stderr.count("\n")) == (1, 1)


def test_files_of_an_address_are_translated_and_trained_on(run, folder: Path, tmp_path: Path) -> None:
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
    assert lost.stderr == "warning: memory://pairs/b: no such file\n"
    lost = run("translate", folder / "model", "--input", "odd://pairs/b", "--output", tmp_path, "--workers", "1")
    assert lost.stderr.startswith("warning: odd://pairs/b: cannot be read: Protocol not known: odd")
    lost = run("translate", folder / "model", "--input", "ftp://localhost:1/*.en", "--output", tmp_path)
    assert lost.stderr == "Error: ftp://localhost:1/*.en: cannot be read: [Errno 111] Connection refused\n"


@pytest.mark.parametrize("option", [("--ray", "local"), ("--on-error", "skip")])
def test_options_of_bulk_translation_are_refused_without_files(run, folder: Path, option: tuple[str, str]) -> None:
    found = run("translate", folder / "model", *option, text="ab\n")
    assert found.stderr == f"Error: {option[0]}: expected --input and --output as well\n"
