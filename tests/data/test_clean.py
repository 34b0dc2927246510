"""`data clean`: each filter alone, fingerprints, accounts, formats, and bad input."""

import csv
import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from translume.cli import main
from translume.config.clean import FILTERS, CleanSettings, known_filters
from translume.data.cleaning import KEPT
from translume.data.filters import DROPS, PairFilters, normalise, numbers
from translume.data.fingerprints import groups, min_hashes
from translume.data.scripts import letter_shares, usual_script

Write = Callable[[str, Sequence[str] | str | bytes], str]
WORDS = ["bed", "cat", "cups", "daisy", "dog", "eggs", "fox", "hats"]
FILLER = [(f"The {word} is old.", f"Das ist {word[::-1]} {'x' * number}.") for number, word in enumerate(WORDS)]
MENU = "Home | News | Sport | Contact | Help"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["data", "clean", *map(str, words)], prog_name="translume")


def test_a_table_of_which_no_row_can_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("talk,en,de\n1,a b,c d\n")
    found = run(tmp_path / "a.csv", "--out", tmp_path / "out", "--workers", "1")
    assert (found.exit_code, found.stderr) == (1, f"Error: {tmp_path}/a.csv:1: 3 columns, expected 2\n")
    assert not list((tmp_path / "out").iterdir())


def clean(*words: str | Path) -> dict[str, Any]:
    result = run(*words, "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["read"] == found["kept"] + sum(found["dropped"].values())
    return found


def reason(pair: tuple[str, str], **settings: Any) -> str:
    """Return the filter that drops a pair; empty if none does."""
    chosen = CleanSettings(**{"source_script": "latin", "target_script": "latin", **settings})
    (code,) = PairFilters(chosen).check(([pair], [])).codes.tolist()
    return "" if code == KEPT else DROPS[code]


@pytest.mark.parametrize(
    ("pair", "settings", "expected"),
    [
        (("A dog.", "Ein Hund."), {}, ""),
        (("A dog.", "\u200b "), {}, "empty"),
        (("A dog.", "Ein Hund."), {"min_characters": 7}, "length"),
        (("A dog.", "Ein Hund."), {"max_characters": 8}, "length"),
        (("A dog.", "=== 1 ---"), {}, "letters"),
        (("A dog.", "Один собака."), {}, "script"),
        (("A dog.", "Один собака."), {"target_script": ""}, ""),
        (("A big dog!", "a big, dog"), {}, "copy"),
        (("A big dog", "A big Hund"), {}, ""),
        (("A big dog", "A big Hund"), {"max_overlap": 0.6}, "copy"),
        (("In 1984 he left.", "Er ging 1948."), {}, "numbers"),
        (("In 1984 he left.", "Er ging."), {}, "numbers"),
        (("It has 1,000,000 cells.", "Es hat 1.000.000 Zellen."), {}, ""),
        (("He has 3 dogs.", "Er hat drei Hunde."), {}, ""),
        (("It weighs 5000 grams.", "Es wiegt fünf Kilo."), {}, ""),
        (("At 2:30 he left.", "Er ging um 14:30."), {}, ""),
        (("At 2:30 he left.", "Er ging um 14:30."), {"min_shared_numbers": 1.0}, "numbers"),
        (("See http://en.a.org/en/x.", "Siehe http://de.a.org/de/x!"), {}, ""),
        (("See http://a.org/x.", "Siehe http://a.org/y."), {}, "addresses"),
        (("Mail to me@a.org", "Eine Mail an mich"), {}, "addresses"),
        (("na " * 12, "Ein Hund bellt."), {}, "repeats"),
        (("haaaaaaaaaaaa", "Ein Hund."), {}, "repeats"),
        (("well well well, said the dog", "na na na, sagte der Hund"), {}, ""),
        ((MENU, "Start und Neues"), {}, "separators"),
        ((MENU, "Start und Neues"), {"max_separators": 4}, ""),
        (("Where is the old station?", "Où se trouve cette vieille gare ?"), {"target_language": "de"}, "language"),
        (("Where is the old station?", "Wo ist der alte Bahnhof?"), {"target_language": "de"}, ""),
    ],
)  # fmt: skip
def test_each_filter_drops_what_it_says(pair: tuple[str, str], settings: dict[str, Any], expected: str) -> None:
    names = (*CleanSettings().filters, *(["language"] if "target_language" in settings else []))
    assert reason(pair, filters=names, **settings) == expected
    without = tuple(name for name in names if name != expected)
    if expected not in ("", "empty", "language"):
        assert reason(pair, **{**settings, "filters": without}) == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [("1,000 and 007", ["1000", "7"]), ("1.5", ["1", "5"]), ("٣ 12", ["3", "12"]), ("9" * 5000, ["9" * 18])],
)
def test_numbers_are_read_without_their_separators(text: str, found: list[str]) -> None:
    assert numbers(text) == found


def test_duplicates_are_compared_without_case_and_width() -> None:
    assert normalise(" ＡＢＣ  Straße\u00a0x ") == "abc strasse x"


def test_letters_and_scripts_are_counted() -> None:
    assert letter_shares(["ab 1!", "", "की"]).tolist() == [0.5, 0.0, 1.0]
    assert [usual_script(texts) for texts in (["ab", "1", "cd"], ["日本の", "カナ"], ["ab", "гд"], ["1"])] == [
        "latin", "japanese", "", "",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=60), st.integers(1, 5))
def test_equal_fingerprints_are_grouped_in_parts(rows: list[tuple[int, bool]], size: int) -> None:
    found, kept = np.array([value for value, _ in rows], np.uint64), np.array([each for _, each in rows])
    repeated, met = [], set[int]()
    for place, (value, used) in enumerate(rows):
        repeated += [place] if used and value in met else []
        met |= {value} if used else set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.data.fingerprints._SORTED", size)
        parts = list(groups(found, kept))
    assert sorted(row for rows, first in parts for row in rows[~first].tolist()) == repeated
    assert sorted(row for rows, _ in parts for row in rows.tolist()) == np.flatnonzero(kept).tolist()


def test_min_hashes_agree_as_often_as_sets_of_grams_overlap() -> None:
    """P(one of the bands is equal) = 1 − (1 − J**rows)**bands; here over 300 pairs, with J counted."""
    draw = np.random.default_rng(3)
    first = ["".join(map(chr, draw.integers(97, 123, 80))) for _ in range(300)]
    second = [text[:40] + text[47:] for text in first]

    def grams(text: str) -> set[str]:
        padded = f" {text}\0\0\0"
        return {padded[place : place + 4] for place in range(len(text) + 1)}

    overlaps = [len(grams(a) & grams(b)) / len(grams(a) | grams(b)) for a, b in zip(first, second, strict=True)]
    for bands, rows in ((1, 1), (4, 3), (2, 7)):
        equal = (min_hashes(first, bands, rows) == min_hashes(second, bands, rows)).any(axis=1)
        expected = np.array([1 - (1 - overlap**rows) ** bands for overlap in overlaps])
        assert abs(equal.mean() - expected.mean()) < 4 * np.sqrt((expected * (1 - expected)).sum()) / 300
    alone = min_hashes(["x"], 2, 3)
    assert (min_hashes([*first, "x"], 2, 3)[-1:] == alone).all()  # not changed by its neighbours
    assert (min_hashes(["a dog of 12 years"], 2, 3) == min_hashes(["a dog of 34 years"], 2, 3)).all()


ROWS = [
    *FILLER,
    ("THE CAT  is old.", "Das ist tac x."),
    ("A dog.", ""),
    ("A dog.", "Der Hund, der gestern noch im Garten lag, ist heute schon wieder fort und kommt nicht zurück."),
    ("Yes.", "Ja."),
    ("Yes.", "Jawohl."),
    ("Yes.", "Doch."),
]
DROPPED = {"empty": 1, "ratio": 1, "duplicate": 1, "boilerplate": 3}


@pytest.fixture
def parallel(write: Write) -> tuple[str, str]:
    return write("a.en", [source for source, _ in ROWS]), write("a.de", [target for _, target in ROWS])


def test_pairs_are_kept_or_dropped_with_a_reason(parallel: tuple[str, str], tmp_path: Path) -> None:
    out, dropped = tmp_path / "new", tmp_path / "dropped.jsonl"
    few = ("--set", "clean.max_occurrences=2")
    found = clean(*parallel, "--out", out, "--dropped", dropped, *few)
    assert found["dropped"] == DROPPED
    assert {name: found["learned"][name] for name in ("source_script", "target_script")} == {
        "source_script": "latin", "target_script": "latin",
    }  # fmt: skip
    assert found["examples"]["duplicate"] == [
        {"source": "THE CAT  is old.", "target": "Das ist tac x.", "file": parallel[0], "line": 9,
         "target_file": parallel[1]}
    ]  # fmt: skip
    assert [(out / name).read_text() for name in ("a.en", "a.de")] == [
        "".join(f"{pair[side]}\n" for pair in FILLER) for side in (0, 1)
    ]
    rows = [json.loads(line) for line in dropped.read_text().splitlines()]
    assert [(row["filter"], row["line"]) for row in rows] == [
        ("duplicate", 9), ("empty", 10), ("ratio", 11), ("boilerplate", 12), ("boilerplate", 13), ("boilerplate", 14),
    ]  # fmt: skip
    assert [(row["source"], row["target"]) for row in rows] == ROWS[8:]
    assert sorted(path.name for path in out.iterdir()) == ["a.de", "a.en"]
    shared = run(*parallel, "--out", tmp_path / "two", "--workers", "2", "--json", *few)
    assert json.loads(shared.stdout) == found


def test_the_ends_of_documents_are_kept_if_blank_lines_are_ends(write: Write, tmp_path: Path) -> None:
    lines = ["", *[source for source, _ in FILLER[:3]], "", "x", "", " ", FILLER[3][0], "", ""]
    files = [write("d.en", lines), write("d.de", [line.strip() for line in lines])]
    options = ("--only", "length", "--set", "clean.min_characters=2")
    found = clean(*files, "--out", tmp_path / "new", *options, "--set", "clean.documents='blank_line'")
    assert (found["read"], found["kept"], found["dropped"]) == (5, 4, {"length": 1})
    assert (tmp_path / "new/d.en").read_text().split("\n") == [*lines[1:4], "", FILLER[3][0], ""]
    assert (tmp_path / "new/d.en").read_text() == (tmp_path / "new/d.de").read_text()
    done = run(*files, "--out", tmp_path / "other", *options)
    assert done.stderr.splitlines()[-1].endswith(
        f"{files[0]}:1: blank on both sides; if documents end there, clean.documents='blank_line'"
    )
    assert (tmp_path / "other/d.en").read_text().split("\n") == [*lines[1:4], FILLER[3][0], ""]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--only", "ratio"], {"empty", "ratio"}),
        (["--only", "duplicate_source,duplicate"], {"empty", "duplicate", "duplicate_source"}),
        (["--also", "duplicate_target", "--skip", "ratio"], {"empty", "duplicate"}),
        (["--only", "near_duplicate", "--set", "clean.near_rows=1"], {"empty", "near_duplicate"}),
        (["--only", "ratio", "--set", "clean.ratio_quantile=0.4"], {"empty", "ratio"}),
    ],
)
def test_filters_are_chosen(options: list[str], names: set[str], parallel: tuple[str, str], tmp_path: Path) -> None:
    assert clean(*parallel, "--out", tmp_path / "new", *options)["dropped"].keys() == names


def test_settings_are_read_from_a_file(parallel: tuple[str, str], write: Write, tmp_path: Path) -> None:
    config = write("clean.toml", '[clean]\nfilters = ["length"]\nmax_characters = 16\n')
    found = clean(*parallel, "--out", tmp_path / "new", "--config", config)
    assert found["dropped"] == {"empty": 1, "length": 6}
    for name in FILTERS:
        assert known_filters((name, name)) == (name,)


JSON = "".join(f"{json.dumps({'source': a, 'target': b, 'id': 7})}\n" for a, b in FILLER)


@pytest.mark.parametrize(
    ("name", "text", "options", "expected"),
    [
        ("a.tsv", "A dog\tEin Hund\nB\t\n", [], "A dog\tEin Hund\n"),
        ("a.tsv", "de\tn\ten\nHund\t1\tDog\n", ["--set", 'clean.columns=["en", "de"]'], "en\tde\nDog\tHund\n"),
        ("a.csv", 'A dog;"Ein\n""Hund"""\nB;\n', [], 'A dog,"Ein\n""Hund"""\n'),
        ("a.jsonl", '{"source": "A\\tb", "target": "Hü\\n"}\n[1\n', [], '{"source": "A\\tb", "target": "Hü\\n"}\n'),
    ],
)  # fmt: skip
def test_a_table_stays_one(
    name: str, text: str, options: list[str], expected: str, write: Write, tmp_path: Path
) -> None:
    found = clean(write(name, text), "--out", tmp_path / "new", *options)
    assert (tmp_path / "new" / name).read_text() == expected
    assert set(found["dropped"]) <= {"empty", "unreadable"}


def test_a_parquet_table_becomes_jsonl_and_compression_stays(write: Write, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"source": ["A dog", ""], "target": ["Ein Hund", "x"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    clean(tmp_path / "a.parquet", "--out", tmp_path / "new")
    assert (tmp_path / "new" / "a.jsonl").read_text() == '{"source": "A dog", "target": "Ein Hund"}\n'
    packed = write("b.tsv.gz", gzip.compress(b"A dog\tEin Hund\n"))
    clean(packed, "--out", tmp_path / "new")
    assert gzip.decompress((tmp_path / "new" / "b.tsv.gz").read_bytes()) == b"A dog\tEin Hund\n"


def test_what_is_written_is_read_as_the_same_pairs(write: Write, tmp_path: Path) -> None:
    rows = [("A \x85 dog\u2028", "Ein\x0b Hund"), ('"quoted', "'quoted'"), ("=1+1 is", "a,b;c")]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    for name in ("a.csv", "new/a.csv"):
        found = clean(tmp_path / name, "--out", (tmp_path / name).parent / "new", "--only", "length")
        assert found["kept"] == 3
    with open(tmp_path / "new" / "new" / "a.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [list(row) for row in rows]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.en", "short"], "{0}/a.en has 14 lines but {0}/short has 1; expected as many in both"),
        (["bad", "bad"], "{0}/new/bad: the name of two new files, expected different ones"),
        (["bad", "two"], "{0}/bad:2: not UTF-8 (byte 0xff at column 2)"),
        (["gone", "short"], "{0}/gone: no such file"),
        (["void", "void2"], "{0}/void: empty file, expected one sentence a line"),
        (["-", "short"], "standard input: can be read only once; expected a file"),
        (["a.en", "a.de", "--only", "lenght"], "--only, --also, --skip: no filter 'lenght'; did you mean 'length'?"),
        (["a.en", "a.de", "--set", "clean.max_overlap=2"],
         "--set: clean.max_overlap: found 2, expected less than or equal to 1"),
        (["a.en", "a.de", "--set", "clean.source_script=latn"],
         "clean.source_script: no script 'latn'; did you mean 'latin'?"),
        (["a.en", "a.de", "--from", "xx"], None),
        (["a.en", "a.de", "--also", "language"],
         "--set: clean: the filter 'language' has no source_language and no target_language, expected one"),
        (["a.en", "a.de", "--config", "bad.toml"],
         "{0}/bad.toml: clean.ratoi: no such setting; did you mean 'clean.ratio_quantile'?"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_no_file(
    words: list[str], message: str | None, parallel: tuple[str, str], write: Write, tmp_path: Path
) -> None:
    contents: dict[str, str | bytes] = {
        "short": "x\n",
        "two": "x\ny\n",
        "bad": b"\xc3\xa4\na\xff\n",
        "void": "",
        "void2": "",
        "bad.toml": "[clean]\nratoi = 1\n",
    }
    for name, content in contents.items():
        write(name, content)
    places = [str(tmp_path / word) if word in ("a.en", "a.de", "gone", *contents) else word for word in words]
    result = run(*places, "--out", tmp_path / "new", "--workers", "1")
    assert result.exit_code == 1
    if message is None:  # it names all languages of lingua
        assert result.stderr.startswith("Error: no language 'xx' that can be detected; known: af, ar, az, be, bg, bn")
    else:
        assert result.stderr == f"Error: {message.format(tmp_path)}\n"
    assert not (tmp_path / "new").exists() or list((tmp_path / "new").iterdir()) == []


def test_an_output_that_exists_is_not_replaced(parallel: tuple[str, str], tmp_path: Path) -> None:
    result = run(*parallel, "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (1, f"Error: {tmp_path}/a.en: exists already, expected a new file\n")


def test_one_file_that_is_no_table_is_refused(parallel: tuple[str, str], tmp_path: Path) -> None:
    result = run(parallel[0], "--out", tmp_path / "new")
    assert result.exit_code == 2
    assert "Error: expected SOURCE TARGET, or a table of pairs\n" in result.stderr


@pytest.mark.parametrize(("size", "place"), [(200, "new"), (2000, "new/a.en")])
def test_a_full_disk_is_one_line_and_leaves_no_file(size: int, place: str, write: Write, tmp_path: Path) -> None:
    """The temporary files take 256 bytes each, the new ones more."""
    rows = [(f"{source} {'x y z ' * 20}", f"{target} {'u v w ' * 20}") for source, target in FILLER * 4]
    files = write("a.en", [source for source, _ in rows]), write("a.de", [target for _, target in rows])
    words = ["data", "clean", *files, "--out", str(tmp_path / "new"), "--workers", "1", "--only", "length"]
    program = "import sys; from translume.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    reason = "the file size limit is reached (ulimit -f)" if place == "new" else "File too large"
    assert done.stderr == f"Error: {tmp_path}/{place}: cannot be written: {reason}\n"
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_that_changes_meanwhile_is_refused(
    parallel: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from translume.data import clean as module

    def shorter(*values: Any, **named: Any) -> Any:
        codes, learned = decide(*values, **named)
        return codes[:-1], learned

    decide = module.decide
    monkeypatch.setattr(module, "decide", shorter)
    result = run(*parallel, "--out", tmp_path / "new", "--workers", "1")
    assert (result.exit_code, result.stderr) == (1, f"Error: {parallel[0]}: changed while it was read\n")
    assert list((tmp_path / "new").iterdir()) == []
